//! One compaction of one container.

use super::settle::{settle, settle_or_note};
use crate::container_reader::{ContainerReader, ReadRecord, Reading, disk_use, notes_of};
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::forget_listed;
use crate::index::records::ReplicaState;
use crate::index::{Facts, Moves};
use crate::layout::OWNERS_DIR;
use crate::pipelines::Pipelines;
use crate::repeats::{self, Repeats, nonce_of};
use anyhow::{Context, anyhow, ensure};
use parking::Throttle;
use planted::Bug;
use raftlog::{Compacted, ReadError, Rewrite};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use types::{ContainerId, LogIndex, OwnerId};

/// The cost of reading a head where bodies are large: a block of the file.
const HEAD_READ_BYTES: u64 = 4096;
/// The bytes that are copied between two looks whether logs have much to write: a disk that is always busy is
/// compacted at 1 MiB/s.
const LOOK_BYTES: u64 = 1 << 20;

/// The bytes that a compaction has written and removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub written_bytes: u64,
    pub removed_bytes: u64,
}

/// The reason why a container stays as it was.
#[derive(Debug)]
pub(crate) enum GivenUp {
    /// Bytes of the container are not as they must be.
    Damaged(String),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for GivenUp {
    fn from(failure: anyhow::Error) -> GivenUp {
        GivenUp::Failed(failure)
    }
}

impl From<io::Error> for GivenUp {
    fn from(error: io::Error) -> GivenUp {
        GivenUp::Failed(error.into())
    }
}

impl From<ReadError> for GivenUp {
    fn from(failure: ReadError) -> GivenUp {
        match failure.condemns() {
            true => GivenUp::Damaged(failure.to_string()),
            false => GivenUp::Failed(failure.into()),
        }
    }
}

/// Compacts a container that is closed and that no log reads; `None` where nothing of it would be left. May
/// be dropped anywhere: what is half done then, as after a crash, is settled by the next compaction, or at
/// the next start.
pub(super) async fn compact(
    disk: &Arc<DatanodeDisk>,
    pipelines: &Pipelines,
    container: ContainerId,
    throttle: &Throttle,
) -> Result<Option<Done>, GivenUp> {
    let compaction = Compaction::begin(disk, pipelines, container).await?;
    let before = compaction.before.clone();
    let done = match compaction.copy(throttle).await {
        Ok(Some(copied)) => copied.put_in_place(pipelines).await.map(Some),
        Ok(None) => Ok(None),
        Err(given_up) => Err(given_up),
    };
    if !matches!(done, Ok(Some(_))) {
        // The new segments go; or, where they count already, the old ones.
        let _deleting = disk.deleting.lock().await;
        settle_or_note(disk, container).await?;
        let is_as_begun = is_as_begun(disk, container, &before).await?;
        if let Err(GivenUp::Damaged(why)) = &done
            && !is_as_begun
        {
            return Err(GivenUp::Failed(anyhow!("it has changed meanwhile: {why}")));
        }
    }
    done
}

/// Records on their way into new segments.
struct Compaction<'a> {
    disk: &'a Arc<DatanodeDisk>,
    container: ContainerId,
    /// The file `compacted` while this compaction runs. It tells the container that this began with from one
    /// that was deleted and copied here again, which has another.
    before: Compacted,
    reader: ContainerReader,
    rewrite: Rewrite,
    /// The bytes that the copy takes, as was known when this began: later discards make it less.
    live_bytes: u64,
    moves: Moves,
    /// The names of discarded blocks that were listed before lists had names.
    names: BTreeMap<LogIndex, u128>,
}

/// Records that are written, and the word on those that are left out.
struct Copied<'a> {
    compaction: Compaction<'a>,
    facts: Facts,
}

