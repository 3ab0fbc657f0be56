use crate::blocking::blocking;
use crate::copies::{Copies, CopyStats};
use crate::counters::{ContainerReport, DiskStats};
use crate::deletion;
use crate::disks::Disks;
use crate::ending::Ender;
use crate::exposed::{self, MemoryInUse};
use crate::heartbeat::{Heartbeat, Talk};
use crate::opening::{Begins, Opener};
use crate::options::DatanodeOptions;
use crate::orders::close::close_replica;
use crate::orders::{Carrier, Executor, Means};
use crate::pipeline::{PipelineError, PipelineOrder};
use crate::pipelines::Pipelines;
use crate::roll::ContainerAllocator;
use crate::scm::ScmLink;
use crate::service::{BodyMemory, Listings, ReadMemory, Served, Service};
use crate::upkeep;
use crate::workers::Workers;
use disk::DataDirectory;
use metrics::{Exposition, Metric};
use proto::scm::PipelineReport;
use proto::{Code, Failure, Retry};
use raft::{AddressBook, RaftHost};
use raftlog::SpaceMetrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tonic::service::RoutesBuilder;
use tracing::error;
use types::{BlockName, Clock, ContainerId, DiskId, LogId, NodeId, PipelineId, SystemClock};

const ROOM_AGE: Metric =
    Metric { name: "flotilla_disk_report_age_seconds", help: "Age of the free space that SCM is told." };
const STILL: Metric = Metric {
    name: "flotilla_disk_still_seconds",
    help: "Longest time for which a queue of the disk has had operations and ended none.",
};

const INDEX_ERRORS: Metric = Metric {
    name: "flotilla_disk_index_errors_total",
    help: "Flushes and compactions of the disk's block index that failed.",
};

/// A running datanode; a cheap handle. A process may run several, each on a [`RaftHost`] of its own.
#[derive(Clone)]
pub struct Datanode {
    parts: Arc<Parts>,
    service: Service,
}

/// The parts of a node, for those who ask it and for its end; whoever works with a part has a handle of it.
struct Parts {
    options: Arc<DatanodeOptions>,
    disks: Arc<Disks>,
    pipelines: Arc<Pipelines>,
    means: Means,
    carrier: Carrier,
    executor: Executor,
    workers: Workers,
    /// Whether SCM took the last report.
    is_reported: Arc<AtomicBool>,
}

impl Datanode {
    /// Opens the disks and the pipelines on them, before any contact with SCM, and starts reporting to SCM.
    pub async fn start(
        options: DatanodeOptions,
        host: RaftHost,
        addresses: AddressBook,
    ) -> anyhow::Result<Datanode> {
        let scm = ScmLink::new(&options.scm, host.connector().clone())?;
        Self::start_with_allocator(options, host, addresses, Arc::new(scm)).await
    }

    /// [`Datanode::start`] with containers from elsewhere than SCM.
    pub async fn start_with_allocator(
        options: DatanodeOptions,
        host: RaftHost,
        addresses: AddressBook,
        allocator: Arc<dyn ContainerAllocator>,
    ) -> anyhow::Result<Datanode> {
        options.validate()?;
        let disks = Disks::open(&options).await?;
        Self::start_with(disks, options, host, addresses, Arc::new(SystemClock), allocator).await
    }

