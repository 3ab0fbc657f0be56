//! A crash at every step of a compaction, on a simulated disk: the process dies, or power is lost with more
//! or less of what was not synced. The index is a real one, of which is left what RocksDB has written by
//! itself, as after a kill -9. What the next process finds is the container as it was.

use super::recover;
use super::rewrite::{Done, GivenUp, compact};
use super::tests::{Seen, blocks_without, compacted, delete, look, open, options, strays, try_delete};
use crate::container_reader::disk_use;
use crate::datanode_disk::DatanodeDisk;
use crate::deletion;
use crate::inventory::Inventory;
use crate::layout::DB_DIR;
use crate::offline::OfflineDisk;
use crate::offline::tests::{FIRST, LARGE_BLOCK, Left, SMALL_BYTES};
use crate::pipelines::Pipelines;
use bytes::Bytes;
use disk::sim::{CrashPoint, DATABASE_FILE, Loss, SimDirectory, SimDisk, SimOptions};
use disk::{Disk, RealDisk};
use parking::Throttle;
use planted::Bug;
use statedb::DbOptions;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

mod campaign;

/// The number of the index, beyond those that the directory gives out.
const DATABASE: u64 = 1000;
/// A container of half a megabyte is copied so slowly that something arrives meanwhile.
const BYTES_PER_SECOND: u64 = 200_000;
const ARRIVE_EVERY: Duration = Duration::from_millis(800);

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
    /// A machine whose simulated disk has what `left` has on a real one.
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
        let stamp = RealDisk::peek(&left.root()).unwrap().unwrap();
        let directory = Arc::new(SimDirectory::new(left.root(), disk.clone(), stamp));
        Machine { left, disk, directory }
    }

    /// The machine after its disk crashed, with its databases as they are now.
    fn after(&self, disk: SimDisk) -> Machine {
        let left = self.left.copy();
        let directory = Arc::new(self.directory.over(disk.clone()).moved_to(left.root()));
        Machine { left, disk, directory }
    }

    async fn open(&self) -> Arc<DatanodeDisk> {
        Arc::new(DatanodeDisk::open(self.directory.clone(), &options(), Inventory::default()).await.unwrap())
    }
}

/// Loads all files of a directory.
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

/// Blocks that are discarded while a container is compacted, one portion after the other.
type Arriving<'a> = &'a [RangeInclusive<u64>];

/// What a crash left, and what was known before it.
struct Crashed {
    machine: Machine,
    /// It came to the step at which it was to crash.
    is_crashed: bool,
    /// So many portions were said to be discarded.
    discarded: usize,
}

/// A compaction in which the machine crashes at a step of it, or of the discards that arrive meanwhile.
async fn crashed(before: &Left, arriving: Arriving<'_>, step: u64, death: Death) -> Crashed {
    let machine = Machine::new(before).await;
    let disk = machine.open().await;
    let at = machine.disk.steps() + step;
    machine.disk.crash_at(if step.is_multiple_of(2) {
        CrashPoint::Before(at)
    } else {
        CrashPoint::After(at)
    });
    let (done, discarded) = compacted_while(&disk, arriving).await;
    let is_crashed = machine.disk.is_down();
    assert!(is_crashed || done.is_ok_and(|done| done.is_some()) && discarded == arriving.len());
    let after = match death {
        Death::Process => machine.disk.kill(SimOptions::default()),
        Death::Power(loss) => machine.disk.lose_power(loss, SimOptions::default()),
    };
    // While the index is open: closing it would write what a crash does not.
    Crashed { machine: machine.after(after), is_crashed, discarded }
}

/// A compaction, and how many portions were discarded meanwhile.
async fn compacted_while(
    disk: &Arc<DatanodeDisk>,
    arriving: Arriving<'_>,
) -> (Result<Option<Done>, GivenUp>, usize) {
    if arriving.is_empty() {
        return (compacted(disk).await, 0);
    }
    // No time passes but what is slept: the copy takes more than two of these seconds.
    tokio::time::pause();
    let (pipelines, throttle) = (Pipelines::default(), Throttle::new(BYTES_PER_SECOND));
    let discard = async {
        let mut discarded = 0;
        for locals in arriving {
            tokio::time::sleep(ARRIVE_EVERY).await;
            match try_delete(disk, locals.clone()).await {
                Ok(_) => discarded += 1,
                Err(_) => break,
            }
        }
        discarded
    };
    let done = tokio::join!(compact(disk, &pipelines, FIRST, &throttle), discard);
    tokio::time::resume();
    done
}

