//! Fetching a replica of a closed container from another node.

use super::delete::finish_begun_of;
use super::order::{Means, Progress, Run};
use crate::blocking::blocking;
use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::import::incoming::Incoming;
use crate::import::manifest::Manifest;
use crate::import::{self, incoming};
use anyhow::{Context, anyhow, bail, ensure};
use proto::datanode::{ContainerPart, FetchContainerRequest, FilePart, container_part};
use proto::messages::{self, Messages};
use proto::scm::{CopyContainer, NodeAddress};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;
use tracing::info;
use types::{ContainerId, OwnerId};

/// The time after which a source that sends nothing is given up: a source waits for its own rate, which
/// others share.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The pause between a break of the connection and another try at the same source, which follows as long as
/// each try brings something.
const BREAK_WAIT: Duration = Duration::from_millis(200);

pub(super) async fn copy(means: &Means, order: CopyContainer, run: &Run) -> anyhow::Result<()> {
    let container = ContainerId(order.container);
    if means.disks.inventory.get(container).is_some() {
        return Ok(());
    }
    let mut failures = Vec::new();
    for source in &order.sources {
        match copy_from(means, &order, source, run).await {
            Ok(disk) => {
                means.copies.counters.received.fetch_add(1, Ordering::Relaxed);
                disk.inventory.look_again(disk.id, container);
                info!(%container, source = source.node, disk = %disk.real.root().display(), "copied a container");
                return Ok(());
            }
            Err(failure) => failures.push(format!("from node {}: {failure:#}", source.node)),
        }
    }
    ensure!(!run.stop.is_cancelled(), "it was withdrawn");
    means.copies.counters.receiving_failed.fetch_add(1, Ordering::Relaxed);
    bail!("copy container {container}: {}", failures.join("; "))
}

/// Copies from one source; answers the disk that has the container. A copy may stop while bytes come in, and
/// not in its last steps: those must not stay half way in this process, where nobody would finish them. The
/// next process does.
async fn copy_from(
    means: &Means,
    order: &CopyContainer,
    source: &NodeAddress,
    run: &Run,
) -> anyhow::Result<Arc<DatanodeDisk>> {
    let received = run.until_stop(receive_from(means, order, source, &run.progress)).await?;
    run.until_node_ends(received.take_in()).await
}

/// Receives all of a container from one source, which may break off in between.
async fn receive_from<'a>(
    means: &'a Means,
    order: &CopyContainer,
    source: &NodeAddress,
    progress: &'a Progress,
) -> anyhow::Result<Copy<'a>> {
    let mut before = None;
    loop {
        let mut copy = Copy::begin(means, order, source, progress).await?;
        let done = copy.receive().await;
        let bytes_done = copy.incoming.bytes_done();
        match done {
            Ok(()) => return Ok(copy),
            Err(failure) if before.is_some_and(|before| bytes_done <= before) => return Err(failure),
            Err(failure) => {
                info!(
                    container = order.container,
                    error = format!("{failure:#}"),
                    "a copy broke off; going on"
                );
                before = Some(bytes_done);
                tokio::time::sleep(BREAK_WAIT).await;
            }
        }
    }
}

/// One connection's part of a copy.
struct Copy<'a> {
    means: &'a Means,
    progress: &'a Progress,
    disk: Arc<DatanodeDisk>,
    manifest: Manifest,
    incoming: Incoming,
    parts: Messages<ContainerPart>,
}

impl<'a> Copy<'a> {
    /// Asks the source what there is, and then for what is missing.
    async fn begin(
        means: &'a Means,
        order: &CopyContainer,
        source: &NodeAddress,
        progress: &'a Progress,
    ) -> anyhow::Result<Copy<'a>> {
        let cluster = means.disks.cluster().context("this node is in no cluster yet")?;
        let request = FetchContainerRequest { container: order.container, cluster, ..Default::default() };
        let (manifest, parts) = fetch(means, source, &request).await?;
        let Manifest { container, pipeline, .. } = manifest;
        let is_meant = (container.0, pipeline.0) == (order.container, order.pipeline);
        ensure!(is_meant, "it answers with container {container} of pipeline {pipeline}");
        ensure!(!manifest.hash.is_empty(), "it runs another version, whose hashes are not comparable");
        let has_hash = order.hash.is_empty() || order.hash == manifest.hash;
        ensure!(has_hash, "its replica has the hash {}, not {}", manifest.hash, order.hash);
        check_is_wanted(means, &manifest).await?;
        let disk = choose_disk(&means.disks, &manifest).await?;
        finish_begun_of(&disk, container).await?;
        let incoming = Incoming::open(disk.space.disk().clone(), manifest.clone()).await?;
        progress.bytes_total.store(manifest.bytes(), Ordering::Relaxed);
        progress.bytes_done.store(incoming.bytes_done(), Ordering::Relaxed);
        let parts = match incoming.position() {
            // All is there already, or nothing: this stream is right.
            None => parts,
            Some(_) if incoming.bytes_done() == 0 => parts,
            Some((file, offset)) => {
                let request = FetchContainerRequest { file: file.name.clone(), offset, ..request };
                let (again, parts) = fetch(means, source, &request).await?;
                ensure!(again == manifest, "what the source has changed meanwhile");
                parts
            }
        };
        Ok(Copy { means, progress, disk, manifest, incoming, parts })
    }

    async fn receive(&mut self) -> anyhow::Result<()> {
        if self.incoming.position().is_none() {
            return Ok(());
        }
        while let Some(part) = next(&mut self.parts).await? {
            let Some(container_part::Part::File(FilePart { name, offset, data, crc })) = part.part else {
                bail!("the source sends what is no part of a file");
            };
            ensure!(crc32c::crc32c(&data) == crc, "bytes at {offset} of {name} were damaged on the way");
            let copies = &self.means.copies;
            copies.receiving.take(data.len()).await;
            copies.counters.received_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            self.incoming.write(&name, offset, data).await?;
            self.progress.bytes_done.store(self.incoming.bytes_done(), Ordering::Relaxed);
        }
        let (done, all) = (self.incoming.bytes_done(), self.manifest.bytes());
        ensure!(done == all, "the source ended after {done} of {all} bytes");
        Ok(())
    }

    async fn take_in(self) -> anyhow::Result<Arc<DatanodeDisk>> {
        let Copy { means, disk, manifest, incoming, .. } = self;
        check_is_wanted(means, &manifest).await?;
        import::take_in(disk.space.disk(), &disk.index, incoming, &manifest).await?;
        let container = manifest.container;
        disk.unhealthy.lock().expect("no holder panics").remove(&container);
        disk.inventory.look_again(disk.id, container);
        // The replica is here, whatever the index says next: what it does not give now it gives at a start.
        if let Ok(list_bytes) = disk.index.with(move |index| index.list_bytes(container)).await {
            disk.space.expect_discards(OwnerId::from(container), list_bytes);
        }
        Ok(disk)
    }
}

