//! A crash at every step of a compaction, on a simulated disk: the process dies, or power is lost with more or less
//! of what was not synced. The index is a real one, of which is left what RocksDB has written by itself, as after a
//! kill -9. What the next process finds is the container as it was.

use super::recover;
use super::tests::{Seen, blocks_without, compacted, delete, look, open, options, strays};
use crate::datanode_disk::DatanodeDisk;
use crate::inventory::Inventory;
use crate::layout::DB_DIR;
use crate::offline::OfflineDisk;
use crate::offline::tests::{FIRST, LARGE_BLOCK, Left};
use bytes::Bytes;
use disk::sim::{CrashPoint, DATABASE_FILE, Loss, SimDirectory, SimDisk, SimOptions};
use disk::{Disk, RealDisk};
use planted::Bug;
use statedb::DbOptions;
use std::path::Path;
use std::sync::Arc;

/// The number of the index, beyond those that the directory gives out.
const DATABASE: u64 = 1000;

#[derive(Clone, Copy, Debug)]
enum Death {
    Process,
    Power(Loss),
}

/// A machine: a simulated disk, and the databases of it in a real directory.
struct Machine {
    left: Left,
    disk: SimDisk,
    directory: Arc<SimDirectory>,
}

impl Machine {
    /// As it is left on a real disk.
    #[allow(clippy::disallowed_methods)] // the test makes one disk of another
    async fn new(left: &Left) -> Machine {
        let left = left.copy();
        let disk = SimDisk::new(SimOptions::default());
        std::fs::rename(left.root().join(DB_DIR), left.root().join(format!("database.{DATABASE}"))).unwrap();
        for dir in ["groups", "containers"] {
            for inner in std::fs::read_dir(left.root().join(dir)).unwrap() {
                let name = inner.unwrap().file_name().into_string().unwrap();
                load(&disk, &left.root(), &format!("{dir}/{name}")).await;
            }
            disk.sync_dir(dir).await.unwrap();
        }
        disk.create_dir_all(DB_DIR).await.unwrap();
        let number = Bytes::copy_from_slice(&DATABASE.to_le_bytes());
        let file = disk.open(&format!("{DB_DIR}/{DATABASE_FILE}"), true).await.unwrap();
        file.write_and_sync(0, vec![number]).await.unwrap();
        disk.sync_dir(DB_DIR).await.unwrap();
        disk.sync_dir("").await.unwrap();
        Machine::of(left, disk)
    }

    fn of(left: Left, disk: SimDisk) -> Machine {
        let stamp = RealDisk::peek(&left.root()).unwrap().unwrap();
        let directory = Arc::new(SimDirectory::new(left.root(), disk.clone(), stamp));
        Machine { left, disk, directory }
    }

    async fn open(&self) -> Arc<DatanodeDisk> {
        Arc::new(DatanodeDisk::open(self.directory.clone(), &options(), Inventory::default()).await.unwrap())
    }
}

/// All files of a directory.
#[allow(clippy::disallowed_methods)]
async fn load(disk: &SimDisk, root: &Path, dir: &str) {
    disk.create_dir_all(dir).await.unwrap();
    for entry in std::fs::read_dir(root.join(dir)).unwrap() {
        let path = format!("{dir}/{}", entry.unwrap().file_name().into_string().unwrap());
        let bytes = std::fs::read(root.join(&path)).unwrap();
        let file = disk.open(&path, true).await.unwrap();
        file.write_and_sync(0, vec![bytes.into()]).await.unwrap();
    }
    disk.sync_dir(dir).await.unwrap();
}

/// A compaction in which the machine crashes at a step of it; the machine after that, and whether it came to
/// that step.
async fn crashed(before: &Left, step: u64, death: Death) -> (Machine, bool) {
    let machine = Machine::new(before).await;
    let disk = machine.open().await;
    let at = machine.disk.steps() + step;
    machine.disk.crash_at(if step.is_multiple_of(2) {
        CrashPoint::Before(at)
    } else {
        CrashPoint::After(at)
    });
    let done = compacted(&disk).await;
    let is_crashed = machine.disk.is_down();
    assert!(is_crashed || done.is_ok_and(|done| done.is_some()));
    let after = match death {
        Death::Process => machine.disk.kill(SimOptions::default()),
        Death::Power(loss) => machine.disk.lose_power(loss, SimOptions::default()),
    };
    // While the index is open: closing it would write what a crash does not.
    (Machine::of(machine.left.copy(), after), is_crashed)
}

