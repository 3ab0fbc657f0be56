//! The record of a replica, as its owner reads it, and the stages that it goes through.

use crate::replica::identity::{self, End, Identity};
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
    /// Whether the replica may have voted and acknowledged: what is missing of it was then lost. Stays true
    /// to the end.
    pub is_used: bool,
    /// Whether a committed membership has had the replica: it is then a member, or was removed.
    pub was_member: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaStage {
    /// The replica has promised nothing: what is missing of it was never there.
    Creating,
    InUse,
    /// [`crate::RaftHost::retire`] was begun: the replica is no member any more, and its log is there.
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

    /// Reads the record that a disk has of a group's replica; `None` where there was never one.
    pub async fn read(group: GroupId, disk: &Arc<dyn Disk>) -> io::Result<Option<ReplicaRecord>> {
        Ok(Identity::read(disk, group).await?.map(ReplicaRecord::from))
    }

    /// Reads a record as [`ReplicaRecord::read`] does, or `None` where it is damaged: who opens the replica
    /// hears of that, and who ends it needs nothing that damage hides.
    pub async fn read_unless_damaged(
        group: GroupId,
        disk: &Arc<dyn Disk>,
    ) -> io::Result<Option<ReplicaRecord>> {
        Ok(Identity::read_unless_damaged(disk, group).await?.map(ReplicaRecord::from))
    }
}

impl From<Identity> for ReplicaRecord {
    fn from(identity: Identity) -> ReplicaRecord {
        let Identity { replica, is_used, was_member, end, .. } = identity;
        let stage = match end {
            None if is_used => ReplicaStage::InUse,
            None => ReplicaStage::Creating,
            Some(End::Retired) => ReplicaStage::Retired,
            Some(End::Removing) => ReplicaStage::Removing,
            Some(End::Removed) => ReplicaStage::Removed,
        };
        ReplicaRecord { replica, stage, is_used, was_member }
    }
}

impl ReplicaStage {
    /// Whether the replica never votes or appends again.
    pub fn has_ended(self) -> bool {
        self >= ReplicaStage::Retired
    }

    /// Whether the replica's log is of no use any more.
    pub fn is_being_removed(self) -> bool {
        self >= ReplicaStage::Removing
    }
}
