//! The decoder takes for a hard state what the format says, byte for byte.

use crate::allocation::bounded;
use crate::mutate::damage;
use crate::wire::{SLOT_BYTES, fit_slot};
use crate::world::{block_on, sim};
use bytes::Bytes;
use disk::Disk;
use disk::sim::{Random, SimDisk};
use raftlog::inspect::{HardStateFile, HardStateSlot, read_hard_state};
use std::sync::Arc;
use types::LogId;

const SMALL_BYTES: usize = 64 << 10;

pub(crate) type Reader = fn(Vec<u8>) -> HardStateFile;

pub(crate) fn reader(bytes: Vec<u8>) -> HardStateFile {
    block_on(async {
        let disk = SimDisk::new(sim(0, 0));
        let file: Arc<dyn disk::File> = disk.open("hard-state", true).await.unwrap();
        file.write_at(0, vec![Bytes::from(bytes)]).await.unwrap();
        read_hard_state(file).await.unwrap()
    })
}

/// One file. The answer says whether a slot of it counted.
pub(crate) fn case(random: &mut Random, read: Reader) -> Result<bool, String> {
    let bytes = input(random);
    let read = bounded(bytes.len() + SMALL_BYTES, || read(bytes.clone()))?;
    for (slot, at) in read.slots.iter().zip([0, 4096]) {
        let Ok(slot) = slot else { continue };
        let stored = bytes.get(at..at + SLOT_BYTES).ok_or_else(|| format!("{slot}: read from nowhere"))?;
        if encode(slot) != stored {
            return Err(format!(
                "what was decoded is encoded to other bytes: {slot}; {:02x?}",
                &stored[..120]
            ));
        }
    }
    let newest = read.slots.iter().flatten().map(|slot| slot.sequence).max();
    if read.newest().map(|slot| slot.sequence) != newest {
        return Err(format!("{read}: the slot that counts is not the newest"));
    }
    Ok(newest.is_some())
}

fn input(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    for at in [0, 4096] {
        if random.one_in(8) {
            continue;
        }
        let mut slot = random_slot(random);
        if random.one_in(3) {
            for _ in 0..=random.below(2) {
                slot[random.below(SLOT_BYTES as u64) as usize] ^= 1 << random.below(8);
            }
        }
        if random.one_in(2) {
            fit_slot(&mut slot);
        }
        bytes[at..at + SLOT_BYTES].copy_from_slice(&slot);
    }
    if random.one_in(4) {
        let donor = random_slot(random);
        damage(random, &mut bytes, &donor);
    }
    bytes
}

fn random_slot(random: &mut Random) -> Vec<u8> {
    let mut number = || random.next_u64() >> random.below(64);
    let mut id = || LogId { term: number().into(), index: number().into() };
    let (purged, committed, durable) = (id(), id(), id());
    let vote = raftlog::HardState {
        vote_term: number(),
        vote_replica: number(),
        vote_committed: number().is_multiple_of(2),
    };
    let start_offset = (number() >> 33) * 8;
    let slot = HardStateSlot {
        sequence: number() & 0xff,
        log: number(),
        vote: Some(vote),
        purged: Some(purged),
        committed: Some(committed),
        durable: Some(durable),
        start_owner: number().into(),
        start_segment: number() as u32,
        start_offset,
        start_owner_bytes: start_offset.saturating_add(number()),
        begun: Some((number().into(), number() as u32)),
    };
    let parts = number();
    encode(&HardStateSlot {
        vote: slot.vote.filter(|_| parts & 1 == 0),
        purged: slot.purged.filter(|_| parts & 2 == 0),
        committed: slot.committed.filter(|_| parts & 4 == 0),
        durable: slot.durable.filter(|_| parts & 8 == 0),
        begun: slot.begun.filter(|_| parts & 16 == 0),
        ..slot
    })
}

/// Encodes a slot as docs/format/hard-state.md says.
fn encode(slot: &HardStateSlot) -> Vec<u8> {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let vote = slot.vote.unwrap_or_default();
    let mut out = b"FLhs\x01".to_vec();
    out.push(
        flag(slot.vote.is_some(), 1)
            | flag(vote.vote_committed, 2)
            | flag(slot.purged.is_some(), 4)
            | flag(slot.committed.is_some(), 8)
            | flag(slot.durable.is_some(), 16)
            | flag(slot.begun.is_some(), 32),
    );
    out.extend([0, 0]);
    let ids = [slot.purged, slot.committed, slot.durable].map(Option::unwrap_or_default);
    let ids = ids.iter().flat_map(|id| [id.term.0, id.index.0]);
    let fields = [slot.sequence, slot.log, vote.vote_term, vote.vote_replica].into_iter().chain(ids);
    let start = [slot.start_owner.0, slot.start_offset, slot.start_owner_bytes];
    fields.chain(start).for_each(|field| out.extend(field.to_le_bytes()));
    out.extend(slot.start_segment.to_le_bytes());
    let (begun_owner, begun_segment) = slot.begun.unwrap_or((0.into(), 0));
    out.extend(begun_owner.0.to_le_bytes());
    out.extend(begun_segment.to_le_bytes());
    out.resize(SLOT_BYTES, 0);
    fit_slot(&mut out);
    out
}
