//! Recovery: what a restart makes of a log's files (docs/format/segment.md, "Recovery").
//!
//! From the start that the hard state names, records are followed through segments and owners until one is
//! not there. Whether that is the end of the log or damage is decided by what is known to have been synced:
//! * the hard state's durable mark: every record up to it was;
//! * a record at the start of a later segment: everything in the segments before it was;
//! * the segment that the hard state says was begun: its file was there.
//!
//! Without such evidence nobody was told that the record is durable, and it is cut, with all that follows it.

use crate::core::Opened;
use crate::hard_state::{FILE_NAME, HardStateFile, SlotRecord, TEMPORARY_NAME};
use crate::index::{Index, Located};
use crate::record::{DecodeError, HEADER_BYTES, Head, Header, check_field};
use crate::scan::{ScanError, SegmentReader};
use crate::segment::{Position, SegmentId, owner_dir};
use crate::segment_index::{self, SegmentIndex, SegmentIndexWriter};
use crate::torn::{remove_segments, segments_after};
use crate::writer::{OpenSegment, open_existing};
use crate::{Discards, LogSpec, OpenError};
use disk::Disk;
use std::io;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId};

/// Bytes read at once when the rest of a file is looked at.
const REST_READ_BYTES: usize = 4 << 20;

pub(crate) struct Recovered {
    pub(crate) opened: Opened,
    pub(crate) hard_state: HardStateFile,
    pub(crate) record: SlotRecord,
    pub(crate) open: Option<OpenSegment>,
    pub(crate) segment_index: SegmentIndexWriter,
}

/// Recovers a log from its files. Repeating it, also after it was interrupted anywhere, gives the same log.
pub(crate) async fn recover(disk: &Arc<dyn Disk>, spec: &LogSpec) -> Result<Recovered, OpenError> {
    let recovery = Recovery { disk: &**disk, spec };
    let (mut hard_state, mut record) = recovery.hard_state().await?;
    let chain = recovery.follow(&record).await?;
    if record.begun.is_some_and(|begun| begun > chain.tail.file()) {
        record.begun = Some(chain.tail.file());
        hard_state.save(&record).await.map_err(|e| recovery.io(e))?;
    }
    let open = recovery.cut_tail(&chain).await?;
    record.durable = chain.index.last().map(|last| last.id).or(record.purged);
    // The group may have committed what only its other members had on disk.
    record.committed =
        record.committed.map(|committed| record.durable.map_or(committed, |last| committed.min(last)));
    if record.durable.is_none() {
        record.committed = None;
    }
    let opened = Opened {
        index: chain.index,
        purged: record.purged,
        start: record.start,
        tail: chain.tail,
        hard_state: record.hard_state,
        committed: record.committed,
    };
    Ok(Recovered { opened, hard_state, record, open, segment_index: chain.segment_index })
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    spec: &'a LogSpec,
}

/// The records that are there, from the log's start to where they end.
struct Chain {
    index: Index,
    tail: Position,
    end: DecodeError,
    /// The index of the segment it ends in.
    segment_index: SegmentIndexWriter,
}

impl Chain {
    fn push(&mut self, id: LogId, meta_bytes: u32, body_bytes: u32, roll_to: Option<OwnerId>) {
        let located = Located { id, position: self.tail, meta_bytes, body_bytes };
        self.tail = self.tail.after(located.record_bytes(), roll_to);
        self.index.push(located);
    }

    /// The index of the next record, if it is known: the first record of a log may have any.
    fn next(&self) -> Option<LogIndex> {
        let end = self.index.end();
        (!self.index.is_empty() || end > LogIndex(0)).then_some(end)
    }
}

