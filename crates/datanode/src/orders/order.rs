//! One order of SCM, and one run of it.

use crate::copies::Copies;
use crate::disks::Disks;
use crate::pipelines::Pipelines;
use anyhow::{Context, ensure};
use futures::future::BoxFuture;
use proto::scm::{PipelineReport, TaskKind};
use rpc::Connector;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use types::{Backoff, ContainerId, PipelineId};

/// Containers that are copied here at a time: they share one rate, and one alone uses little of it while its
/// source is busy.
const COPIES_MAX: usize = 2;
/// Other orders of a kind under way at a time; each is a few steps.
const OTHERS_MAX: usize = 8;
/// The pauses after an order on a container or a leader has failed: SCM may give it to somebody else.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// The pauses after an order on a pipeline has failed: nobody else carries out what a pipeline's state asks
/// of this node.
const PIPELINE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8));

/// The time for which an order that takes bytes away is followed, from the sending of the heartbeat that
/// brought it. SCM says it again with each heartbeat, and takes a node that is silent for longer for dead at
/// some time.
pub(super) const ORDER_HOLDS: Duration = Duration::from_secs(30);

/// The key of an order: what it is about. Told twice, it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub kind: TaskKind,
    /// The pipeline; 0 for an order on a container, as in reports.
    pub pipeline: PipelineId,
    pub container: ContainerId,
}

type Work = Box<dyn FnOnce(Run) -> BoxFuture<'static, anyhow::Result<()>> + Send>;

pub(crate) struct Order {
    pub key: Key,
    /// The work in words, and with what it is done: an order of the same key that says otherwise replaces
    /// this one.
    pub what: &'static str,
    pub said: Vec<u8>,
    pub work: Work,
    /// The report that SCM gets meanwhile of the pipeline that the work makes.
    pub making: Option<PipelineReport>,
    /// The number under which SCM hears that the work is done; 0 where reports of replicas say so.
    pub portion: u64,
}

/// One run of an order.
#[derive(Clone)]
pub(crate) struct Run {
    /// The time of the heartbeat that SCM answered with the order.
    pub asked_at: Instant,
    /// Cancelled when SCM no longer gives the order, or the node ends.
    pub stop: CancellationToken,
    /// Cancelled when the node ends, which waits for the run.
    pub node_ends: CancellationToken,
    pub progress: Arc<Progress>,
}

/// The parts of a node that work on its containers, and on leaders.
#[derive(Clone)]
pub(crate) struct Means {
    pub disks: Arc<Disks>,
    pub pipelines: Arc<Pipelines>,
    pub copies: Arc<Copies>,
    /// The way to the nodes that send replicas.
    pub connector: Arc<dyn Connector>,
}

#[cfg(test)]
impl Means {
    /// The means of a node with these disks, without a pipeline and alone.
    pub(crate) async fn over(disks: Vec<std::path::PathBuf>) -> Means {
        let options = crate::options::DatanodeOptions { disks, ..Default::default() };
        let disks = Arc::new(Disks::open(&options).await.unwrap());
        let host = raft::RaftHost::new(raft::HostOptions::default(), raft::AddressBook::default());
        let (pipelines, copies) = (Arc::default(), Arc::new(Copies::new(1 << 40)));
        Means { disks, pipelines, copies, connector: host.connector().clone() }
    }
}

/// The progress of a copy, shared with whoever tells of it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub bytes_done: AtomicU64,
    pub bytes_total: AtomicU64,
}

impl Key {
    pub(crate) fn container(kind: TaskKind, container: ContainerId) -> Key {
        Key { kind, pipeline: PipelineId(0), container }
    }

    pub(crate) fn pipeline(kind: TaskKind, pipeline: PipelineId) -> Key {
        Key { kind, pipeline, container: ContainerId(0) }
    }

    /// The number of orders of a kind that run at a time. All orders on pipelines run: one that waits for its
    /// disk stands in nobody's way.
    pub(crate) fn at_a_time(self) -> usize {
        match self.kind {
            TaskKind::TaskCopy | TaskKind::TaskCheck => COPIES_MAX,
            TaskKind::TaskPipeline => usize::MAX,
            _ => OTHERS_MAX,
        }
    }

    pub(crate) fn retry(self) -> Backoff {
        if self.kind == TaskKind::TaskPipeline { PIPELINE_RETRY } else { RETRY }
    }
}

impl Order {
    pub(crate) fn new<F>(key: Key, what: &'static str, work: impl FnOnce(Run) -> F + Send + 'static) -> Order
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let work: Work = Box::new(move |run| Box::pin(work(run)));
        Order { key, what, said: Vec::new(), work, making: None, portion: 0 }
    }

    pub(crate) fn saying(self, said: Vec<u8>) -> Order {
        Order { said, ..self }
    }
}

impl Run {
    /// Refuses a run that was stopped, since another leader of SCM may count on the bytes, and one that comes
    /// too late, as the node stood still: the node may be the last that has them.
    pub(super) fn check_holds(&self) -> anyhow::Result<()> {
        ensure!(!self.stop.is_cancelled(), "SCM no longer wants it");
        ensure!(self.asked_at.elapsed() < ORDER_HOLDS, "the order is too old to be followed");
        Ok(())
    }

    /// Does work that may be dropped anywhere, until the run is to stop.
    pub(crate) async fn until_stop<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.stop.run_until_cancelled(work).await.context("SCM no longer wants it, or this node ends")?
    }

    /// Does work that SCM cannot stop and that takes long: where a crash may cut it off, so may the node's
    /// end.
    pub(crate) async fn until_node_ends<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.node_ends.run_until_cancelled(work).await.context("this node ends")?
    }
}
