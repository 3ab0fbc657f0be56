//! Comparing two replicas of one container, before one of them goes by the word of the other. Ends that are
//! equal prove nothing where a log has lost its votes: two histories may end alike.

use crate::container_reader::{ContainerReader, Reading};
use crate::datanode_disk::DatanodeDisk;
use crate::hash::ContainerHash;
use parking::Throttle;
use raftlog::Discards;
use std::sync::Arc;
use types::{ContainerId, LogIndex};

/// Whether what neither of two replicas has given up is the same in both, by their records' heads, which have
/// the checksums of the bodies.
pub(super) async fn have_same_records(
    rate: &Throttle,
    disks: [&Arc<DatanodeDisk>; 2],
    container: ContainerId,
) -> anyhow::Result<bool> {
    let first = disks[0].reader(container, Reading::Whole).await?;
    let second = disks[1].reader(container, Reading::Whole).await?;
    let given_up = [first.discards().clone(), second.discards().clone()];
    let is_given_up = |index| given_up.iter().any(|list: &Discards| list.get(index).is_some());
    Ok(hash_without(rate, first, is_given_up).await? == hash_without(rate, second, is_given_up).await?)
}

/// The hash of a replica's records but for these.
async fn hash_without(
    rate: &Throttle,
    mut reader: ContainerReader,
    is_left_out: impl Fn(LogIndex) -> bool,
) -> anyhow::Result<[u8; 32]> {
    let mut hash = ContainerHash::default();
    while let Some(record) = reader.next().await? {
        rate.take(record.walked.bytes as usize).await;
        if !is_left_out(record.walked.meta.id.index) {
            hash.add(&record.walked);
        }
    }
    Ok(hash.finish())
}
