//! Disks, containers, pipelines: what is on this node.

use crate::blocking::blocking;
use crate::copies::{Copies, CopyStats};
use crate::counters::{ContainerReport, DiskStats};
use crate::deletion;
use crate::disks::{DatanodeDisk, Disks};
use crate::ending::StoppedPipeline;
use crate::forgetting::Forgetter;
use crate::hasher::Hasher;
use crate::import;
use crate::index::machine::{OpenContainer, PipelineMachine};
use crate::inventory::Surveyor;
use crate::layout::GROUPS_DIR;
use crate::options::DatanodeOptions;
use crate::pipeline::{Pipeline, PipelineError, PipelineOrder};
use crate::pipelines::{Hosted, Pipelines};
use crate::roll::{ContainerAllocator, Roller};
use crate::scrub::{ScrubOptions, Scrubber};
use crate::spec_file;
use crate::tasks::{self, Sweeper, TaskBoard, TaskStats};
use crate::under_way::UnderWay;
use anyhow::Context;
use futures::future::select_all;
use proto::Failure;
use proto::scm::{PipelineDescription, PipelineReport};
use raft::{AddressBook, RaftHost, ReplicaEnd, Role};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};
use types::{Clock, ContainerId, DiskId, GroupId, PipelineId};

/// Owns what a datanode holds. A cheap handle.
#[derive(Clone)]
pub struct ContainerManager {
    inner: Arc<Inner>,
}

struct Inner {
    options: DatanodeOptions,
    disks: Disks,
    host: RaftHost,
    addresses: AddressBook,
    clock: Arc<dyn Clock>,
    allocator: Arc<dyn ContainerAllocator>,
    pipelines: Pipelines,
    /// Held while a pipeline is opened, so that an order given twice opens it once.
    opening: Mutex<()>,
    /// Something SCM should hear of at once.
    changed: Arc<Notify>,
    /// SCM took the last report.
    is_reported: AtomicBool,
    copies: Copies,
    /// What SCM wants done.
    board: TaskBoard,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Whether a pipeline's log must be there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Log {
    MayBeNew,
    MustExist,
}

impl ContainerManager {
    pub(crate) fn new(
        options: DatanodeOptions,
        disks: Disks,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
        allocator: Arc<dyn ContainerAllocator>,
    ) -> ContainerManager {
        let (pipelines, opening) = Default::default();
        let changed = disks.inventory.wake();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let is_reported = AtomicBool::new(false);
        let copies = Copies::new(options.copy_bytes_per_second);
        let board = TaskBoard::default();
        let inner = Inner {
            options,
            disks,
            host,
            addresses,
            clock,
            allocator,
            pipelines,
            opening,
            changed,
            is_reported,
            copies,
            board,
            tasks,
            stop,
        };
        ContainerManager { inner: Arc::new(inner) }
    }

    pub(crate) fn host(&self) -> &RaftHost {
        &self.inner.host
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.inner.pipelines
    }

    pub(crate) fn options(&self) -> &DatanodeOptions {
        &self.inner.options
    }

    pub(crate) fn disks(&self) -> &Disks {
        &self.inner.disks
    }

    /// The cluster this node has joined.
    pub(crate) fn cluster(&self) -> Option<String> {
        self.disks().identity().map(|identity| identity.cluster)
    }

    pub(crate) fn addresses(&self) -> &AddressBook {
        &self.inner.addresses
    }

