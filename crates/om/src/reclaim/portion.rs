//! The portions in which the tables are read: deleted pieces that have waited long enough, and unused blocks
//! by container, looked up once more.

use super::waits::Waits;
use crate::blocks::{BlockKey, NAMED_PREFIX, NamingRows, UNUSED_PREFIX, container_prefix, naming_row};
use crate::ops::PIECES_AT_ONCE;
use crate::queries::Scan;
use crate::tables::{DELETED_PREFIX, decode};
use crate::upgrade::rows_from;
use anyhow::Context;
use bytes::Bytes;
use planted::Bug;
use proto::om::{DeletedPieces, UnusedBlock};
use statedb::Db;
use std::collections::BTreeSet;
use tokio::time::Instant;

/// The most containers, and the most blocks, that SCM takes in a call.
const CONTAINERS_MAX: usize = 64;
const BLOCKS_MAX: usize = 16_384;

/// The deleted pieces that one command is to sort: the records up to a key; or none, as all are young, and
/// the time at which the oldest was deleted, 0: there is none.
pub(super) enum Deleted {
    UpTo(Bytes),
    Young { oldest_ms: u64 },
}

/// Reads records of deleted pieces, after one key and before another.
pub(super) fn deleted(db: &Db, after: &[u8], before: &[u8]) -> anyhow::Result<Deleted> {
    let (mut last, mut pieces) = (None, 0);
    for row in rows_from(db, DELETED_PREFIX, &[DELETED_PREFIX.max(after), b"\0"].concat()) {
        let (key, value) = row?;
        let record: DeletedPieces = decode(&key, &value)?;
        if *key >= *before {
            let oldest_ms = record.deleted_ms;
            return Ok(last.map_or(Deleted::Young { oldest_ms }, Deleted::UpTo));
        }
        last = Some(key.into_vec().into());
        pieces += record.pieces.len();
        if pieces >= PIECES_AT_ONCE {
            break;
        }
    }
    Ok(last.map_or(Deleted::Young { oldest_ms: 0 }, Deleted::UpTo))
}

/// Unused blocks of some containers.
pub(super) struct Portion {
    pub(super) containers: Vec<OfContainer>,
    /// The container with which the next portion begins; `None`: there are no more.
    pub(super) next: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct OfContainer {
    pub(super) container: u64,
    /// Blocks that no row names, and their bytes.
    pub(super) blocks: Vec<BlockKey>,
    pub(super) bytes: u64,
    /// Blocks that some row names, and that should not be here.
    pub(super) named: Vec<BlockKey>,
    /// The time at which the oldest of the blocks that were looked at was deleted.
    pub(super) oldest_ms: u64,
    /// Whether the container has more unused blocks than those that were looked at.
    pub(super) is_part: bool,
}

/// Reads unused blocks from a container on, and past the containers whose turn is later.
pub(super) fn unused(db: &Db, from: u64, waits: &Waits, now: Instant) -> anyhow::Result<Portion> {
    let mut unused = Scan::new(db, UNUSED_PREFIX, &container_prefix(UNUSED_PREFIX, from));
    // This view is later than that of unused blocks: what a row names meanwhile is seen, and what is unused
    // no row takes.
    let mut named = Named::new(db, from);
    let (mut containers, mut room, mut met) = (Vec::new(), BLOCKS_MAX, BTreeSet::new());
    while let Some((key, _)) = unused.record()? {
        let container = BlockKey::in_key(key).context("a row of an unused block names it")?.container();
        if containers.len() == CONTAINERS_MAX || room == 0 {
            waits.keep(from..container, &met);
            return Ok(Portion { containers, next: Some(container) });
        }
        met.insert(container);
        if !waits.is_waiting(container, now) {
            let blocks_max = room.min(waits.blocks_max(container));
            let (found, looked_at) = of_container(&mut unused, &mut named, container, blocks_max)?;
            room -= looked_at;
            containers.push(found);
        }
        let Some(next) = container.checked_add(1) else { break };
        unused.leap(&container_prefix(UNUSED_PREFIX, next));
    }
    waits.keep(from..u64::MAX, &met);
    Ok(Portion { containers, next: None })
}

/// Reads the unused blocks of a container; returns them, and how many were looked at.
fn of_container(
    unused: &mut Scan<'_>,
    named: &mut Named<'_>,
    container: u64,
    blocks_max: usize,
) -> anyhow::Result<(OfContainer, usize)> {
    let mut found = OfContainer {
        container,
        blocks: Vec::new(),
        bytes: 0,
        named: Vec::new(),
        oldest_ms: u64::MAX,
        is_part: false,
    };
    let mut looked_at = 0;
    while let Some((key, value)) = unused.record()? {
        let block = BlockKey::in_key(key).filter(|block| block.container() == container);
        let Some(block) = block else { break };
        if looked_at == blocks_max {
            found.is_part = true;
            break;
        }
        looked_at += 1;
        let UnusedBlock { bytes, deleted_ms } = decode(key, value)?;
        found.oldest_ms = found.oldest_ms.min(deleted_ms);
        match named.look_up(&block)? {
            Look::Unnamed => {
                found.blocks.push(block);
                found.bytes = found.bytes.wrapping_add(bytes);
            }
            Look::Named => found.named.push(block),
            Look::Unsure => {}
        }
        unused.step();
    }
    Ok((found, looked_at))
}

enum Look {
    Unnamed,
    Named,
    /// A row is said to name the block, and does no more: what it named is deleted, and will be sorted.
    Unsure,
}

/// The rows of `l`, in order, and what the rows that they speak of name.
struct Named<'a> {
    db: &'a Db,
    scan: Scan<'a>,
    rows: NamingRows,
}

