//! The parts of a node that tasks are carried out with.

use crate::copies::Copies;
use crate::disks::Disks;
use crate::pipelines::Pipelines;
use rpc::Connector;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Means {
    pub disks: Arc<Disks>,
    pub pipelines: Arc<Pipelines>,
    pub copies: Arc<Copies>,
    /// The way to the nodes that send replicas.
    pub connector: Arc<dyn Connector>,
}
