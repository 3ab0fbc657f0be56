use bytes::Bytes;
use types::{LogId, OwnerId, Payload};

/// One record: `meta` is small and always read; `body` is bulk data that apply never needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: LogId,
    /// The caller's own meaning; stored, not interpreted.
    pub kind: u8,
    pub meta: Bytes,
    pub body: Payload,
    /// The owner of the records after this one, where it is another, with a directory of its own.
    pub roll_to: Option<OwnerId>,
}

/// A record's place: good for as long as its owner exists and is not compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub owner: OwnerId,
    pub segment: u32,
    /// The offset of the record's first byte in the segment.
    pub offset: u64,
    pub body_bytes: u32,
}

/// An entry without its body: what apply sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    pub id: LogId,
    pub kind: u8,
    pub meta: Bytes,
    pub roll_to: Option<OwnerId>,
    pub place: Place,
}

/// A verified range of a body with checksums a next hop can check: pieces end at multiples of 64 KiB of the
/// body; sums of pieces the range cuts are computed anew after the whole piece was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPieces {
    pub bytes: Bytes,
    pub crcs: Vec<u32>,
    pub first_piece_bytes: u32,
    /// The meta of the record whose body it is.
    pub meta: Bytes,
}
