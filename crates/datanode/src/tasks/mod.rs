//! What SCM wants this node to do, and how far that is. SCM says it again with each heartbeat until reports show that it is done; what
//! it no longer says is given up.

mod copy;
mod delete;
mod sweep;

use crate::manager::ContainerManager;
pub(crate) use delete::recover as recover_deletions;
use proto::scm::{CloseReplica, DeleteReplica, RollContainer, Task, TaskKind, TaskReport, task};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
pub(crate) use sweep::Sweeper;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::{Backoff, ContainerId, LogId, LogIndex, PipelineId, ReplicaId, Term};

/// Tasks known at a time; SCM tells a few. More are left for when it says them again.
const TASKS_MAX: usize = 1000;
/// Containers that are copied here at a time: they share one rate, and one alone uses little of it while its source is busy.
const COPIES_MAX: usize = 2;
/// Other tasks under way at a time; each is a few steps.
const OTHERS_MAX: usize = 8;
/// A task that failed is tried again as long as it is told.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// A task that was done and is still told: SCM may not have the report yet. Then it is done again.
const DONE_WAIT: Duration = Duration::from_secs(10);

/// What a task is about: told twice, it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TaskKey {
    Copy(ContainerId),
    Delete(ContainerId),
    Close(ContainerId),
    MoveLeader(PipelineId),
    Roll(PipelineId, ContainerId),
}

/// How far a task is; shared with whoever carries it out.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub bytes_done: AtomicU64,
    pub bytes_total: AtomicU64,
}

struct Entry {
    task: task::Task,
    /// When this node last asked, and SCM said it.
    asked_at: Instant,
    progress: Arc<Progress>,
    state: State,
    failed: String,
    retry: Backoff,
}

enum State {
    /// Not before this.
    Waits(Instant),
    Runs(CancellationToken),
}

/// All tasks of a node.
#[derive(Default)]
pub(crate) struct TaskBoard {
    entries: Mutex<BTreeMap<TaskKey, Entry>>,
}

/// How many tasks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStats {
    pub waiting: u64,
    pub running: u64,
    /// Whose last attempt failed.
    pub failed: u64,
}

impl TaskKey {
    fn of(task: &task::Task) -> TaskKey {
        match task {
            task::Task::Copy(copy) => TaskKey::Copy(ContainerId(copy.container)),
            task::Task::Delete(delete) => TaskKey::Delete(ContainerId(delete.container)),
            task::Task::Close(close) => TaskKey::Close(ContainerId(close.container)),
            task::Task::MoveLeader(lead) => TaskKey::MoveLeader(PipelineId(lead.pipeline)),
            task::Task::Roll(roll) => TaskKey::Roll(PipelineId(roll.pipeline), ContainerId(roll.container)),
        }
    }

    fn is_copy(self) -> bool {
        matches!(self, TaskKey::Copy(_))
    }

    fn report(self) -> TaskReport {
        let (kind, container, pipeline) = match self {
            TaskKey::Copy(container) => (TaskKind::TaskCopy, container.0, 0),
            TaskKey::Delete(container) => (TaskKind::TaskDelete, container.0, 0),
            TaskKey::Close(container) => (TaskKind::TaskClose, container.0, 0),
            TaskKey::MoveLeader(pipeline) => (TaskKind::TaskMoveLeader, 0, pipeline.0),
            TaskKey::Roll(pipeline, container) => (TaskKind::TaskRoll, container.0, pipeline.0),
        };
        TaskReport { container, pipeline, kind: kind.into(), ..TaskReport::default() }
    }
}

impl TaskBoard {
    /// What SCM hears of the tasks.
    pub(crate) fn reports(&self) -> Vec<TaskReport> {
        let entries = self.lock();
        let report = |(key, entry): (&TaskKey, &Entry)| TaskReport {
            bytes_done: entry.progress.bytes_done.load(Ordering::Relaxed),
            bytes_total: entry.progress.bytes_total.load(Ordering::Relaxed),
            failed: entry.failed.clone(),
            ..key.report()
        };
        entries.iter().map(report).collect()
    }

    pub(crate) fn stats(&self) -> TaskStats {
        let mut stats = TaskStats::default();
        for entry in self.lock().values() {
            match entry.state {
                State::Waits(_) => stats.waiting += 1,
                State::Runs(_) => stats.running += 1,
            }
            stats.failed += u64::from(!entry.failed.is_empty());
        }
        stats
    }

    /// Whether a container is being copied here, or is to be.
    pub(crate) fn wants_copy(&self, container: ContainerId) -> bool {
        self.lock().contains_key(&TaskKey::Copy(container))
    }