    /// [`Datanode::start`] on data directories that somebody opened, each under one of the paths in the
    /// options, and with a clock.
    pub async fn start_on(
        directories: Vec<Arc<dyn DataDirectory>>,
        options: DatanodeOptions,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Datanode> {
        options.validate()?;
        let scm = ScmLink::new(&options.scm, host.connector().clone())?;
        let disks = Disks::over(directories, &options).await?;
        Self::start_with(disks, options, host, addresses, clock, Arc::new(scm)).await
    }

    async fn start_with(
        disks: Disks,
        options: DatanodeOptions,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
        allocator: Arc<dyn ContainerAllocator>,
    ) -> anyhow::Result<Datanode> {
        let scm = ScmLink::new(&options.scm, host.connector().clone())?;
        let node = Datanode::of(disks, options, host, addresses.clone(), allocator);
        let Parts { options, disks, pipelines, means, carrier, executor, workers, .. } = &*node.parts;
        upkeep::recover(disks).await;
        carrier.opener.open_existing().await;
        upkeep::take_inventory(disks, pipelines, executor, workers).await;
        upkeep::start_removing_seconds(means, workers);
        upkeep::start_scrubbing(disks, options, &clock, workers);
        upkeep::start_compacting(disks, pipelines, options, workers);
        upkeep::start_watching(disks, options, workers);
        let heartbeat = Heartbeat {
            options: options.clone(),
            disks: disks.clone(),
            pipelines: pipelines.clone(),
            addresses,
            means: means.clone(),
            carrier: carrier.clone(),
            executor: executor.clone(),
            scm,
            talk: Talk::new(&*clock),
            clock,
            is_reported: node.parts.is_reported.clone(),
        };
        workers.spawn_until_stop(heartbeat.run());
        Ok(node)
    }

    /// Puts the parts of a node together; none of them does anything yet.
    fn of(
        disks: Disks,
        options: DatanodeOptions,
        host: RaftHost,
        addresses: AddressBook,
        allocator: Arc<dyn ContainerAllocator>,
    ) -> Datanode {
        let (options, disks) = (Arc::new(options), Arc::new(disks));
        let (pipelines, workers, is_reported) =
            (Arc::<Pipelines>::default(), Workers::default(), Arc::default());
        let copies = Arc::new(Copies::new(options.copy_bytes_per_second));
        let means = Means {
            disks: disks.clone(),
            pipelines: pipelines.clone(),
            copies: copies.clone(),
            connector: host.connector().clone(),
        };
        let executor = Executor::new(disks.inventory.clone(), workers.clone());
        let part = options.memory_part_bytes();
        let served = Served {
            options: options.clone(),
            disks: disks.clone(),
            pipelines: pipelines.clone(),
            addresses,
            copies,
            body_memory: BodyMemory::new(part, disks.memory.clone()),
            read_memory: ReadMemory::new(part, disks.memory.clone(), options.read_wait),
            reads: Arc::default(),
            listings: Listings::default(),
            workers: workers.clone(),
        };
        let ender = Ender { disks: disks.clone(), pipelines: pipelines.clone(), host: host.clone() };
        let opener = Opener {
            options: options.clone(),
            disks: disks.clone(),
            host,
            allocator,
            pipelines: pipelines.clone(),
            ender: ender.clone(),
            workers: workers.clone(),
        };
        let carrier = Carrier { opener, ender };
        let parts = Parts { options, disks, pipelines, means, carrier, executor, workers, is_reported };
        Datanode { parts: Arc::new(parts), service: Service::new(served) }
    }

    /// Mounts the datanode's service on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        routes.add_service(self.service.clone().into_server());
    }

    /// The number that SCM gave this node; `None` until it did.
    pub fn node(&self) -> Option<NodeId> {
        self.parts.disks.identity().map(|identity| identity.node)
    }

    /// The cluster SCM said we are in; `None` until it did.
    pub fn cluster(&self) -> Option<String> {
        self.parts.disks.cluster()
    }

