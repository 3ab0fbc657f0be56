//! A replica's end: it is retired, when its group must never hear of it again and its log is still needed;
//! and it is removed from the disk. Whatever happened to it stays written down.

use crate::open_groups::Reservation;
use crate::replica::identity::{Identity, IdentityState};
use crate::{Group, RaftHost, RemoveGroupError, snapshot};
use disk::Disk;
use raftlog::{LogSpace, LogSpec};
use std::io;
use std::sync::Arc;
use types::{GroupId, ReplicaId};

/// The stage of its end that a replica on a disk has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaEnd {
    /// [`RaftHost::retire`] was begun: it is no member any more, and its log is there.
    Retired(ReplicaId),
    /// [`RaftHost::remove`] was begun and is to be repeated.
    Removing(ReplicaId),
    Removed(ReplicaId),
}

impl ReplicaEnd {
    /// `None` for a replica that may be opened, and where there was none. Damage hides an end: who opens the
    /// replica hears of it, and who ends it needs nothing that it hides.
    pub async fn of(group: GroupId, disk: &Arc<dyn Disk>) -> io::Result<Option<ReplicaEnd>> {
        let Some(known) = read_unless_damaged(disk, group).await? else { return Ok(None) };
        Ok(match known.state {
            IdentityState::First
            | IdentityState::Joined
            | IdentityState::FirstInUse
            | IdentityState::JoinedInUse => None,
            IdentityState::Retired => Some(ReplicaEnd::Retired(known.replica)),
            IdentityState::Removing => Some(ReplicaEnd::Removing(known.replica)),
            IdentityState::Removed => Some(ReplicaEnd::Removed(known.replica)),
        })
    }
}

impl RaftHost {
    /// Ends a replica's part in its group and keeps its log: on return it is closed, and it never votes or
    /// appends again, whatever crashes. Safe to repeat; one that is removed stays so.
    pub async fn retire(
        &self,
        group: GroupId,
        replica: ReplicaId,
        space: &Arc<LogSpace>,
    ) -> Result<(), RemoveGroupError> {
        let (open, _reservation) = self.take_to_end(group)?;
        // Before it stops: once it is down nobody would be left to retire it but a restart, which would open
        // it.
        let marked = mark_retired(group, replica, space).await;
        if let Some(open) = open {
            open.close().await;
            self.closed(&open);
        }
        marked.map_err(|error| RemoveGroupError::Io { group, why: error.to_string() })
    }

    /// The group, if it is open, and its place, which nobody takes until the reservation is dropped.
    fn take_to_end(&self, group: GroupId) -> Result<(Option<Group>, Reservation), RemoveGroupError> {
        match self.open_groups().take(group) {
            Some((open, reservation)) => Ok((Some(open), reservation)),
            None => {
                let busy = |_| RemoveGroupError::Busy { group };
                Ok((None, self.open_groups().reserve(group).map_err(busy)?))
            }
        }
    }

    /// Closes a replica and deletes its log. A replica that is not open, or not there any more, is removed as
    /// well: the call is safe to repeat, and after a crash it must be, before the group is opened here again.
    /// The state machine's own store is the caller's to delete, afterwards. Containers of a pipeline stay:
    /// they are its data.
    ///
    /// The disk remembers the replica's id, and refuses to open another one of that name.
    pub async fn remove(
        &self,
        group: GroupId,
        space: &Arc<LogSpace>,
        log: &LogSpec,
    ) -> Result<(), RemoveGroupError> {
        let (open, _reservation) = self.take_to_end(group)?;
        let replica = open.as_ref().map(|open| open.replica());
        if let Some(open) = open {
            open.close().await;
            self.closed(&open);
        }
        let removed = remove_files(group, replica, space, log).await;
        removed.map_err(|error| RemoveGroupError::Io { group, why: error.to_string() })
    }
}

/// Removes the files in this order: from the first change on until the last, a crash leaves a mark that says
/// what was being done.
async fn remove_files(
    group: GroupId,
    open: Option<ReplicaId>,
    space: &Arc<LogSpace>,
    log: &LogSpec,
) -> io::Result<()> {
    let disk = space.disk();
    let known = Identity::read(disk, group).await?;
    if known.as_ref().is_some_and(|known| known.state == IdentityState::Removed) {
        return Ok(());
    }
    // 0 where nothing says whose the log is: such a replica was never opened.
    let replica = known.as_ref().map(|known| known.replica).or(open).unwrap_or_default();
    let lost = known.map(|known| known.lost).unwrap_or_default();
    let mark = |state| Identity {
        group,
        replica,
        state,
        is_resetting: false,
        was_member: false,
        lost: lost.clone(),
    };
    mark(IdentityState::Removing).write(disk).await?;
    space.remove(log).await?;
    if !group.kind.segments_outlive_log() {
        // Another replica of the group that comes here later must not take them for its own.
        disk.create_dir_all(snapshot::ROOT).await?;
        disk.remove_dir_all(&snapshot::root(group)).await?;
        disk.sync_dir(snapshot::ROOT).await?;
        space.delete_owner(&log.owners_dir, log.first_owner).await?;
    }
    // Whoever orders the same replica again, on old news, must not get an empty one that has forgotten its
    // votes.
    mark(IdentityState::Removed).write(disk).await
}

async fn read_unless_damaged(disk: &Arc<dyn Disk>, group: GroupId) -> io::Result<Option<Identity>> {
    match Identity::read(disk, group).await {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(%group, %error, "the file that says whose replica this is is damaged");
            Ok(None)
        }
        read => read,
    }
}

async fn mark_retired(group: GroupId, replica: ReplicaId, space: &Arc<LogSpace>) -> io::Result<()> {
    let disk = space.disk();
    let known = read_unless_damaged(disk, group).await?;
    let over = [IdentityState::Retired, IdentityState::Removing, IdentityState::Removed];
    if known.as_ref().is_some_and(|known| over.contains(&known.state)) {
        return Ok(());
    }
    let lost = known.map(|known| known.lost).unwrap_or_default();
    let state = IdentityState::Retired;
    Identity { group, replica, state, is_resetting: false, was_member: false, lost }.write(disk).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::sim::{SimDisk, SimOptions};
    use raftlog::LogSpaceOptions;

    /// Else it would stay for ever, as something that SCM can neither use nor delete.
    #[tokio::test]
    async fn a_replica_whose_identity_is_damaged_can_be_ended() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimOptions::default()));
        let space = LogSpace::new(disk.clone(), LogSpaceOptions::default());
        let (group, replica) = (GroupId::om(7), ReplicaId(300));
        let in_use = Identity {
            group,
            replica,
            state: IdentityState::FirstInUse,
            is_resetting: false,
            was_member: false,
            lost: Vec::new(),
        };
        in_use.write(&disk).await.unwrap();
        let file = disk.open("replicas/om-7", false).await.unwrap();
        file.write_and_sync(0, vec![bytes::Bytes::from_static(b"X")]).await.unwrap();
        Identity::read(&disk, group).await.unwrap_err();
        assert_eq!(ReplicaEnd::of(group, &disk).await.unwrap(), None);
        mark_retired(group, replica, &space).await.unwrap();
        assert_eq!(ReplicaEnd::of(group, &disk).await.unwrap(), Some(ReplicaEnd::Retired(replica)));
    }
}
