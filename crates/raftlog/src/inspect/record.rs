use crate::record::{DecodeError, Head, Header};
use crate::segment::SegmentId;
use crate::{Entry, Place};
use bytes::Bytes;
use std::fmt;
use types::{LogId, OwnerId};

/// A segment, as its records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentName {
    pub owner: OwnerId,
    pub segment: u32,
}

impl SegmentName {
    /// The name from the last two parts of a path, when it is named like a segment in its owner's directory.
    pub fn of_path(path: &str) -> Option<SegmentName> {
        let mut parts = path.rsplit('/');
        let segment = SegmentId::parse_number(parts.next()?)?;
        let owner = parts.next().filter(|digits| digits.len() == 16)?;
        Some(SegmentName { owner: OwnerId(u64::from_str_radix(owner, 16).ok()?), segment })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner {:016x} segment {:08x}", self.owner.0, self.segment)
    }
}

/// A record as it stands in a file, without meta and body: whoever keeps one keeps none of the file's bytes
/// in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRecord {
    /// The offset at which it was found.
    pub offset: u64,
    /// The bytes from the record's first to the next one's first.
    pub bytes: u64,
    pub log: u64,
    pub id: LogId,
    pub kind: u8,
    pub roll_to: Option<OwnerId>,
    /// The place at which it says that it stands.
    pub place: Place,
    pub meta_bytes: u32,
}

impl SeenRecord {
    pub(crate) fn new(offset: u64, header: Header) -> SeenRecord {
        let bytes = header.record_bytes();
        let Header { log, id, kind, roll_to, place, meta_bytes, .. } = header;
        SeenRecord { offset, bytes, log, id, kind, roll_to, place, meta_bytes }
    }

    /// The segment that it says it is in.
    pub fn segment(&self) -> SegmentName {
        SegmentName { owner: self.place.owner, segment: self.place.segment }
    }

    /// Whether the records after this one stand in another owner's segments.
    pub fn rolls(&self) -> bool {
        self.roll_to.is_some_and(|owner| owner > self.place.owner)
    }
}

impl fmt::Display for SeenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SeenRecord { offset, bytes, log, id, kind, roll_to, place, meta_bytes } = self;
        write!(
            f,
            "offset {offset} index {} term {} kind {kind} log {log} meta {meta_bytes} body {} bytes {bytes}",
            id.index, id.term, place.body_bytes
        )?;
        match roll_to {
            Some(owner) => write!(f, " roll {:016x}", owner.0),
            None => Ok(()),
        }
    }
}

/// The reason why bytes are no record, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct BadRecord(DecodeError);

/// Decodes the whole record that the bytes begin with, verified; its place is the caller's to judge.
pub fn decode_record(bytes: &Bytes) -> Result<(SeenRecord, Entry), BadRecord> {
    let decode = || {
        let header = Header::decode(bytes)?;
        let head = Head::decode(header, bytes)?;
        let seen = SeenRecord::new(header.place.offset, header);
        Ok((seen, head.decode_entry(bytes)?))
    };
    decode().map_err(BadRecord)
}
