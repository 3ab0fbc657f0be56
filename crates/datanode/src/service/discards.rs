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
    /// A record of each block that is still to be sent.
    blocks: Box<dyn ExactSizeIterator<Item = Discarded> + Send>,
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
    let blocks = Box::new(discards.into_tags());
    Ok(Listing { disk, container, blocks, _held_until_sent: permit })
}

impl Listing {
    /// Sends the names of the discarded blocks; an error ends the answer.
    pub(super) async fn run(mut self, parts: Sender<Result<DiscardedBlocks, Status>>) {
        let container = self.container;
        if let Err(failure) = self.send(&parts).await {
            info!(%container, error = format!("{failure:#}"), "cannot tell what was discarded");
            let message = format!("tell what was discarded in container {container}: {failure:#}");
            let failure = Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) };
            // When nobody listens any more, nobody needs the answer.
            let _ = parts.send(Err(failure.into())).await;
        }
    }

    async fn send(&mut self, parts: &Sender<Result<DiscardedBlocks, Status>>) -> anyhow::Result<()> {
        // Where nothing was discarded there is one part too, which says so.
        loop {
            let mut blocks = Vec::with_capacity(self.blocks.len().min(BLOCKS_MAX));
            while blocks.len() < BLOCKS_MAX
                && let Some(record) = self.blocks.next()
            {
                blocks.push(name(&self.disk, self.container, &record).await?.into());
            }
            let is_last = self.blocks.len() == 0;
            let part = timeout(TAKEN_WITHIN, parts.send(Ok(DiscardedBlocks { blocks, is_last })));
            part.await.context("nobody takes them")?.context("nobody listens")?;
            if is_last {
                return Ok(());
            }
        }
    }
}

async fn name(disk: &DatanodeDisk, container: ContainerId, record: &Discarded) -> anyhow::Result<BlockName> {
    let id = BlockId { container, local: record.tag };
    if let Some(name) = record.name {
        return Ok(BlockName::new(id, Nonce(name)));
    }
    // The block was listed before lists had names, and no compaction has left out its record since.
    let head = disk.space.read_head(OWNERS_DIR, record.place).await?;
    let command = PipelineCommand::decode(head.meta).context("decode a discarded record")?.command;
    let Some(pipeline_command::Command::Chunk(ChunkCommand { nonce, .. })) = command else {
        anyhow::bail!("the discarded record {} is no chunk", record.index.0);
    };
    let nonce = Nonce(u128::from_be_bytes(proto::bytes16(&nonce, "nonce")?));
    Ok(BlockName::new(id, nonce))
}
