//! The one way to go through the records of a container: copying, importing, scrubbing, hashing, ending and
//! rebuilding it differ in what they do with a record, and not in which records a container has, where it
//! ends, or what its hash is.

use crate::container_end::{self, ContainerEnd};
use crate::hash::ContainerHash;
use crate::index::{DiskUse, Facts, Mark, Terms};
use crate::layout::{INCOMING_DIR, OWNERS_DIR};
use crate::verdict::condemns;
use anyhow::{Context, ensure};
use bytes::Bytes;
use disk::Disk;
use raftlog::{
    Compacted, Discards, EntryMeta, LogSpace, OwnerWalk, ReadError, Step, WalkEnd, WalkedRecord, owner_files,
};
use std::io;
use std::sync::{Arc, Mutex};
use types::{ContainerId, LogId, LogIndex, OwnerId};

/// The version of the notes that a compacted container keeps ([`notes_of`]).
const NOTES_VERSION: u8 = 1;

/// The files of a container that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// All segments of a container that is in its place: those that count, where it was compacted.
    Whole,
    /// The segments of a container in its place, from this one on.
    FromSegment(u32),
    /// [`Reading::FromSegment`], as the disk has them: the page cache goes on showing what is no longer
    /// there.
    FromDisk(u32),
    /// All segments of a copy that is not published.
    Incoming,
}

/// Gives the records of a container in the order of their places; nothing is read before it is asked for.
pub(crate) struct ContainerReader {
    disk: Arc<dyn Disk>,
    container: ContainerId,
    walk: OwnerWalk,
    owners_dir: &'static str,
    /// The list as it was when the reading began: blocks may be deleted meanwhile.
    discards: Arc<Discards>,
    /// The list as it was when somebody last asked whether a body is given up by now.
    newest: Mutex<Arc<Discards>>,
    /// The facts on what is no longer to be read, if the container was compacted.
    facts: Option<Facts>,
    contents: Contents,
    hash: ContainerHash,
}

/// A record whose head is verified; its body is read when that is asked for.
pub(crate) struct ReadRecord {
    pub walked: Box<WalkedRecord>,
    /// Whether the body was given up: then the record is none of what the replicas have in common.
    pub is_discarded: bool,
}

/// The sum of what was read of a container: all that it has, once the reader has come to the end.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    /// Records and their bytes, those included whose bodies were given up.
    pub records: u64,
    pub record_bytes: u64,
    pub last: Option<LogId>,
    pub terms: Terms,
    /// The place and the reason of the end of its records; `None` before the reader is there.
    pub end: Option<WalkEnd>,
}

impl Reading {
    fn owners_dir(self) -> &'static str {
        match self {
            Reading::Whole | Reading::FromSegment(_) | Reading::FromDisk(_) => OWNERS_DIR,
            Reading::Incoming => INCOMING_DIR,
        }
    }

    fn first_segment(self) -> u32 {
        match self {
            Reading::Whole | Reading::Incoming => 0,
            Reading::FromSegment(segment) | Reading::FromDisk(segment) => segment,
        }
    }
}

impl ContainerReader {
    /// Opens a container of a disk that is in use: its list of discarded bodies is as long as it was, or
    /// damaged.
    pub(crate) async fn of(
        space: &LogSpace,
        container: ContainerId,
        reading: Reading,
    ) -> anyhow::Result<ContainerReader> {
        let owner = OwnerId::from(container);
        let discards = match reading {
            Reading::FromDisk(_) => space.discards_of_disk(OWNERS_DIR, owner).await,
            _ => space.discards(OWNERS_DIR, owner).await,
        };
        let discards = discards.context("read what was discarded")?;
        ContainerReader::over(space.disk(), container, reading, discards).await
    }

    /// Opens a container of which nobody knows how long its list was.
    pub(crate) async fn open(
        disk: &Arc<dyn Disk>,
        container: ContainerId,
        reading: Reading,
    ) -> anyhow::Result<ContainerReader> {
        let (owner, owners_dir) = (OwnerId::from(container), reading.owners_dir());
        let discards = Discards::read(&**disk, owners_dir, owner).await.context("read what was discarded")?;
        ContainerReader::over(disk, container, reading, discards).await
    }

