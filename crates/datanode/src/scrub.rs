//! Reading closed containers again and again, so that what a disk loses is found while there are other
//! replicas.
//!
//! One task for each disk goes through its closed containers in order, at a bounded rate: every record of a
//! container is checked against its checksums, then every row of its index against the record it names, and
//! the rows against the container's counters. A bad replica is marked unhealthy and not looked at again; one
//! that cannot be read for another reason is tried again.

use crate::container_reader::{ContainerReader, Reading};
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::finish_deletions;
use crate::index::Index;
use crate::index::ScrubPosition;
use crate::index::records::BlockRecord;
use crate::layout::OWNERS_DIR;
use crate::verdict::condemns;
use anyhow::{Context, bail, ensure};
use prost::Message;
use proto::datanode::{ChunkCommand, PipelineCommand, pipeline_command};
use raftlog::{Place, ReadError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info};
use types::{BlockId, Clock, ContainerId};

/// The most rows that are looked at with one visit to RocksDB.
const ROWS_MAX: usize = 256;
/// The cost of reading a record's head: a block of the file.
const HEAD_READ_BYTES: u64 = 4096;
/// The pause after the index or a container could not be read.
const RETRY: Duration = Duration::from_secs(60);
/// The looks at a container that may end without a verdict, before the pass goes on to the next one: what a
/// process lacks for longer than two minutes must not keep the scrubber from the others.
const TRIES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubOptions {
    pub bytes_per_second: u64,
    pub interval: Duration,
}

pub(crate) struct Scrubber {
    disk: Arc<DatanodeDisk>,
    options: ScrubOptions,
    clock: Arc<dyn Clock>,
    /// The time at which the next read may begin.
    next_read: Instant,
}

impl Scrubber {
    pub(crate) fn new(disk: Arc<DatanodeDisk>, options: ScrubOptions, clock: Arc<dyn Clock>) -> Scrubber {
        Scrubber { disk, options, clock, next_read: Instant::now() }
    }

    /// Scrubs the disk, pass after pass, until it fails. May be dropped anywhere: the position is saved as a
    /// whole, and what was read since is read again. A deletion that is being finished is one that a crash
    /// may interrupt as well.
    pub(crate) async fn run(mut self) {
        while self.disk.failure().is_none() {
            if let Err(failure) = self.pass().await {
                let disk = self.disk.real.root().display();
                error!(%disk, error = format!("{failure:#}"), "scrub a disk; trying on");
                sleep(RETRY).await;
            }
        }
    }

    /// Goes on with a pass, or waits until the next one is due and begins it; returns at its end.
    async fn pass(&mut self) -> anyhow::Result<()> {
        let mut position =
            self.disk.index.with(move |index| index.scrub_position()).await?.unwrap_or_default();
        self.disk.counters.scrub_last_pass_ms.store(position.last_pass_ms, Ordering::Relaxed);
        if position.container == ContainerId(0) {
            let interval_ms = u64::try_from(self.options.interval.as_millis()).unwrap_or(u64::MAX);
            let due_ms = position.began_ms.saturating_add(interval_ms);
            sleep(Duration::from_millis(due_ms.saturating_sub(self.clock.now_ms()))).await;
            position.began_ms = self.clock.now_ms();
        }
        while let Some(container) = self.next_container(position.container).await? {
            let segment = if container == position.container { position.segment } else { 0 };
            position = ScrubPosition { container, segment, ..position };
            self.scrub_trying(&mut position).await;
            position = ScrubPosition { container: ContainerId(container.0 + 1), segment: 0, ..position };
            self.save(position, true).await?;
        }
        let now_ms = self.clock.now_ms();
        let done = ScrubPosition { container: ContainerId(0), segment: 0, last_pass_ms: now_ms, ..position };
        self.save(done, true).await?;
        self.disk.counters.scrub_passes.fetch_add(1, Ordering::Relaxed);
        self.disk.counters.scrub_last_pass_ms.store(now_ms, Ordering::Relaxed);
        Ok(())
    }

