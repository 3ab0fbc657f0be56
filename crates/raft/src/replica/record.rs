//! The record of a replica, as its owner reads it, and the stages that it goes through.

use crate::replica::identity::{self, Identity, IdentityState};
use disk::Disk;
use std::io;
use std::sync::Arc;
use types::{GroupId, ReplicaId};

/// The record that a disk has of its replica of a group. It is written before anything else of the replica
/// and stays for good; **its stage only goes forward**, until another replica takes the place of one that is
/// removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    pub replica: ReplicaId,
    pub stage: ReplicaStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaStage {
    /// It has promised nothing: what is missing of it was never there.
    Creating,
    /// It may have voted and acknowledged: what is missing of it was lost.
    InUse,
    /// [`crate::RaftHost::retire`] was begun: it is no member any more, and its log is there.
    Retired,
    /// [`crate::RaftHost::remove`] was begun and is to be repeated.
    Removing,
    Removed,
}

impl ReplicaRecord {
    /// The groups of which the disk has a record, in order.
    pub async fn groups(disk: &Arc<dyn Disk>) -> io::Result<Vec<GroupId>> {
        let names = disk.list(identity::DIR).await?;
        let mut groups: Vec<GroupId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        groups.sort_unstable();
        Ok(groups)
    }

    /// `None` where there was never a replica. Damage hides a record: who opens the replica hears of it, and
    /// who ends it needs nothing that it hides.
    pub async fn of(group: GroupId, disk: &Arc<dyn Disk>) -> io::Result<Option<ReplicaRecord>> {
        let known = Identity::read_unless_damaged(disk, group).await?;
        Ok(known.map(|known| ReplicaRecord { replica: known.replica, stage: known.state.stage() }))
    }
}

impl ReplicaStage {
    /// Whether it never votes or appends again.
    pub fn has_ended(self) -> bool {
        self >= ReplicaStage::Retired
    }

    /// Whether its log is of no use any more.
    pub fn is_being_removed(self) -> bool {
        self >= ReplicaStage::Removing
    }
}

impl IdentityState {
    pub(crate) fn stage(self) -> ReplicaStage {
        match self {
            IdentityState::First | IdentityState::Joined => ReplicaStage::Creating,
            IdentityState::FirstInUse | IdentityState::JoinedInUse => ReplicaStage::InUse,
            IdentityState::Retired => ReplicaStage::Retired,
            IdentityState::Removing => ReplicaStage::Removing,
            IdentityState::Removed => ReplicaStage::Removed,
        }
    }
}