    /// Everything that runs on its own here.
    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.inner.tasks
    }

    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.inner.stop
    }

    pub(crate) fn copies(&self) -> &Copies {
        &self.inner.copies
    }

    pub(crate) fn board(&self) -> &TaskBoard {
        &self.inner.board
    }

    /// What was copied since the process started.
    pub fn copy_stats(&self) -> CopyStats {
        self.inner.copies.stats()
    }

    pub fn task_stats(&self) -> TaskStats {
        self.inner.board.stats()
    }

    pub(crate) fn is_reported(&self) -> bool {
        self.inner.is_reported.load(Ordering::Relaxed)
    }

    pub(crate) fn set_reported(&self, is_reported: bool) {
        self.inner.is_reported.store(is_reported, Ordering::Relaxed);
    }

    pub(crate) fn changed(&self) -> &Notify {
        &self.inner.changed
    }

    /// The data directories in use, in the order of the settings.
    pub fn disk_ids(&self) -> Vec<DiskId> {
        self.inner.disks.open.iter().map(|disk| disk.id).collect()
    }

    /// All containers on this node's disks.
    pub async fn container_reports(&self) -> anyhow::Result<Vec<ContainerReport>> {
        let manager = self.clone();
        blocking(move || {
            let mut reports = Vec::new();
            for disk in &manager.inner.disks.open {
                reports.extend(disk.container_reports()?);
            }
            Ok(reports)
        })
        .await
    }

    /// What happened on each disk since the process started.
    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.inner.disks.open.iter().map(|disk| disk.counters.stats(disk.id)).collect()
    }

    /// Deletes blocks of a closed container; answers how many were here. **Only where no log reads the container's
    /// records any more**, which the service sees to.
    pub async fn delete_blocks(&self, container: ContainerId, locals: Vec<u64>) -> Result<u64, Failure> {
        let disks = self.clone();
        let found = blocking(move || Ok(disks.disks().holding(container)?.map(|(disk, _)| disk.clone())));
        let found = found.await.map_err(|failure| Failure::internal(format!("{failure:#}")))?;
        let Some(disk) = found else { return Ok(0) };
        // On a task of its own: a caller that hangs up must not leave a deletion half way.
        let deleting = tokio::spawn(async move { deletion::delete_blocks(&disk, container, locals).await });
        deleting.await.map_err(|failure| Failure::internal(format!("delete blocks: {failure}")))?
    }

    /// Finishes what a crash cut short, before anything is read. A disk where that fails is used all the same.
    pub(crate) async fn recover(&self) {
        for disk in &self.inner.disks.open {
            let recover = async {
                tasks::recover_deletions(disk).await?;
                import::recover(disk.space.disk(), &disk.index).await
            };
            if let Err(failure) = recover.await {
                let disk = disk.real.root().display();
                error!(%disk, error = format!("{failure:#}"), "finish copies and deletions of replicas");
            }
        }
    }

    /// Begins to ask each disk for its room, and whether its index takes writes, as often as SCM is told of it.
    pub(crate) fn start_watching_disks(&self) {
        let interval = self.options().heartbeat;
        for disk in self.inner.disks.open.iter().cloned() {
            let stop = self.inner.stop.clone();
            self.inner.tasks.spawn(async move {
                let root = disk.real.root().display().to_string();
                let asking = disk.room.keep_asking(&root, interval, || disk.ask());
                stop.run_until_cancelled(asking).await;
            });
        }
    }

    /// Reads what is here, and begins to keep up with what changes; to be called once pipelines are open.
    pub(crate) async fn take_inventory(&self) {
        let surveyor = Surveyor::new(self.clone());
        surveyor.look_at_all().await;
        self.inner.tasks.spawn(surveyor.run());
        self.inner.tasks.spawn(Sweeper::new(self.clone()).run());
        for disk in &self.inner.disks.open {
            self.inner.tasks.spawn(Hasher::new(disk.clone(), self.inner.stop.clone()).run());
        }
    }

    /// Begins to read the closed containers of each disk, again and again.
    pub(crate) fn start_scrubbing(&self) {
        let options = self.options();
        let scrub = ScrubOptions {
            bytes_per_second: options.scrub_bytes_per_second,
            interval: options.scrub_interval,
        };
        if scrub.bytes_per_second == 0 {
            return;
        }
        for disk in &self.inner.disks.open {
            let scrubber =
                Scrubber::new(disk.clone(), scrub, self.inner.clock.clone(), self.inner.stop.clone());
            self.inner.tasks.spawn(scrubber.run());
        }
    }

    pub(crate) fn pipeline(&self, pipeline: PipelineId) -> Option<Arc<Pipeline>> {
        self.inner.pipelines.open(pipeline)
    }

    /// A pipeline that a task is about.
    pub(crate) fn running_pipeline(&self, pipeline: PipelineId) -> anyhow::Result<Arc<Pipeline>> {
        self.pipeline(pipeline).with_context(|| format!("pipeline {pipeline} does not run here"))
    }

    /// Those that this node would take a chunk to.
    pub(crate) fn writable_pipelines(&self) -> Vec<PipelineId> {
        let refuse_bytes = self.inner.options.container_refuse_bytes();
        let mut open = self.inner.pipelines.all_open();
        open.retain(|open| open.leads() && open.takes_chunks(refuse_bytes).is_ok());
        open.into_iter().map(|open| open.id).collect()
    }

    /// What SCM hears of the pipelines.
    pub fn pipeline_reports(&self) -> Vec<PipelineReport> {
        self.inner.pipelines.reports()
    }

    /// Those of the pipelines that are here, running or not, with their members.
    pub(crate) fn describe(&self, pipelines: &[PipelineId]) -> Vec<PipelineDescription> {
        let describe = |id: &PipelineId| match self.inner.pipelines.get(*id)? {
            Hosted::Open(open) => Some(open.order.describe()),
            Hosted::Stopped(stopped) => Some(stopped.order.describe()),
            Hosted::Opening => None,
        };
        pipelines.iter().filter_map(describe).collect()
    }

    /// Waits until a pipeline of this node has rolled to `container` or beyond it; false when `deadline` comes first, or
    /// none is on its way there. Containers are numbered upwards, so most unknown ones need no waiting.
    pub(crate) async fn container_arrives(&self, container: ContainerId, deadline: Instant) -> bool {
        let behind = |open: &OpenContainer| open.container < container;
        let open = self.inner.pipelines.all_open().into_iter().map(|pipeline| pipeline.open.clone());
        let arrivals: Vec<_> = open.filter(|open| behind(&open.borrow())).collect();
        let arrivals = arrivals
            .into_iter()
            .map(|mut open| Box::pin(async move { open.wait_for(|open| !behind(open)).await.is_ok() }));
        let arrivals: Vec<_> = arrivals.collect();
        if arrivals.is_empty() {
            return false;
        }
        timeout_at(deadline, select_all(arrivals)).await.is_ok_and(|(arrived, ..)| arrived)
    }

    /// Opens the pipelines the disks hold. One that cannot be opened is left out, loudly: the others go on.
    pub(crate) async fn open_existing(&self) {
        for disk in self.inner.disks.open.clone() {
            let specs = match blocking({
                let index = disk.index.clone();
                move || index.pipeline_specs()
            })
            .await
            {
                Ok(specs) => specs,
                // It was read a moment ago.
                Err(failure) => {
                    let root = disk.real.root().display();
                    error!(disk = %root, error = format!("{failure:#}"), "cannot list the pipelines of a disk");
                    continue;
                }
            };
            for spec in specs {
                let order = PipelineOrder::from_spec(&spec, disk.id);
                match self.open_pipeline(&order, &disk, Log::MustExist).await {
                    Ok(_) => {}
                    Err(PipelineError::Over { .. }) => self.finish_ending(order, disk.clone()).await,
                    Err(failure) => {
                        error!(pipeline = %order.pipeline, %failure, "cannot open a pipeline");
                        let stopped = StoppedPipeline::new(order.clone(), disk.clone(), failure.to_string());
                        self.inner.pipelines.stop(stopped);
                    }
                }
            }
        }
    }

    /// Carries out an order of SCM: creates the pipeline's replica unless it is here. Carrying out an order twice
    /// changes nothing; true when it did something.
    pub async fn create_pipeline(&self, order: &PipelineOrder) -> Result<bool, PipelineError> {
        let PipelineOrder { pipeline, disk, .. } = *order;
        if self.pipeline(pipeline).is_some() {
            return Ok(false);
        }
        let disk = self.inner.disks.get(disk).ok_or(PipelineError::NoDisk { pipeline, disk })?;
        // A disk that remembers the pipeline but could not open it at the start does not get it by asking again.
        let specs = blocking({
            let index = disk.index.clone();
            move || index.pipeline_specs()
        });
        let known = specs.await.map_err(PipelineError::Index)?.iter().any(|spec| spec.pipeline == pipeline.0);
        let log = if known { Log::MustExist } else { Log::MayBeNew };
        self.open_pipeline(order, disk, log).await
    }

    async fn open_pipeline(
        &self,
        order: &PipelineOrder,
        disk: &Arc<DatanodeDisk>,
        log: Log,
    ) -> Result<bool, PipelineError> {
        let _opening = self.inner.opening.lock().await;
        let pipeline = order.pipeline;
        if self.pipeline(pipeline).is_some() {
            return Ok(false);
        }
        let opening = self.inner.pipelines.begin_opening(pipeline);
        let ended = ReplicaEnd::of(GroupId::pipeline(pipeline), disk.space.disk()).await;
        if ended.map_err(|failure| PipelineError::Index(failure.into()))?.is_some() {
            return Err(PipelineError::Over { pipeline, root: disk.real.root().display().to_string() });
        }
        if log == Log::MustExist && !has_log(disk, pipeline).await {
            return Err(PipelineError::LogLost { pipeline, root: disk.real.root().display().to_string() });
        }

        let roll_bytes = self.inner.options.container_roll_bytes();
        let (index, first) = (disk.index.clone(), order.first_container);
        let machine = blocking(move || PipelineMachine::new(index, pipeline, first, roll_bytes));
        let (machine, open) = machine.await.map_err(PipelineError::Index)?;
        let forget_to = machine.forgettable();
        let cluster = self.cluster().unwrap_or_default();
        let spec = order.group_spec(cluster, self.inner.options.pipeline_timing);
        let group = self.inner.host.open(spec, &disk.space, order.log_spec(), machine).await?;

        // Remembered only now that the log exists: a remembered pipeline without a log has lost its votes. Whoever
        // crashes in between finds the log when SCM orders the pipeline again.
        if log == Log::MayBeNew {
            let (index, spec) = (disk.index.clone(), order.to_spec());
            if let Err(failure) = blocking(move || index.save_pipeline_spec(&spec)).await {
                self.inner.host.close(GroupId::pipeline(pipeline)).await;
                return Err(PipelineError::Index(failure));
            }
        }
        // Beside the log too, whose index may be lost. It is not needed before that, so a failure stops nothing.
        if let Err(failure) = spec_file::write(&*disk.real, &order.to_spec()).await {
            warn!(%pipeline, error = format!("{failure:#}"), "cannot keep a pipeline's spec beside its log");
        }
        let wanted = watch::Sender::default();
        let (order, disk) = (order.clone(), disk.clone());
        info!(%pipeline, replica = %order.replica, disk = %disk.real.root().display(), "pipeline open");
        let (id, under_way) = (pipeline, UnderWay::default());
        let opened = Arc::new(Pipeline { id, order, group, disk, open, wanted, forget_to, under_way });
        opening.opened(opened.clone());
        self.open_pipeline_tasks(opened);
        self.inner.changed.notify_one();
        Ok(true)
    }

    fn open_pipeline_tasks(&self, pipeline: Arc<Pipeline>) {
        let roller = Roller {
            pipeline: pipeline.clone(),
            allocator: self.inner.allocator.clone(),
            roll_bytes: self.inner.options.container_roll_bytes(),
            stop: self.inner.stop.clone(),
        };
        self.inner.tasks.spawn(roller.run());
        let forgetter = Forgetter {
            pipeline: pipeline.clone(),
            tail_bytes: self.inner.options.log_tail_bytes,
            interval: self.inner.options.forget_interval,
            stop: self.inner.stop.clone(),
            inventory: self.inner.disks.inventory.clone(),
        };
        self.inner.tasks.spawn(forgetter.run());
        let inventory = self.inner.disks.inventory.clone();
        self.inner.tasks.spawn(inventory.follow(pipeline.clone(), self.inner.stop.clone()));
        self.inner.tasks.spawn(self.clone().observe(pipeline));
    }

    /// Tells SCM at once when a pipeline has a new leader or ended, and a person when it failed.
    async fn observe(self, pipeline: Arc<Pipeline>) {
        let mut status = pipeline.group.watch();
        let mut open = pipeline.open.clone();
        let mut container = open.borrow_and_update().container;
        let mut leader = None;
        loop {
            let now = status.borrow_and_update().clone();
            if now.leader != leader {
                leader = now.leader;
                self.inner.changed.notify_one();
            }
            if now.role == Role::Stopped {
                let is_expected = self.inner.stop.is_cancelled() || self.pipeline(pipeline.id).is_none();
                if !is_expected {
                    let failure =
                        now.failure.unwrap_or_else(|| "its Raft core ended without a word".to_owned());
                    error!(pipeline = %pipeline.id, %failure, "pipeline stopped; restart this node to open it again");
                    self.inner.changed.notify_one();
                }
                return;
            }
            let now = open.borrow_and_update().container;
            if now != container {
                container = now;
                self.inner.changed.notify_one();
            }
            tokio::select! {
                // All are safe to drop: what they would have said is still there.
                () = self.inner.stop.cancelled() => return,
                changed = status.changed() => if changed.is_err() { return },
                Ok(()) = open.changed() => {}
            }
        }
    }

    /// Ends what runs on its own and makes the indexes durable. The groups themselves belong to the host.
    pub(crate) async fn shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        let manager = self.clone();
        let flushed = blocking(move || {
            manager.inner.disks.flush();
            Ok(())
        });
        if let Err(failure) = flushed.await {
            error!(error = format!("{failure:#}"), "flush the block indexes");
        }
    }
}

async fn has_log(disk: &DatanodeDisk, pipeline: PipelineId) -> bool {
    let name = GroupId::pipeline(pipeline).to_string();
    // A directory that cannot be read is left for opening the log to report.
    disk.real.list(GROUPS_DIR).await.map_or(true, |names| names.contains(&name))
}