/// Refuses a copy of what a member's own log here is yet to write, which would find its place taken, or has
/// written since the copy was asked for: the node would have it twice, and tell of one.
async fn check_is_wanted(means: &Means, manifest: &Manifest) -> anyhow::Result<()> {
    let Manifest { pipeline, container, .. } = *manifest;
    let may_write = means.pipelines.may_write(pipeline, container);
    ensure!(!may_write, "a member of pipeline {pipeline} is here, and may still write container {container}");
    let disks = means.disks.clone();
    let is_here = blocking(move || disks.have_closed(container)).await?;
    ensure!(!is_here, "container {container} is closed here by now");
    Ok(())
}

async fn fetch(
    means: &Means,
    source: &NodeAddress,
    request: &FetchContainerRequest,
) -> anyhow::Result<(Manifest, Messages<ContainerPart>)> {
    let channel = means.connector.connect(&source.address);
    let channel = channel.map_err(|why| anyhow!("the source's address: {why}"))?;
    let asked = messages::one(request.clone());
    let answer = messages::call(channel, messages::FETCH_CONTAINER, &request.cluster, asked);
    let answer = timeout(SILENCE_MAX, answer).await.context("it does not answer")?;
    let mut parts = answer.map_err(proto::Failure::from)?;
    match next(&mut parts).await?.and_then(|part| part.part) {
        Some(container_part::Part::Manifest(manifest)) => Ok((Manifest::parse(manifest)?, parts)),
        _ => bail!("it does not begin with what there is"),
    }
}

async fn next(parts: &mut Messages<ContainerPart>) -> anyhow::Result<Option<ContainerPart>> {
    let message = timeout(SILENCE_MAX, parts.message()).await.context("the source has gone silent")?;
    Ok(message.map_err(proto::Failure::from)?)
}

/// The disk where a copy was begun; else the one of which the least is used, among those that work and have
/// room.
async fn choose_disk(disks: &Disks, manifest: &Manifest) -> anyhow::Result<Arc<DatanodeDisk>> {
    let mut best: Option<(f64, Arc<DatanodeDisk>)> = None;
    for disk in &disks.open {
        if disk.failure().is_some() || disk.hangs() {
            continue;
        }
        if incoming::list(&*disk.real).await?.contains(&manifest.container) {
            return Ok(disk.clone());
        }
        let space = disk.real.space().await.context("ask a disk for its space")?;
        if space.free_bytes < manifest.bytes().saturating_add(disk.full_below_bytes) {
            continue;
        }
        let used = 1.0 - space.free_bytes as f64 / space.capacity_bytes.max(1) as f64;
        if best.as_ref().is_none_or(|(least, _)| used < *least) {
            best = Some((used, disk.clone()));
        }
    }
    let bytes = manifest.bytes();
    best.map(|(_, disk)| disk).with_context(|| format!("no disk of this node has room for {bytes} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::tests::{FIRST, Left};
    use proto::datanode::{ContainerFile, ContainerManifest};

    /// A member of the container's pipeline lagged when SCM asked for the copy.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_container_that_was_closed_here_meanwhile_is_not_taken_in_besides() {
        let left = Left::new().await.copy();
        let means = Means::over(vec![left.root()]).await;
        let copy_of = |container: u64| {
            let files = vec![ContainerFile { name: "00000000.seg".to_owned(), bytes: 16 }];
            Manifest::parse(ContainerManifest { container, pipeline: 1, files, ..Default::default() })
                .unwrap()
        };
        let refusal = check_is_wanted(&means, &copy_of(FIRST.0)).await.unwrap_err();
        assert!(refusal.to_string().contains("is closed here by now"), "{refusal:#}");
        check_is_wanted(&means, &copy_of(FIRST.0 + 1000)).await.unwrap();
    }
}
