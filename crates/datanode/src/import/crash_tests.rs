//! kill -9 at every operation of a copy: the process stops where it is, its files stay as they are, and so
//! does what RocksDB has written by itself. What the next process finds is nothing, something it goes on
//! with, or the whole replica.

use super::*;
use crate::datanode_disk::DatanodeDisk;
use crate::inventory::Inventory;
use crate::offline::OfflineDisk;
use crate::offline::tests::{FIRST, Left};
use crate::options::DatanodeOptions;
use bytes::Bytes;
use disk::RealDisk;
use disk::sim::{Loss, SimDisk, SimOptions};
use diskhooks::{Act, HookedDisk};
use proto::datanode::{ContainerFile, ContainerManifest};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Bytes of one part.
const PART_BYTES: usize = 100_000;

/// A disk that stops for good, with all that is asked of it, after some operations, and then tells.
fn freezing(disk: Arc<dyn Disk>, operations: u64, frozen: Arc<Notify>) -> HookedDisk {
    let left = AtomicU64::new(operations);
    HookedDisk::new(disk, move |_| {
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Act::Pass,
            Err(_) => {
                frozen.notify_one();
                Act::Hang
            }
        }
    })
}

/// A container that another node has.
struct Source {
    left: Left,
    manifest: Manifest,
    files: Vec<(String, Bytes)>,
}

impl Source {
    #[allow(clippy::disallowed_methods)]
    async fn new() -> Source {
        let left = Left::new().await;
        let report = OfflineDisk::open(&left.root()).unwrap().verify(Some(FIRST)).await.unwrap();
        let hash = report.containers[&FIRST].hash.clone().unwrap();
        let dir = left.root().join(format!("containers/{:016x}", FIRST.0));
        let read = |name: &str| (name.to_owned(), Bytes::from(std::fs::read(dir.join(name)).unwrap()));
        let files = vec![read("00000000.seg"), read("00000001.seg")];
        let file =
            |(name, data): &(String, Bytes)| ContainerFile { name: name.clone(), bytes: data.len() as u64 };
        let manifest = ContainerManifest {
            container: FIRST.0,
            pipeline: 3,
            files: files.iter().map(file).collect(),
            hash,
            last_term: 1,
            last_index: 6,
            repeats: Vec::new(),
            compacted: Bytes::new(),
        };
        Source { left, manifest: Manifest::parse(manifest).unwrap(), files }
    }

    /// The copy, from where it is.
    async fn copy(&self, disk: &Arc<dyn Disk>, index: &Index) -> anyhow::Result<()> {
        let mut incoming = Incoming::open(disk.clone(), self.manifest.clone()).await?;
        let from = incoming.position().map(|(file, offset)| (file.name.clone(), offset as usize));
        if let Some((first, offset)) = from {
            let rest = self.files.iter().skip_while(|(name, _)| *name != first);
            for (name, data) in rest {
                let mut at = if *name == first { offset } else { 0 };
                while at < data.len() {
                    let part = data.slice(at..data.len().min(at + PART_BYTES));
                    let bytes = part.len();
                    incoming.write(name, at as u64, part).await?;
                    at += bytes;
                }
            }
        }
        take_in(disk, index, incoming, &self.manifest).await
    }
}

async fn open(root: &Path) -> DatanodeDisk {
    let real = Arc::new(RealDisk::open(root, 1).unwrap());
    DatanodeDisk::open(real, &DatanodeOptions::default(), Inventory::default()).await.unwrap()
}

