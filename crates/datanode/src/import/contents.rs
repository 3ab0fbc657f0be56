//! Going through a copied container's records: verifying them, and applying them as their pipeline did.

use super::manifest::Manifest;
use crate::container_end::ContainerEnd;
use crate::disks::OWNERS_DIR;
use crate::hash::{self, ContainerHash};
use crate::import::incoming::INCOMING_DIR;
use crate::index::machine::ContainerMachine;
use crate::index::{Index, Measure};
use crate::manager::blocking;
use anyhow::{Context, bail, ensure};
use disk::Disk;
use raft::Replay;
use raftlog::{Discards, OwnerWalk, Step, WalkEnd, owner_files};
use std::sync::Arc;
use types::{LogId, OwnerId};

/// Commands applied as one batch.
const BATCH_MAX: usize = 1024;

/// Checks every record, body and all, of a copy that is not published: that it is what its manifest says. An error means that the
/// copy is bad, or that this disk cannot read it; either way it is to be begun anew.
pub(super) async fn verify(disk: &Arc<dyn Disk>, manifest: &Manifest) -> anyhow::Result<()> {
    let owner = OwnerId::from(manifest.container);
    let discards = Discards::read(&**disk, INCOMING_DIR, owner).await.context("read what was discarded")?;
    let mut walk = OwnerWalk::new(disk.clone(), INCOMING_DIR, owner).await?;
    let (mut hash, mut last) = (ContainerHash::default(), LogId::default());
    loop {
        match walk.next().await? {
            Step::Record(record) => {
                last = record.meta.id;
                if !discards.contains(record.meta.id.index, &record.meta.place) {
                    hash.add(&record);
                    walk.check_body(&record).await?;
                }
            }
            Step::End(WalkEnd::Bad { segment, offset, why }) => {
                bail!("segment {segment:08x}, byte {offset}: {why}");
            }
            Step::End(WalkEnd::Rolled { .. } | WalkEnd::Unfinished { .. }) => break,
        }
    }
    ensure!(last == manifest.last, "it ends with {last:?}, not {:?}", manifest.last);
    let hash = hash::to_hex(&hash.finish());
    ensure!(hash == manifest.hash, "its hash is {hash}, not {}", manifest.hash);
    Ok(())
}

/// Puts a published container's rows into the index of its disk, durably. Repeating it changes nothing; a crash before its end leaves
/// rows that nobody sees.
pub(super) async fn index(disk: &Arc<dyn Disk>, index: &Index, manifest: &Manifest) -> anyhow::Result<()> {
    let (container, pipeline) = (manifest.container, manifest.pipeline);
    let owner = OwnerId::from(container);
    let discards = Discards::read(&**disk, OWNERS_DIR, owner).await.context("read what was discarded")?;
    let of_disk = index.clone();
    let mut machine = blocking(move || ContainerMachine::new(of_disk, pipeline, container)).await?;
    let mut replay = Replay::new(None)?;
    let mut walk = OwnerWalk::new(disk.clone(), OWNERS_DIR, owner).await?;
    let mut last = LogId::default();
    let end = loop {
        let record = match walk.next().await? {
            Step::Record(record) => record,
            Step::End(end) => break end,
        };
        last = record.meta.id;
        if !manifest.repeats.contains(&last.index) {
            replay.push(record.meta)?;
        }
        if replay.pending() >= BATCH_MAX
            && let Some((batch, _)) = replay.take()
        {
            machine = blocking(move || machine.applied(batch)).await?;
        }
    };
    ensure!(last == manifest.last, "it ends with {last:?}, not {:?}", manifest.last);
    if matches!(end, WalkEnd::Unfinished { .. }) {
        // It was closed where its log ended.
        ContainerEnd::closed(Some(last)).write(&**disk, container).await?;
    }
    let rest = replay.take().map(|(batch, _)| batch).unwrap_or_default();
    let files = owner_files(&**disk, OWNERS_DIR, owner).await?;
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let measure = Measure {
        disk_bytes: bytes.saturating_sub(discards.hole_bytes()),
        hash: hash::from_hex(&manifest.hash),
        repeats: manifest.repeats.iter().copied().collect(),
    };
    let gone: Vec<u64> = discards.iter().map(|record| record.tag).collect();
    let index = index.clone();
    blocking(move || {
        let machine = machine.applied(rest)?;
        machine.finish(last, &gone, Some(&measure))?;
        index.flush()
    })
    .await
}