/// What is wrong after a start on what the crash left, or before it, if something is.
async fn check_after(machine: &Machine, expect: &Seen, is_verified: bool) -> Result<(), String> {
    if is_verified {
        verify(machine).await?;
    }
    let disk = machine.open().await;
    recover(&disk).await.map_err(|failure| format!("{failure:#}"))?;
    let wrong = |what: &str, seen: &Seen| match seen == expect {
        true => Ok(()),
        false => Err(format!("{what} it has {:?} and {:?}", seen.blocks.keys(), seen.discarded)),
    };
    wrong("after the start", &look(&disk).await?)?;
    if let Some(why) = disk.index.unhealthy(FIRST).map_err(|failure| failure.to_string())? {
        return Err(why);
    }
    let strays = strays(&disk).await;
    if !strays.is_empty() {
        return Err(format!("segments {strays:?} are left"));
    }
    // The next one has all that the first had, or nothing to do.
    compacted(&disk).await.map_err(|failure| format!("{failure:?}"))?;
    wrong("after the next compaction", &look(&disk).await?)?;
    drop(disk);
    if is_verified { verify(machine).await } else { Ok(()) }
}

async fn verify(machine: &Machine) -> Result<(), String> {
    let offline = OfflineDisk::over(machine.directory.clone(), DbOptions::default());
    let report = offline.verify(None).await.map_err(|failure| format!("{failure:#}"))?;
    if report.is_whole() { Ok(()) } else { Err(format!("{report:#?}")) }
}

/// Crashes a compaction at each of its steps; how many there are, or what is wrong.
async fn crash_everywhere(before: &Left) -> Result<u64, String> {
    let expect = {
        let disk = open(before).await;
        look(&disk).await?
    };
    let mut step = 0;
    loop {
        let power = [Loss::AllUnsynced, Loss::Nothing, Loss::Random(step)];
        let deaths = [Death::Process, Death::Power(power[(step % 3) as usize])];
        let mut has_crashed = false;
        for death in deaths {
            let (after, is_crashed) = crashed(before, step, death).await;
            let checked = check_after(&after, &expect, step.is_multiple_of(4)).await;
            checked.map_err(|wrong| format!("step {step}, {death:?}: {wrong}"))?;
            has_crashed |= is_crashed;
        }
        if !has_crashed {
            return Ok(step);
        }
        step += 1;
    }
}

/// A container to compact: for the first time, or again.
async fn left(is_again: bool) -> Left {
    let left = Left::of_small_blocks().await;
    let disk = open(&left).await;
    delete(&disk, 10..40).await;
    if is_again {
        compacted(&disk).await.unwrap().unwrap();
        delete(&disk, (40..60).chain([LARGE_BLOCK])).await;
    }
    disk.index.flush().unwrap();
    drop(disk);
    left
}

#[tokio::test]
async fn a_first_compaction_that_crashes_anywhere_leaves_the_container_as_it_was() {
    let steps = crash_everywhere(&left(false).await).await.unwrap();
    assert!(steps > 20, "{steps} steps are no compaction");
}

#[tokio::test]
async fn a_second_compaction_that_crashes_anywhere_leaves_the_container_as_it_was() {
    let left = left(true).await;
    let disk = open(&left).await;
    let is_deleted = |local: u64| (10..60).contains(&local) || local == LARGE_BLOCK;
    assert_eq!(look(&disk).await.unwrap().blocks, blocks_without(is_deleted));
    drop(disk);
    let steps = crash_everywhere(&left).await.unwrap();
    assert!(steps > 20, "{steps} steps are no compaction");
}

#[tokio::test]
async fn old_segments_that_go_before_the_index_is_flushed_are_missed() {
    planted::plant(Some(Bug::OldSegmentsGoFirst));
    let found = crash_everywhere(&left(false).await).await;
    planted::plant(None);
    assert!(found.as_ref().is_err_and(|wrong| wrong.contains("no such owner or segment")), "{found:?}");
}
