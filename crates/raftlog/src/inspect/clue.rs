//! Clues: what bytes say about how they came to be wrong.

use super::SeenRecord;
use super::correct::{Flipped, flipped_bit};
use super::window::Window;
use crate::record::{self, CRC_AT, HEADER_BYTES};
use std::fmt;
use std::io;

/// The bytes that every device writes at once, at least: writes are torn at multiples of it.
const SECTOR_BYTES: u64 = 512;

/// The number of zeros before a sector boundary that may be the data's own, and of those behind it that are
/// no coincidence.
const TORN_GAP_BYTES_MAX: u64 = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clue {
    /// A bit that makes the checksum right when it is flipped back.
    FlippedBit { offset: u64, bit: u8, field: String },
    /// Zeros from a sector boundary to the end of what is wrong: the device stopped writing there.
    Torn { offset: u64 },
    /// Whole sectors of zeros with other bytes behind them: a write that was lost, or a trimmed range.
    ZeroSectors { from: u64, to: u64 },
    /// Whole records that belong elsewhere, the first of so many.
    Foreign { record: Box<SeenRecord>, count: usize },
    /// Whole records of another segment at the offsets they had there, the first of so many.
    Recycled { record: Box<SeenRecord>, count: usize },
    /// The end of the file, at a sector boundary or not.
    CutAt { offset: u64, at_sector: bool },
    /// Looking for the next record was given up: too much looks like one.
    GaveUp { offset: u64 },
}

impl fmt::Display for Clue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clue::FlippedBit { offset, bit, field } => {
                write!(f, "one flipped bit explains it: bit {bit} of byte {offset}, in {field}")
            }
            Clue::Torn { offset } => {
                write!(f, "torn: from byte {offset}, a sector boundary, there are only zeros")
            }
            Clue::ZeroSectors { from, to } => {
                write!(f, "whole sectors of zeros from byte {from} to {to}: a lost write, or a trimmed range")
            }
            Clue::Foreign { record, count } => write!(
                f,
                "{count} whole record(s) of another place, a misdirected write or a copy; the first: entry {} of log {}, \
                 owner {:016x}, segment {:08x}, offset {}, found at byte {}",
                record.id.index,
                record.log,
                record.place.owner.0,
                record.place.segment,
                record.place.offset,
                record.offset
            ),
            Clue::Recycled { record, count } => write!(
                f,
                "{count} whole record(s) of {} of log {} at the offsets they had there, as in a recycled file; the first: \
                 entry {} at byte {}",
                record.segment(),
                record.log,
                record.id.index,
                record.offset
            ),
            Clue::CutAt { offset, at_sector: true } => {
                write!(f, "the file ends at byte {offset}, a sector boundary")
            }
            Clue::CutAt { offset, at_sector: false } => {
                write!(f, "the file ends at byte {offset}, which is no sector boundary")
            }
            Clue::GaveUp { offset } => {
                write!(f, "gave up looking for the next record at byte {offset}: too much looks like one")
            }
        }
    }
}

/// Looks for the flipped bit of a head, also one in the lengths that say how long the head is; answers the
/// record's length too. Reads at most the longest head there can be, for each bit of the lengths.
pub(crate) async fn flipped_in_head(window: &mut Window, at: u64) -> io::Result<Option<(Clue, u64)>> {
    let header = window.read(at, HEADER_BYTES).await?;
    if header.len() < HEADER_BYTES {
        return Ok(None);
    }
    let lengths = lengths(&header);
    if let Some(head_bytes) = head_bytes(lengths, window.len() - at) {
        let (stored, computed) = sums(window, at, head_bytes).await?;
        let found = flipped_bit(head_bytes - 4, stored, computed);
        let place = found.map(|flipped| match flipped {
            Flipped::Checksum { bit } => (CRC_AT + usize::from(bit / 8), bit % 8),
            Flipped::Message { at, bit } if at < CRC_AT => (at, bit),
            Flipped::Message { at, bit } => (at + 4, bit),
        });
        // A flipped length is not found here: the sum that was computed is of another message.
        if let Some((byte, bit)) = place {
            return Ok(Some((clue(at, byte, bit, lengths), record_bytes(lengths))));
        }
    }
    for bit in 0..64 {
        let flipped = (lengths.0 ^ flip(bit), lengths.1 ^ flip(bit.wrapping_sub(32)));
        let Some(head_bytes) = head_bytes(flipped, window.len() - at) else { continue };
        let (byte, bit) = (record::META_BYTES_AT + (bit / 8) as usize, (bit % 8) as u8);
        let mut fixed = header.to_vec();
        fixed[byte] ^= 1 << bit;
        let head = window.read(at, head_bytes).await?;
        let computed = crc32c::crc32c_append(crc32c::crc32c(&fixed[..CRC_AT]), &head[HEADER_BYTES..]);
        if computed == read_u32(&head, CRC_AT) {
            return Ok(Some((clue(at, byte, bit, flipped), record_bytes(flipped))));
        }
    }
    Ok(None)
}

