//! Telling another node which blocks were discarded here.

use super::Served;
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::BLOCKS_MAX;
use crate::layout::OWNERS_DIR;
use anyhow::Context;
use prost::Message;
use proto::datanode::{
    ChunkCommand, DiscardedBlocks, ListDiscardsRequest, PipelineCommand, pipeline_command,
};
use proto::{Code, Failure, Retry};
use raftlog::Discarded;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;
use tokio::time::timeout;
use tonic::Status;
use tracing::info;
use types::{BlockId, BlockName, ContainerId, Nonce};

/// The time after which a receiver that takes no part is taken for gone.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// A request whose answer can be sent.
pub(super) struct Listing {
    disk: Arc<DatanodeDisk>,
    container: ContainerId,
    /// A record of each block.
    blocks: Vec<Discarded>,
    _held_until_sent: OwnedSemaphorePermit,
}

pub(super) async fn prepare(served: &Served, request: ListDiscardsRequest) -> Result<Listing, Failure> {
    let permit = served.listings.admit()?;
    let container = ContainerId(request.container);
    let Some((disk, _)) = served.find_container(container).await? else {
        let message = format!("container {container} is not on this node");
        return Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::NotFound, message) });
    };
    let discards = disk.discards(container).await.map_err(|error| {
        let message = format!("read what was discarded in container {container}: {error:#}");
        Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) }
    })?;
    let by_tag: BTreeMap<u64, Discarded> = discards.iter().map(|record| (record.tag, *record)).collect();
    Ok(Listing { disk, container, blocks: by_tag.into_values().collect(), _held_until_sent: permit })
}

impl Listing {
    /// Sends the names of the discarded blocks; an error ends the answer.
    pub(super) async fn run(self, parts: Sender<Result<DiscardedBlocks, Status>>) {
        let container = self.container;
        if let Err(failure) = self.send(&parts).await {
            info!(%container, error = format!("{failure:#}"), "cannot tell what was discarded");
            let message = format!("tell what was discarded in container {container}: {failure:#}");
            let failure = Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) };
            // When nobody listens any more, nobody needs the answer.
            let _ = parts.send(Err(failure.into())).await;
        }
    }

    async fn send(&self, parts: &Sender<Result<DiscardedBlocks, Status>>) -> anyhow::Result<()> {
        let mut sent = 0;
        // Where nothing was discarded there is one part too, which says so.
        loop {
            let rest = &self.blocks[sent..];
            let mut blocks = Vec::with_capacity(rest.len().min(BLOCKS_MAX));
            for record in &rest[..rest.len().min(BLOCKS_MAX)] {
                blocks.push(self.name(record).await?.into());
            }
            sent += blocks.len();
            let is_last = sent == self.blocks.len();
            let part = timeout(TAKEN_WITHIN, parts.send(Ok(DiscardedBlocks { blocks, is_last })));
            part.await.context("nobody takes them")?.context("nobody listens")?;
            if is_last {
                return Ok(());
            }
        }
    }

    async fn name(&self, record: &Discarded) -> anyhow::Result<BlockName> {
        let id = BlockId { container: self.container, local: record.tag };
        if let Some(name) = record.name {
            return Ok(BlockName::new(id, Nonce(name)));
        }
        // The block was listed before lists had names, and no compaction has left out its record since.
        let head = self.disk.space.read_head(OWNERS_DIR, record.place).await?;
        let command = PipelineCommand::decode(head.meta).context("decode a discarded record")?.command;
        let Some(pipeline_command::Command::Chunk(ChunkCommand { nonce, .. })) = command else {
            anyhow::bail!("the discarded record {} is no chunk", record.index.0);
        };
        let nonce = Nonce(u128::from_be_bytes(proto::bytes16(&nonce, "nonce")?));
        Ok(BlockName::new(id, nonce))
    }
}
