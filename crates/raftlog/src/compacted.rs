//! The file `compacted` beside the segments of an owner whose records were copied to other segments, without
//! those that were discarded (docs/format/compacted.md). It says which segments are the owner's: replacing it
//! is the one moment at which new ones take the place of old ones.
//!
//! ```text
//! offset size field
//!      0    4 magic         "FLco"
//!      4    1 version       1
//!      5    3 zero
//!      8    4 bytes         of all from 16 on
//!     12    4 crc           CRC32C of bytes 0..12 and all from 16 on
//!     16    8 owner
//!     24    4 first_segment those before it are no part of the owner any more
//!     28    4 end_segment   nor are those from this one on, yet; 0xffffffff for none
//!     32    8 first_index   of the first record that ever stood in the owner
//!     40    8 last_term     of the last one; all zero before the first compaction
//!     48    8 last_index
//!     56    n notes         the caller's
//! ```

use crate::segment::owner_dir;
use bytes::{Buf, BufMut, Bytes};
use disk::{Disk, RecordFile};
use std::io;
use std::ops::Range;
use types::{LogId, LogIndex, OwnerId, Term};

pub(crate) const FILE_NAME: &str = "compacted";
/// The bytes of the contents before the notes.
const FIELDS_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 8;
/// The most bytes of notes: those of a container are some bytes for each term, and for each chunk that was
/// sent again.
const NOTES_BYTES_MAX: usize = 4 << 20;
const FILE: RecordFile = RecordFile::of_message(b"FLco", 1, FIELDS_BYTES + NOTES_BYTES_MAX);
const NO_END: u32 = u32::MAX;

/// The part of an owner's files that is the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The segments with its records. Others are what a compaction left, or has not finished.
    pub segments: Range<u32>,
    /// The first and the last record that ever stood in the owner; nobody asks where it was never compacted.
    pub first: LogIndex,
    pub last: LogId,
    /// The caller's own word on what is no longer to be seen.
    pub notes: Bytes,
}

impl Compacted {
    /// The part that is the owner where it was never compacted: all of it.
    pub const NEVER: Compacted = Compacted {
        segments: 0..NO_END,
        first: LogIndex(0),
        last: LogId { term: Term(0), index: LogIndex(0) },
        notes: Bytes::new(),
    };

    /// Whether records of the owner are gone.
    pub fn is_compacted(&self) -> bool {
        self.segments.start > 0
    }

    /// The record that lets only segments before `end` count, while later ones are being written.
    pub fn before(&self, end: u32) -> Compacted {
        Compacted { segments: self.segments.start..end, ..self.clone() }
    }

    /// The record for a disk that gets all segments there are: without an end.
    pub fn without_end(&self) -> Compacted {
        self.before(NO_END)
    }

    pub async fn read(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Compacted> {
        let decode = |contents: &[u8]| Compacted::decode(owner, contents);
        Ok(FILE.read(disk, &path(owners_dir, owner), decode).await?.unwrap_or(Compacted::NEVER))
    }

    /// Replaces the file of an owner that has a directory, durably: a crash leaves the one before or this.
    pub async fn write(&self, disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<()> {
        if self.notes.len() > NOTES_BYTES_MAX {
            let bytes = self.notes.len();
            return Err(io::Error::other(format!(
                "{bytes} bytes of notes do not fit into {FILE_NAME}, which holds {NOTES_BYTES_MAX}"
            )));
        }
        FILE.write(disk, &path(owners_dir, owner), &self.encode(owner)).await
    }

    /// The contents of the file, without what every record file has.
    pub fn encode(&self, owner: OwnerId) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIELDS_BYTES + self.notes.len());
        out.put_u64_le(owner.0);
        out.put_u32_le(self.segments.start);
        out.put_u32_le(self.segments.end);
        out.put_u64_le(self.first.0);
        out.put_u64_le(self.last.term.0);
        out.put_u64_le(self.last.index.0);
        debug_assert_eq!(out.len(), FIELDS_BYTES);
        out.put_slice(&self.notes);
        out
    }

    pub fn decode(owner: OwnerId, contents: &[u8]) -> Result<Compacted, String> {
        if contents.len() < FIELDS_BYTES {
            return Err(format!(
                "its contents have {} bytes, at least {FIELDS_BYTES} are due",
                contents.len()
            ));
        }
        let (mut fields, notes) = contents.split_at(FIELDS_BYTES);
        let found = fields.get_u64_le();
        if found != owner.0 {
            return Err(format!("it is that of owner {found:016x}"));
        }
        let segments = fields.get_u32_le()..fields.get_u32_le();
        if segments.is_empty() {
            return Err(format!("it says that segments {segments:?} are the owner's"));
        }
        let first = LogIndex(fields.get_u64_le());
        let last = LogId { term: Term(fields.get_u64_le()), index: LogIndex(fields.get_u64_le()) };
        Ok(Compacted { segments, first, last, notes: Bytes::copy_from_slice(notes) })
    }

    /// The bytes of a whole file, as somebody read them.
    pub(crate) fn decode_file(owner: OwnerId, bytes: &[u8]) -> Result<Compacted, String> {
        Compacted::decode(owner, FILE.decode(bytes)?)
    }
}

pub(crate) fn path(owners_dir: &str, owner: OwnerId) -> String {
    format!("{}/{FILE_NAME}", owner_dir(owners_dir, owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_laid_out_as_documented_and_every_flipped_bit_is_found() {
        let owner = OwnerId(0x11);
        let last = LogId { term: Term(0x55), index: LogIndex(0x66) };
        let notes = Bytes::from_static(b"notes");
        let compacted = Compacted { segments: 0x22..0x33, first: LogIndex(0x44), last, notes };
        let mut expected = 0x11u64.to_le_bytes().to_vec();
        [0x22u32, 0x33].iter().for_each(|field| expected.extend(field.to_le_bytes()));
        [0x44u64, 0x55, 0x66].iter().for_each(|field| expected.extend(field.to_le_bytes()));
        expected.extend(b"notes");
        assert_eq!(compacted.encode(owner), expected);
        let bytes = FILE.encode(&expected);
        assert_eq!(bytes[..8], *b"FLco\x01\0\0\0");
        assert_eq!(Compacted::decode_file(owner, &bytes), Ok(compacted));
        assert!(Compacted::decode_file(OwnerId(0x12), &bytes).is_err(), "another owner's");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Compacted::decode_file(owner, &damaged).is_err(), "bit {bit}");
        }
        let none = Compacted { segments: 3..3, ..Compacted::NEVER }.encode(owner);
        assert!(Compacted::decode(owner, &none).is_err(), "no segment at all");
    }
}