impl<'a> Named<'a> {
    /// Begins with the blocks of a container.
    fn new(db: &'a Db, from: u64) -> Named<'a> {
        let scan = Scan::new(db, NAMED_PREFIX, &container_prefix(NAMED_PREFIX, from));
        Named { db, scan, rows: NamingRows::default() }
    }

    /// Looks for what names a block. Blocks are asked for in their order.
    fn look_up(&mut self, block: &BlockKey) -> anyhow::Result<Look> {
        if planted::has(Bug::NamedBlocksGo) {
            return Ok(Look::Unnamed);
        }
        let (prefix, mut look) = (block.named_prefix(), Look::Unnamed);
        // A scan that is at its end stays there: nothing comes later. To look again would go past all that
        // was deleted there, for each block.
        if self.scan.record()?.is_some_and(|(key, _)| key < prefix.as_slice()) {
            self.scan.leap(&prefix);
        }
        while let Some((key, _)) = self.scan.record()?
            && key.starts_with(&prefix)
        {
            if self.rows.bytes(self.db, naming_row(key), block)?.is_some() {
                return Ok(Look::Named);
            }
            look = Look::Unsure;
            self.scan.step();
        }
        Ok(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request};
    use crate::ops::{CommitKey, DeleteKeys, SortDeleted};
    use crate::reclaim::waits::Said;
    use proto::datanode::BlockName;
    use proto::om::{BlockPiece, DeleteKeysRequest, SortDeletedCommand};
    use proto::scm::{DiscardProgress, DiscardState};
    use rocksdb::perf::{PerfContext, PerfMetric, PerfStatsLevel, set_perf_stats};
    use std::time::Duration;

    /// A key behind all records of deleted pieces.
    const ALL: &[u8] = b"e";

    /// Tables in which so many blocks of each container are unused.
    fn unused_of(containers: std::ops::Range<u64>, blocks: u64) -> Namespace {
        let mut namespace = Namespace::new();
        for container in containers {
            let piece = |local: u64| {
                let block = Some(BlockName { container, local, nonce: proto::uuid_bytes(local.into()) });
                BlockPiece { block, offset: 0, length: 10, commit_index: 9, crc: 0 }
            };
            let mut commit = commit_request("a", container);
            let key = commit.key.as_mut().unwrap();
            (key.size, key.pieces) = (10 * blocks, (1..=blocks).map(piece).collect());
            namespace.run::<CommitKey>(commit).unwrap();
        }
        let (volume, bucket, keys) = ("s3v".into(), "photos".into(), vec!["a".into()]);
        namespace.run::<DeleteKeys>(DeleteKeysRequest { volume, bucket, keys, precondition: None }).unwrap();
        while let Deleted::UpTo(last) = deleted(&namespace.db, b"", ALL).unwrap() {
            let some = SortDeletedCommand { after: Bytes::new(), last, pieces_max: 10_000 };
            namespace.run::<SortDeleted>(some).unwrap();
        }
        namespace
    }

    fn sizes(portion: &Portion) -> Vec<(u64, usize, bool)> {
        let containers = portion.containers.iter();
        containers.map(|found| (found.container, found.blocks.len(), found.is_part)).collect()
    }

    #[tokio::test]
    async fn a_portion_has_what_a_call_takes_and_leaves_out_what_waits() {
        let (namespace, waits, now) = (unused_of(1..70, 3), Waits::default(), Instant::now());
        let first = unused(&namespace.db, 0, &waits, now).unwrap();
        assert_eq!(first.next, Some(65));
        assert_eq!(sizes(&first), (1..65).map(|container| (container, 3, false)).collect::<Vec<_>>());
        assert_eq!(first.containers[0].bytes, 30);
        let rest = unused(&namespace.db, 65, &waits, now).unwrap();
        assert_eq!((sizes(&rest).len(), rest.next), (5, None));
        let progress = DiscardProgress { state: DiscardState::DiscardAway.into(), ..Default::default() };
        (1..69).for_each(|container| waits.note(container, Said::by_scm(progress.clone(), 3, 1), now));
        // Of this one nothing is unused any more: that it is gone was done, and its answer lost.
        waits.note(1000, Said::by_scm(progress.clone(), 3, 1), now);
        let due = unused(&namespace.db, 0, &waits, now).unwrap();
        assert!(!waits.oldest(100).iter().any(|(container, _)| *container == 1000));
        assert_eq!((sizes(&due), due.next), (vec![(69, 3, false)], None));
        let later = unused(&namespace.db, 0, &waits, now + Duration::from_secs(60)).unwrap();
        assert_eq!(later.containers.len(), CONTAINERS_MAX);
    }

    #[tokio::test]
    async fn of_large_containers_a_part_is_taken_and_of_those_that_wait_a_small_one() {
        let (namespace, waits, now) = (unused_of(1..3, 9000), Waits::default(), Instant::now());
        let first = unused(&namespace.db, 0, &waits, now).unwrap();
        assert_eq!(sizes(&first), [(1, 9000, false), (2, BLOCKS_MAX - 9000, true)]);
        let progress = DiscardProgress { state: DiscardState::DiscardHeld.into(), ..Default::default() };
        waits.note(1, Said::by_scm(progress, 9000, 1), now);
        let later = unused(&namespace.db, 0, &waits, now + Duration::from_secs(60)).unwrap();
        assert_eq!(sizes(&later), [(1, 1024, true), (2, 9000, false)]);
    }

    /// Rows of `l` were deleted when they named blocks no more, and RocksDB goes past them until it has
    /// compacted.
    #[tokio::test]
    async fn deleted_rows_are_gone_past_once_and_not_for_each_block() {
        const BLOCKS: u64 = 2000;
        let namespace = unused_of(1..2, BLOCKS);
        set_perf_stats(PerfStatsLevel::EnableCount);
        let mut counted = PerfContext::default();
        counted.reset();
        let found = unused(&namespace.db, 0, &Waits::default(), Instant::now()).unwrap();
        let passed = counted.metric(PerfMetric::InternalDeleteSkippedCount);
        set_perf_stats(PerfStatsLevel::Disable);
        assert_eq!(found.containers[0].blocks.len() as u64, BLOCKS);
        assert!((1..10 * BLOCKS).contains(&passed), "{passed} deleted rows were gone past");
    }
}
