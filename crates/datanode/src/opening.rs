//! Opening pipelines: those that the disks hold, at the start, and those that SCM orders.

use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::ending::Ender;
use crate::forgetting::Forgetter;
use crate::index::Index;
use crate::index::machine::{OpenContainer, PipelineMachine};
use crate::layout::GROUPS_DIR;
use crate::options::DatanodeOptions;
use crate::pipeline::{Pipeline, PipelineError, PipelineOrder, Progress};
use crate::pipelines::{Pipelines, StoppedPipeline};
use crate::roll::{ContainerAllocator, Roller};
use crate::service::BodiesOfOne;
use crate::spec_file;
use crate::under_way::UnderWay;
use crate::workers::Workers;
use anyhow::ensure;
use raft::{RaftHost, ReplicaRecord, ReplicaStage, Role};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::watch;
use tracing::{error, info, warn};
use types::{GroupId, PipelineId};

/// The time at which a replica's log begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    /// The pipeline begins now, unless it has begun.
    Anew,
    /// The pipeline began before: SCM knows of it, or the index does, which knows one only once its log has
    /// begun.
    Before,
}

/// The machine of a pipeline's log. On return its open container is in the index durably: from the moment at
/// which the log runs it acknowledges, and that row alone tells of it after a crash before its spec is kept.
pub(crate) async fn machine(
    disk: &DatanodeDisk,
    order: &PipelineOrder,
    roll_bytes: u64,
    is_known: bool,
) -> anyhow::Result<(PipelineMachine, watch::Receiver<OpenContainer>)> {
    // RocksDB finds no room again as long as it is asked to flush again and again.
    ensure!(is_known || !disk.has_full_index(), "the index of disk {} has no room", disk.id);
    let PipelineOrder { pipeline, first_container, .. } = *order;
    let machine = disk.index.with(move |index| {
        let machine = PipelineMachine::new(index.clone(), pipeline, first_container, roll_bytes)?;
        if !is_known {
            index.flush()?;
        }
        Ok(machine)
    });
    machine.await
}

/// Opens pipelines, each once, and begins what runs beside an open one. A cheap handle.
#[derive(Clone)]
pub(crate) struct Opener {
    pub options: Arc<DatanodeOptions>,
    pub disks: Arc<Disks>,
    pub host: RaftHost,
    pub allocator: Arc<dyn ContainerAllocator>,
    pub pipelines: Arc<Pipelines>,
    pub ender: Ender,
    pub workers: Workers,
}

impl Opener {
    /// Opens the pipelines the disks hold. One that cannot be opened is left out, loudly: the others go on.
    pub(crate) async fn open_existing(&self) {
        for disk in &self.disks.open {
            let specs = disk.read_surely("its pipelines", Index::pipeline_specs).await;
            for spec in specs.unwrap_or_default() {
                self.open_remembered(PipelineOrder::from_spec(&spec, disk.id), disk).await;
            }
        }
    }

    async fn open_remembered(&self, order: PipelineOrder, disk: &Arc<DatanodeDisk>) {
        match self.open(&order, disk, Begins::Before).await {
            Ok(_) => {}
            Err(PipelineError::Over { .. }) => self.ender.finish_ending(order, disk.clone()).await,
            Err(failure) => {
                error!(pipeline = %order.pipeline, %failure, "cannot open a pipeline");
                self.pipelines.stop(StoppedPipeline::new(order, disk.clone(), failure.to_string()));
            }
        }
    }

    /// Carries out an order of SCM: opens the pipeline's replica, or, where its log is to begin now, creates
    /// it unless it is here. It is an error where its log has begun and is not here any more, whatever else
    /// the disk has lost. Carrying out an order twice changes nothing; true when it did something.
    pub(crate) async fn carry_out(
        &self,
        order: &PipelineOrder,
        begins: Begins,
    ) -> Result<bool, PipelineError> {
        let PipelineOrder { pipeline, disk, .. } = *order;
        if self.pipelines.open(pipeline).is_some() {
            return Ok(false);
        }
        let disk = self.disks.get(disk).ok_or(PipelineError::NoDisk { pipeline, disk })?;
        let opened = self.open(order, disk, begins).await;
        if let Err(failure @ PipelineError::LogLost { .. }) = &opened {
            let lost = StoppedPipeline::without_log(order.clone(), disk.clone(), failure.to_string());
            // SCM orders it again and again.
            if self.pipelines.stop_unknown(lost) {
                error!(%pipeline, %failure, "a replica that had begun is not made anew");
                self.disks.inventory.wake().notify_one();
            }
        }
        opened
    }

