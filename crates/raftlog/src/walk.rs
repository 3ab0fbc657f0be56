//! Going through an owner's records by place, whether or not a log knows them: what is derived from them is
//! rebuilt, compared and scrubbed this way.

use crate::discards::Discards;
use crate::read::read_error;
use crate::record::{
    ALIGNMENT, CRC_AT, DecodeError, HEADER_BYTES, Head, META_BYTES_AT, OFFSET_AT, check_field,
};
use crate::scan::{ScanError, SegmentReader};
use crate::segment::{SegmentId, owner_dir};
use crate::{EntryMeta, ReadError};
use bytes::Bytes;
use disk::{Disk, File};
use std::io;
use std::sync::Arc;
use types::{CRC_CHUNK_BYTES, ChecksumMismatch, LogIndex, OwnerId, PayloadError};

/// The bytes of a body that are read and verified at once.
const BODY_READ_BYTES: usize = 1 << 20;
const _: () = assert!(BODY_READ_BYTES.is_multiple_of(CRC_CHUNK_BYTES));

/// The longest body that is read with its head, and with those of its neighbours.
const BODY_IN_WINDOW_MAX: usize = 64 << 10;

/// Goes through the records of one owner, in order, from the first. What is behind them in a file (space
/// allocated ahead, what a recycled file held before) is none of them. Where the owner was compacted, the
/// records that were left out are missing, and no others may be.
pub struct OwnerWalk {
    disk: Arc<dyn Disk>,
    owners_dir: String,
    owner: OwnerId,
    discards: Arc<Discards>,
    /// Whether each segment is settled before it is read.
    settles: bool,
    /// Numbers of the segments still to come, the next one last, and the number it should have.
    later: Vec<u32>,
    next_segment: u32,
    open: Option<(SegmentId, Arc<dyn File>, SegmentReader)>,
    offset: u64,
    /// The index that the next record has, where none is left out.
    next_index: Option<LogIndex>,
    log: Option<u64>,
    end: Option<WalkEnd>,
}

/// A record whose head is verified; its body is not read.
#[derive(Clone, Debug)]
pub struct WalkedRecord {
    pub log: u64,
    pub meta: EntryMeta,
    /// The bytes from the record's first to the next one's first.
    pub bytes: u64,
    /// Everything before its body, as it stands in the file.
    pub head: Bytes,
    body_crcs: Arc<[u32]>,
}

impl WalkedRecord {
    /// Everything before its body that does not say where it stands: the same in all replicas, however often
    /// each was compacted.
    pub fn placeless_head(&self) -> [&[u8]; 3] {
        let head = &self.head;
        [&head[..OFFSET_AT], &head[META_BYTES_AT..CRC_AT], &head[HEADER_BYTES..]]
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    Record(Box<WalkedRecord>),
    End(WalkEnd),
}

/// The place where an owner's records end, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// The last record sends the log to another owner.
    Rolled { to: OwnerId },
    /// Zeros, or the end of the last file.
    Unfinished { segment: u32, offset: u64 },
    /// Something else: damage, or the torn tail of a log that was not closed.
    Bad { segment: u32, offset: u64, why: String },
}

/// Owners that have a directory here, sorted.
pub async fn owners(disk: &dyn Disk, owners_dir: &str) -> io::Result<Vec<OwnerId>> {
    let names = disk.list(owners_dir).await?;
    let owner = |name: &String| u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16);
    let mut owners: Vec<_> = names.iter().filter_map(owner).map(OwnerId).collect();
    owners.sort_unstable();
    Ok(owners)
}

impl OwnerWalk {
    pub async fn new(disk: Arc<dyn Disk>, owners_dir: &str, owner: OwnerId) -> io::Result<OwnerWalk> {
        OwnerWalk::from_segment(disk, owners_dir, owner, 0).await
    }

    /// A walk without the segments before `segment`.
    pub async fn from_segment(
        disk: Arc<dyn Disk>,
        owners_dir: &str,
        owner: OwnerId,
        segment: u32,
    ) -> io::Result<OwnerWalk> {
        let discards = Discards::read(&*disk, owners_dir, owner).await?;
        OwnerWalk::over(disk, owners_dir, Arc::new(discards), segment).await
    }