    /// SCM told these tasks, and no others, to a heartbeat that was sent at `asked_at`.
    pub(crate) fn told(&self, manager: &ContainerManager, tasks: Vec<Task>, asked_at: Instant) {
        let now = Instant::now();
        let mut entries = self.lock();
        let mut told: BTreeMap<TaskKey, task::Task> = BTreeMap::new();
        for task in tasks.into_iter().take(TASKS_MAX) {
            // One of a kind that a newer SCM knows is left.
            let Some(task) = task.task else { continue };
            told.insert(TaskKey::of(&task), task);
        }
        entries.retain(|key, entry| {
            let is_told = told.contains_key(key);
            if let (false, State::Runs(stop)) = (is_told, &entry.state) {
                info!(?key, "SCM no longer wants a task");
                stop.cancel();
            }
            is_told
        });
        for (key, task) in told {
            let entry = entries.entry(key).or_insert_with(|| Entry {
                task: task.clone(),
                asked_at,
                progress: Arc::default(),
                state: State::Waits(now),
                failed: String::new(),
                retry: RETRY,
            });
            (entry.task, entry.asked_at) = (task, asked_at);
        }
        begin(&mut entries, manager, now);
    }

    /// A task ended. The next one's turn comes with the next heartbeat, which this wakes.
    fn ended(&self, manager: &ContainerManager, key: TaskKey, done: anyhow::Result<()>) {
        let mut entries = self.lock();
        // It may have been given up, and told again, meanwhile.
        let Some(entry) = entries.get_mut(&key) else { return };
        let wait = match done {
            Ok(()) => {
                entry.failed = String::new();
                entry.retry.reset();
                DONE_WAIT
            }
            Err(failure) => {
                let failure = format!("{failure:#}");
                warn!(?key, error = failure, "a task of SCM failed");
                entry.failed = failure;
                entry.retry.pause()
            }
        };
        entry.state = State::Waits(Instant::now() + wait);
        drop(entries);
        manager.changed().notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskKey, Entry>> {
        self.entries.lock().expect("no holder panics")
    }
}

/// Begins what may begin: in the order of the keys, so that copies that were begun go first after a restart too.
fn begin(entries: &mut BTreeMap<TaskKey, Entry>, manager: &ContainerManager, now: Instant) {
    let running = |entries: &BTreeMap<TaskKey, Entry>, copies: bool| {
        let runs = |(key, entry): &(&TaskKey, &Entry)| {
            key.is_copy() == copies && matches!(entry.state, State::Runs(_))
        };
        entries.iter().filter(runs).count()
    };
    let mut copies = COPIES_MAX.saturating_sub(running(entries, true));
    let mut others = OTHERS_MAX.saturating_sub(running(entries, false));
    for (&key, entry) in entries {
        let room = if key.is_copy() { &mut copies } else { &mut others };
        if *room == 0 || !matches!(entry.state, State::Waits(until) if until <= now) {
            continue;
        }
        *room -= 1;
        let stop = manager.stop().child_token();
        entry.state = State::Runs(stop.clone());
        let (manager, task, progress) = (manager.clone(), entry.task.clone(), entry.progress.clone());
        let asked_at = entry.asked_at;
        manager.clone().tasks().spawn(async move {
            // Dropped anywhere: each task may be cut short by a crash too, and is told again.
            let done = stop.run_until_cancelled(carry_out(&manager, task, asked_at, &progress)).await;
            if let Some(done) = done {
                manager.board().ended(&manager, key, done);
            }
        });
    }
}

async fn carry_out(
    manager: &ContainerManager,
    task: task::Task,
    asked_at: Instant,
    progress: &Progress,
) -> anyhow::Result<()> {
    match task {
        task::Task::Copy(copy) => copy::copy(manager, copy, progress).await,
        task::Task::Delete(DeleteReplica { container }) => {
            delete::delete_replica(manager, ContainerId(container), asked_at).await
        }
        task::Task::Close(CloseReplica { container, last_term, last_index }) => {
            let last = LogId { term: Term(last_term), index: LogIndex(last_index) };
            let last = Some(last).filter(|last| *last != LogId::default());
            Ok(manager.close_replica(ContainerId(container), last).await?)
        }
        task::Task::MoveLeader(lead) => {
            let pipeline = manager.running_pipeline(PipelineId(lead.pipeline))?;
            Ok(pipeline.group.transfer_leader(ReplicaId(lead.to_replica)).await?)
        }
        task::Task::Roll(RollContainer { pipeline, container }) => {
            manager.running_pipeline(PipelineId(pipeline))?.roll_after(ContainerId(container));
            Ok(())
        }
    }
}
