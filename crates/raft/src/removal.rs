//! How a replica leaves a disk.

use crate::identity::{Identity, IdentityState};
use crate::{RaftHost, RemoveGroupError, snapshot};
use raftlog::{LogSpace, LogSpec};
use std::io;
use std::sync::Arc;
use types::{GroupId, GroupKind, ReplicaId};

impl RaftHost {
    /// Closes a replica and deletes its log. A replica that is not open, or not there any more, is removed as well: the
    /// call is safe to repeat, and after a crash it must be, before the group is opened here again. The state machine's
    /// own store is the caller's to delete, afterwards. Containers of a pipeline stay: they are its data.
    ///
    /// The disk remembers the id of a metadata group's replica, and refuses to open another one of that name.
    pub async fn remove(
        &self,
        group: GroupId,
        space: &Arc<LogSpace>,
        log: &LogSpec,
    ) -> Result<(), RemoveGroupError> {
        // Nobody opens it until the reservation is dropped.
        let (open, _reservation) = match self.registry().take(group) {
            Some((open, reservation)) => (Some(open), reservation),
            None => {
                let busy = |_| RemoveGroupError::Busy { group };
                (None, self.registry().reserve(group).map_err(busy)?)
            }
        };
        let replica = open.as_ref().map(|open| open.replica());
        if let Some(open) = open {
            open.close().await;
            self.closed(&open);
        }
        let removed = remove_files(group, replica, space, log).await;
        removed.map_err(|error| RemoveGroupError::Io { group, why: error.to_string() })
    }
}

/// In this order: from the first change on until the last, a crash leaves a mark that says what was being done.
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
    if group.kind == GroupKind::Pipeline {
        return Identity::forget(disk, group).await;
    }
    // Another replica of the group that comes here later must not take them for its own.
    disk.create_dir_all(snapshot::ROOT).await?;
    disk.remove_dir_all(&snapshot::root(group)).await?;
    disk.sync_dir(snapshot::ROOT).await?;
    space.delete_owner(&log.owners_dir, log.first_owner).await?;
    mark(IdentityState::Removed).write(disk).await
}
