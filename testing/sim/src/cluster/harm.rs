//! Harm that bad luck does to the files of a pipeline's replica, on a machine that is off.

use disk::sim::{DATABASE_FILE, Random, SimDirectory, SimDisk};
use statedb::{Changes, Db, DbOptions, Tables};
use std::collections::BTreeSet;
use types::{ContainerId, GroupId, OwnerId, PipelineId};

/// The thing of a replica that is damaged or lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Harm {
    /// The file `hard-state`: votes, and how far the log was durable.
    HardStateLost,
    /// A bit in each of the two slots of `hard-state`.
    HardStateDamaged,
    /// The directory of the log. Its segments are containers, and stay.
    LogLost,
    /// A bit of the record that says which replica it is, and whether it has ended.
    IdentityDamaged,
    /// That record as a whole.
    IdentityLost,
    /// A bit of a record that others follow.
    SegmentDamaged,
    /// A segment that others follow, or the only one.
    SegmentLost,
    /// All that the disk has but its name, as after half a restore: nothing on it says that there was a
    /// replica.
    AllLost,
}

impl Harm {
    const ALL: [Harm; 8] = [
        Harm::HardStateLost,
        Harm::HardStateDamaged,
        Harm::LogLost,
        Harm::IdentityDamaged,
        Harm::IdentityLost,
        Harm::SegmentDamaged,
        Harm::SegmentLost,
        Harm::AllLost,
    ];

    pub(super) fn random(random: &mut Random) -> Harm {
        *random.pick(&Harm::ALL)
    }

    /// Does the harm to a disk that has the replica; `written` is the newest of its containers. False where
    /// there is nothing to harm.
    pub(super) fn strike(
        self,
        disk: &SimDisk,
        pipeline: PipelineId,
        written: ContainerId,
        random: &mut Random,
    ) -> bool {
        let group = GroupId::pipeline(pipeline);
        let (log, identity) = (format!("groups/{group}"), format!("replicas/{group}"));
        let hard_state = format!("{log}/hard-state");
        let done = match self {
            Harm::HardStateLost => disk.lose_stored(&hard_state),
            Harm::HardStateDamaged => {
                // The fields of the hard state are written once in each of two slots.
                let (offset, bit) = (random.below(112), random.below(8) as u8);
                let flip = |slot: u64| disk.flip_stored_bit(&hard_state, slot + offset, bit);
                flip(0).and_then(|()| flip(4096))
            }
            Harm::LogLost => disk.lose_stored(&log),
            Harm::AllLost if disk.stored(&identity).is_err() => return false,
            Harm::AllLost => {
                let first = |(path, _): (String, u64)| path.split('/').next().map(str::to_owned);
                let all: BTreeSet<String> = disk.files().into_iter().filter_map(first).collect();
                all.iter().try_for_each(|path| disk.lose_stored(path))
            }
            Harm::IdentityDamaged => disk.flip_stored_bit(&identity, random.below(32), random.below(8) as u8),
            Harm::IdentityLost => disk.lose_stored(&identity),
            Harm::SegmentDamaged | Harm::SegmentLost => {
                let segments = segments_of(disk, written);
                let has_record =
                    |segment: &String| disk.stored(segment).is_ok_and(|bytes| used_bytes(&bytes) > 64);
                let is_followed = segments.len() > 1 && segments.last().is_some_and(has_record);
                let followed = &segments[..segments.len().saturating_sub(1).max(1).min(segments.len())];
                let Some(segment) = (!followed.is_empty()).then(|| random.pick(followed)) else {
                    return false;
                };
                match self {
                    Harm::SegmentLost => disk.lose_stored(segment),
                    // Only the records behind it prove that a record was there: one that is damaged, that
                    // nothing follows, and that the log's durable mark has not come to yet, is a tail that
                    // was never written.
                    _ if !is_followed => return false,
                    _ => {
                        let used = disk.stored(segment).map_or(0, |bytes| used_bytes(&bytes));
                        if used < 2 {
                            return false;
                        }
                        disk.flip_stored_bit(segment, random.below(used / 2), random.below(8) as u8)
                    }
                }
            }
        };
        done.is_ok()
    }
}

/// The fate of the block index of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexHarm {
    Lost,
    /// RocksDB finds an older index in its place, or an empty one.
    Older,
    /// The index opens, and one of its tables cannot be listed: of pipelines, or of containers.
    Unlistable,
}

impl IndexHarm {
    const DIR: &str = "db";

    pub(super) fn random(random: &mut Random) -> IndexHarm {
        *random.pick(&[IndexHarm::Lost, IndexHarm::Older, IndexHarm::Unlistable])
    }

    /// Does the harm to a disk of a machine that is off, whose databases are opened like this; false where it
    /// has no index.
    pub(super) fn strike(self, directory: &SimDirectory, options: &DbOptions, random: &mut Random) -> bool {
        let disk = directory.disk();
        let done = match self {
            IndexHarm::Lost => disk.lose_stored(IndexHarm::DIR),
            IndexHarm::Unlistable => {
                let Some(path) = directory.stored_database(IndexHarm::DIR) else { return false };
                let [pipelines, containers] = [0x01, 0x04];
                let mut row = vec![*random.pick(&[pipelines, containers])];
                row.extend([0xff; 8]);
                let mut rows = Changes::default();
                rows.put(row, "no record");
                let db = Db::open(&path, options).expect("databases in memory open");
                Tables::write(&db, rows).and_then(|()| db.flush()).expect("databases in memory take rows");
                Ok(())
            }
            // A bit of the database's number flips: the number before a rebuild differs in its last bit.
            IndexHarm::Older => {
                let byte = *random.pick(&[0, 4]);
                disk.flip_stored_bit(&format!("{}/{}", IndexHarm::DIR, DATABASE_FILE), byte, 0)
            }
        };
        done.is_ok()
    }
}

/// The segments of a container, in their order.
fn segments_of(disk: &SimDisk, container: ContainerId) -> Vec<String> {
    let prefix = format!("containers/{:016x}/", OwnerId::from(container).0);
    let files = disk.files().into_iter().map(|(path, _)| path);
    files.filter(|path| path.starts_with(&prefix) && path.ends_with(".seg")).collect()
}

/// The bytes of a segment without the room behind the last record.
fn used_bytes(stored: &[u8]) -> u64 {
    stored.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// Pipelines that have a log on the disk.
pub(super) fn logs_on(disk: &SimDisk) -> BTreeSet<PipelineId> {
    let files = disk.files().into_iter();
    let log = |(path, _): (String, u64)| {
        let (group, _) = path.strip_prefix("groups/pipeline-")?.split_once('/')?;
        group.parse().ok().map(PipelineId)
    };
    files.filter_map(log).collect()
}
