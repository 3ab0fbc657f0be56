//! Going through an owner's records by place, whether or not a log knows them: what is derived from them is
//! rebuilt, compared and scrubbed this way.

use crate::read::read_error;
use crate::record::{ALIGNMENT, DecodeError, Head, check_field};
use crate::scan::{ScanError, SegmentReader};
use crate::segment::{SegmentId, owner_dir};
use crate::{EntryMeta, ReadError};
use bytes::Bytes;
use disk::{Disk, File};
use std::io;
use std::sync::Arc;
use types::{CRC_CHUNK_BYTES, ChecksumMismatch, OwnerId, PayloadError};

/// The bytes of a body that are read and verified at once.
const BODY_READ_BYTES: usize = 1 << 20;
const _: () = assert!(BODY_READ_BYTES.is_multiple_of(CRC_CHUNK_BYTES));

/// Goes through the records of one owner, in order, from the first. What is behind them in a file (space
/// allocated ahead, what a recycled file held before) is none of them.
pub struct OwnerWalk {
    disk: Arc<dyn Disk>,
    owners_dir: String,
    owner: OwnerId,
    /// Numbers of the segments still to come, the next one last, and the number it should have.
    later: Vec<u32>,
    next_segment: u32,
    open: Option<(SegmentId, Arc<dyn File>, SegmentReader)>,
    offset: u64,
    /// The log, and the record before.
    last: Option<(u64, EntryMeta)>,
    end: Option<WalkEnd>,
}

/// A record whose head is verified; its body is not read.
#[derive(Clone, Debug)]
pub struct WalkedRecord {
    pub log: u64,
    pub meta: EntryMeta,
    /// The bytes from its first to the next record's first.
    pub bytes: u64,
    /// Everything before its body, as it stands in the file.
    pub head: Bytes,
    body_crcs: Arc<[u32]>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Record(Box<WalkedRecord>),
    End(WalkEnd),
}

/// The place where an owner's records end, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// The last one sends the log to another owner.
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

    /// Without the segments before `segment`.
    pub async fn from_segment(
        disk: Arc<dyn Disk>,
        owners_dir: &str,
        owner: OwnerId,
        segment: u32,
    ) -> io::Result<OwnerWalk> {
        let names = disk.list(&owner_dir(owners_dir, owner)).await?;
        let numbers = names.iter().filter_map(|name| SegmentId::parse_number(name));
        let mut later: Vec<_> = numbers.filter(|number| *number >= segment).collect();
        later.sort_unstable_by(|a, b| b.cmp(a));
        let (open, offset, last, end) = Default::default();
        let (owners_dir, next_segment) = (owners_dir.to_owned(), segment);
        Ok(OwnerWalk { disk, owners_dir, owner, later, next_segment, open, offset, last, end })
    }

    /// The next record. Once they end, the same end however often it is asked.
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
            None => self.end = Some(WalkEnd::Unfinished { segment, offset: 0 }),
            Some(found) if found != segment => {
                let why = format!("segment {segment:08x} is missing, {found:08x} is there");
                self.end = Some(WalkEnd::Bad { segment, offset: 0, why });
            }
            Some(_) => {
                let id = SegmentId { owner: self.owner, segment };
                let path = id.path(&self.owners_dir);
                let opened = self.disk.open(&path, false).await;
                let file = opened.map_err(|error| read_error(path, 0, ScanError::Io(error)))?;
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
        if let Some((log, last)) = &self.last {
            header.check_log(*log)?;
            check_field("index", header.id.index.0, last.id.index.next().0)?;
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
        self.last = Some((header.log, EntryMeta { meta: Bytes::new(), ..meta.clone() }));
        if let Some(to) = header.roll_to.filter(|to| *to > self.owner) {
            self.end = Some(WalkEnd::Rolled { to });
        }
        let body_crcs = body_crcs.clone();
        Ok(WalkedRecord { log: header.log, meta, bytes: header.record_bytes(), head: bytes, body_crcs })
    }

    /// No record begins where one should. Only zeros end a segment that another may follow.
    fn end_segment(&mut self, why: DecodeError) {
        let (id, _, _) = self.open.take().expect("it was read from");
        let (segment, offset) = (id.segment, self.offset);
        if why != DecodeError::Zeros {
            self.end = Some(WalkEnd::Bad { segment, offset, why: why.to_string() });
        } else if self.later.is_empty() {
            self.end = Some(WalkEnd::Unfinished { segment, offset });
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
    let body_bytes = record.meta.place.body_bytes as usize;
    let padded = record.bytes as usize - record.head.len();
    debug_assert!(padded - body_bytes < ALIGNMENT as usize);
    let bytes = BODY_READ_BYTES.min(padded.saturating_sub(at));
    let start = record.meta.place.offset + record.head.len() as u64;
    let read = file.read_at(start + at as u64, bytes).await?;
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
    Ok(read)
}