    /// A walk like [`OwnerWalk::from_segment`], of an owner whose list of discards was read already.
    pub async fn over(
        disk: Arc<dyn Disk>,
        owners_dir: &str,
        discards: Arc<Discards>,
        segment: u32,
    ) -> io::Result<OwnerWalk> {
        let (owner, compacted) = (discards.owner(), discards.compacted());
        let segments = compacted.segments.start.max(segment)..compacted.segments.end;
        let names = disk.list(&owner_dir(owners_dir, owner)).await?;
        let numbers = names.iter().filter_map(|name| SegmentId::parse_number(name));
        let mut later: Vec<_> = numbers.filter(|number| segments.contains(number)).collect();
        later.sort_unstable_by(|a, b| b.cmp(a));
        let begins = compacted.is_compacted() && segments.start == compacted.segments.start;
        let next_index = begins.then_some(compacted.first);
        let (open, offset, log, end) = Default::default();
        let (owners_dir, next_segment) = (owners_dir.to_owned(), segments.start);
        Ok(OwnerWalk {
            disk,
            owners_dir,
            owner,
            discards,
            settles: false,
            later,
            next_segment,
            open,
            offset,
            next_index,
            log,
            end,
        })
    }

    /// Has the walk read what the disk has, whatever of it the page cache shows.
    pub fn from_disk(self) -> OwnerWalk {
        OwnerWalk { settles: true, ..self }
    }

    /// The next record. Once the records end, the answer is that end, however often it is asked.
    pub async fn next(&mut self) -> Result<Step, ReadError> {
        loop {
            if let Some(end) = &self.end {
                return Ok(Step::End(end.clone()));
            }
            if self.open.is_none() && !self.open_next().await? {
                continue;
            }
            match self.record().await {
                Ok(record) => return Ok(Step::Record(Box::new(record))),
                Err(ScanError::Bad(why)) => self.end_segment(why),
                Err(ScanError::Io(error)) => {
                    let (id, _, _) = self.open.as_ref().expect("it was read from");
                    return Err(read_error(id.path(&self.owners_dir), self.offset, ScanError::Io(error)));
                }
            }
        }
    }

    /// Reads a record's body and checks all of it.
    pub async fn check_body(&self, record: &WalkedRecord) -> Result<(), ReadError> {
        let file = self.file_of(record).await?;
        let checked = check_body(&*file, record).await;
        let offset = record.meta.place.offset;
        checked.map_err(|error| read_error(self.path_of(record), offset, error))
    }

    /// The part of a record's body that begins at `at`, a multiple of 1 MiB, verified; with the last one
    /// comes what pads the record.
    pub async fn read_body(&self, record: &WalkedRecord, at: usize) -> Result<Bytes, ReadError> {
        let place = record.meta.place;
        let file = self.file_of(record).await?;
        let read = read_body(&*file, record, at).await;
        read.map_err(|error| read_error(self.path_of(record), place.offset, error))
    }

    /// The whole body of the record that was walked last, verified, and what pads it: in parts.
    pub async fn read_last_body(&mut self, record: &WalkedRecord) -> Result<Vec<Bytes>, ReadError> {
        let (place, padded) = (record.meta.place, record.bytes as usize - record.head.len());
        if padded > BODY_IN_WINDOW_MAX {
            let mut parts = Vec::with_capacity(padded.div_ceil(BODY_READ_BYTES));
            for at in (0..padded).step_by(BODY_READ_BYTES) {
                parts.push(self.read_body(record, at).await?);
            }
            return Ok(parts);
        }
        let (_, _, reader) = self.open.as_mut().expect("a record of it was walked");
        let read = reader.bytes(place.offset + record.head.len() as u64, padded).await;
        let read = read.map_err(ScanError::Io).and_then(|body| {
            check_part(record, 0, padded, &body)?;
            Ok(vec![body])
        });
        read.map_err(|error| read_error(self.path_of(record), place.offset, error))
    }

    fn path_of(&self, record: &WalkedRecord) -> String {
        let place = record.meta.place;
        SegmentId { owner: place.owner, segment: place.segment }.path(&self.owners_dir)
    }

    async fn file_of(&self, record: &WalkedRecord) -> Result<Arc<dyn File>, ReadError> {
        let place = record.meta.place;
        let id = SegmentId { owner: place.owner, segment: place.segment };
        match &self.open {
            Some((open, file, _)) if *open == id => Ok(file.clone()),
            _ => {
                let path = self.path_of(record);
                let opened = self.disk.open(&path, false).await;
                opened.map_err(|error| read_error(path, place.offset, ScanError::Io(error)))
            }
        }
    }

