//! Whole data directories, closed in good order and then damaged at rest.

use crate::driver::Action;
use crate::files::{Files, disk_of, files_of, is_index, is_segment};
use crate::liar::Lie;
use crate::mutate::damage;
use crate::oracle::{Oracle, check};
use crate::wire;
use crate::world::{World, block_on, sim};
use disk::Disk;
use disk::sim::{Random, SimDisk};
use raftlog::LogSpaceOptions;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Damaged copies of one directory.
const COPIES: u64 = 12;

/// The way in which the engine sees a disk; a planted bug is one.
pub(crate) type Sight = fn(SimDisk) -> Arc<dyn Disk>;

pub(crate) fn honest(disk: SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk)
}

/// Counts of what became of the logs of all copies.
#[derive(Default)]
pub(crate) struct Outcomes {
    pub(crate) copies: u64,
    pub(crate) opened: u64,
    pub(crate) refused: u64,
    pub(crate) entries_refused: u64,
}

/// One directory and damaged copies of it.
pub(crate) fn case(random: &mut Random, sight: Sight) -> Result<Outcomes, String> {
    block_on(async {
        let world = lived(random).await?;
        let files = files_of(&world.disk).await;
        let mut outcomes = Outcomes::default();
        for _ in 0..COPIES {
            let mut damaged = files.clone();
            let mut done = Done::default();
            for _ in 0..1 + random.below(3) {
                done.damage(random, &mut damaged);
            }
            let oracle =
                Oracle { world: &world, files: &damaged, touched: &done.touched, is_forged: done.is_forged };
            let disk = disk_of(&damaged).await;
            let checked = check(&oracle, &disk, sight(disk.clone()), &mut outcomes).await;
            checked
                .map_err(|why| format!("{why}\ndone to the files at rest:\n  {}", done.told.join("\n  ")))?;
            outcomes.copies += 1;
        }
        Ok(outcomes)
    })
}

/// Some logs after a life in which everything was acknowledged, closed.
async fn lived(random: &mut Random) -> Result<World, String> {
    let options = LogSpaceOptions {
        segment_bytes_max: *random.pick(&[400, 2000, 5000, 200_000]),
        cache_bytes_per_log_max: 0,
        cache_bytes_max: 0,
        reserve_bytes: 0,
        ..LogSpaceOptions::default()
    };
    let logs = 1 + random.below(4);
    let mut world = World::new(0..logs, options, sim(random.next_u64(), 0), Lie::Honest);
    if !world.start().await? {
        return Err("a new directory does not open".to_owned());
    }
    for _ in 0..logs * (3 + random.below(20)) {
        let log = random.below(logs);
        let action = action(random, world.drivers[log as usize].is_metadata);
        world.act(log as usize, &action).await?;
    }
    for log in 0..logs as usize {
        world.act(log, &Action::Settle).await?;
        world.drivers[log].close().await;
    }
    world.space = None;
    match world.unexpected() {
        None => Ok(world),
        Some(why) => Err(format!("a log failed on a good disk: {why}")),
    }
}

fn action(random: &mut Random, is_metadata: bool) -> Action {
    match random.below(16) {
        0..=7 => {
            let bytes = |random: &mut Random| match random.below(30) {
                0 => 70_000,
                1..=4 => 0,
                _ => random.below(900) as usize,
            };
            let count = 1 + random.below(4);
            Action::Append { bodies: (0..count).map(|_| bytes(random)).collect() }
        }
        8 if !is_metadata => Action::Roll { body: *random.pick(&[0, 10, 350]) },
        8 => Action::DeletePurged,
        9 | 10 => Action::Truncate { count: random.below(6) },
        11 => Action::Purge { count: random.below(8) },
        12 if random.one_in(4) => Action::PurgePast { count: random.below(5) },
        13 => Action::Committed,
        14 => Action::Reopen,
        _ => Action::Vote,
    }
}

/// The damage that was done to the files of a copy.
#[derive(Default)]
struct Done {
    touched: BTreeSet<String>,
    /// Somebody wrote checksums that fit: then nobody can tell what is right.
    is_forged: bool,
    told: Vec<String>,
}