    /// The first closed container from `from` on that is not known to be bad. The one that a pipeline ended
    /// with has nothing.
    async fn next_container(&self, from: ContainerId) -> anyhow::Result<Option<ContainerId>> {
        self.disk
            .index
            .with(move |index| {
                for (container, record) in index.containers()? {
                    let is_next = container >= from && record.state.is_over();
                    if is_next
                        && !index.is_written(container, &record)?
                        && index.unhealthy(container)?.is_none()
                    {
                        return Ok(Some(container));
                    }
                }
                Ok(None)
            })
            .await
    }

    /// Looks at a container until it is known whether it is good. One of which nobody could tell is looked at
    /// with the next pass.
    async fn scrub_trying(&mut self, position: &mut ScrubPosition) {
        let mut attempt = 0;
        while attempt < TRIES_MAX {
            let Err(failure) = self.scrub_marking(position).await else { return };
            // The container stands in other segments now, which are looked at instead.
            if matches!(failure.downcast_ref(), Some(ReadError::Compacted(_))) {
                continue;
            }
            attempt += 1;
            self.disk.counters.scrub_unread.fetch_add(1, Ordering::Relaxed);
            let (disk, container) = (self.disk.real.root().display(), position.container);
            let error = format!("{failure:#}");
            error!(%disk, %container, attempt, error, "cannot tell whether a container is good; trying again");
            if self.disk.failure().is_some() {
                return;
            }
            if attempt < TRIES_MAX {
                sleep(RETRY).await;
            }
        }
    }

