//! A record's bytes, docs/format/segment.md. Little-endian; the record starts at a multiple of 8.
//!
//! ```text
//! offset size field
//!      0    4 magic        "FLog"
//!      4    1 version      1
//!      5    1 kind         the caller's
//!      6    2 flags        bit 0: next_owner is meant; others zero
//!      8    8 log          the log the record belongs to
//!     16    8 owner        the owner of the segment it stands in
//!     24    8 term
//!     32    8 index
//!     40    8 next_owner   owner of the records after this one; 0 without flag 0
//!     48    8 offset       of this record in its segment
//!     56    4 segment      number of its segment
//!     60    4 meta_bytes
//!     64    4 body_bytes
//!     68    4 crc          CRC32C of bytes 0..68, then the body's CRCs, then meta
//!     72  4·n body_crcs    CRC32C of each 64 KiB of the body, n = ceil(body_bytes / 65536)
//!    ...    m meta
//!    ...    b body
//!    ... 0..7 zeros        up to a multiple of 8
//! ```

use crate::segment::NUMBER_MAX;
use crate::{Entry, Place};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Term, crc_chunks};

pub(crate) const MAGIC: [u8; 4] = *b"FLog";
pub(crate) const VERSION: u8 = 1;

const VERSION_AT: usize = MAGIC.len();
const KIND_AT: usize = VERSION_AT + 1;
const FLAGS_AT: usize = KIND_AT + 1;
const LOG_AT: usize = FLAGS_AT + 2;
const OWNER_AT: usize = LOG_AT + 8;
const TERM_AT: usize = OWNER_AT + 8;
const INDEX_AT: usize = TERM_AT + 8;
const NEXT_OWNER_AT: usize = INDEX_AT + 8;
pub(crate) const OFFSET_AT: usize = NEXT_OWNER_AT + 8;
const SEGMENT_AT: usize = OFFSET_AT + 8;
pub(crate) const META_BYTES_AT: usize = SEGMENT_AT + 4;
pub(crate) const BODY_BYTES_AT: usize = META_BYTES_AT + 4;
pub(crate) const CRC_AT: usize = BODY_BYTES_AT + 4;
pub(crate) const HEADER_BYTES: usize = CRC_AT + 4;

pub(crate) const ALIGNMENT: u64 = 8;

const _: () = assert!(HEADER_BYTES == 72);
const _: () = assert!(OFFSET_AT.is_multiple_of(8) && CRC_AT == 68);
const _: () = assert!((HEADER_BYTES as u64).is_multiple_of(ALIGNMENT));

const FLAG_ROLL: u16 = 1;

/// Limits of one record: a writer's flush and a reader's buffer are at most about this large.
pub(crate) const META_BYTES_MAX: usize = 16 << 20;
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) log: u64,
    pub(crate) id: LogId,
    pub(crate) kind: u8,
    pub(crate) roll_to: Option<OwnerId>,
    pub(crate) place: Place,
    pub(crate) meta_bytes: u32,
    crc: u32,
}

/// The reasons why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The end of the log, unless something says that there must be more.
    #[error("zeros where a record should begin")]
    Zeros,
    #[error("no record begins here (magic {0:02x?})")]
    Magic([u8; 4]),
    #[error("record version {0} is unknown; this version reads {VERSION}")]
    Version(u8),
    #[error("unknown flags {0:#06x}")]
    Flags(u16),
    #[error("{field} is {found}, expected {expected}")]
    Misplaced { field: &'static str, found: u64, expected: u64 },
    #[error("{field} is {bytes} bytes, at most {limit} are allowed")]
    Length { field: &'static str, bytes: u32, limit: usize },
    #[error("index {0} is beyond all that a log can hold")]
    Index(LogIndex),
    #[error("the file ends inside the record")]
    Cut,
    #[error("checksum of header and meta mismatch: stored {stored:#010x}, computed {computed:#010x}")]
    HeadChecksum { stored: u32, computed: u32 },
    #[error("{0}")]
    Body(types::PayloadError),
    #[error("padding is not zero")]
    Padding,
}

/// Header, body checksums and meta: all of a record that is not bulk data, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) header: Header,
    pub(crate) body_crcs: Arc<[u32]>,
    pub(crate) meta: Bytes,
}