impl Done {
    fn damage(&mut self, random: &mut Random, files: &mut Files) {
        if files.is_empty() {
            return;
        }
        let path = pick(random, files);
        let other = pick(random, files);
        let told = match random.below(24) {
            0 | 1 => {
                let (one, two) = (files[&path].clone(), files[&other].clone());
                files.insert(path.clone(), two);
                files.insert(other.clone(), one);
                self.touched.insert(other.clone());
                format!("swap with {other}")
            }
            2 | 3 => {
                files.insert(path.clone(), files[&other].clone());
                format!("copy {other} over it")
            }
            4 => {
                files.remove(&path);
                "delete".to_owned()
            }
            5 | 6 if is_segment(&path) => {
                let near = if random.one_in(2) { &path } else { &other };
                let name = another_name(random, near);
                files.insert(name.clone(), files[&path].clone());
                self.touched.insert(name.clone());
                format!("duplicate as {name}")
            }
            7 => {
                self.is_forged = true;
                forge(random, &path, files.get_mut(&path).unwrap())
            }
            _ => {
                let donor = files[&other].clone();
                damage(random, files.get_mut(&path).unwrap(), &donor)
            }
        };
        self.told.push(format!("{path}: {told}"));
        self.touched.insert(path);
    }
}

/// Hard states are few and small; they get their share, and so do the indexes of segments.
fn pick(random: &mut Random, files: &Files) -> String {
    let is_wanted: fn(&str) -> bool = match random.below(6) {
        0 => |path| path.ends_with("hard-state"),
        1 => is_index,
        _ => is_segment,
    };
    let of_kind: Vec<&String> = files.keys().filter(|path| is_wanted(path)).collect();
    match of_kind[..] {
        [] => files.keys().next().unwrap().clone(),
        _ => (*random.pick(&of_kind)).clone(),
    }
}

/// A segment's name beside the one given, or of the owner after it.
fn another_name(random: &mut Random, path: &str) -> String {
    let Some((dir, _)) = path.rsplit_once('/').filter(|_| is_segment(path)) else {
        return format!("containers/{:016x}/00000000.seg", 1_000_000 + random.below(9));
    };
    let (owners_dir, owner) = dir.rsplit_once('/').unwrap();
    let owner = u64::from_str_radix(owner, 16).unwrap() + random.below(2);
    format!("{owners_dir}/{owner:016x}/{:08x}.seg", random.below(6))
}

/// Writes something else into a field, and checksums that fit.
fn forge(random: &mut Random, path: &str, bytes: &mut [u8]) -> String {
    let value = *random.pick(&[0, 1, 8, u64::MAX, u64::MAX - 7, 1 << 35, 1 << 63, random.clone().next_u64()]);
    if is_index(path) {
        if bytes.len() < wire::INDEX_HEADER_BYTES {
            return "nothing to forge".to_owned();
        }
        let at = random.below(bytes.len() as u64 - 8) as usize / 4 * 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()[..4]);
        wire::fit_index(bytes);
        return format!("forge {value:#x} at byte {at} of the first block");
    }
    if !is_segment(path) {
        let slot = *random.pick(&[0, 4096]);
        let at = *random.pick(&[5, 8, 16, 24, 40, 48, 64, 72, 80, 88, 96, 104, 112]);
        if let Some(slot) = bytes.get_mut(slot..slot + wire::SLOT_BYTES) {
            let width = if at == 5 { 1 } else { 8 };
            slot[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            wire::fit_slot(slot);
        }
        return format!("forge {value:#x} at byte {at} of the slot at {slot}");
    }
    let starts = wire::records(bytes);
    if starts.is_empty() {
        return "nothing to forge".to_owned();
    }
    let start = *random.pick(&starts);
    let at = *random.pick(&[5, 6, 8, 16, 24, 32, 40, 48, 56, 60, 64]);
    let width = if at < 8 { 1 } else { 4 };
    bytes[start + at..start + at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    if (8..56).contains(&at) {
        bytes[start + at + 4..start + at + 8].copy_from_slice(&value.to_le_bytes()[4..]);
    }
    wire::fit_record(&mut bytes[start..]);
    format!("forge {value:#x} at byte {at} of the record at {start}")
}
