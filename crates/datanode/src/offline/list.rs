use super::OfflineDisk;
use crate::layout::OWNERS_DIR;
use crate::verdict::condemns;
use anyhow::Context;
use raftlog::{Discards, owner_files};
use std::collections::BTreeSet;
use types::{ContainerId, OwnerId, PipelineId};

/// A container as its disk's index and directory have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    pub container: ContainerId,
    /// The index's word; `None` when it does not know the container.
    pub indexed: Option<IndexedContainer>,
    /// The lengths of its segments together.
    pub segment_bytes: u64,
    pub segments: u64,
    /// The bytes of the segments that were given back as holes.
    pub hole_bytes: u64,
    pub unhealthy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedContainer {
    pub pipeline: PipelineId,
    /// The container's state, in the words of docs/format/block-index.md.
    pub state: &'static str,
    pub blocks: u64,
    pub chunks: u64,
    pub payload_bytes: u64,
}

impl OfflineDisk {
    /// Lists all containers that the index or the directory has, in order.
    pub async fn list(&self) -> anyhow::Result<Vec<ListedContainer>> {
        let index = self.index().await?;
        let (known, unhealthy) = match &index {
            Some(index) => (index.containers()?, index.all_unhealthy()?),
            None => Default::default(),
        };
        let owners = raftlog::owners(&*self.real, OWNERS_DIR).await.context("list the containers")?;
        let mut ids: BTreeSet<ContainerId> = known.iter().map(|(id, _)| *id).collect();
        ids.extend(owners.iter().map(|owner| ContainerId(owner.0)));
        let mut listed = Vec::with_capacity(ids.len());
        for container in ids {
            let record = known.iter().find(|(id, _)| *id == container).map(|(_, record)| record);
            let indexed = record.map(|record| IndexedContainer {
                pipeline: record.pipeline,
                state: record.state.name(),
                blocks: record.blocks,
                chunks: record.chunks,
                payload_bytes: record.payload_bytes,
            });
            let (files, damage) = match self.files(container).await {
                Err(failure) if condemns(&failure) => (Default::default(), Some(format!("{failure:#}"))),
                files => (files?, None),
            };
            let unhealthy = unhealthy.get(&container).cloned().or(damage);
            let (segments, segment_bytes, hole_bytes) = files;
            listed.push(ListedContainer {
                container,
                indexed,
                segment_bytes,
                segments,
                hole_bytes,
                unhealthy,
            });
        }
        Ok(listed)
    }

    async fn files(&self, container: ContainerId) -> anyhow::Result<(u64, u64, u64)> {
        let owner = OwnerId::from(container);
        let files = owner_files(&*self.real, OWNERS_DIR, owner).await;
        let files = files.with_context(|| format!("list the files of container {container}"))?;
        let segments: Vec<_> = files.iter().filter(|file| file.segment().is_some()).collect();
        let bytes = segments.iter().map(|file| file.bytes).sum();
        let discards = Discards::read(&*self.real, OWNERS_DIR, owner).await?;
        Ok((segments.len() as u64, bytes, discards.hole_bytes()))
    }
}
