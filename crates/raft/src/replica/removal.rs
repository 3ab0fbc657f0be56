//! A replica's end: it is retired, when its group must never hear of it again and its log is still needed;
//! and it is removed from the disk. Whatever happened to it stays written down.

use crate::open_groups::Reservation;
use crate::replica::identity::{End, Identity};
use crate::{Group, RaftHost, RemoveGroupError, snapshot};
use raftlog::{LogSpace, LogSpec};
use std::io;
use std::sync::Arc;
use types::{GroupId, ReplicaId};

impl RaftHost {
    /// Ends a replica's part in its group and keeps its log: on return it is closed, it never votes or
    /// appends again, whatever crashes, and its state machine is dropped: what that owned is the caller's.
    /// Safe to repeat; a replica that is removed stays so.
    pub async fn retire(
        &self,
        group: GroupId,
        replica: ReplicaId,
        space: &Arc<LogSpace>,
    ) -> Result<(), RemoveGroupError> {
        let (open, _reservation) = self.take_to_end(group)?;
        // The mark comes before the stop: once the replica is down nobody would be left to retire it but a
        // restart, which would open it.
        let marked = mark_retired(group, replica, space).await;
        if let Some(open) = open {
            open.close().await;
            self.closed(&open);
            open.until_gone().await;
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
            open.until_gone().await;
        }
        let removed = remove_files(group, replica, space, log).await;
        removed.map_err(|error| RemoveGroupError::Io { group, why: error.to_string() })
    }
}

/// Removes a replica's files, in such an order that from the first change on until the last a crash leaves a
/// mark that says what was being done.
async fn remove_files(
    group: GroupId,
    open: Option<ReplicaId>,
    space: &Arc<LogSpace>,
    log: &LogSpec,
) -> io::Result<()> {
    let disk = space.disk();
    let known = Identity::read(disk, group).await?;
    if known.as_ref().is_some_and(|known| known.end == Some(End::Removed)) {
        return Ok(());
    }
    // 0 where nothing says whose the log is: such a replica was never opened.
    let unknown = || Identity::unknown(group, open.unwrap_or_default());
    let known = Identity { is_resetting: false, ..known.unwrap_or_else(unknown) };
    let removing = known.ended(End::Removing);
    removing.write(disk).await?;
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
    removing.ended(End::Removed).write(disk).await
}

async fn mark_retired(group: GroupId, replica: ReplicaId, space: &Arc<LogSpace>) -> io::Result<()> {
    let disk = space.disk();
    let known = Identity::read_unless_damaged(disk, group).await?;
    if known.as_ref().is_some_and(|known| known.end.is_some()) {
        return Ok(());
    }
    let known = known.unwrap_or_else(|| Identity::unknown(group, replica));
    Identity { replica, ..known.ended(End::Retired) }.write(disk).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::identity::Origin;
    use crate::replica::record::{ReplicaRecord, ReplicaStage};
    use disk::Disk;
    use disk::sim::{SimDisk, SimOptions};
    use raftlog::LogSpaceOptions;

    /// A replica that could not be ended would stay for ever, as something that SCM can neither use nor
    /// delete.
    #[tokio::test]
    async fn a_replica_whose_identity_is_damaged_can_be_ended() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimOptions::default()));
        let space = LogSpace::new(disk.clone(), LogSpaceOptions::default());
        let (group, replica) = (GroupId::om(7), ReplicaId(300));
        Identity::new(group, replica, Origin::First).write(&disk).await.unwrap();
        let file = disk.open("replicas/om-7", false).await.unwrap();
        file.write_and_sync(0, vec![bytes::Bytes::from_static(b"X")]).await.unwrap();
        Identity::read(&disk, group).await.unwrap_err();
        assert_eq!(ReplicaRecord::read_unless_damaged(group, &disk).await.unwrap(), None);
        mark_retired(group, replica, &space).await.unwrap();
        let retired =
            ReplicaRecord { replica, stage: ReplicaStage::Retired, is_used: true, was_member: true };
        assert_eq!(ReplicaRecord::read(group, &disk).await.unwrap(), Some(retired));
    }

    #[tokio::test]
    async fn whether_a_replica_was_used_is_known_to_its_end() {
        for is_used in [false, true] {
            let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimOptions::default()));
            let space = LogSpace::new(disk.clone(), LogSpaceOptions::default());
            let (group, replica) = (GroupId::om(7), ReplicaId(300));
            Identity { is_used, ..Identity::new(group, replica, Origin::First) }.write(&disk).await.unwrap();
            mark_retired(group, replica, &space).await.unwrap();
            let record = ReplicaRecord::read(group, &disk).await.unwrap().expect("it is there");
            assert_eq!((record.stage, record.is_used), (ReplicaStage::Retired, is_used));
        }
    }
}
