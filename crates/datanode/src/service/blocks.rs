//! Telling which blocks a replica of a closed container has, a part at a time.

use super::Served;
use crate::index::records::ReplicaState;
use proto::datanode::{ListBlocksRequest, ListBlocksResponse};
use proto::{Code, Failure, Retry};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::error;
use types::ContainerId;

/// Lists that are read at a time, each of which holds a thread for some milliseconds and half a megabyte.
const AT_A_TIME: usize = 4;
/// The most blocks of one answer.
const BLOCKS_MAX: usize = 16_384;

/// Admission of those who list what containers have.
#[derive(Clone)]
pub(crate) struct Listings(Arc<Semaphore>);

impl Default for Listings {
    fn default() -> Listings {
        Listings(Arc::new(Semaphore::new(AT_A_TIME)))
    }
}

impl Listings {
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let busy =
            |_| Failure::new(Code::Busy, format!("{AT_A_TIME} lists of containers are under way here"));
        self.0.clone().try_acquire_owned().map_err(busy)
    }
}

pub(super) async fn list(served: &Served, request: ListBlocksRequest) -> Result<ListBlocksResponse, Failure> {
    let held_while_reading = served.listings.admit()?;
    let container = ContainerId(request.container);
    let elsewhere =
        |code, message: String| Failure { retry: Retry::Elsewhere, ..Failure::new(code, message) };
    let Some((disk, _)) = served.find_container(container).await? else {
        return Err(elsewhere(Code::NotFound, format!("container {container} is not on this node")));
    };
    let ListBlocksRequest { from_local, limit, .. } = request;
    let limit = if limit == 0 { BLOCKS_MAX } else { BLOCKS_MAX.min(limit as usize) };
    let read = disk.index.with(move |index| {
        let _held = held_while_reading;
        let record = index.container(container)?;
        let is_closed = record.is_some_and(|record| record.state == ReplicaState::Closed);
        if !is_closed {
            return Ok(None);
        }
        let mut part = ListBlocksResponse { is_last: true, ..ListBlocksResponse::default() };
        let mut blocks = Vec::new();
        for row in index.block_rows(container, from_local) {
            if part.lengths.len() == limit {
                part.is_last = false;
                break;
            }
            let (block, record) = row?;
            blocks.extend_from_slice(&block.local.to_be_bytes());
            blocks.extend_from_slice(&record.nonce.0.to_be_bytes());
            part.lengths.push(record.length);
        }
        part.blocks = blocks.into();
        Ok(Some(part))
    });
    match read.await {
        Ok(Some(part)) => Ok(part),
        Ok(None) => Err(elsewhere(Code::NotYet, format!("container {container} is not closed here"))),
        Err(failure) => {
            error!(%container, error = format!("{failure:#}"), "list the blocks of a container");
            Err(elsewhere(
                Code::Unavailable,
                format!("list the blocks of container {container}: {failure:#}"),
            ))
        }
    }
}
