//! Tasks that SCM gives this node, and how far they are. SCM says them again with each heartbeat until
//! reports show that they are done; those that it no longer says are given up.

pub(crate) mod close;
mod copy;
mod delete;
mod means;
mod sweep;

use crate::workers::Workers;
pub(crate) use close::close_replica;
use copy::Progress;
pub(crate) use delete::recover as recover_deletions;
pub(crate) use means::Means;
use proto::scm::{CloseReplica, DeleteReplica, RollContainer, Task, TaskKind, TaskReport, task};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
pub(crate) use sweep::Sweeper;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::{Backoff, ContainerId, LogId, LogIndex, PipelineId, ReplicaId, Term};

/// Tasks known at a time; SCM tells a few. More are left for when it says them again.
const TASKS_MAX: usize = 1000;
/// Containers that are copied here at a time: they share one rate, and one alone uses little of it while its
/// source is busy.
const COPIES_MAX: usize = 2;
/// Other tasks under way at a time; each is a few steps.
const OTHERS_MAX: usize = 8;
/// A task that failed is tried again as long as it is told.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// A task that was done and is still told: SCM may not have the report yet. Then it is done again.
const DONE_WAIT: Duration = Duration::from_secs(10);

/// The name of a task: told twice, it is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TaskKey {
    Copy(ContainerId),
    Delete(ContainerId),
    Close(ContainerId),
    MoveLeader(PipelineId),
    Roll(PipelineId, ContainerId),
}

struct Entry {
    task: task::Task,
    /// The time of this node's last heartbeat that SCM answered with the task.
    asked_at: Instant,
    progress: Arc<Progress>,
    state: State,
    failed: String,
    retry: Backoff,
}

enum State {
    /// The task is not begun before this.
    Waits(Instant),
    Runs(CancellationToken),
}

/// All tasks of a node. A cheap handle.
#[derive(Clone)]
pub(crate) struct TaskBoard {
    entries: Arc<Mutex<BTreeMap<TaskKey, Entry>>>,
    means: Means,
    workers: Workers,
}

/// The numbers of tasks.
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
    pub(crate) fn new(means: Means, workers: Workers) -> TaskBoard {
        TaskBoard { entries: Arc::default(), means, workers }
    }

    /// The reports that SCM gets.
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
    pub(crate) fn told(&self, tasks: Vec<Task>, asked_at: Instant) {
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
        self.begin(&mut entries, now);
    }

    /// A task ended. The next one's turn comes with the next heartbeat, which this wakes.
    fn ended(&self, key: TaskKey, done: anyhow::Result<()>) {
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
        self.means.disks.inventory.wake().notify_one();
    }

    /// Begins what may begin: in the order of the keys, so that copies that were begun go first after a
    /// restart too.
    fn begin(&self, entries: &mut BTreeMap<TaskKey, Entry>, now: Instant) {
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
            let stop = self.workers.stop().child_token();
            entry.state = State::Runs(stop.clone());
            let (board, task, progress) = (self.clone(), entry.task.clone(), entry.progress.clone());
            let order = delete::Order { asked_at: entry.asked_at, stop: stop.clone() };
            self.workers.spawn(async move {
                // Dropped anywhere: each task may be cut short by a crash too, and is told again.
                let done = stop.run_until_cancelled(carry_out(&board.means, task, &order, &progress)).await;
                if let Some(done) = done {
                    board.ended(key, done);
                }
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskKey, Entry>> {
        self.entries.lock().expect("no holder panics")
    }
}

async fn carry_out(
    means: &Means,
    task: task::Task,
    order: &delete::Order,
    progress: &Progress,
) -> anyhow::Result<()> {
    match task {
        task::Task::Copy(copy) => copy::copy(means, copy, progress).await,
        task::Task::Delete(DeleteReplica { container }) => {
            delete::delete_replica(means, ContainerId(container), order).await
        }
        task::Task::Close(CloseReplica { container, last_term, last_index }) => {
            let last = LogId { term: Term(last_term), index: LogIndex(last_index) };
            let last = Some(last).filter(|last| *last != LogId::default());
            Ok(close_replica(&means.disks, ContainerId(container), last).await?)
        }
        task::Task::MoveLeader(lead) => {
            let pipeline = means.pipelines.running(PipelineId(lead.pipeline))?;
            Ok(pipeline.group.transfer_leader(ReplicaId(lead.to_replica)).await?)
        }
        task::Task::Roll(RollContainer { pipeline, container }) => {
            means.pipelines.running(PipelineId(pipeline))?.roll_after(ContainerId(container));
            Ok(())
        }
    }
}