impl<'a> Compaction<'a> {
    async fn begin(
        disk: &'a Arc<DatanodeDisk>,
        pipelines: &Pipelines,
        container: ContainerId,
    ) -> Result<Compaction<'a>, GivenUp> {
        let (owner, files) = (OwnerId::from(container), disk.space.disk());
        let _deleting = disk.deleting.lock().await;
        check_may_be_compacted(disk, pipelines, container).await?;
        disk.discards(container).await?;
        settle(disk, container).await?;
        forget_listed(disk, container).await?;
        let used = disk_use(&disk.space, container, None).await?;
        let live_bytes = used.bytes.saturating_sub(used.discards.dead_bytes);
        let first = disk.space.unused_segment(OWNERS_DIR, owner).await?;
        let before = Compacted::read(&**files, OWNERS_DIR, owner).await?.before(first);
        // The file is written before there is a segment that does not count.
        before.write(&**files, OWNERS_DIR, owner).await?;
        let reader = disk.reader(container, Reading::Whole).await?;
        let rewrite = disk.space.rewrite(OWNERS_DIR, owner, first);
        let (moves, names) = Default::default();
        Ok(Compaction { disk, container, before, reader, rewrite, live_bytes, moves, names })
    }

    /// Copies what is not discarded; `None` where that is nothing.
    async fn copy(mut self, throttle: &Throttle) -> Result<Option<Copied<'a>>, GivenUp> {
        let mut repeats = Repeats::of(&self.disk.index, self.container);
        let mut unlooked_bytes = 0;
        while let Some(record) = self.reader.next().await? {
            let bytes = if record.is_discarded { HEAD_READ_BYTES } else { record.walked.bytes };
            let bytes = bytes.min(record.walked.bytes);
            throttle.take(bytes as usize).await;
            unlooked_bytes += bytes;
            if unlooked_bytes >= LOOK_BYTES {
                unlooked_bytes = 0;
                self.disk.until_idle().await;
            }
            if self.copy_record(&record).await? {
                repeats.see(&record.walked).await?;
            }
        }
        if let Some(why) = self.reader.wrong_end().await? {
            return Err(GivenUp::Damaged(why));
        }
        if self.moves.len() == 0 {
            return Ok(None);
        }
        // A block that was discarded meanwhile has no row: its first record began it all the same. It is
        // listed before its row goes.
        let mut repeats = repeats.found().await?;
        let listed = self.reader.newest_discards().await.context("read what was discarded")?;
        repeats.retain(|index| listed.get(*index).is_none());
        repeats::check_count(&repeats)?;
        let facts = Facts { terms: self.reader.contents().terms.clone(), repeats };
        Ok(Some(Copied { compaction: self, facts }))
    }

    /// Copies a record, unless it is discarded; answers whether it was copied.
    async fn copy_record(&mut self, record: &ReadRecord) -> Result<bool, GivenUp> {
        let (index, from) = (record.walked.meta.id.index, record.walked.meta.place);
        if record.is_discarded {
            self.name(record)?;
            return Ok(false);
        }
        let body = match self.reader.read_whole_body(record).await {
            Ok(body) => body,
            Err(_) if self.reader.is_discarded_by_now(record).await? => return Ok(false),
            Err(failure) => return Err(failure.into()),
        };
        if planted::has(Bug::CompactionLosesRecords) && index.0.is_multiple_of(5) {
            return Ok(false);
        }
        if self.rewrite.needs_segment(&record.walked) {
            // Under the lock for deletions: a container deleted in between would leave this segment to the
            // one that is copied here after it.
            let _deleting = self.disk.deleting.lock().await;
            self.check_is_as_begun().await?;
            self.check_room().await?;
            self.rewrite.begin_segment().await.context("begin a segment")?;
        }
        let to = self.rewrite.push(&record.walked, &body).await.context("write a segment")?;
        self.moves.push(from, to)?;
        Ok(true)
    }

    /// Takes the name of a block from a head that is about to go, if its list does not have it.
    fn name(&mut self, record: &ReadRecord) -> anyhow::Result<()> {
        let index = record.walked.meta.id.index;
        if self.reader.discards().get(index).is_some_and(|listed| listed.name.is_none()) {
            let nonce = nonce_of(&record.walked);
            let nonce = nonce.with_context(|| format!("the discarded entry {index} is no chunk"))?;
            self.names.insert(index, nonce.0);
        }
        Ok(())
    }

    /// Checks that one more segment fits, or what is left to write if that is less: pipelines and copies may
    /// have taken the room that there was when the compaction began.
    async fn check_room(&self) -> anyhow::Result<()> {
        let free_bytes = self.disk.real.space().await.context("ask for free space")?.free_bytes;
        let options = self.disk.space.options();
        let left_bytes = self.live_bytes.saturating_sub(self.rewrite.bytes());
        let (reserve_bytes, next_bytes) = (options.reserve_bytes, left_bytes.min(options.segment_bytes_max));
        ensure!(
            free_bytes >= reserve_bytes.saturating_add(next_bytes),
            "{free_bytes} bytes are free: {next_bytes} more do not fit above the reserve of {reserve_bytes}"
        );
        Ok(())
    }

    async fn check_is_as_begun(&self) -> anyhow::Result<()> {
        let is_as_begun = is_as_begun(self.disk, self.container, &self.before).await?;
        ensure!(is_as_begun, "container {} was deleted meanwhile", self.container);
        Ok(())
    }
}

