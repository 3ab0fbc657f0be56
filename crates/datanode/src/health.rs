//! Marking a container's replica as bad, once, whoever finds it.

use crate::container_reader::{ContainerReader, Reading};
use crate::counters::ContainerReport;
use crate::datanode_disk::DatanodeDisk;
use crate::index::records::ReplicaState;
use crate::layout::OWNERS_DIR;
use crate::verdict::condemns;
use raftlog::Discards;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::error;
use types::{ContainerId, OwnerId};

impl DatanodeDisk {
    /// Begins to read a container, and marks it where that shows it to be bad.
    pub(crate) async fn reader(
        self: &Arc<Self>,
        container: ContainerId,
        reading: Reading,
    ) -> anyhow::Result<ContainerReader> {
        let reader = ContainerReader::of(&self.space, container, reading).await;
        self.marking(container, reader).await
    }

    /// The discards of a container, which is marked where the list of them is bad.
    pub(crate) async fn discards(self: &Arc<Self>, container: ContainerId) -> anyhow::Result<Discards> {
        let discards = self.space.discards(OWNERS_DIR, OwnerId::from(container)).await;
        self.marking(container, discards.map_err(anyhow::Error::from)).await
    }

    async fn marking<T>(
        self: &Arc<Self>,
        container: ContainerId,
        read: anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if let Err(failure) = &read
            && condemns(failure)
        {
            self.mark_unhealthy(container, format!("{failure:#}")).await;
        }
        read
    }

    /// Whether this replica of a container is known to be bad.
    pub(crate) fn is_unhealthy(&self, container: ContainerId) -> bool {
        self.unhealthy.lock().expect("no holder panics").contains(&container)
    }

    /// Remembers, durably, that this replica of a container is bad. Somebody must look, or a good replica
    /// must take its place; until then what is good in it is still read. True when nobody had found it
    /// before.
    pub(crate) async fn mark_unhealthy(self: &Arc<Self>, container: ContainerId, why: String) -> bool {
        if self.is_unhealthy(container) {
            return false;
        }
        let reason = why.clone();
        let disk = self.real.root().display();
        let marked = self.index.with(move |index| match index.container(container)? {
            Some(_) => index.mark_unhealthy(container, &reason).map(Some),
            None => Ok(None),
        });
        match marked.await {
            // The replica was deleted meanwhile, and one that is copied here later must not be taken for it.
            Ok(None) => false,
            Ok(Some(is_new)) => {
                self.unhealthy.lock().expect("no holder panics").insert(container);
                self.inventory.set_unhealthy(container, self.id, &why);
                // Another disk of this node may have a replica that is whole, which is told of then.
                self.inventory.look_again(self.id, container);
                if is_new {
                    self.counters.marked_unhealthy.fetch_add(1, Ordering::Relaxed);
                    error!(%disk, %container, why, "this replica of a container is UNHEALTHY");
                }
                is_new
            }
            Err(failure) => {
                let error = format!("{failure:#}");
                error!(%disk, %container, why, error, "cannot remember that a replica is unhealthy");
                false
            }
        }
    }

    /// Reports all containers of this disk. Blocks.
    pub(crate) fn container_reports(&self) -> anyhow::Result<Vec<ContainerReport>> {
        let mut unhealthy = self.index.all_unhealthy()?;
        let report =
            |(container, record): (ContainerId, crate::index::records::ContainerRecord)| ContainerReport {
                container,
                pipeline: record.pipeline,
                disk: self.id,
                is_closed: record.state == ReplicaState::Closed,
                last: record.last,
                blocks: record.blocks,
                payload_bytes: record.payload_bytes,
                unhealthy: unhealthy.remove(&container),
            };
        Ok(self.index.containers()?.into_iter().map(report).collect())
    }
}