/// The name of the field that byte `at` of a head is in, for people; of a record with so long a body.
pub(crate) fn field_at(at: usize, body_bytes: usize) -> String {
    const FIELDS: [(usize, &str); 14] = [
        (VERSION_AT, "magic"),
        (KIND_AT, "version"),
        (FLAGS_AT, "kind"),
        (LOG_AT, "flags"),
        (OWNER_AT, "log"),
        (TERM_AT, "owner"),
        (INDEX_AT, "term"),
        (NEXT_OWNER_AT, "index"),
        (OFFSET_AT, "next_owner"),
        (SEGMENT_AT, "offset"),
        (META_BYTES_AT, "segment"),
        (BODY_BYTES_AT, "meta_bytes"),
        (CRC_AT, "body_bytes"),
        (HEADER_BYTES, "crc"),
    ];
    if let Some((_, name)) = FIELDS.iter().find(|(end, _)| at < *end) {
        return (*name).to_owned();
    }
    let nth = (at - HEADER_BYTES) / 4;
    if nth < crc_chunks(body_bytes) { format!("body_crcs[{nth}]") } else { "meta".to_owned() }
}

pub(crate) fn padding_bytes(record_bytes: u64) -> u64 {
    record_bytes.next_multiple_of(ALIGNMENT) - record_bytes
}

/// The bytes from the record's first byte to its body.
pub(crate) fn head_bytes(meta_bytes: usize, body_bytes: usize) -> u64 {
    (HEADER_BYTES + 4 * crc_chunks(body_bytes) + meta_bytes) as u64
}

/// The bytes from the record's first byte to the next one's.
pub(crate) fn record_bytes(meta_bytes: usize, body_bytes: usize) -> u64 {
    (head_bytes(meta_bytes, body_bytes) + body_bytes as u64).next_multiple_of(ALIGNMENT)
}

/// Writes an entry's header, body checksums and meta; body and padding follow.
pub(crate) fn encode_head(log: u64, entry: &Entry, place: &Place, out: &mut BytesMut) {
    let start = out.len();
    let body_crcs = entry.body.crcs();
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_u8(entry.kind);
    out.put_u16_le(if entry.roll_to.is_some() { FLAG_ROLL } else { 0 });
    out.put_u64_le(log);
    out.put_u64_le(place.owner.0);
    out.put_u64_le(entry.id.term.0);
    out.put_u64_le(entry.id.index.0);
    out.put_u64_le(entry.roll_to.unwrap_or_default().0);
    out.put_u64_le(place.offset);
    out.put_u32_le(place.segment);
    out.put_u32_le(u32::try_from(entry.meta.len()).expect("append refuses longer meta"));
    out.put_u32_le(place.body_bytes);
    debug_assert_eq!(out.len() - start, CRC_AT);
    let mut crc = crc32c::crc32c(&out[start..]);
    out.put_u32_le(0);
    let crcs_start = out.len();
    body_crcs.iter().for_each(|crc| out.put_u32_le(*crc));
    out.put_slice(&entry.meta);
    crc = crc32c::crc32c_append(crc, &out[crcs_start..]);
    out[start + CRC_AT..start + HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
}

/// The head of a record that says of itself that it stands elsewhere in its owner, and is else the same.
pub(crate) fn move_head(head: &[u8], segment: u32, offset: u64) -> Bytes {
    let mut moved = BytesMut::from(head);
    moved[OFFSET_AT..SEGMENT_AT].copy_from_slice(&offset.to_le_bytes());
    moved[SEGMENT_AT..META_BYTES_AT].copy_from_slice(&segment.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&moved[..CRC_AT]), &moved[HEADER_BYTES..]);
    moved[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    moved.freeze()
}

impl Header {
    /// Reads a header by itself. Its checksum also covers what follows it: see [`Head::decode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Header, DecodeError> {
        if bytes.iter().take(HEADER_BYTES).all(|byte| *byte == 0) {
            return Err(DecodeError::Zeros); // a file that ends here ends the log as zeros do
        }
        if bytes.len() < HEADER_BYTES {
            return Err(DecodeError::Cut);
        }
        let mut rest = bytes;
        let mut magic = [0; 4];
        rest.copy_to_slice(&mut magic);
        if magic != MAGIC {
            return Err(DecodeError::Magic(magic));
        }
        let version = rest.get_u8();
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let kind = rest.get_u8();
        let flags = rest.get_u16_le();
        if flags & !FLAG_ROLL != 0 {
            return Err(DecodeError::Flags(flags));
        }
        let log = rest.get_u64_le();
        let owner = OwnerId(rest.get_u64_le());
        let id = LogId { term: Term(rest.get_u64_le()), index: LogIndex(rest.get_u64_le()) };
        let next_owner = OwnerId(rest.get_u64_le());
        let offset = rest.get_u64_le();
        let segment = rest.get_u32_le();
        let meta_bytes = rest.get_u32_le();
        let body_bytes = rest.get_u32_le();
        check_length("meta", meta_bytes, META_BYTES_MAX)?;
        check_length("body", body_bytes, BODY_BYTES_MAX)?;
        let crc = rest.get_u32_le();
        let roll_to = (flags & FLAG_ROLL != 0).then_some(next_owner);
        if id.index.0 > NUMBER_MAX {
            return Err(DecodeError::Index(id.index));
        }
        if roll_to.is_none() {
            check_field("next_owner", next_owner.0, 0)?; // there is one way to write a record
        }
        let place = Place { owner, segment, offset, body_bytes };
        Ok(Header { log, id, kind, roll_to, place, meta_bytes, crc })
    }

    /// Whether the record says of itself that it stands where it was found.
    pub(crate) fn check_place(&self, owner: OwnerId, segment: u32, offset: u64) -> Result<(), DecodeError> {
        check_field("owner", self.place.owner.0, owner.0)?;
        check_field("segment", self.place.segment.into(), segment.into())?;
        check_field("offset", self.place.offset, offset)
    }

    pub(crate) fn check_log(&self, log: u64) -> Result<(), DecodeError> {
        check_field("log", self.log, log)
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.place.body_bytes as usize
    }

    pub(crate) fn head_bytes(&self) -> u64 {
        head_bytes(self.meta_bytes as usize, self.body_bytes())
    }

    pub(crate) fn record_bytes(&self) -> u64 {
        record_bytes(self.meta_bytes as usize, self.body_bytes())
    }
}

