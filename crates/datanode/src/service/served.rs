//! The parts of a node that requests are answered from.

use crate::blocking::blocking;
use crate::copies::Copies;
use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::index::records::ContainerRecord;
use crate::options::DatanodeOptions;
use crate::pipelines::Pipelines;
use crate::service::{BodyMemory, Listings, ReadCounts, ReadMemory};
use crate::workers::Workers;
use proto::{Code, Failure, Retry};
use raft::AddressBook;
use std::sync::Arc;
use tracing::error;
use types::ContainerId;

#[derive(Clone)]
pub(crate) struct Served {
    pub options: Arc<DatanodeOptions>,
    pub disks: Arc<Disks>,
    pub pipelines: Arc<Pipelines>,
    pub addresses: AddressBook,
    pub copies: Arc<Copies>,
    pub body_memory: BodyMemory,
    pub read_memory: ReadMemory,
    pub reads: Arc<ReadCounts>,
    pub listings: Listings,
    pub workers: Workers,
}

impl Served {
    /// The disk that has a container, and what its index says of it.
    pub(super) async fn find_container(
        &self,
        container: ContainerId,
    ) -> Result<Option<(Arc<DatanodeDisk>, ContainerRecord)>, Failure> {
        let disks = self.disks.clone();
        let found = blocking(move || {
            let found = disks.holding(container)?;
            Ok(found.map(|(disk, record)| (disk.clone(), record)))
        });
        found.await.map_err(|failure| {
            error!(%container, error = format!("{failure:#}"), "look up a container");
            let message = format!("look up container {container}: {failure:#}");
            Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) }
        })
    }
}
