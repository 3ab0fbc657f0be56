//! The decoder takes for a record what the format says, byte for byte, and nothing makes it panic or believe
//! a length.

use crate::allocation::bounded;
use crate::mutate::damage;
use crate::wire::{Record, fit_record};
use bytes::Bytes;
use disk::sim::Random;
use raftlog::Entry;
use raftlog::inspect::{SeenRecord, decode_record};

/// The bytes that a decoder may allocate beside its input.
const SMALL_BYTES: usize = 4096;

pub(crate) type Decoder = fn(&Bytes) -> Result<(SeenRecord, Entry), String>;

pub(crate) fn decoder(bytes: &Bytes) -> Result<(SeenRecord, Entry), String> {
    decode_record(bytes).map_err(|bad| bad.to_string())
}

/// One input. The answer says whether it decoded.
pub(crate) fn case(random: &mut Random, decode: Decoder) -> Result<bool, String> {
    let bytes = Bytes::from(input(random));
    let told = format!("{} bytes: {:02x?}", bytes.len(), &bytes[..bytes.len().min(80)]);
    let decoded =
        bounded(bytes.len() + SMALL_BYTES, || decode(&bytes)).map_err(|why| format!("{why}; {told}"))?;
    let Ok((seen, entry)) = decoded else { return Ok(false) };
    let again = encode(&seen, &entry);
    if seen.bytes != again.len() as u64 || bytes.get(..again.len()) != Some(&again[..]) {
        return Err(format!("what was decoded is encoded to other bytes: {seen}; {told}"));
    }
    Ok(true)
}

fn input(random: &mut Random) -> Vec<u8> {
    let record = Record::random(random);
    let mut bytes = record.encode();
    match random.below(8) {
        0 => {} // must decode
        1 => bytes = (0..random.below(400)).map(|_| random.next_u64() as u8).collect(),
        2 | 3 => {
            let donor = Record::random(random).encode();
            damage(random, &mut bytes, &donor);
        }
        // Fields of the header, with checksums made to fit.
        4..=6 => {
            for _ in 0..=random.below(2) {
                let at = random.below(72) as usize;
                bytes[at] = *random.pick(&[0, 1, 2, 4, 0x7f, 0x80, 0xff, random.clone().next_u64() as u8]);
            }
            fit_record(&mut bytes);
        }
        _ => {
            let at = *random.pick(&[60, 64]);
            let length = *random.pick(&[0, 1, 64 << 20, (64 << 20) + 1, 16 << 20, u32::MAX, 65_536, 100]);
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            fit_record(&mut bytes);
        }
    }
    if random.one_in(10) {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
    if random.one_in(10) {
        bytes.extend((0..random.below(40)).map(|_| random.next_u64() as u8)); // what comes after it
    }
    bytes
}

fn encode(seen: &SeenRecord, entry: &Entry) -> Vec<u8> {
    let record = Record {
        kind: entry.kind,
        flags: u16::from(entry.roll_to.is_some()),
        log: seen.log,
        owner: seen.place.owner.0,
        term: entry.id.term.0,
        index: entry.id.index.0,
        next_owner: entry.roll_to.map_or(0, |owner| owner.0),
        offset: seen.place.offset,
        segment: seen.place.segment,
        meta: entry.meta.to_vec(),
        body: entry.body.bytes().to_vec(),
    };
    record.encode()
}