impl Head {
    /// Verifies everything before the body; `bytes` starts at the record and holds at least that much.
    pub(crate) fn decode(header: Header, bytes: &Bytes) -> Result<Head, DecodeError> {
        let head_bytes = header.head_bytes() as usize;
        if bytes.len() < head_bytes {
            return Err(DecodeError::Cut);
        }
        let computed =
            crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), &bytes[HEADER_BYTES..head_bytes]);
        if computed != header.crc {
            return Err(DecodeError::HeadChecksum { stored: header.crc, computed });
        }
        let meta_start = head_bytes - header.meta_bytes as usize;
        let body_crcs =
            bytes[HEADER_BYTES..meta_start].chunks_exact(4).map(|mut crc| crc.get_u32_le()).collect();
        Ok(Head { header, body_crcs, meta: bytes.slice(meta_start..head_bytes) })
    }

    /// The whole entry, verified; `bytes` holds the record from its first byte to its last.
    pub(crate) fn decode_entry(self, bytes: &Bytes) -> Result<Entry, DecodeError> {
        let body_start = self.header.head_bytes() as usize;
        let body_end = body_start + self.header.body_bytes();
        let record_end = self.header.record_bytes() as usize;
        if bytes.len() < record_end {
            return Err(DecodeError::Cut);
        }
        let body = types::Payload::verified(bytes.slice(body_start..body_end), self.body_crcs)
            .map_err(DecodeError::Body)?;
        if bytes[body_end..record_end].iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Padding);
        }
        Ok(Entry {
            id: self.header.id,
            kind: self.header.kind,
            meta: self.meta,
            body,
            roll_to: self.header.roll_to,
        })
    }
}

fn check_length(field: &'static str, bytes: u32, limit: usize) -> Result<(), DecodeError> {
    if bytes as usize <= limit { Ok(()) } else { Err(DecodeError::Length { field, bytes, limit }) }
}

