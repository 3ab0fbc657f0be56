use disk::Disk;
use disk::sim::SimDisk;
use futures::FutureExt;
use raftlog::{Discards, OwnerWalk, Step, WalkEnd};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use types::{ContainerId, OwnerId};

const OWNERS_DIR: &str = "containers";

/// The files that a machine that is off has of a container: of each segment all up to where its records end. What is
/// behind them (room, or what a file that was used again held before, when a crash came before it was cut) is
/// no part of a container.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ReplicaFiles {
    segments: BTreeMap<u32, Vec<u8>>,
}

impl ReplicaFiles {
    /// From the disks of a machine, of which one has it: the one that has most, for another may have what is
    /// left of a log that was lost.
    pub(super) fn read(disks: &[SimDisk], container: ContainerId) -> Result<ReplicaFiles, String> {
        let mut found = Err("it has no segments".to_owned());
        for disk in disks {
            let mut here = ReplicaFiles::default();
            let read = here.read_from(disk, OwnerId::from(container)).now_or_never();
            // These disks answer at once.
            let read = read.ok_or("a disk makes its reader wait")?.map(|()| here);
            let has_more = match (&found, &read) {
                (_, Ok(here)) => here.bytes() > found.as_ref().map_or(0, ReplicaFiles::bytes),
                (found, Err(_)) => found.is_err(),
            };
            if has_more {
                found = read;
            }
        }
        found
    }

    fn bytes(&self) -> usize {
        self.segments.values().map(Vec::len).sum()
    }

    async fn read_from(&mut self, disk: &SimDisk, owner: OwnerId) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut walk = OwnerWalk::new(Arc::new(disk.clone()), OWNERS_DIR, owner).await.map_err(text)?;
        let discards = Discards::read(disk, OWNERS_DIR, owner).await.map_err(text)?;
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        // Bodies that were given up: what is left of them means nothing.
        let mut bodies: Vec<(u32, Range<u64>)> = Vec::new();
        loop {
            match walk.next().await.map_err(|error| error.to_string())? {
                Step::Record(record) => {
                    let place = record.meta.place;
                    ends.insert(place.segment, place.offset + record.bytes);
                    if discards.contains(record.meta.id.index, &place) {
                        let body = place.offset + record.head.len() as u64;
                        bodies.push((place.segment, body..body + u64::from(place.body_bytes)));
                    }
                }
                Step::End(WalkEnd::Bad { segment, offset, why }) => {
                    return Err(format!("segment {segment:08x}, byte {offset}: {why}"));
                }
                Step::End(WalkEnd::Rolled { .. } | WalkEnd::Unfinished { .. }) => break,
            }
        }
        for (segment, end) in ends {
            let path = format!("{OWNERS_DIR}/{:016x}/{segment:08x}.seg", owner.0);
            let file = disk.open(&path, false).await.map_err(text)?;
            let bytes = file.read_at(0, end as usize).await.map_err(text)?;
            self.segments.insert(segment, bytes.to_vec());
        }
        for (segment, body) in bodies {
            let bytes = self.segments.get_mut(&segment).ok_or("a record of no segment")?;
            bytes[body.start as usize..body.end as usize].fill(0);
        }
        Ok(())
    }

    /// Where two replicas differ, if they do.
    pub(super) fn difference(&self, other: &ReplicaFiles) -> Option<String> {
        if !self.segments.keys().eq(other.segments.keys()) {
            return Some(format!("segments {:?} and {:?}", self.segments.keys(), other.segments.keys()));
        }
        let mut pairs = self.segments.iter().zip(other.segments.values());
        let ((segment, one), other) = pairs.find(|((_, one), other)| one != other)?;
        let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        let (one, other) = (one.len(), other.len());
        Some(format!("segment {segment:08x} from byte {same} on, of {one} and {other}"))
    }
}
