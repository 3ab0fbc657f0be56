//! Making a container that was fetched from another node one of this disk's.
//!
//! ```text
//! incoming/<number>    written file by file       a crash: it is gone on with, or swept when nobody wants it
//!                      synced, every record verified
//! containers/<number>  renamed, synced            a crash: the next start indexes it
//!                      rows, then the container's row, flushed
//!                                                 it is a replica: reported, read, scrubbed
//! ```
//!
//! The container's row is written last: readers, and everybody else, find a container by it.

mod contents;
pub(crate) mod imported_file;
pub(crate) mod incoming;
pub(crate) mod manifest;

use crate::index::Index;
use crate::layout::{OWNERS_DIR, container_dir};
use anyhow::{Context, ensure};
use disk::Disk;
use incoming::Incoming;
use manifest::Manifest;
use planted::Bug;
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::{info, warn};
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
    incoming.publish().await?;
    contents::index(disk, index, manifest).await.context("index a copy")
}

/// Indexes containers whose import a crash interrupted after they were published. To be called before
/// anything reads the disk.
pub(crate) async fn recover(disk: &Arc<dyn Disk>, index: &Index) -> anyhow::Result<()> {
    let (rows, deletions) = index.with(|index| Ok((index.containers()?, index.deletions()?))).await?;
    // A replica whose files could not be deleted yet has no row either.
    let known: BTreeSet<ContainerId> =
        rows.into_iter().map(|(container, _)| container).chain(deletions).collect();
    let owners = raftlog::owners(&**disk, OWNERS_DIR).await.context("list the containers")?;
    for container in owners.into_iter().map(|owner| ContainerId(owner.0)) {
        if known.contains(&container) {
            continue;
        }
        let dir = container_dir(container);
        // A container without the file is an open one that has yet to be applied.
        let done = match imported_file::read(&**disk, &dir).await {
            Ok(None) => continue,
            Ok(Some(message)) => recover_one(disk, index, message).await,
            Err(failure) => Err(failure),
        };
        match done {
            Ok(()) => info!(%container, "indexed a container whose copy a crash interrupted"),
            // Nobody sees a container without its row; SCM has another copy made.
            Err(failure) => {
                warn!(%container, error = format!("{failure:#}"), "cannot index a copied container; it is given up");
                incoming::unpublish(&**disk, container).await?;
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
