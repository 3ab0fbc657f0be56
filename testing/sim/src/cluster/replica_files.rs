use disk::sim::SimDisk;
use futures::FutureExt;
use raftlog::{Discards, OwnerWalk, Step, WalkEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use types::{ContainerId, OwnerId};

const OWNERS_DIR: &str = "containers";

/// The records that a machine that is off has of a container, by their indexes: of each all but where it
/// stands, for one replica may be compacted and the other not. Those that are discarded are no part of it.
#[derive(Debug, Default)]
pub(super) struct ReplicaFiles {
    /// Whether a compaction left out discarded records.
    pub is_compacted: bool,
    records: BTreeMap<u64, Vec<u8>>,
}

impl ReplicaFiles {
    /// Reads what a machine has of a container from the disk that has most, for another may have what is left
    /// of a log that was lost.
    pub(super) fn read(disks: &[SimDisk], container: ContainerId) -> Result<ReplicaFiles, String> {
        let mut found = Err("it has no records".to_owned());
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
        self.records.values().map(Vec::len).sum()
    }

    async fn read_from(&mut self, disk: &SimDisk, owner: OwnerId) -> Result<(), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut walk = OwnerWalk::new(Arc::new(disk.clone()), OWNERS_DIR, owner).await.map_err(text)?;
        let discards = Discards::read(disk, OWNERS_DIR, owner).await.map_err(text)?;
        self.is_compacted = discards.compacted().is_compacted();
        loop {
            match walk.next().await.map_err(|error| error.to_string())? {
                Step::Record(record) if discards.contains(record.meta.id.index, &record.meta.place) => {}
                Step::Record(record) => {
                    let mut bytes = record.placeless_head().concat();
                    let body = walk.read_last_body(&record).await.map_err(|failure| failure.to_string())?;
                    body.iter().for_each(|part| bytes.extend_from_slice(part));
                    self.records.insert(record.meta.id.index.0, bytes);
                }
                Step::End(WalkEnd::Bad { segment, offset, why }) => {
                    return Err(format!("segment {segment:08x}, byte {offset}: {why}"));
                }
                Step::End(WalkEnd::Rolled { .. } | WalkEnd::Unfinished { .. }) => return Ok(()),
            }
        }
    }

    /// Where two replicas differ, if they do.
    pub(super) fn difference(&self, other: &ReplicaFiles) -> Option<String> {
        let here = |of: &ReplicaFiles| of.records.keys().copied().collect::<BTreeSet<u64>>();
        if let Some(lacking) = here(self).symmetric_difference(&here(other)).next() {
            return Some(format!("one has entry {lacking}, the other has not"));
        }
        let mut pairs = self.records.iter().zip(other.records.values());
        let ((index, one), other) = pairs.find(|((_, one), other)| one != other)?;
        let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        let (one, other) = (one.len(), other.len());
        Some(format!("entry {index} from byte {same} on, of {one} and {other}"))
    }
}