    /// Opens a container as it is with this list of discarded bodies.
    pub(crate) async fn over(
        disk: &Arc<dyn Disk>,
        container: ContainerId,
        reading: Reading,
        discards: Discards,
    ) -> anyhow::Result<ContainerReader> {
        let (discards, owners_dir) = (Arc::new(discards), reading.owners_dir());
        let facts = facts_of(discards.compacted()).context("read what a compaction left out")?;
        let walk = OwnerWalk::over(disk.clone(), owners_dir, discards.clone(), reading.first_segment()).await;
        let walk = walk.context("list segments")?;
        let walk = if matches!(reading, Reading::FromDisk(_)) { walk.from_disk() } else { walk };
        let terms = facts.as_ref().map(|facts| facts.terms.clone()).unwrap_or_default();
        let contents = Contents { records: 0, record_bytes: 0, last: None, terms, end: None };
        let (disk, hash) = (disk.clone(), ContainerHash::default());
        let newest = Mutex::new(discards.clone());
        Ok(ContainerReader { disk, container, walk, owners_dir, discards, newest, facts, contents, hash })
    }

    /// The next record; `None` at the end, which is then in [`ContainerReader::contents`].
    pub(crate) async fn next(&mut self) -> Result<Option<ReadRecord>, ReadError> {
        let walked = match self.walk.next().await {
            Ok(Step::Record(walked)) => walked,
            Ok(Step::End(end)) => {
                if !matches!(end, WalkEnd::Rolled { .. }) {
                    self.check_is_as_it_was().await?;
                }
                if matches!(end, WalkEnd::Unfinished { .. }) && self.facts.is_some() {
                    self.contents.last = Some(self.discards.compacted().last);
                }
                self.contents.end = Some(end);
                return Ok(None);
            }
            Err(failure) => {
                self.check_is_as_it_was().await?;
                return Err(failure);
            }
        };
        let is_discarded = self.discards.contains(walked.meta.id.index, &walked.meta.place);
        if !is_discarded {
            self.hash.add(&walked);
        }
        self.contents.records += 1;
        self.contents.record_bytes += walked.bytes;
        self.contents.last = Some(walked.meta.id);
        let EntryMeta { id, place, .. } = &walked.meta;
        let mark = || Mark { at: id.index, crc: crc32c::crc32c(&walked.head) };
        if self.facts.is_none() {
            self.contents.terms.push(*id, || (place.body_bytes > 0).then(mark));
        }
        Ok(Some(ReadRecord { walked, is_discarded }))
    }

    /// The next record; `None` at the end, and where damage keeps what follows from being read.
    pub(crate) async fn next_readable(&mut self) -> Result<Option<ReadRecord>, ReadError> {
        match self.next().await {
            Err(failure) if failure.condemns() => Ok(None),
            next => next,
        }
    }

    /// Reads the body of a record and checks all of it, unless it was given up, perhaps since the reading
    /// began.
    pub(crate) async fn check_body(&self, record: &ReadRecord) -> anyhow::Result<()> {
        if record.is_discarded {
            return Ok(());
        }
        match self.walk.check_body(&record.walked).await {
            Ok(()) => Ok(()),
            Err(_) if self.is_discarded_by_now(record).await.context("read what was discarded")? => Ok(()),
            Err(failure) => {
                self.check_is_as_it_was().await?;
                Err(failure.into())
            }
        }
    }

    /// Reads all of the body of the record that was read last, verified, and what pads it, in parts.
    pub(crate) async fn read_whole_body(&mut self, record: &ReadRecord) -> Result<Vec<Bytes>, ReadError> {
        self.walk.read_last_body(&record.walked).await
    }

    /// Fails where a compaction has put other segments in the place of those that are read here: what looks
    /// like damage is none then.
    pub(crate) async fn check_is_as_it_was(&self) -> Result<(), ReadError> {
        let owner = OwnerId::from(self.container);
        let now = Compacted::read(&*self.disk, self.owners_dir, owner).await;
        let began = self.discards.compacted().segments.start;
        match now {
            Ok(now) if now.segments.start != began => Err(ReadError::Compacted(owner)),
            // Whatever is wrong with that file is told by who opens the container.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether a compaction knew that this entry began no block, though nothing in the container says so now.
    pub(crate) fn is_known_repeat(&self, index: LogIndex) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.repeats.binary_search(&index).is_ok())
    }

