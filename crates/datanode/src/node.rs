use crate::disks::Disks;
use crate::heartbeat::Heartbeat;
use crate::manager::ContainerManager;
use crate::options::DatanodeOptions;
use crate::roll::ContainerAllocator;
use crate::scm::ScmLink;
use crate::service::Service;
use disk::DataDirectory;
use metrics::{Exposition, Metric};
use raft::{AddressBook, RaftHost};
use raftlog::SpaceMetrics;
use std::sync::Arc;
use tonic::service::RoutesBuilder;
use types::{Clock, NodeId, SystemClock};

const ROOM_AGE: Metric =
    Metric { name: "flotilla_disk_report_age_seconds", help: "Age of the free space that SCM is told." };

const INDEX_ERRORS: Metric = Metric {
    name: "flotilla_disk_index_errors_total",
    help: "Flushes and compactions of the disk's block index that failed.",
};

/// A running datanode; a cheap handle. A process may run several, each on a [`RaftHost`] of its own.
#[derive(Clone)]
pub struct Datanode {
    manager: ContainerManager,
    service: Service,
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

    /// [`Datanode::start`] on data directories that somebody opened, each under one of the paths in the options, and with a clock.
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
        let manager = ContainerManager::new(options, disks, host, addresses, clock.clone(), allocator);
        manager.recover().await;
        manager.open_existing().await;
        manager.take_inventory().await;
        manager.start_scrubbing();
        manager.start_watching_disks();
        manager.tasks().spawn(Heartbeat::new(manager.clone(), scm, clock).run());
        Ok(Datanode { service: Service::new(manager.clone()), manager })
    }

    /// Mounts the datanode's service on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        routes.add_service(self.service.clone().into_server());
    }

    /// Who SCM said we are; `None` until it did.
    pub fn node(&self) -> Option<NodeId> {
        self.manager.disks().identity().map(|identity| identity.node)
    }

    /// The cluster SCM said we are in; `None` until it did.
    pub fn cluster(&self) -> Option<String> {
        self.manager.cluster()
    }

    /// Why this node cannot do its work now, if so.
    pub fn readiness(&self) -> Result<(), String> {
        let disks = &self.manager.disks().open;
        if disks.iter().all(|disk| disk.failure().is_some()) {
            return Err("all its disks failed".to_owned());
        }
        match self.manager.is_reported() {
            true => Ok(()),
            false => Err(format!("SCM at {} does not take its reports", self.manager.options().scm)),
        }
    }

    /// Metrics of its disks. Those of its groups are the host's.
    pub fn expose(&self, exposition: &mut Exposition) {
        let disks = self.manager.disks();
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
        }
        crate::exposed::expose(&self.manager, exposition);
        for path in &disks.unusable {
            SpaceMetrics::expose_unusable(&path.display().to_string(), exposition);
        }
    }

    pub fn manager(&self) -> &ContainerManager {
        &self.manager
    }

    /// Ends reporting and streams, and makes the indexes durable. The groups are stopped by the host's owner.
    pub async fn shutdown(&self) {
        self.manager.shutdown().await;
    }
}