impl Copied<'_> {
    /// Makes the new segments count, and removes the old ones.
    async fn put_in_place(self, pipelines: &Pipelines) -> Result<Done, GivenUp> {
        let Copied { compaction, facts } = self;
        let written_bytes = compaction.rewrite.bytes();
        let Compaction { disk, container, before, reader, rewrite, moves, names, .. } = compaction;
        let (owner, files) = (OwnerId::from(container), disk.space.disk().clone());
        let segments = rewrite.finish().await.context("finish a segment")?;
        let start = segments.start;
        let _deleting = disk.deleting.lock().await;
        let is_as_begun = is_as_begun(disk, container, &before).await?;
        ensure_or(is_as_begun, "it was deleted meanwhile")?;
        check_may_be_compacted(disk, pipelines, container).await?;
        let (read, last) = (Read::by(&reader), reader.contents().last);
        drop(reader); // its list of discards may be large, and more of them are read below
        check_hash(disk, container, &read).await?;
        let moves = Arc::new(moves);
        let checked = moves.clone();
        let check = disk.index.with(move |index| index.check_moves(container, start, &checked));
        check.await.context("look for all records in the copy")?;
        disk.space.name_discards(OWNERS_DIR, owner, &names).await.context("name discarded blocks")?;

        let (first, last) = match before.is_compacted() {
            true => (before.first, before.last),
            false => (facts.terms.first, last.unwrap_or_default()),
        };
        let after = Compacted { segments: start..u32::MAX, first, last, notes: notes_of(&facts) };
        after.write(&*files, OWNERS_DIR, owner).await.context("put the copy in place")?;
        // The list comes before the rows: as long as a row has its old place, the next start does this too.
        let relisted = disk.space.move_discards(OWNERS_DIR, owner, |place| moves.get(place)).await;
        relisted.context("list again what was discarded meanwhile")?;
        if planted::has(Bug::OldSegmentsGoFirst) {
            disk.space.remove_stray_segments(OWNERS_DIR, owner).await?;
        }
        let moved = disk.index.with(move |index| index.apply_moves(container, start, &moves));
        moved.await.context("move rows")?;
        let removed = disk.space.remove_stray_segments(OWNERS_DIR, owner).await;
        let removed_bytes = removed.context("remove the old segments")?;
        measure_again(disk, container).await?;
        Ok(Done { written_bytes, removed_bytes })
    }
}

/// The records that were read, as far as they are compared with what is known of them.
struct Read {
    hash: [u8; 32],
    discards_digest: u64,
}

impl Read {
    fn by(reader: &ContainerReader) -> Read {
        Read { hash: reader.hash(), discards_digest: reader.discards().sum().digest }
    }
}

fn ensure_or(is_so: bool, or: &str) -> Result<(), GivenUp> {
    if is_so { Ok(()) } else { Err(GivenUp::Failed(anyhow!("{or}"))) }
}

/// Whether the container is still the one that the compaction began with. A container that was deleted is
/// not: it has no file `compacted`.
async fn is_as_begun(
    disk: &DatanodeDisk,
    container: ContainerId,
    before: &Compacted,
) -> anyhow::Result<bool> {
    let now = Compacted::read(&**disk.space.disk(), OWNERS_DIR, OwnerId::from(container)).await?;
    Ok(now == *before)
}

/// Checks that a container is here, closed, released and healthy. To be called with the disk's lock for
/// deletions.
async fn check_may_be_compacted(
    disk: &DatanodeDisk,
    pipelines: &Pipelines,
    container: ContainerId,
) -> anyhow::Result<()> {
    let record = disk.index.with(move |index| index.container(container)).await?;
    let record = record.context("it is not here any more")?;
    ensure!(record.state == ReplicaState::Closed, "it is not closed");
    ensure!(pipelines.has_released(&record), "a log still reads it");
    let unhealthy = disk.index.with(move |index| index.unhealthy(container)).await?;
    ensure!(unhealthy.is_none(), "it is unhealthy: {}", unhealthy.unwrap_or_default());
    Ok(())
}

/// Checks that the records that were read have the container's hash, where that is known: a hash does not
/// depend on places.
async fn check_hash(disk: &DatanodeDisk, container: ContainerId, read: &Read) -> Result<(), GivenUp> {
    let now = disk.space.discards(OWNERS_DIR, OwnerId::from(container)).await?;
    let measure = disk.index.with(move |index| index.measure(container)).await?;
    let known = measure.and_then(|measure| measure.hash);
    if now.sum().digest != read.discards_digest || known.is_none_or(|known| known == read.hash) {
        return Ok(());
    }
    Err(GivenUp::Damaged("its records do not have the hash that was computed of them before".to_owned()))
}

/// Measures again what a container takes on its disk; its hash, its terms and its repeats stay.
pub(super) async fn measure_again(disk: &DatanodeDisk, container: ContainerId) -> anyhow::Result<()> {
    let used = disk_use(&disk.space, container, None).await?;
    let saved = disk.index.with(move |index| match index.measure(container)? {
        Some(measure) => index.save_measure(container, &crate::index::Measure { used, ..measure }),
        None => Ok(()),
    });
    saved.await?;
    disk.inventory.look_again(disk.id, container);
    Ok(())
}