fn flip(bit: u32) -> u32 {
    1u32.checked_shl(bit).unwrap_or(0)
}

fn clue(at: u64, byte: usize, bit: u8, lengths: (u32, u32)) -> Clue {
    Clue::FlippedBit { offset: at + byte as u64, bit, field: record::field_at(byte, lengths.1 as usize) }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The lengths of meta and body, as a header says, whether or not it is one.
pub(crate) fn lengths(header: &[u8]) -> (u32, u32) {
    (read_u32(header, record::META_BYTES_AT), read_u32(header, record::BODY_BYTES_AT))
}

fn record_bytes((meta_bytes, body_bytes): (u32, u32)) -> u64 {
    record::record_bytes(meta_bytes as usize, body_bytes as usize)
}

/// The bytes of a head; `None` for lengths that no record has, or no record so near the end of the file.
fn head_bytes((meta_bytes, body_bytes): (u32, u32), bytes_left: u64) -> Option<usize> {
    let (meta_bytes, body_bytes) = (meta_bytes as usize, body_bytes as usize);
    if meta_bytes > record::META_BYTES_MAX || body_bytes > record::BODY_BYTES_MAX {
        return None;
    }
    let bytes = record::head_bytes(meta_bytes, body_bytes);
    (bytes <= bytes_left).then_some(bytes as usize)
}

/// The checksum that a head has and the one it should have.
async fn sums(window: &mut Window, at: u64, head_bytes: usize) -> io::Result<(u32, u32)> {
    let head = window.read(at, head_bytes).await?;
    let computed = crc32c::crc32c_append(crc32c::crc32c(&head[..CRC_AT]), &head[HEADER_BYTES..]);
    Ok((read_u32(&head, CRC_AT), computed))
}

/// Looks for the flipped bit of a body's piece at `offset`; one in its checksum would have been found in the
/// head.
pub(crate) fn flipped_in_piece(offset: u64, bytes: usize, stored: u32, computed: u32) -> Option<Clue> {
    match flipped_bit(bytes, stored, computed)? {
        Flipped::Message { at, bit } => {
            Some(Clue::FlippedBit { offset: offset + at as u64, bit, field: "body".to_owned() })
        }
        Flipped::Checksum { .. } => None,
    }
}

/// Whole sectors of zeros in `[from, to)`: torn when the bytes before reach up to a sector boundary, and only
/// zeros follow.
pub(crate) async fn zero_sectors(window: &mut Window, from: u64, to: u64) -> io::Result<Option<Clue>> {
    let used_end = window.used_end(from, to).await?;
    if used_end == from {
        return Ok((from < to).then_some(Clue::ZeroSectors { from, to }));
    }
    let torn_at = used_end.next_multiple_of(SECTOR_BYTES);
    if torn_at - used_end < TORN_GAP_BYTES_MAX && torn_at + TORN_GAP_BYTES_MAX <= to {
        return Ok(Some(Clue::Torn { offset: torn_at }));
    }
    let mut at = from.next_multiple_of(SECTOR_BYTES);
    while at + SECTOR_BYTES <= to {
        let used = window.first_used(at, to).await?.unwrap_or(to);
        let zeros_end = if used == to { to } else { used / SECTOR_BYTES * SECTOR_BYTES };
        if zeros_end >= at + SECTOR_BYTES {
            return Ok(Some(Clue::ZeroSectors { from: at, to: zeros_end }));
        }
        at = (used + 1).next_multiple_of(SECTOR_BYTES);
    }
    Ok(None)
}

pub(crate) fn cut_at(offset: u64) -> Clue {
    Clue::CutAt { offset, at_sector: offset.is_multiple_of(SECTOR_BYTES) }
}
