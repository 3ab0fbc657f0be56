//! What is read of the tables at a time: deleted pieces that have waited long enough, and unused blocks by container,
//! looked up once more.

use super::waits::Waits;
use crate::blocks::{self, BlockKey, NAMED_PREFIX, UNUSED_PREFIX, container_prefix};
use crate::queries::Scan;
use crate::tables::{DELETED_PREFIX, decode};
use crate::upgrade::rows_from;
use anyhow::Context;
use bytes::Bytes;
use planted::Bug;
use proto::om::{DeletedPieces, UnusedBlock};
use statedb::Db;
use tokio::time::Instant;

/// What SCM takes in a call.
const CONTAINERS_MAX: usize = 64;
const BLOCKS_MAX: usize = 16_384;
/// Pieces that one command sorts, which takes some milliseconds.
pub(super) const PIECES_AT_ONCE: usize = 2048;

/// The records of deleted pieces that one command is to sort: up to this one. Or none, and when the oldest there is was
/// deleted; 0: there is none.
pub(super) enum Deleted {
    UpTo(Bytes),
    Young { oldest_ms: u64 },
}

/// Records from after this one on that were deleted up to then.
pub(super) fn deleted(db: &Db, after: &[u8], until_ms: u64) -> anyhow::Result<Deleted> {
    let (mut last, mut pieces) = (None, 0);
    for row in rows_from(db, DELETED_PREFIX, &[DELETED_PREFIX.max(after), b"\0"].concat()) {
        let (key, value) = row?;
        let record: DeletedPieces = decode(&key, &value)?;
        if record.deleted_ms > until_ms {
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
    /// When the oldest of those that were looked at was deleted.
    pub(super) oldest_ms: u64,
    /// There are more.
    pub(super) is_part: bool,
}

/// Reads from a container on, and past those whose turn is later.
pub(super) fn unused(db: &Db, from: u64, waits: &Waits, now: Instant) -> anyhow::Result<Portion> {
    let mut unused = Scan::new(db, UNUSED_PREFIX, &container_prefix(UNUSED_PREFIX, from));
    // Of later than what is unused: what a row names meanwhile is seen, and what is unused none takes.
    let mut named = Scan::new(db, NAMED_PREFIX, &container_prefix(NAMED_PREFIX, from));
    let (mut containers, mut room) = (Vec::new(), BLOCKS_MAX);
    while let Some((key, _)) = unused.record()? {
        let container = BlockKey::in_key(key).context("a row of an unused block names it")?.container();
        if containers.len() == CONTAINERS_MAX || room == 0 {
            return Ok(Portion { containers, next: Some(container) });
        }
        if !waits.is_waiting(container, now) {
            let blocks_max = room.min(waits.blocks_max(container));
            let (found, looked_at) = of_container(db, &mut unused, &mut named, container, blocks_max)?;
            room -= looked_at;
            containers.push(found);
        }
        let Some(next) = container.checked_add(1) else { break };
        unused.leap(&container_prefix(UNUSED_PREFIX, next));
    }
    Ok(Portion { containers, next: None })
}

/// And how many blocks were looked at.
fn of_container(
    db: &Db,
    unused: &mut Scan<'_>,
    named: &mut Scan<'_>,
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
        match look_up(db, named, &block)? {
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
    /// A row is said to name it that does no more: what it named is deleted, and will be sorted.
    Unsure,
}

/// Looks for what names a block. Blocks are asked for in their order.
fn look_up(db: &Db, named: &mut Scan<'_>, block: &BlockKey) -> anyhow::Result<Look> {
    if planted::has(Bug::NamedBlocksGo) {
        return Ok(Look::Unnamed);
    }
    let (prefix, mut look) = (block.named_prefix(), Look::Unnamed);
    // At the end there is nothing from an earlier place on. To look again would go past all that was deleted there, for each
    // block.
    if named.record()?.is_some_and(|(key, _)| key < prefix.as_slice()) {
        named.leap(&prefix);
    }
    while let Some((key, _)) = named.record()?
        && key.starts_with(&prefix)
    {
        if blocks::names(db, blocks::naming_row(key), block)? {
            return Ok(Look::Named);
        }
        look = Look::Unsure;
        named.step();
    }
    Ok(look)
}
