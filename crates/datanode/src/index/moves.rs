//! Rows of a container whose records stand elsewhere from now on: it was compacted.

use super::records::{BlockRecord, ChunkPlace, ChunkRecord};
use super::{Index, keys};
use anyhow::{Context, ensure};
use raftlog::Place;
use rocksdb::WriteBatch;
use types::{BlockId, ContainerId};

/// The most rows that are written at once. A batch need not have all rows: the old places are there until the
/// last one is durable.
const ROWS_MAX: usize = 65_536;

/// The places where records stood and where they stand now, 16 bytes for each record: 8 MiB for the half
/// million of a container with blocks of 4 KiB.
#[derive(Default)]
pub(crate) struct Moves {
    /// The moves, in the order of the old places, which is that of the new ones.
    moves: Vec<(At, At)>,
}

/// A segment, and an offset in units of [`UNIT`].
type At = (u32, u32);

/// The unit of offsets in bytes: records stand at multiples of it, and segments end below four billion of
/// them.
const UNIT: u64 = 8;

impl Moves {
    /// Adds the next record. Records come in their order, which a compaction keeps.
    pub(crate) fn push(&mut self, from: Place, to: Place) -> anyhow::Result<()> {
        let of = |place: Place| at(ChunkPlace::of(place)).with_context(|| format!("{place:?} is no place"));
        let (from, to) = (of(from)?, of(to)?);
        ensure!(self.moves.last().is_none_or(|last| last.0 < from), "a record stands before the one before");
        self.moves.push((from, to));
        Ok(())
    }

    /// The place by now of what stood at a place, if that was copied.
    pub(crate) fn get(&self, from: &Place) -> Option<Place> {
        let to = self.of(ChunkPlace::of(*from)).ok()?;
        Some(Place { segment: to.segment, offset: to.offset, ..*from })
    }

    pub(crate) fn len(&self) -> usize {
        self.moves.len()
    }

    fn of(&self, place: ChunkPlace) -> anyhow::Result<ChunkPlace> {
        let found = at(place).and_then(|from| {
            let n = self.moves.binary_search_by_key(&from, |moved| moved.0).ok()?;
            Some(self.moves[n].1)
        });
        let (segment, units) = found.with_context(|| format!("the record at {place:?} was not copied"))?;
        Ok(ChunkPlace { segment, offset: u64::from(units) * UNIT, ..place })
    }
}

fn at(place: ChunkPlace) -> Option<At> {
    let units = u32::try_from(place.offset / UNIT).ok()?;
    place.offset.is_multiple_of(UNIT).then_some((place.segment, units))
}

/// A row with its new value.
type Row = (Box<[u8]>, Vec<u8>);

impl Index {
    /// Whether a row of the container points before a segment.
    pub(crate) fn points_before(&self, container: ContainerId, segment: u32) -> anyhow::Result<bool> {
        for row in self.block_rows(container, 0) {
            if row?.1.first.segment < segment {
                return Ok(true);
            }
        }
        for row in self.container_chunk_rows(container) {
            if row?.1.place.segment < segment {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds out whether all rows that point before a segment can be moved.
    pub(crate) fn check_moves(
        &self,
        container: ContainerId,
        segment: u32,
        moves: &Moves,
    ) -> anyhow::Result<()> {
        self.moved_rows(container, segment, moves).try_for_each(|row| row.map(drop))
    }

    /// Moves all rows that point before a segment. Durable on return; a crash before leaves some of them as
    /// they were.
    pub(crate) fn apply_moves(
        &self,
        container: ContainerId,
        segment: u32,
        moves: &Moves,
    ) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        for row in self.moved_rows(container, segment, moves) {
            let (key, value) = row?;
            batch.put(key, value);
            if batch.len() >= ROWS_MAX {
                self.db.write(std::mem::take(&mut batch))?;
            }
        }
        self.db.write(batch)?;
        self.flush()
    }

    fn moved_rows<'a>(
        &'a self,
        container: ContainerId,
        segment: u32,
        moves: &'a Moves,
    ) -> impl Iterator<Item = anyhow::Result<Row>> + use<'a> {
        let blocks = self.block_rows(container, 0).filter_map(move |row| {
            let moved = |(block, record): (BlockId, BlockRecord)| {
                let first = moves.of(record.first).with_context(|| format!("move block {block}"))?;
                let value = BlockRecord { first, ..record }.encode().to_vec();
                Ok((keys::block(block).into(), value))
            };
            match row {
                Ok((_, record)) if record.first.segment >= segment => None,
                row => Some(row.and_then(moved)),
            }
        });
        let chunks = self.container_chunk_rows(container).filter_map(move |row| {
            let moved = |(key, record): (Box<[u8]>, ChunkRecord)| {
                let place =
                    moves.of(record.place).with_context(|| format!("move {}", keys::describe(&key)))?;
                Ok((key, ChunkRecord { place, ..record }.encode().to_vec()))
            };
            match row {
                Ok((_, record)) if record.place.segment >= segment => None,
                row => Some(row.and_then(moved)),
            }
        });
        blocks.chain(chunks)
    }
}
