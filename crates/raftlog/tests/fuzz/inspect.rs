//! The inspect tool on any bytes: it accounts for each of them, and whole records are what they say.

use crate::allocation::bounded;
use crate::mutate::damage;
use crate::wire::Record;
use crate::world::{block_on, sim};
use bytes::Bytes;
use disk::Disk;
use disk::sim::{Random, SimDisk};
use raftlog::inspect::{Evidence, Item, SegmentName, SegmentScan, SegmentSummary, verdict};

/// Windows of 1 MiB, and what messages take.
const SMALL_BYTES: usize = 2 << 20;

/// One file. The answer says how many records were found.
pub(crate) fn case(random: &mut Random) -> Result<u64, String> {
    let bytes = input(random);
    let name = random.one_in(2).then(|| SegmentName { owner: 7.into(), segment: random.below(2) as u32 });
    bounded(2 * bytes.len() + SMALL_BYTES, || block_on(look(&bytes, name)))?
}

async fn look(bytes: &[u8], name: Option<SegmentName>) -> Result<u64, String> {
    let disk = SimDisk::new(sim(0, 0));
    let file = disk.open("file", true).await.unwrap();
    file.write_at(0, vec![Bytes::copy_from_slice(bytes)]).await.unwrap();
    let mut scan = SegmentScan::new(file, name).await.unwrap();
    let mut summary = SegmentSummary::default();
    let mut at = 0;
    while let Some(item) = scan.next().await.unwrap() {
        let told = format!("{item:?}");
        let (offset, end) = match &item {
            Item::Record(record) => (record.offset, record.offset + record.bytes),
            Item::Damage(damage) => (damage.offset, damage.end),
            Item::Unused { offset, bytes } => (*offset, offset + bytes),
        };
        if offset != at || end < offset || end > bytes.len() as u64 {
            return Err(format!("at byte {at} of {}: {told}", bytes.len()));
        }
        at = end;
        if let Item::Damage(damage) = &item {
            let clues: Vec<_> = damage.clues.iter().map(|clue| clue.to_string()).collect();
            let _ = format!("{damage} {clues:?} {}", verdict(damage, Evidence::default()));
        }
        summary.add(item);
    }
    if at != bytes.len() as u64 {
        return Err(format!("{} bytes, but the look ended at {at}", bytes.len()));
    }
    let _ = summary.to_string();
    Ok(summary.records)
}

/// Records that follow each other, then damage.
fn input(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let first = random.below(20);
    for nth in 0..random.below(8) {
        let place = Record {
            owner: 7,
            segment: 0,
            log: 1,
            index: if random.one_in(30) { u64::MAX } else { first + nth },
            offset: bytes.len() as u64,
            ..Record::random(random)
        };
        bytes.extend(place.encode());
    }
    if random.one_in(3) {
        bytes.resize(bytes.len() + random.below(5000) as usize, 0);
    }
    let donor = Record::random(random).encode();
    for _ in 0..random.below(4) {
        damage(random, &mut bytes, &donor);
    }
    bytes
}