    /// The reason why this node cannot do its work now, if there is one.
    pub fn readiness(&self) -> Result<(), String> {
        let disks = &self.parts.disks.open;
        if disks.iter().all(|disk| disk.failure().is_some()) {
            return Err("all its disks failed".to_owned());
        }
        match self.parts.is_reported.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(format!("SCM at {} does not take its reports", self.parts.options.scm)),
        }
    }

    /// Writes the metrics of the node's disks, containers, copies, reads, memory and tasks. Those of its
    /// groups are the host's.
    pub fn expose(&self, exposition: &mut Exposition) {
        let disks = &self.parts.disks;
        for disk in &disks.open {
            let root = disk.real.root().display().to_string();
            let is_full = disk.room.get().is_some_and(|space| space.free_bytes < disk.full_below_bytes);
            let metrics = SpaceMetrics {
                failure: disk.failure(),
                is_full: is_full || disk.has_full_index(),
                ..disk.space.metrics()
            };
            metrics.expose(&root, exposition);
            exposition.counter(INDEX_ERRORS, &[("disk", &root)], disk.db.background_errors());
            disk.counters.stats(disk.id).expose(&root, exposition);
            exposition.gauge(ROOM_AGE, &[("disk", &root)], disk.room.age().as_secs());
            exposition.gauge(STILL, &[("disk", &root)], disk.real.ends_nothing_for().as_secs());
        }
        exposed::expose_containers(&disks.inventory, exposition);
        exposed::expose_copies(&self.copy_stats(), exposition);
        exposed::expose_reads(self.service.read_memory(), self.service.reads(), exposition);
        exposed::expose_memory(&self.memory(), exposition);
        // All indexes share it.
        if let Some(disk) = disks.open.first() {
            exposed::expose_index_memory(disk.db.cache_bytes(), exposition);
        }
        exposed::expose_tasks(&self.parts.executor.counts(), exposition);
        for path in &disks.unusable {
            SpaceMetrics::expose_unusable(&path.display().to_string(), exposition);
        }
    }

    fn memory(&self) -> MemoryInUse {
        let disks = &self.parts.disks;
        MemoryInUse {
            bytes_max: self.parts.options.memory_bytes_max,
            bodies: self.service.body_memory().bytes_in_use(),
            reads: self.service.read_memory().bytes_in_use(),
            writing: disks.open.iter().map(|disk| disk.space.unflushed_bytes()).sum(),
            logs: disks.memory.cached_bytes(),
        }
    }

    /// The ids of the disks in use, in the order of the settings.
    pub fn disk_ids(&self) -> Vec<DiskId> {
        self.parts.disks.open.iter().map(|disk| disk.id).collect()
    }

    /// Counts of what happened on each disk since the process started.
    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.parts.disks.open.iter().map(|disk| disk.counters.stats(disk.id)).collect()
    }

    /// Counts of what was copied since the process started.
    pub fn copy_stats(&self) -> CopyStats {
        self.parts.means.copies.stats()
    }

    /// Reports all containers on this node's disks.
    pub async fn container_reports(&self) -> anyhow::Result<Vec<ContainerReport>> {
        let disks = self.parts.disks.clone();
        blocking(move || {
            let mut reports = Vec::new();
            for disk in &disks.open {
                reports.extend(disk.container_reports()?);
            }
            Ok(reports)
        })
        .await
    }

    /// The reports of the pipelines that SCM gets.
    pub fn pipeline_reports(&self) -> Vec<PipelineReport> {
        self.parts.pipelines.reports()
    }

    /// Creates a pipeline's replica, as SCM orders it; true unless it was here.
    pub async fn create_pipeline(&self, order: &PipelineOrder) -> Result<bool, PipelineError> {
        self.parts.carrier.opener.carry_out(order, Begins::Anew).await
    }

    /// Opens a pipeline's replica that has been here, as SCM orders it; true unless it was open.
    pub async fn open_pipeline(&self, order: &PipelineOrder) -> Result<bool, PipelineError> {
        self.parts.carrier.opener.carry_out(order, Begins::Before).await
    }

    /// Ends a pipeline with this container, as SCM orders it, if its leader is here.
    pub fn end_pipeline(&self, pipeline: PipelineId, end: ContainerId) {
        self.parts.carrier.ender.end_pipeline(pipeline, end);
    }

    /// Ends this node's replica of a pipeline that nobody can lead.
    pub async fn quasi_close_pipeline(&self, pipeline: PipelineId) -> anyhow::Result<()> {
        self.parts.carrier.ender.quasi_close_pipeline(pipeline).await
    }

    /// Lets go of a pipeline that is over; its containers stay.
    pub async fn let_go_pipeline(&self, pipeline: PipelineId) -> anyhow::Result<()> {
        self.parts.carrier.ender.let_go_pipeline(pipeline).await
    }

    /// Makes a quasi-closed replica CLOSED if its last record is what SCM says the container ends with.
    pub async fn close_replica(&self, container: ContainerId, last: Option<LogId>) -> Result<(), Failure> {
        close_replica(&self.parts.disks, container, last).await
    }

    /// Deletes blocks of a closed container that no log reads any more, as SCM orders it; answers how many
    /// were here. Not to be dropped half way.
    pub async fn delete_blocks(
        &self,
        container: ContainerId,
        blocks: Vec<BlockName>,
    ) -> Result<u64, Failure> {
        let Parts { disks, pipelines, .. } = &*self.parts;
        let replica = disks.inventory.get(container);
        let Some(disk) = replica.and_then(|replica| disks.get(replica.disk)) else {
            let message = format!("container {container} is not on this node");
            return Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) });
        };
        deletion::delete_blocks(disk, pipelines, container, blocks, || Ok(())).await
    }

    /// Ends reporting and streams, and makes the indexes durable. The groups are stopped by the host's owner.
    pub async fn shutdown(&self) {
        self.parts.workers.end().await;
        let disks = self.parts.disks.clone();
        let flushed = blocking(move || {
            disks.flush();
            Ok(())
        });
        if let Err(failure) = flushed.await {
            error!(error = format!("{failure:#}"), "flush the block indexes");
        }
    }
}
