//! Making a container that was fetched from another node one of this disk's.
//!
//! ```text
//! incoming/<number>    written file by file       a crash: it is gone on with, or swept when nobody wants it
//!                      synced, every record verified
//! the index            a mark, flushed            a crash: the next start removes it
//! containers/<number>  renamed, synced            a crash: the next start indexes it
//!                      rows, then the container's row in place of the mark, flushed
//!                                                 it is a replica: reported, read, scrubbed
//! ```
//!
//! The container's row is written last: readers, and everybody else, find a container by it. A copy without
//! row and mark was a replica once, and the index is older than it ([`crate::index_age`]).

mod contents;
pub(crate) mod imported_file;
pub(crate) mod incoming;
pub(crate) mod manifest;

use crate::index::Index;
use crate::layout::{OWNERS_DIR, container_dir};
use crate::verdict::condemns;
use anyhow::{Context, ensure};
use disk::Disk;
use incoming::Incoming;
use manifest::Manifest;
use planted::Bug;
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::{error, info, warn};
use types::ContainerId;

/// Verifies a copy whose bytes have all arrived, and makes it a replica, durably. A copy that is not what it
/// should be is removed.
pub(crate) async fn take_in(
    disk: &Arc<dyn Disk>,
    index: &Index,
    mut incoming: Incoming,
    manifest: &Manifest,
) -> anyhow::Result<()> {
    incoming.finish().await?;
    if !planted::has(Bug::ImportsUnverified)
        && let Err(failure) = contents::verify(disk, manifest).await
    {
        incoming::remove(&**disk, manifest.container).await?;
        return Err(failure.context("verify a copy; it is given up"));
    }
    let (pipeline, container) = (manifest.pipeline, manifest.container);
    let remembers = index.with(move |index| index.remembers_writers(pipeline, container)).await?;
    // Indexing would touch the nonces that the pipeline still asks for; the next roll ends that.
    ensure!(!remembers, "pipeline {pipeline} runs on this disk and has just left container {container}");
    index.with(move |index| index.begin_import(container)).await?;
    incoming.publish().await?;
    contents::index(disk, index, manifest).await.context("index a copy")
}

/// Indexes containers whose import a crash interrupted after they were published. To be called before
/// anything reads the disk.
pub(crate) async fn recover(disk: &Arc<dyn Disk>, index: &Index) -> anyhow::Result<()> {
    let owners = raftlog::owners(&**disk, OWNERS_DIR).await.context("list the containers")?;
    let there: BTreeSet<ContainerId> = owners.into_iter().map(|owner| ContainerId(owner.0)).collect();
    for container in index.with(|index| index.imports()).await? {
        if !there.contains(&container) {
            index.with(move |index| index.end_import(container)).await?;
            continue;
        }
        let dir = container_dir(container);
        let (done, is_bad): (_, fn(&anyhow::Error) -> bool) = match imported_file::read(&**disk, &dir).await {
            // A rebuilding marks whatever it cannot tell the owner of: this is no copy, and its log may have
            // yet to write there.
            Ok(None) => {
                index.with(move |index| index.end_import(container)).await?;
                continue;
            }
            Ok(Some(message)) => (recover_one(disk, index, message).await, condemns),
            // Whether there is such a file is known once it was read.
            Err(failure) => (Err(failure), imported_file::is_damaged),
        };
        match done {
            Ok(()) => info!(%container, "indexed a container whose copy a crash interrupted"),
            // Nobody sees a container without its row; SCM has another copy made.
            Err(failure) if is_bad(&failure) => {
                warn!(%container, error = format!("{failure:#}"), "a copied container is bad; it is given up");
                incoming::unpublish(&**disk, container).await?;
                index.with(move |index| index.end_import(container)).await?;
            }
            Err(failure) => {
                error!(%container, error = format!("{failure:#}"), "cannot index what may be a copied container; it stays as it is until the next start");
            }
        }
    }
    Ok(())
}

async fn recover_one(
    disk: &Arc<dyn Disk>,
    index: &Index,
    message: proto::datanode::ContainerManifest,
) -> anyhow::Result<()> {
    contents::index(disk, index, &Manifest::parse(message)?).await
}

#[cfg(test)]
mod crash_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datanode_disk::DatanodeDisk;
    use crate::index::keys;
    use crate::inventory::Inventory;
    use crate::offline::tests::{Left, SECOND};
    use crate::options::DatanodeOptions;
    use disk::RealDisk;
    use diskhooks::{Act, HookedDisk};
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    const EMFILE: i32 = 24;
    const EIO: i32 = 5;

    /// A row that was not flushed is gone with the process; its container's records are the log's, and the
    /// log applies them again, if they are there.
    #[tokio::test]
    #[allow(clippy::disallowed_methods)] // the test plays what is damaged
    async fn only_what_is_known_to_be_a_copy_is_given_up() {
        let left = Left::new().await;
        left.change(|batch| {
            batch.delete(keys::container(SECOND));
            batch.put(keys::import(SECOND), [1]);
        });
        let dir = left.root().join("containers/0000000000000065");
        let real = Arc::new(RealDisk::open(&left.root(), 1).unwrap());
        for code in [EMFILE, EIO] {
            let fails = Arc::new(AtomicBool::new(false));
            let armed = fails.clone();
            let hooked = HookedDisk::new(real.clone(), move |call| {
                match armed.load(Ordering::SeqCst) && call.path.ends_with("/imported") {
                    true => Act::Fail(io::Error::from_raw_os_error(code)),
                    false => Act::Pass,
                }
            });
            let options = DatanodeOptions::default();
            let disk =
                DatanodeDisk::open_over(real.clone(), Arc::new(hooked), &options, Inventory::default());
            let disk = disk.await.unwrap();
            fails.store(true, Ordering::SeqCst);
            recover(disk.space.disk(), &disk.index).await.unwrap();
            assert!(dir.join("00000000.seg").exists(), "error {code} says nothing of whose it is");
            assert_eq!(disk.index.imports().unwrap(), [SECOND], "error {code}");
            fails.store(false, Ordering::SeqCst);
            recover(disk.space.disk(), &disk.index).await.unwrap();
            assert_eq!(disk.index.imports().unwrap(), [], "it is its log's");
            disk.index.begin_import(SECOND).unwrap();
            drop(disk);
        }
        std::fs::write(dir.join("imported"), "no manifest").unwrap();
        let disk = DatanodeDisk::open(real, &DatanodeOptions::default(), Inventory::default()).await.unwrap();
        recover(disk.space.disk(), &disk.index).await.unwrap();
        assert!(!dir.exists(), "it was copied here, and nobody can index it");
        assert_eq!(disk.index.imports().unwrap(), []);
    }

    /// An older index knows nothing of what was copied since: that may be the last replica there is.
    #[tokio::test]
    #[allow(clippy::disallowed_methods)] // the test plays what is damaged
    async fn a_copy_that_an_older_index_does_not_know_is_not_given_up_however_damaged() {
        let left = Left::new().await;
        left.change(|batch| batch.delete(keys::container(SECOND)));
        let dir = left.root().join("containers/0000000000000065");
        std::fs::write(dir.join("imported"), "no manifest").unwrap();
        let real = Arc::new(RealDisk::open(&left.root(), 1).unwrap());
        let opened = DatanodeDisk::open(real, &DatanodeOptions::default(), Inventory::default()).await;
        let refused = format!("{:#}", opened.err().expect("the index is older than the disk"));
        assert!(refused.contains("does not know container 101") && refused.contains("rebuild"), "{refused}");
        assert!(dir.join("00000000.seg").exists());
    }
}
