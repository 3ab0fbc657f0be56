use crate::OpenGroupError;
use crate::group::Group;
use crate::transport::protocol::check_version;
use proto::{Code, Failure, raft as wire};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use types::{GroupId, ReplicaId};

/// The groups of a process.
#[derive(Default)]
pub(crate) struct OpenGroups {
    groups: RwLock<HashMap<GroupId, Slot>>,
}

enum Slot {
    Opening,
    Open(Group),
}

/// A group that is being opened; its place is free again when this is dropped before [`Reservation::fill`].
pub(crate) struct Reservation {
    open_groups: Arc<OpenGroups>,
    group: GroupId,
    is_filled: bool,
}

impl OpenGroups {
    pub(crate) fn reserve(self: &Arc<Self>, group: GroupId) -> Result<Reservation, OpenGroupError> {
        let mut groups = self.groups.write().expect("no holder panics");
        if groups.contains_key(&group) {
            return Err(OpenGroupError::AlreadyOpen { group });
        }
        groups.insert(group, Slot::Opening);
        Ok(Reservation { open_groups: self.clone(), group, is_filled: false })
    }

    pub(crate) fn get(&self, group: GroupId) -> Option<Group> {
        match self.groups.read().expect("no holder panics").get(&group)? {
            Slot::Opening => None,
            Slot::Open(group) => Some(group.clone()),
        }
    }

    /// Whether a replica is here, or may be.
    pub(crate) fn hello(&self, asked: &wire::HelloRequest) -> Result<bool, Failure> {
        check_version(asked.version)?;
        let id = GroupId::try_from(asked.group).map_err(|error| Failure::invalid(error.to_string()))?;
        let group = match self.groups.read().expect("no holder panics").get(&id) {
            None => return Ok(false),
            Some(Slot::Opening) => return Ok(true),
            Some(Slot::Open(group)) => group.clone(),
        };
        if !asked.cluster.is_empty() {
            check_cluster(&group, &asked.cluster)?;
        }
        Ok(group.replica() == ReplicaId(asked.replica))
    }

    /// All open groups in the order of their ids.
    pub(crate) fn all(&self) -> Vec<Group> {
        let groups = self.groups.read().expect("no holder panics");
        let open = groups.values().filter_map(|slot| match slot {
            Slot::Opening => None,
            Slot::Open(group) => Some(group.clone()),
        });
        let mut open: Vec<_> = open.collect();
        open.sort_unstable_by_key(Group::id);
        open
    }

    /// Takes a group out, so that no peer reaches it any more. Its place stays taken until the reservation is
    /// dropped.
    pub(crate) fn take(self: &Arc<Self>, group: GroupId) -> Option<(Group, Reservation)> {
        let mut groups = self.groups.write().expect("no holder panics");
        let slot = groups.get_mut(&group)?;
        match std::mem::replace(slot, Slot::Opening) {
            Slot::Opening => None,
            Slot::Open(open) => {
                Some((open, Reservation { open_groups: self.clone(), group, is_filled: false }))
            }
        }
    }

    /// The group a message is for. A message for a replica that is not here changes nothing: it may be meant
    /// for one that stood here before, on a disk that was wiped.
    pub(crate) fn addressed(&self, to: Option<&wire::Address>) -> Result<Group, Failure> {
        let to = to.ok_or_else(|| Failure::invalid("the message names no receiver"))?;
        check_version(to.version)?;
        let id = GroupId::try_from(to.group).map_err(|error| Failure::invalid(error.to_string()))?;
        let group = match self.groups.read().expect("no holder panics").get(&id) {
            None => return Err(Failure::new(Code::NotFound, format!("no replica of {id} is here"))),
            Some(Slot::Opening) => {
                return Err(Failure::new(Code::NotYet, format!("{id} is being opened or closed")));
            }
            Some(Slot::Open(group)) => group.clone(),
        };
        check_cluster(&group, &to.cluster)?;
        let (here, meant) = (group.replica(), ReplicaId(to.replica));
        if here != meant {
            let why = format!("replica {meant} of {id} is not here; replica {here} is");
            return Err(Failure::new(Code::NotFound, why));
        }
        Ok(group)
    }
}

fn check_cluster(group: &Group, cluster: &str) -> Result<(), Failure> {
    if group.cluster() == cluster {
        return Ok(());
    }
    let (id, here) = (group.id(), group.cluster());
    let why = format!("{id} here belongs to cluster `{here}`, the message to `{cluster}`");
    Err(Failure::new(Code::WrongCluster, why))
}

impl Reservation {
    pub(crate) fn fill(mut self, group: Group) {
        self.is_filled = true;
        self.open_groups.groups.write().expect("no holder panics").insert(self.group, Slot::Open(group));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_filled {
            self.open_groups.groups.write().expect("no holder panics").remove(&self.group);
        }
    }
}