pub(crate) fn check_field(field: &'static str, found: u64, expected: u64) -> Result<(), DecodeError> {
    if found == expected { Ok(()) } else { Err(DecodeError::Misplaced { field, found, expected }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::Payload;

    fn place(body_bytes: usize) -> Place {
        Place { owner: OwnerId(5), segment: 2, offset: 64, body_bytes: body_bytes as u32 }
    }

    fn entry(meta: &[u8], body: &[u8], roll_to: Option<OwnerId>) -> Entry {
        Entry {
            id: LogId { term: Term(3), index: LogIndex(9) },
            kind: 7,
            meta: Bytes::copy_from_slice(meta),
            body: Payload::checksummed(Bytes::copy_from_slice(body)),
            roll_to,
        }
    }

    fn encode(entry: &Entry) -> Bytes {
        let mut out = BytesMut::new();
        encode_head(1, entry, &place(entry.body.len()), &mut out);
        out.extend_from_slice(entry.body.bytes());
        let padding = padding_bytes(out.len() as u64) as usize;
        out.resize(out.len() + padding, 0);
        assert_eq!(out.len() as u64, record_bytes(entry.meta.len(), entry.body.len()));
        out.freeze()
    }

    fn decode(bytes: &Bytes) -> Result<Entry, DecodeError> {
        let header = Header::decode(bytes)?;
        header.check_log(1)?;
        header.check_place(OwnerId(5), 2, 64)?;
        Head::decode(header, bytes)?.decode_entry(bytes)
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let original = entry(b"meta", &[0x5a; 301], Some(OwnerId(6)));
        let bytes = encode(&original);
        assert_eq!(decode(&bytes), Ok(original));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged.into()).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(decode(&bytes.slice(..end)).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn zeros_end_a_log_also_at_the_end_of_a_file() {
        assert_eq!(decode(&Bytes::new()), Err(DecodeError::Zeros));
        assert_eq!(decode(&Bytes::from(vec![0; 40])), Err(DecodeError::Zeros));
        assert_eq!(decode(&Bytes::from(vec![0; 400])), Err(DecodeError::Zeros));
    }

    #[test]
    fn a_record_of_another_place_does_not_pass() {
        let bytes = encode(&entry(b"", b"x", None));
        let header = Header::decode(&bytes).unwrap();
        assert!(header.check_log(2).is_err());
        assert!(header.check_place(OwnerId(6), 2, 64).is_err());
        assert!(header.check_place(OwnerId(5), 3, 64).is_err());
        assert!(header.check_place(OwnerId(5), 2, 72).is_err());
    }

    #[test]
    fn a_moved_head_is_that_of_the_same_entry_in_another_place() {
        let original = entry(b"meta", &[0x5a; 301], Some(OwnerId(6)));
        let bytes = encode(&original);
        let head_bytes = head_bytes(4, 301) as usize;
        let moved = move_head(&bytes[..head_bytes], 7, 800);
        let moved: Bytes = [&moved[..], &bytes[head_bytes..]].concat().into();
        let header = Header::decode(&moved).unwrap();
        header.check_place(OwnerId(5), 7, 800).unwrap();
        assert_eq!(Head::decode(header, &moved).unwrap().decode_entry(&moved), Ok(original));
    }

    /// Found by the fuzzer: such a record decoded to an entry that is encoded to other bytes.
    #[test]
    fn a_next_owner_that_is_not_meant_is_refused() {
        let mut bytes = encode(&entry(b"", b"", None)).to_vec();
        bytes[NEXT_OWNER_AT] = 1;
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        let misplaced = DecodeError::Misplaced { field: "next_owner", found: 1, expected: 0 };
        assert_eq!(decode(&bytes.into()), Err(misplaced));
    }

    proptest! {
        #[test]
        fn entries_come_back(meta in prop::collection::vec(any::<u8>(), 0..300), body_bytes in 0usize..200_000,
                             roll in prop::option::of(any::<u64>())) {
            let body: Vec<u8> = (0..body_bytes).map(|n| (n * 7) as u8).collect();
            let original = entry(&meta, &body, roll.map(OwnerId));
            prop_assert_eq!(decode(&encode(&original)), Ok(original));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..400), valid in any::<bool>()) {
            if valid && bytes.len() > 5 {
                bytes[..5].copy_from_slice(b"FLog\x01");
            }
            let _ = decode(&bytes.into());
        }
    }
}
