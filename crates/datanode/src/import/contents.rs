//! Going through a copied container's records: verifying them, and applying them as their pipeline did.

use super::manifest::Manifest;
use crate::blocking::blocking;
use crate::container_end::ContainerEnd;
use crate::container_reader::{ContainerReader, Contents, ReadRecord, Reading, first_disk_use};
use crate::hash;
use crate::index::machine::ContainerMachine;
use crate::index::{Facts, Index, Measure};
use anyhow::{bail, ensure};
use disk::Disk;
use raft::Replay;
use raftlog::WalkEnd;
use std::sync::Arc;

/// The most commands that are applied as one batch.
const BATCH_MAX: usize = 1024;

/// Checks every record, body and all, of a copy that is not published: that it is what its manifest says. An
/// error means that the copy is bad, or that this disk cannot read it; either way it is to be begun anew.
pub(super) async fn verify(disk: &Arc<dyn Disk>, manifest: &Manifest) -> anyhow::Result<()> {
    let mut reader = ContainerReader::open(disk, manifest.container, Reading::Incoming).await?;
    while let Some(record) = reader.next().await? {
        reader.check_body(&record).await?;
    }
    let Contents { last, end, .. } = reader.contents();
    if let Some(WalkEnd::Bad { segment, offset, why }) = end {
        bail!("segment {segment:08x}, byte {offset}: {why}");
    }
    let last = last.unwrap_or_default();
    ensure!(last == manifest.last, "it ends with {last:?}, not {:?}", manifest.last);
    let hash = hash::to_hex(&reader.hash());
    ensure!(hash == manifest.hash, "its hash is {hash}, not {}", manifest.hash);
    Ok(())
}

/// Puts a published container's rows into the index of its disk, durably. Repeating it changes nothing; a
/// crash before its end leaves rows that nobody sees.
pub(super) async fn index(disk: &Arc<dyn Disk>, index: &Index, manifest: &Manifest) -> anyhow::Result<()> {
    let (container, pipeline) = (manifest.container, manifest.pipeline);
    let of_disk = index.clone();
    let mut machine = blocking(move || ContainerMachine::new(of_disk, pipeline, container)).await?;
    let mut replay = Replay::new(None)?;
    let mut reader = ContainerReader::open(disk, container, Reading::Whole).await?;
    while let Some(ReadRecord { walked, .. }) = reader.next().await? {
        let index = walked.meta.id.index;
        if !manifest.repeats.contains(&index) && !reader.is_known_repeat(index) {
            replay.push(walked.meta)?;
        }
        if replay.pending() >= BATCH_MAX
            && let Some((batch, _)) = replay.take()
        {
            machine = blocking(move || machine.applied(batch)).await?;
        }
    }
    let Contents { last, terms, end, .. } = reader.contents();
    let (last, terms) = (last.unwrap_or_default(), terms.clone());
    ensure!(last == manifest.last, "it ends with {last:?}, not {:?}", manifest.last);
    if matches!(end, Some(WalkEnd::Unfinished { .. })) {
        // No roll ended the container: it was closed where a log ended.
        ContainerEnd::closed(Some(last)).write(&**disk, container).await?;
    }
    let rest = replay.take().map(|(batch, _)| batch).unwrap_or_default();
    let measure = Measure {
        used: first_disk_use(&**disk, container).await?,
        copied: true,
        hash: hash::from_hex(&manifest.hash),
        facts: Facts { terms, repeats: manifest.repeats.iter().copied().collect() },
    };
    let gone: Vec<u64> = reader.discards().iter().map(|record| record.tag).collect();
    index
        .with(move |index| {
            let machine = machine.applied(rest)?;
            machine.finish(last, &gone, Some(&measure))?;
            index.flush()
        })
        .await
}