    /// The part of a body that begins at `at`, a multiple of 1 MiB, verified; with the last one comes what
    /// pads the record.
    pub(crate) async fn read_body(&self, record: &ReadRecord, at: usize) -> Result<Bytes, ReadError> {
        self.walk.read_body(&record.walked, at).await
    }

    pub(crate) async fn is_discarded_by_now(&self, record: &ReadRecord) -> io::Result<bool> {
        let now = self.newest_discards().await?;
        Ok(now.contains(record.walked.meta.id.index, &record.walked.meta.place))
    }

    /// The list of discarded bodies as it is now, read again only if there is more of it than there was.
    pub(crate) async fn newest_discards(&self) -> io::Result<Arc<Discards>> {
        let newest = self.newest.lock().expect("no holder panics").clone();
        let Some(newer) = newest.newer(&*self.disk, self.owners_dir).await? else { return Ok(newest) };
        let newer = Arc::new(newer);
        *self.newest.lock().expect("no holder panics") = newer.clone();
        Ok(newer)
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(crate) fn discards(&self) -> &Discards {
        &self.discards
    }

    /// The hash of the records that were read and not discarded: the container's when that was all of it.
    pub(crate) fn hash(&self) -> [u8; 32] {
        self.hash.clone().finish()
    }

    /// The fault of a container that is over and does not end as it must; to be asked at the end. `None`
    /// where all is well.
    pub(crate) async fn wrong_end(&self) -> anyhow::Result<Option<String>> {
        let alone = match ContainerEnd::read(&*self.disk, self.container).await {
            Err(failure) if condemns(&failure) => return Ok(Some(format!("{failure:#}"))),
            read => read?,
        };
        let Contents { last, end, .. } = &self.contents;
        let is_whole = end.as_ref().is_some_and(|end| container_end::is_whole(end, *last, alone));
        Ok((!is_whole).then(|| match end {
            Some(end) => format!("container {} is closed, but: {end:?}", self.container),
            None => format!("container {} was not read to its end", self.container),
        }))
    }
}

/// The notes that a container keeps on the records that a compaction leaves out.
pub(crate) fn notes_of(facts: &Facts) -> Bytes {
    let mut notes = vec![NOTES_VERSION];
    facts.put(&mut notes);
    notes.into()
}

fn facts_of(compacted: &Compacted) -> anyhow::Result<Option<Facts>> {
    if !compacted.is_compacted() {
        return Ok(None);
    }
    let (version, facts) = compacted.notes.split_first().context("it says nothing")?;
    ensure!(*version == NOTES_VERSION, "its version {version} is unknown");
    Facts::get(facts).map(Some)
}

/// Measures what a container takes. Its list of discarded bodies is read only where it is not what was
/// measured before; one that does not reach as far as it did is damaged.
pub(crate) async fn disk_use(
    space: &LogSpace,
    container: ContainerId,
    before: Option<&DiskUse>,
) -> anyhow::Result<DiskUse> {
    let reaches = space.expected_list_bytes(OwnerId::from(container));
    measure(&**space.disk(), container, before, reaches).await
}

/// [`disk_use`] of a container that has just come.
pub(crate) async fn first_disk_use(disk: &dyn Disk, container: ContainerId) -> anyhow::Result<DiskUse> {
    measure(disk, container, None, 0).await
}

async fn measure(
    disk: &dyn Disk,
    container: ContainerId,
    before: Option<&DiskUse>,
    reaches: u64,
) -> anyhow::Result<DiskUse> {
    let owner = OwnerId::from(container);
    let files = owner_files(disk, OWNERS_DIR, owner).await.context("list its files")?;
    let list = files.iter().find(|file| file.is_list());
    let list_bytes = list.map_or(0, |file| file.bytes);
    let first_segment = Compacted::read(disk, OWNERS_DIR, owner).await?.segments.start;
    let is_as_before = |it: &&DiskUse| (it.list_bytes, it.first_segment) == (list_bytes, first_segment);
    let measured = match before.filter(is_as_before) {
        Some(before) => *before,
        None => {
            let list = Discards::read(disk, OWNERS_DIR, owner).await.context("read what was discarded")?;
            list.check_reaches(OWNERS_DIR, reaches)?;
            let first_segment = list.compacted().segments.start;
            DiskUse { bytes: 0, list_bytes: list.list_bytes(), first_segment, discards: list.sum() }
        }
    };
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    Ok(DiskUse { bytes: bytes.saturating_sub(measured.discards.hole_bytes), ..measured })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::tests::{FIRST, Left, SECOND};
    use disk::RealDisk;
    use raftlog::{Discard, LogSpace, LogSpaceOptions, Place};

    async fn opened(disk: &Arc<dyn Disk>, container: ContainerId, reading: Reading) -> ContainerReader {
        ContainerReader::open(disk, container, reading).await.unwrap()
    }

    /// The records of a container, all of whose bodies are checked.
    async fn read(reader: &mut ContainerReader) -> Vec<ReadRecord> {
        let mut records = Vec::new();
        while let Some(record) = reader.next().await.unwrap() {
            reader.check_body(&record).await.unwrap();
            records.push(record);
        }
        records
    }

    fn disk_of(left: &Left) -> Arc<dyn Disk> {
        Arc::new(RealDisk::open(&left.root(), 1).unwrap())
    }

    async fn give_up(disk: &Arc<dyn Disk>, place: Place) {
        let space = LogSpace::new(disk.clone(), LogSpaceOptions::default());
        let discard = [Discard { tag: 3, name: 2, place }];
        let discards = space.remember_discards(OWNERS_DIR, OwnerId::from(FIRST), &discard).await.unwrap();
        space.punch_discards(OWNERS_DIR, &discards, |_| true).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_is_given_up_is_neither_damaged_nor_in_the_hash() {
        let left = Left::new().await;
        let disk = disk_of(&left);
        let (mut whole, mut meanwhile) =
            (opened(&disk, FIRST, Reading::Whole).await, opened(&disk, FIRST, Reading::Whole).await);
        let records = read(&mut whole).await;
        assert!(records.len() == 7 && records.iter().all(|record| !record.is_discarded));

        give_up(&disk, records[3].walked.meta.place).await;
        assert_eq!(read(&mut meanwhile).await.len(), 7, "it was opened before");
        assert!(meanwhile.is_discarded_by_now(&records[3]).await.unwrap());
        assert!(!meanwhile.is_discarded_by_now(&records[4]).await.unwrap());
        let newest = meanwhile.newest_discards().await.unwrap();
        let again = meanwhile.newest_discards().await.unwrap();
        assert!(Arc::ptr_eq(&newest, &again), "the list is read again only where there is more of it");
        assert_eq!(meanwhile.hash(), whole.hash());

        let mut later = opened(&disk, FIRST, Reading::Whole).await;
        let discarded: Vec<bool> = read(&mut later).await.iter().map(|record| record.is_discarded).collect();
        assert_eq!(discarded, [false, false, false, true, false, false, false]);
        assert_ne!(later.hash(), whole.hash());
        assert_eq!(later.contents().record_bytes, whole.contents().record_bytes);
    }

    #[tokio::test]
    async fn only_a_container_that_ends_as_it_must_has_no_wrong_end() {
        let left = Left::new().await;
        let disk = disk_of(&left);
        let check = async |container, reading, is_read, expect: Option<&str>| {
            let mut reader = opened(&disk, container, reading).await;
            if is_read {
                read(&mut reader).await;
            }
            let wrong = reader.wrong_end().await.unwrap();
            match expect {
                Some(text) => assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(text)), "{wrong:?}"),
                None => assert_eq!(wrong, None),
            }
        };
        check(FIRST, Reading::Whole, true, None).await;
        check(FIRST, Reading::FromSegment(1), true, None).await;
        check(FIRST, Reading::Whole, false, Some("was not read to its end")).await;
        check(SECOND, Reading::Whole, true, Some("Unfinished")).await;
        let records = read(&mut opened(&disk, SECOND, Reading::Whole).await).await;
        let last = records.last().map(|record| record.walked.meta.id);
        ContainerEnd::closed(last).write(&*disk, SECOND).await.unwrap();
        check(SECOND, Reading::Whole, true, None).await;
        left.flip("containers/0000000000000065/end", 20);
        check(SECOND, Reading::Whole, true, Some("how a container ended")).await;
    }

    #[tokio::test]
    async fn what_is_read_from_a_segment_on_begins_with_it() {
        let left = Left::new().await;
        let records = read(&mut opened(&disk_of(&left), FIRST, Reading::FromSegment(1)).await).await;
        assert!(!records.is_empty() && records.len() < 7);
        assert!(records.iter().all(|record| record.walked.meta.place.segment >= 1));
    }
}