impl Recovery<'_> {
    /// Opens the hard state, or creates the log: it exists once its hard state does.
    async fn hard_state(&self) -> Result<(HardStateFile, SlotRecord), OpenError> {
        let path = format!("{}/{FILE_NAME}", self.spec.dir);
        let file = match self.disk.open(&path, false).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create(&path).await?;
                self.disk.open(&path, false).await
            }
            result => result,
        };
        let file = file.map_err(|e| self.io(e))?;
        file.settle().await.map_err(|e| self.io(e))?;
        let opened = HardStateFile::open(file).await.map_err(|e| self.unreadable(e))?;
        let Some((hard_state, record)) = opened else {
            let why = "neither slot holds a whole hard state".to_owned();
            return Err(OpenError::Damaged { log: self.spec.log, file: path, offset: 0, why });
        };
        if record.log != self.spec.log {
            let why = format!("{path} belongs to log {}", record.log);
            return Err(OpenError::Inconsistent { log: self.spec.log, why });
        }
        // A process that died between the rename and its sync may have left a name that is not durable.
        self.disk.sync_dir(&self.spec.dir).await.map_err(|e| self.io(e))?;
        Ok((hard_state, record))
    }

    async fn create(&self, path: &str) -> Result<(), OpenError> {
        let owner = self.spec.first_owner;
        let owner_dir = owner_dir(&self.spec.owners_dir, owner);
        let names = self.disk.list(&owner_dir).await.map_err(|e| self.io(e))?;
        if names.iter().any(|name| SegmentId::parse_number(name).is_some()) {
            let why = format!(
                "{owner_dir} holds segments, but {path} is missing: refusing to start an empty log there"
            );
            return Err(OpenError::Inconsistent { log: self.spec.log, why });
        }
        let record = SlotRecord {
            log: self.spec.log,
            hard_state: None,
            purged: None,
            start: Position::start_of(owner),
            committed: None,
            durable: None,
            begun: None,
        };
        self.create_file(path, &record).await.map_err(|e| self.io(e))
    }

    async fn create_file(&self, path: &str, record: &SlotRecord) -> io::Result<()> {
        self.disk.create_dir_all(&self.spec.dir).await?;
        let temporary = format!("{}/{TEMPORARY_NAME}", self.spec.dir);
        let file = self.disk.open(&temporary, true).await?;
        file.set_len(0).await?;
        file.preallocate(crate::hard_state::FILE_BYTES).await?;
        file.write_and_sync(0, vec![HardStateFile::first_contents(record)]).await?;
        // Only a whole file gets the name.
        self.disk.rename(&temporary, path).await?;
        self.disk.sync_dir(&self.spec.dir).await
    }

    /// Follows the records from the start, and tells their end from damage.
    async fn follow(&self, record: &SlotRecord) -> Result<Chain, OpenError> {
        let next = record.purged.map_or(LogIndex(0), |purged| purged.index.next());
        let mut chain = Chain {
            index: Index::starting_at(next),
            tail: record.start,
            end: DecodeError::Zeros,
            segment_index: SegmentIndexWriter::new(self.spec.log),
        };
        while self.follow_segment(record, &mut chain).await? {}
        let durable = record.durable.filter(|durable| {
            let forgotten = record.purged.is_some_and(|purged| purged.index >= durable.index);
            !forgotten && (chain.index.is_empty() || chain.index.end() <= durable.index)
        });
        if let Some(durable) = durable {
            let why = format!("{}; but entry {} was durable", chain.end, durable.index);
            return Err(self.damaged(chain.tail, why));
        }
        self.check_begun(record, &chain).await?;
        for segment in self.segments_after(chain.tail).await? {
            if let Some(later) = self.first_head(Position { segment, offset: 0, ..chain.tail }).await? {
                let index = later.header.id.index;
                let why = format!("{}; but segment {segment} goes on with entry {index}", chain.end);
                return Err(self.damaged(chain.tail, why));
            }
        }
        // A segment without a whole record (its first one is torn behind its head) is none: the next record
        // goes where the last one ends, if it fits there, as on every other replica.
        if chain.tail.offset == 0 && chain.tail.segment > 0 {
            let last = chain.index.last();
            chain.tail = last.map_or(record.start, |last| last.position.after(last.record_bytes(), None));
        }
        Ok(chain)
    }

    /// Refuses a log whose newest segment has no file: the file is made before a record goes there, so when
    /// it is gone, records may be.
    async fn check_begun(&self, record: &SlotRecord, chain: &Chain) -> Result<(), OpenError> {
        let Some(begun) = record.begun.filter(|begun| *begun >= record.start.file()) else { return Ok(()) };
        if self.open_segment(begun).await?.is_some() {
            return Ok(());
        }
        let file = begun.path(&self.spec.owners_dir);
        let why = format!("{}; but the log went on in a segment that is missing", chain.end);
        Err(OpenError::Damaged { log: self.spec.log, file, offset: 0, why })
    }

    /// Opens a segment that may not exist. What is found in it is called durable, so memory must not speak
    /// for the disk.
    async fn open_segment(&self, id: SegmentId) -> Result<Option<OpenSegment>, OpenError> {
        let opened = open_existing(self.disk, &self.spec.owners_dir, id).await.map_err(|e| self.io(e))?;
        let Some(open) = opened else { return Ok(None) };
        open.file.settle().await.map_err(|e| self.io(e))?;
        let end = open.file.len().await.map_err(|e| self.io(e))?;
        Ok(Some(OpenSegment { allocated_bytes: end, end, ..open }))
    }

    /// Follows the records of the segment the chain ends in; false when the chain ends here.
    async fn follow_segment(&self, record: &SlotRecord, chain: &mut Chain) -> Result<bool, OpenError> {
        let id = chain.tail.file();
        let opened = self.open_segment(id).await?;
        let Some(open) = opened.filter(|open| open.end >= chain.tail.offset) else {
            if chain.tail.offset > 0 {
                return Err(
                    self.damaged(chain.tail, "the segment is missing or ends before the log begins".into())
                );
            }
            chain.end = DecodeError::Zeros;
            return Ok(false);
        };
        let mut reader = SegmentReader::new(open.file.clone(), id);
        self.follow_index(&mut reader, id, record, chain).await?;
        chain.end = loop {
            self.check_whole(&open, chain)?;
            if chain.tail.file() != id {
                let rolled_at = chain.index.last().map(|last| last.position.offset + last.record_bytes());
                self.trim(&open, rolled_at.unwrap_or(0)).await?;
                return Ok(true);
            }
            match self.next_record(&mut reader, record, chain).await {
                Ok(()) => {}
                Err(ScanError::Bad(end)) => break end,
                Err(ScanError::Io(error)) => return Err(self.unreadable(error)),
            }
        };
        let Some(next) = self.first_head(chain.tail.next_segment()).await? else { return Ok(false) };
        if chain.end != DecodeError::Zeros || check_follows(&next, chain).is_err() {
            let why = format!(
                "{}; but segment {} goes on with entry {}",
                chain.end,
                id.segment + 1,
                next.header.id.index
            );
            return Err(self.damaged(chain.tail, why));
        }
        self.trim(&open, chain.tail.offset).await?;
        chain.tail = chain.tail.next_segment();
        Ok(true)
    }

    /// Refuses a file that ends within the last record found in it: bodies that were synced are not read, but
    /// this shows.
    fn check_whole(&self, open: &OpenSegment, chain: &Chain) -> Result<(), OpenError> {
        let Some(last) = chain.index.last().filter(|last| last.position.file() == open.id) else {
            return Ok(());
        };
        if open.end >= last.position.offset + last.record_bytes() {
            return Ok(());
        }
        let why = format!("the file ends at byte {}, inside entry {}", open.end, last.id.index);
        Err(self.damaged(last.position, why))
    }

    /// Adds the records that the segment's index names, as far as they are known to have been synced. The
    /// index was not synced: the last of its records must be there, or none of it counts. If it is, the index
    /// is of this segment as it is now: its blocks are of one history (their checksums say so), an id stands
    /// for one entry, and a record's place follows from those before it.
    async fn follow_index(
        &self,
        reader: &mut SegmentReader,
        id: SegmentId,
        record: &SlotRecord,
        chain: &mut Chain,
    ) -> Result<(), OpenError> {
        chain.segment_index = SegmentIndexWriter::new(self.spec.log);
        let Some(durable) = record.durable else { return Ok(()) };
        let index = SegmentIndex::read(self.disk, &self.spec.owners_dir, self.spec.log, id).await;
        let records = index.records(chain.next(), chain.tail, durable.index);
        let Some(last) = records.last() else { return Ok(()) };
        let roll_to = match self.confirm(reader, last).await {
            Ok(roll_to) => roll_to,
            Err(ScanError::Io(error)) => return Err(self.unreadable(error)),
            Err(ScanError::Bad(why)) => {
                let file = segment_index::path(id, &self.spec.owners_dir);
                tracing::warn!(log = self.spec.log, file, %why, "a segment's index is not used, it does not fit");
                return Ok(());
            }
        };
        for located in &records {
            let roll_to = roll_to.filter(|_| located.id == last.id);
            chain.push(located.id, located.meta_bytes, located.body_bytes, roll_to);
        }
        chain.segment_index = index.resume(self.spec.log, chain.index.end());
        Ok(())
    }

    /// Checks that a record stands where an index has it; answers the owner to which it sends the log, if it
    /// does.
    async fn confirm(
        &self,
        reader: &mut SegmentReader,
        located: &Located,
    ) -> Result<Option<OwnerId>, ScanError> {
        let header = reader.head(located.position.offset).await?.header;
        header.check_log(self.spec.log)?;
        check_field("index", header.id.index.0, located.id.index.0)?;
        check_field("term", header.id.term.0, located.id.term.0)?;
        check_field("meta_bytes", header.meta_bytes.into(), located.meta_bytes.into())?;
        check_field("body_bytes", header.place.body_bytes.into(), located.body_bytes.into())?;
        Ok(header.roll_to)
    }

    /// Adds the record at the chain's end. Bodies that were synced are not read: a reader verifies them.
    async fn next_record(
        &self,
        reader: &mut SegmentReader,
        record: &SlotRecord,
        chain: &mut Chain,
    ) -> Result<(), ScanError> {
        let head = reader.head(chain.tail.offset).await?;
        let header = head.header;
        header.check_log(self.spec.log)?;
        check_follows(&head, chain)?;
        if record.durable.is_none_or(|durable| durable.index < header.id.index)
            && let Err(error) = reader.entry(head).await
            && !self.was_discarded(&header).await?
        {
            return Err(error);
        }
        chain.push(header.id, header.meta_bytes, header.place.body_bytes, header.roll_to);
        Ok(())
    }

    /// Whether the body of a record was given up. Only a log that was rolled past it has such records, all of
    /// them durable; but the mark that says so may be lost.
    async fn was_discarded(&self, header: &Header) -> Result<bool, ScanError> {
        let discards = Discards::read(self.disk, &self.spec.owners_dir, header.place.owner).await?;
        Ok(discards.contains(header.id.index, &header.place))
    }

    /// The record of this log at the start of a segment, if there is one.
    async fn first_head(&self, at: Position) -> Result<Option<Head>, OpenError> {
        let Some(open) = self.open_segment(at.file()).await? else { return Ok(None) };
        match SegmentReader::new(open.file, at.file()).head(0).await {
            Ok(head) if head.header.log == self.spec.log => Ok(Some(head)),
            Ok(_) | Err(ScanError::Bad(_)) => Ok(None),
            Err(ScanError::Io(error)) => Err(self.unreadable(error)),
        }
    }

    /// Cuts off what stands behind a finished segment's records: it is these and nothing else.
    async fn trim(&self, open: &OpenSegment, end: u64) -> Result<(), OpenError> {
        if open.end > end {
            open.file.set_len(end).await.map_err(|e| self.io(e))?;
            open.file.sync_data().await.map_err(|e| self.io(e))?;
        }
        Ok(())
    }

    /// Removes everything after the chain's end, so that it can never come back to life behind later records,
    /// and makes the rest durable: what Raft finds in its log at the start it takes for durable.
    async fn cut_tail(&self, chain: &Chain) -> Result<Option<OpenSegment>, OpenError> {
        let io_error = |error| self.io(error);
        let tail = chain.tail;
        let open = open_existing(self.disk, &self.spec.owners_dir, tail.file()).await.map_err(io_error)?;
        let later = self.segments_after(tail).await?;
        remove_segments(self.disk, &self.spec.owners_dir, tail.owner, later, self.spec.log)
            .await
            .map_err(io_error)?;
        // A process that was killed may have left its last record, and its removals, in the page cache alone.
        if let Some(last) = chain.index.last()
            && last.position.file() != tail.file()
        {
            let file = open_existing(self.disk, &self.spec.owners_dir, last.position.file()).await;
            if let Some(rolled) = file.map_err(io_error)? {
                rolled.file.sync_data().await.map_err(io_error)?;
            }
        }
        let open = match open {
            None => None,
            Some(mut open) => {
                if open.end > tail.offset {
                    self.tell_of_torn_tail(&open, chain).await?;
                    open.file.set_len(tail.offset).await.map_err(io_error)?;
                }
                open.file.sync_data().await.map_err(io_error)?;
                (open.allocated_bytes, open.end) = (tail.offset, tail.offset);
                Some(open)
            }
        };
        self.sync_existing_dir(&owner_dir(&self.spec.owners_dir, tail.owner)).await?;
        self.sync_existing_dir(&self.spec.owners_dir).await?;
        Ok(open)
    }

    async fn sync_existing_dir(&self, dir: &str) -> Result<(), OpenError> {
        match self.disk.sync_dir(dir).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.map_err(|e| self.io(e)),
        }
    }

    async fn segments_after(&self, tail: Position) -> Result<Vec<u32>, OpenError> {
        segments_after(self.disk, &self.spec.owners_dir, tail.file()).await.map_err(|e| self.io(e))
    }

    /// Says what is cut, if it is more than unused space. What begins like a record of this place was torn;
    /// anything else is most likely what a recycled segment held before, and nobody needs to know how much of
    /// that there is.
    async fn tell_of_torn_tail(&self, open: &OpenSegment, chain: &Chain) -> Result<(), OpenError> {
        let Chain { tail, end, .. } = chain;
        let mut at = tail.offset;
        let unused = loop {
            let bytes = open.file.read_at(at, REST_READ_BYTES).await.map_err(|e| self.unreadable(e))?;
            at += bytes.len() as u64;
            if bytes.is_empty() || bytes.iter().any(|byte| *byte != 0) {
                break bytes.is_empty();
            }
        };
        let (log, offset, bytes) = (self.spec.log, tail.offset, open.end - tail.offset);
        let file = tail.file().path(&self.spec.owners_dir);
        if self.is_torn_record(open, *tail).await? {
            tracing::warn!(log, file, offset, bytes, why = %end, "cut torn tail");
        } else if !unused {
            tracing::info!(log, file, offset, bytes, why = %end, "cut what stands behind the last record");
        }
        Ok(())
    }

    async fn is_torn_record(&self, open: &OpenSegment, tail: Position) -> Result<bool, OpenError> {
        let start = open.file.read_at(tail.offset, HEADER_BYTES).await.map_err(|e| self.unreadable(e))?;
        Ok(Header::decode(&start).is_ok_and(|header| {
            header.check_log(self.spec.log).is_ok()
                && header.check_place(tail.owner, tail.segment, tail.offset).is_ok()
        }))
    }

    fn damaged(&self, at: Position, why: String) -> OpenError {
        let file = at.file().path(&self.spec.owners_dir);
        OpenError::Damaged { log: self.spec.log, file, offset: at.offset, why }
    }

    fn unreadable(&self, source: io::Error) -> OpenError {
        OpenError::Unreadable { log: self.spec.log, source }
    }

    fn io(&self, source: io::Error) -> OpenError {
        OpenError::Io { log: self.spec.log, source }
    }
}

/// Checks that a record follows the last one; the first record of a log without a purged entry may have any
/// index.
fn check_follows(head: &Head, chain: &Chain) -> Result<(), DecodeError> {
    check_field("index", head.header.id.index.0, chain.next().unwrap_or(head.header.id.index).0)
}