    /// Opens the next segment; false when the walk ends instead.
    async fn open_next(&mut self) -> Result<bool, ReadError> {
        let segment = self.next_segment;
        match self.later.pop() {
            None => self.end = Some(self.unfinished(segment, 0)),
            Some(found) if found != segment => {
                let why = format!("segment {segment:08x} is missing, {found:08x} is there");
                self.end = Some(WalkEnd::Bad { segment, offset: 0, why });
            }
            Some(_) => {
                let id = SegmentId { owner: self.owner, segment };
                let path = id.path(&self.owners_dir);
                let open = async {
                    let file = self.disk.open(&path, false).await?;
                    if self.settles {
                        file.settle().await?;
                    }
                    Ok(file)
                };
                let file = open.await.map_err(|error| read_error(path, 0, ScanError::Io(error)))?;
                self.open = Some((id, file.clone(), SegmentReader::new(file, id)));
                (self.next_segment, self.offset) = (segment + 1, 0);
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn record(&mut self) -> Result<WalkedRecord, ScanError> {
        let (_, _, reader) = self.open.as_mut().expect("the caller opened it");
        let head = reader.head(self.offset).await?;
        let Head { header, ref body_crcs, ref meta } = head;
        if let Some(log) = self.log {
            header.check_log(log)?;
        }
        if let Some(next) = self.next_index
            && (header.id.index < next || !self.discards.are_gone(next..header.id.index))
        {
            check_field("index", header.id.index.0, next.0)?;
        }
        let bytes = reader.bytes(self.offset, header.head_bytes() as usize).await?;
        let meta = EntryMeta {
            id: header.id,
            kind: header.kind,
            meta: meta.clone(),
            roll_to: header.roll_to,
            place: header.place,
        };
        self.offset += header.record_bytes();
        (self.log, self.next_index) = (Some(header.log), Some(header.id.index.next()));
        if let Some(to) = header.roll_to.filter(|to| *to > self.owner) {
            self.end = Some(WalkEnd::Rolled { to });
        }
        let body_crcs = body_crcs.clone();
        Ok(WalkedRecord { log: header.log, meta, bytes: header.record_bytes(), head: bytes, body_crcs })
    }

    /// The end of records that no roll ends. What was compacted says which is the last.
    fn unfinished(&self, segment: u32, offset: u64) -> WalkEnd {
        let compacted = self.discards.compacted();
        match self.next_index.filter(|_| compacted.is_compacted()) {
            Some(next) if !self.discards.are_gone(next..compacted.last.index.next()) => {
                let why =
                    format!("entry {next} should follow, and entry {} is the last", compacted.last.index);
                WalkEnd::Bad { segment, offset, why }
            }
            _ => WalkEnd::Unfinished { segment, offset },
        }
    }

    /// Ends the segment, or the walk, where no record begins that should. Only zeros end a segment that
    /// another may follow.
    fn end_segment(&mut self, why: DecodeError) {
        let (id, _, _) = self.open.take().expect("it was read from");
        let (segment, offset) = (id.segment, self.offset);
        if why != DecodeError::Zeros {
            self.end = Some(WalkEnd::Bad { segment, offset, why: why.to_string() });
        } else if self.later.is_empty() {
            self.end = Some(self.unfinished(segment, offset));
        } else if offset == 0 {
            let why = "the segment is empty, and others follow it".to_owned();
            self.end = Some(WalkEnd::Bad { segment, offset, why });
        }
    }
}

async fn check_body(file: &dyn File, record: &WalkedRecord) -> Result<(), ScanError> {
    let padded = record.bytes as usize - record.head.len();
    for at in (0..padded).step_by(BODY_READ_BYTES) {
        read_body(file, record, at).await?;
    }
    Ok(())
}

/// Reads and checks up to [`BODY_READ_BYTES`] of a body and its padding.
async fn read_body(file: &dyn File, record: &WalkedRecord, at: usize) -> Result<Bytes, ScanError> {
    assert!(at.is_multiple_of(BODY_READ_BYTES), "a part of a body begins at {at}");
    let padded = record.bytes as usize - record.head.len();
    let bytes = BODY_READ_BYTES.min(padded.saturating_sub(at));
    let start = record.meta.place.offset + record.head.len() as u64;
    let read = file.read_at(start + at as u64, bytes).await?;
    check_part(record, at, bytes, &read)?;
    Ok(read)
}

/// Checks `bytes` of a body and its padding, from byte `at` of it.
fn check_part(record: &WalkedRecord, at: usize, bytes: usize, read: &Bytes) -> Result<(), ScanError> {
    let body_bytes = record.meta.place.body_bytes as usize;
    debug_assert!(record.bytes as usize - record.head.len() - body_bytes < ALIGNMENT as usize);
    if read.len() < bytes {
        return Err(DecodeError::Cut.into());
    }
    let body = &read[..bytes.min(body_bytes.saturating_sub(at))];
    for (nth, piece) in body.chunks(CRC_CHUNK_BYTES).enumerate() {
        let chunk_offset = at + nth * CRC_CHUNK_BYTES;
        let (stored, computed) = (record.body_crcs[chunk_offset / CRC_CHUNK_BYTES], crc32c::crc32c(piece));
        if stored != computed {
            let mismatch = ChecksumMismatch { chunk_offset, stored, computed };
            return Err(DecodeError::Body(PayloadError::Mismatch(mismatch)).into());
        }
    }
    if read[body.len()..].iter().any(|byte| *byte != 0) {
        return Err(DecodeError::Padding.into());
    }
    Ok(())
}