#[allow(clippy::disallowed_methods)]
fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Copies until the process is killed after `operations`; the directory as it was then, and whether it was
/// killed.
async fn killed_after(source: &Source, operations: u64) -> (tempfile::TempDir, bool) {
    let (running, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = open(running.path()).await;
    let frozen = Arc::new(Notify::new());
    let freezing: Arc<dyn Disk> = Arc::new(freezing(disk.real.clone(), operations, frozen.clone()));
    let is_killed = tokio::select! {
        biased;
        done = source.copy(&freezing, &disk.index) => {
            done.unwrap();
            false
        }
        () = frozen.notified() => true,
    };
    // While the disk is open: closing it would write what a killed process does not.
    copy_tree(running.path(), after.path());
    (after, is_killed)
}

/// Checks what a start makes of it, and then the copy, told again: the whole replica in the end.
async fn check_after(source: &Source, root: &Path, operations: u64) -> bool {
    let disk = open(root).await;
    let real: Arc<dyn Disk> = disk.real.clone();
    recover(&real, &disk.index).await.unwrap();
    let was_whole = disk.index.container(FIRST).unwrap().is_some();
    if was_whole {
        assert!(incoming::list(&*real).await.unwrap().is_empty(), "after {operations} operations");
    } else {
        source.copy(&real, &disk.index).await.unwrap();
    }
    let rows = |index: &Index| -> Vec<_> {
        let rows = index.derived_rows().map(Result::unwrap);
        let of_it = rows.filter(|(key, _)| crate::index::keys::container_of(key) == Some(FIRST));
        of_it.filter(|(key, _)| key[0] != 0x07).collect()
    };
    let here = rows(&disk.index);
    drop((disk, real));
    assert_eq!(here, rows(&source.left.index()), "after {operations} operations");
    // The rows are equal already; this takes the longest.
    if operations.is_multiple_of(8) {
        let report = OfflineDisk::open(root).unwrap().verify(None).await.unwrap();
        assert!(report.is_whole(), "after {operations} operations: {report:#?}");
        assert_eq!(report.containers[&FIRST].hash.as_deref(), Some(source.manifest.hash.as_str()));
    }
    was_whole
}

#[tokio::test]
async fn a_copy_that_is_killed_anywhere_is_gone_on_with_or_whole() {
    let source = Source::new().await;
    let (mut operations, mut whole) = (0, 0);
    loop {
        let (after, is_killed) = killed_after(&source, operations).await;
        whole += u64::from(check_after(&source, after.path(), operations).await);
        if !is_killed {
            break;
        }
        operations += 1;
    }
    assert!(operations > 30, "{operations} operations are no copy");
    assert!(whole > 1 && whole < operations, "{whole} of {operations}");
}

/// A sync fails, the process is started anew, and the copy goes on: the page cache shows what the disk has
/// lost.
#[tokio::test]
async fn what_a_failed_sync_has_lost_is_no_replica() {
    const TRIES_MAX: usize = 4;
    let source = Source::new().await;
    let options = SimOptions::default();
    let copy_on = async |sim: &SimDisk, disk: &DatanodeDisk| {
        let over: Arc<dyn Disk> = Arc::new(sim.clone());
        source.copy(&over, &disk.index).await
    };
    let dir = tempfile::tempdir().unwrap();
    let whole = SimDisk::new(options);
    copy_on(&whole, &open(dir.path()).await).await.unwrap();
    let (mut failed, mut begun_anew, mut kept) = (0, 0, 0);
    for (seed, from) in (0..whole.steps()).enumerate() {
        let options = SimOptions { seed: seed as u64, ..options };
        let dir = tempfile::tempdir().unwrap();
        let disk = open(dir.path()).await;
        let mut sim = SimDisk::new(options);
        sim.fail_sync_from(from);
        let mut tries = 0;
        while let Err(failure) = copy_on(&sim, &disk).await {
            tries += 1;
            assert!(tries < TRIES_MAX, "from step {from}, again and again: {failure:#}");
            sim = sim.kill(options);
            let over: Arc<dyn Disk> = Arc::new(sim.clone());
            recover(&over, &disk.index).await.unwrap();
            if disk.index.container(FIRST).unwrap().is_some() {
                break;
            }
        }
        failed += usize::from(tries > 0);
        begun_anew += usize::from(tries > 1);
        let sim = sim.lose_power(Loss::AllUnsynced, options);
        for (name, data) in &source.files {
            let path = format!("containers/{:016x}/{name}", FIRST.0);
            // Where the sync of a directory failed the name is lost, which whoever reads the container sees.
            let Ok(stored) = sim.stored(&path) else { continue };
            assert!(stored == *data, "{path} of a sync that failed from step {from}");
            kept += 1;
        }
    }
    assert!(kept > failed, "{kept} files are there");
    assert!(
        failed > 3 && begun_anew > 0,
        "{failed} failed, {begun_anew} had to be begun anew: this shows nothing"
    );
}

/// An error cut the deletion of a copy short, before the first of its files went.
#[tokio::test]
async fn a_copy_that_is_being_deleted_does_not_become_a_replica_again() {
    let source = Source::new().await;
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path()).await;
    let real: Arc<dyn Disk> = disk.real.clone();
    source.copy(&real, &disk.index).await.unwrap();
    disk.index.begin_deletion(FIRST).unwrap();
    recover(&real, &disk.index).await.unwrap();
    assert!(disk.index.container(FIRST).unwrap().is_none());
    assert_eq!(disk.index.deletions().unwrap(), [FIRST]);
}

#[tokio::test]
async fn what_is_not_as_said_never_becomes_a_replica() {
    let check = async |damage: &dyn Fn(&mut Source), says: &str| {
        let mut source = Source::new().await;
        damage(&mut source);
        let dir = tempfile::tempdir().unwrap();
        let disk = open(dir.path()).await;
        let real: Arc<dyn Disk> = disk.real.clone();
        let failure = format!("{:#}", source.copy(&real, &disk.index).await.unwrap_err());
        assert!(failure.contains(says), "`{says}` is not in `{failure}`");
        assert_eq!(disk.index.containers().unwrap(), []);
        assert!(
            incoming::list(&*real).await.unwrap().is_empty()
                && real.list("containers").await.unwrap().is_empty()
        );
    };
    check(&|source| flip(&mut source.files[1].1, 50_000), "mismatch").await;
    check(&|source| flip(&mut source.files[0].1, 20), "byte 0").await;
    check(
        &|source| {
            let hash = "0".repeat(64);
            source.manifest =
                Manifest::parse(ContainerManifest { hash, ..source.manifest.message().clone() }).unwrap();
        },
        "its hash is",
    )
    .await;
    check(
        &|source| {
            let last_index = 7;
            source.manifest =
                Manifest::parse(ContainerManifest { last_index, ..source.manifest.message().clone() })
                    .unwrap();
        },
        "it ends with",
    )
    .await;
}

fn flip(data: &mut Bytes, at: usize) {
    let mut bytes = data.to_vec();
    bytes[at] ^= 1;
    *data = bytes.into();
}

#[tokio::test]
async fn an_imported_container_is_rebuilt_from_its_directory() {
    let source = Source::new().await;
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path()).await;
    let real: Arc<dyn Disk> = disk.real.clone();
    source.copy(&real, &disk.index).await.unwrap();
    let before: Vec<_> = disk.index.derived_rows().map(Result::unwrap).collect();
    assert!(before.len() > 3);
    drop((disk, real));
    let offline = OfflineDisk::open(dir.path()).unwrap();
    assert!(offline.rebuild(Default::default()).await.unwrap().is_whole());
    drop(offline);
    let disk = open(dir.path()).await;
    let after: Vec<_> = disk.index.derived_rows().map(Result::unwrap).collect();
    assert_eq!(before, after);
}