    /// Looks at a container once, and marks it where it is bad. An error says nothing of the container, but
    /// that this look at it came to no end.
    async fn scrub_marking(&mut self, position: &mut ScrubPosition) -> anyhow::Result<()> {
        let container = position.container;
        let found = self.scrub_all(position).await;
        if self.disk.index.with(move |index| index.container(container)).await?.is_none() {
            return Ok(()); // deleted meanwhile
        }
        match found {
            Ok(()) => info!(%container, "scrubbed a container"),
            Err(failure) if condemns(&failure) => {
                self.disk.counters.scrub_findings.fetch_add(1, Ordering::Relaxed);
                self.disk.mark_unhealthy(container, format!("{failure:#}")).await;
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    async fn scrub_all(&mut self, position: &mut ScrubPosition) -> anyhow::Result<()> {
        let container = position.container;
        finish_deletions(&self.disk, container).await?;
        self.scrub_records(position).await?;
        self.scrub_rows(container).await
    }

    /// Checks every record against its checksums, from the position's segment on.
    async fn scrub_records(&mut self, position: &mut ScrubPosition) -> anyhow::Result<()> {
        let (container, reading) = (position.container, Reading::FromDisk(position.segment));
        let mut reader = ContainerReader::of(&self.disk.space, container, reading).await?;
        while let Some(record) = reader.next().await.with_context(|| format!("read container {container}"))? {
            let segment = record.walked.meta.place.segment;
            if segment > position.segment {
                position.segment = segment;
                self.save(*position, false).await?;
            }
            self.pace(record.walked.bytes).await;
            reader.check_body(&record).await?;
        }
        match reader.wrong_end().await? {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Checks every row of the index against its record, and the sum of the rows against the counters.
    async fn scrub_rows(&mut self, container: ContainerId) -> anyhow::Result<()> {
        let before = self.counters_of(container).await?;
        let (mut from_local, mut sum) = (0, Counted::default());
        loop {
            let rows = self.disk.index.with(move |index| read_rows(index, container, from_local)).await;
            let rows = rows.with_context(|| format!("the index of container {container}"))?;
            let Some(last) = rows.last() else { break };
            from_local = last.block.local + 1;
            for row in rows {
                sum.add(&row.record);
                self.scrub_row(row).await?;
            }
        }
        let after = self.counters_of(container).await?;
        if before == after && sum != after {
            bail!("the index has {sum:?} of container {container}, which counts {after:?}");
        }
        Ok(())
    }

    /// Checks a block where the index says that it is, until the index says the same again: the block may be
    /// deleted meanwhile, or moved by one compaction after the other.
    async fn scrub_row(&mut self, mut row: BlockRow) -> anyhow::Result<()> {
        let block = row.block;
        while let Err(failure) = self.scrub_block(&row).await {
            let places = self.disk.index.with(move |index| index.places(block)).await?;
            if places == row.places {
                return Err(failure.context(format!("block {block}")));
            }
            if places.is_empty() {
                break;
            }
            row.places = places;
        }
        Ok(())
    }

    async fn counters_of(&self, container: ContainerId) -> anyhow::Result<Counted> {
        self.disk
            .index
            .with(move |index| {
                let record = index.container(container)?.context("the container is gone")?;
                let (blocks, chunks, payload_bytes) = (record.blocks, record.chunks, record.payload_bytes);
                Ok(Counted { blocks, chunks, payload_bytes })
            })
            .await
    }

    async fn scrub_block(&mut self, row: &BlockRow) -> anyhow::Result<()> {
        let mut offset = 0;
        for (seq, place) in (0..).zip(&row.places) {
            self.pace(HEAD_READ_BYTES).await;
            let meta = self.disk.space.read_head(OWNERS_DIR, *place).await?;
            ensure!(
                seq > 0 || meta.id.index.0 == row.block.local,
                "its first record is entry {}",
                meta.id.index
            );
            let command = PipelineCommand::decode(meta.meta).context("decode its command")?.command;
            let Some(pipeline_command::Command::Chunk(chunk)) = command else {
                bail!("entry {} is no chunk", meta.id.index);
            };
            let ChunkCommand { seq: found_seq, offset: found_offset, length, .. } = chunk;
            ensure!(
                (found_seq, found_offset) == (seq, offset),
                "chunk {seq} at byte {offset} is chunk {found_seq} at byte {found_offset} in entry {}",
                meta.id.index
            );
            offset += length;
        }
        ensure!(offset == row.record.length, "its chunks have {offset} bytes, it has {}", row.record.length);
        Ok(())
    }

    /// Waits for its turn to read so much, and for the disk to be idle.
    async fn pace(&mut self, bytes: u64) {
        let wait = Duration::from_secs_f64(bytes as f64 / self.options.bytes_per_second as f64);
        sleep_until(self.next_read).await;
        self.disk.until_idle().await;
        self.next_read = self.next_read.max(Instant::now()) + wait;
        self.disk.counters.scrubbed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    async fn save(&self, position: ScrubPosition, durably: bool) -> anyhow::Result<()> {
        self.disk
            .index
            .with(move |index| {
                index.save_scrub_position(position)?;
                if durably { index.flush() } else { Ok(()) }
            })
            .await
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    blocks: u64,
    chunks: u64,
    payload_bytes: u64,
}

impl Counted {
    fn add(&mut self, record: &BlockRecord) {
        self.blocks += 1;
        self.chunks += u64::from(record.chunks);
        self.payload_bytes += record.length;
    }
}

struct BlockRow {
    block: BlockId,
    record: BlockRecord,
    places: Vec<Place>,
}

fn read_rows(index: &Index, container: ContainerId, from_local: u64) -> anyhow::Result<Vec<BlockRow>> {
    let mut rows = Vec::new();
    for row in index.block_rows(container, from_local).take(ROWS_MAX) {
        let (block, record) = row?;
        let places = index.places(block)?;
        if places.is_empty() {
            continue; // deleted between the two looks
        }
        ensure!(
            places.len() == record.chunks as usize,
            "block {block} has {} of {} chunks",
            places.len(),
            record.chunks
        );
        rows.push(BlockRow { block, record, places });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests;