/// What is wrong after a start on what the crash left, or before it, if something is. The container must be
/// one of these, and what arrived again makes it the last one.
async fn check_after(
    machine: &Machine,
    expect: &[Seen],
    arriving: Arriving<'_>,
    is_verified: bool,
) -> Result<(), String> {
    if is_verified {
        verify(machine).await?;
    }
    let disk = machine.open().await;
    recover(&disk).await.map_err(|failure| format!("{failure:#}"))?;
    deletion::recover(&disk).await.map_err(|failure| format!("{failure:#}"))?;
    let wrong = |what: &str, expect: &[Seen], seen: &Seen| match expect.contains(seen) {
        true => Ok(()),
        false => Err(format!("{what} it has {:?} and {:?}", seen.blocks.keys(), seen.discarded)),
    };
    wrong("after the start", expect, &look(&disk).await?)?;
    let all = &expect[expect.len() - 1..];
    for locals in arriving {
        delete(&disk, locals.clone()).await;
    }
    wrong("once all is discarded", all, &look(&disk).await?)?;
    if let Some(why) = disk.index.unhealthy(FIRST).map_err(|failure| failure.to_string())? {
        return Err(why);
    }
    let strays = strays(&disk).await;
    if !strays.is_empty() {
        return Err(format!("segments {strays:?} are left"));
    }
    // The next one has all that the first had, or nothing to do.
    compacted(&disk).await.map_err(|failure| format!("{failure:?}"))?;
    wrong("after the next compaction", all, &look(&disk).await?)?;
    drop(disk);
    if is_verified { verify(machine).await } else { Ok(()) }
}

async fn verify(machine: &Machine) -> Result<(), String> {
    let offline = OfflineDisk::over(machine.directory.clone(), DbOptions::default());
    let report = offline.verify(None).await.map_err(|failure| format!("{failure:#}"))?;
    if report.is_whole() { Ok(()) } else { Err(format!("{report:#?}")) }
}

/// Crashes a compaction at each of its steps, and at those of the discards that arrive meanwhile; how many
/// there are, or what is wrong.
async fn crash_everywhere(before: &Left, arriving: Arriving<'_>) -> Result<u64, String> {
    let expect = as_discarded(before, arriving).await?;
    let mut step = 0;
    loop {
        let power = [Loss::AllUnsynced, Loss::Nothing, Loss::Random(step)];
        let deaths = [Death::Process, Death::Power(power[(step % 3) as usize])];
        let mut has_crashed = false;
        for death in deaths {
            let Crashed { machine, is_crashed, discarded } = crashed(before, arriving, step, death).await;
            let is_verified = step.is_multiple_of(4);
            let checked = check_after(&machine, &expect[discarded..], arriving, is_verified).await;
            checked.map_err(|wrong| format!("step {step}, {death:?}, {discarded} discarded: {wrong}"))?;
            has_crashed |= is_crashed;
        }
        if !has_crashed {
            return Ok(step);
        }
        step += 1;
    }
}

/// What the container is before anything arrives, and after each portion.
async fn as_discarded(before: &Left, arriving: Arriving<'_>) -> Result<Vec<Seen>, String> {
    let left = before.copy();
    let disk = open(&left).await;
    let mut seen = vec![look(&disk).await?];
    for locals in arriving {
        delete(&disk, locals.clone()).await;
        seen.push(look(&disk).await?);
    }
    Ok(seen)
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
    let steps = crash_everywhere(&left(false).await, &[]).await.unwrap();
    assert!(steps > 20, "{steps} steps are no compaction");
}

#[tokio::test]
async fn a_second_compaction_that_crashes_anywhere_leaves_the_container_as_it_was() {
    let left = left(true).await;
    let disk = open(&left).await;
    let is_deleted = |local: u64| (10..60).contains(&local) || local == LARGE_BLOCK;
    assert_eq!(look(&disk).await.unwrap().blocks, blocks_without(is_deleted));
    drop(disk);
    let steps = crash_everywhere(&left, &[]).await.unwrap();
    assert!(steps > 20, "{steps} steps are no compaction");
}

/// The first ones are copied by then, and a large one is in part.
#[tokio::test]
async fn discards_that_arrive_while_a_container_is_compacted_stay_whatever_crashes() {
    let (left, arriving) = (left(false).await, [40..=45, 46..=LARGE_BLOCK]);
    // Of a real one time would pass while it is at work, as nobody's sleep is over meanwhile.
    let machine = Machine::new(&left).await;
    let disk = machine.open().await;
    let (done, discarded) = compacted_while(&disk, &arriving).await;
    assert!(done.unwrap().is_some() && discarded == arriving.len());
    let used = disk_use(&disk.space, FIRST, None).await.unwrap();
    assert!(used.discards.dead_bytes > 20 * SMALL_BYTES as u64, "little was copied by then: {used:?}");
    drop(disk);
    let steps = crash_everywhere(&left, &arriving).await.unwrap();
    assert!(steps > 30, "{steps} steps are no compaction and two deletions");
}

#[tokio::test]
async fn old_segments_that_go_before_the_index_is_flushed_are_missed() {
    planted::plant(Some(Bug::OldSegmentsGoFirst));
    let found = crash_everywhere(&left(false).await, &[]).await;
    planted::plant(None);
    assert!(found.as_ref().is_err_and(|wrong| wrong.contains("no such owner or segment")), "{found:?}");
}