    async fn open(
        &self,
        order: &PipelineOrder,
        disk: &Arc<DatanodeDisk>,
        begins: Begins,
    ) -> Result<bool, PipelineError> {
        let pipeline = order.pipeline;
        // From here on no copy of what its log may write comes in.
        let opening = self.pipelines.begin_opening(pipeline);
        let _one_at_a_time = disk.opening.lock().await;
        if self.pipelines.open(pipeline).is_some() {
            return Ok(false);
        }
        let root = || disk.real.root().display().to_string();
        let record = ReplicaRecord::read_unless_damaged(GroupId::pipeline(pipeline), disk.space.disk()).await;
        let record = record.map_err(|failure| PipelineError::Index(failure.into()))?;
        let stage = record.map(|record| record.stage);
        if stage.is_some_and(ReplicaStage::has_ended) {
            return Err(PipelineError::Over { pipeline, root: root() });
        }
        let is_known = disk.index.with(move |index| index.knows_pipeline(pipeline)).await;
        let is_known = is_known.map_err(PipelineError::Index)?;
        // The index knows a pipeline only once its log has begun: that tells where the record is damaged, or
        // from before it had this stage.
        let was_in_use = stage == Some(ReplicaStage::InUse) || is_known || begins == Begins::Before;
        if was_in_use && !has_log(disk, pipeline).await {
            return Err(PipelineError::LogLost { pipeline, root: root() });
        }
        let cluster = self.disks.cluster().unwrap_or_default();
        let spec = order.group_spec(cluster, self.options.pipeline_timing);
        // The replica is announced before the index has anything of it.
        self.host.announce(&spec, &disk.space, &order.log_spec()).await?;

        let first = order.first_container;
        // The first container may be noted: should the pipeline be over before this is tried again, that is
        // all that tells SCM of it.
        let noted = || self.disks.inventory.look_again(disk.id, first);
        let machine = machine(disk, order, self.options.container_roll_bytes(), is_known).await;
        let (machine, open) = machine.inspect_err(|_| noted()).map_err(PipelineError::Index)?;
        let forget_to = machine.forgettable();
        let group = self.host.open(spec, &disk.space, order.log_spec(), machine).await;
        let group = group.inspect_err(|_| noted())?;

        // The pipeline is remembered only now that the log exists: a remembered pipeline without a log has
        // lost its votes. After a crash in between, its first container tells of it.
        if !is_known {
            let spec = order.to_spec();
            if let Err(failure) = disk.index.with(move |index| index.save_pipeline_spec(&spec)).await {
                self.host.close(GroupId::pipeline(pipeline)).await;
                // The replica ran, and may have acknowledged what is in the log: SCM hears that it is here.
                let why = format!("its spec cannot be kept: {failure:#}");
                self.pipelines.stop(StoppedPipeline::new(order.clone(), disk.clone(), why));
                self.disks.inventory.look_again(disk.id, first);
                return Err(PipelineError::Index(failure));
            }
        }
        // The spec stands beside the log too, as the index may be lost. It is not needed before that, so a
        // failure stops nothing.
        if let Err(failure) = spec_file::write(&*disk.real, &order.to_spec()).await {
            warn!(%pipeline, error = format!("{failure:#}"), "cannot keep a pipeline's spec beside its log");
        }
        let wanted = watch::Sender::default();
        let (order, disk) = (order.clone(), disk.clone());
        info!(%pipeline, replica = %order.replica, disk = %disk.real.root().display(), "pipeline open");
        let opened = Arc::new(Pipeline {
            id: pipeline,
            order,
            group,
            disk,
            open,
            wanted,
            forget_to,
            rolls_to: AtomicU64::default(),
            under_way: UnderWay::default(),
            bodies: BodiesOfOne::default(),
            progress: Progress::default(),
        });
        opening.opened(opened.clone());
        self.begin_beside(opened);
        self.disks.inventory.wake().notify_one();
        Ok(true)
    }

    /// Begins the tasks that run as long as the pipeline is open.
    fn begin_beside(&self, pipeline: Arc<Pipeline>) {
        let roller = Roller {
            pipeline: pipeline.clone(),
            allocator: self.allocator.clone(),
            roll_bytes: self.options.container_roll_bytes(),
        };
        self.workers.spawn_until_stop(roller.run());
        let forgetter = Forgetter {
            pipeline: pipeline.clone(),
            tail_bytes: self.options.log_tail_bytes,
            interval: self.options.forget_interval,
            inventory: self.disks.inventory.clone(),
        };
        self.workers.spawn_until_stop(forgetter.run());
        let inventory = self.disks.inventory.clone();
        self.workers.spawn_until_stop(inventory.follow(pipeline.clone()));
        self.workers.spawn_until_stop(self.clone().observe(pipeline));
    }

    /// Tells SCM at once when a pipeline has a new leader or ended, and a person when it failed. May be
    /// dropped anywhere: what it would have said is still there.
    async fn observe(self, pipeline: Arc<Pipeline>) {
        let changed = self.disks.inventory.wake();
        let mut status = pipeline.group.watch();
        let mut open = pipeline.open.clone();
        let mut container = open.borrow_and_update().container;
        let mut leader = None;
        loop {
            let now = status.borrow_and_update().clone();
            if now.leader != leader {
                leader = now.leader;
                changed.notify_one();
            }
            if now.role == Role::Stopped {
                // A pipeline that is no longer open was taken down, or the node ends.
                if self.pipelines.open(pipeline.id).is_some() {
                    let failure =
                        now.failure.unwrap_or_else(|| "its Raft core ended without a word".to_owned());
                    error!(pipeline = %pipeline.id, %failure, "pipeline stopped; restart this node to open it again");
                    changed.notify_one();
                }
                return;
            }
            let now = open.borrow_and_update().container;
            if now != container {
                container = now;
                changed.notify_one();
            }
            tokio::select! {
                // Both are safe to drop: what they would have said is still there.
                changed = status.changed() => if changed.is_err() { return },
                Ok(()) = open.changed() => {}
            }
        }
    }
}

/// Whether the pipeline's log is here: its hard state, which names its segments before they are written.
async fn has_log(disk: &DatanodeDisk, pipeline: PipelineId) -> bool {
    let dir = format!("{GROUPS_DIR}/{}", GroupId::pipeline(pipeline));
    // A directory that cannot be read is left for opening the log to report.
    disk.real.list(&dir).await.map_or(true, |files| files.iter().any(|file| file == raftlog::HARD_STATE))
}
