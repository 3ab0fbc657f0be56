pub(crate) mod everywhere;
pub(crate) mod parked;
pub(crate) mod proposal;
pub(crate) mod reads;
pub(crate) mod rounds;
pub(crate) mod standstill;
pub(crate) mod status;
pub(crate) mod transfer;
pub(crate) mod waiting;

use crate::adapter::alive::Gone;
use crate::adapter::machine::Raft;
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{Answer, Data};
use crate::counts::{Counts, Share};
use crate::group::everywhere::Everywhere;
use crate::group::parked::{ApplyWaits, Awaited, OVER, Waits};
use crate::group::rounds::LeaderAsked;
use crate::group::standstill::Standstill;
use crate::idle::doze::Doze;
use crate::log::room_wait::RoomWait;
use crate::log::unserved::Unserved;
use crate::members::first_answer::FirstAnswer;
use crate::members::standing::Standing;
use crate::snapshot::{Counters, SnapshotStore};
use crate::transport::processes::Processes;
use crate::transport::protocol;
use crate::{
    AddressBook, COMMAND_BYTES_MAX, Command, Done, GroupMetrics, GroupStatus, Member, Proposal, ProposeError,
    ReadIndexError, Role, SnapshotProgress,
};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::rt::Instant as _;
use proto::raft as wire;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot, watch};
use tokio::task::JoinHandle;
use types::{Clock, GroupId, LogIndex, ReplicaId};

/// Pauses between attempts to be elected right after a start, while other replicas are still being made.
const CAMPAIGN_PAUSE_FIRST: Duration = Duration::from_millis(100);
const CAMPAIGN_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The time that state machine and log may take to be dropped when their group is closed.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// A handle to one group on this host; cheap to clone.
#[derive(Clone)]
pub struct Group {
    inner: Arc<GroupInner>,
}

pub(crate) struct GroupInner {
    pub(crate) cluster: Arc<str>,
    pub(crate) id: GroupId,
    pub(crate) replica: ReplicaId,
    pub(crate) election_max: Duration,
    pub(crate) log: raftlog::Log,
    pub(crate) raft: Raft,
    pub(crate) doze: Arc<Doze>,
    pub(crate) addresses: AddressBook,
    pub(crate) processes: Arc<Processes>,
    pub(crate) standing: Arc<Standing>,
    /// Whether this replica relies on leases where it leads.
    pub(crate) lease_reads: bool,
    pub(crate) clock: Arc<dyn Clock>,
    /// The parking lot of the whole host.
    pub(crate) waits: Waits,
    pub(crate) apply_waits: ApplyWaits,
    pub(crate) waits_max: usize,
    pub(crate) everywhere: Everywhere,
    pub(crate) standstill: Standstill,
    /// Room of the whole host for reads whose leader is being confirmed.
    pub(crate) reads: Arc<Semaphore>,
    pub(crate) reads_max: usize,
    pub(crate) leader_asked: LeaderAsked,
    pub(crate) statuses: watch::Receiver<GroupStatus>,
    pub(crate) applied: watch::Receiver<Option<LogIndex>>,
    pub(crate) has_snapshots: bool,
    /// The store of snapshots, gone when the group is closed: handles keep no files open.
    pub(crate) snapshots: Weak<SnapshotStore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) unserved: Arc<Unserved>,
    /// Bytes that may still be proposed.
    pub(crate) proposal_share: Arc<Semaphore>,
    pub(crate) proposal_bytes_max: usize,
    pub(crate) counts: Arc<Counts>,
    pub(crate) room_wait: RoomWait,
    pub(crate) first_answer: FirstAnswer,
    /// The group's tasks, joined when it is closed.
    pub(crate) tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Resolves when openraft has dropped state machine and log.
    pub(crate) gone: Gone,
}

impl Group {
    pub(crate) fn new(inner: GroupInner) -> Group {
        Group { inner: Arc::new(inner) }
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.inner.raft
    }

    pub(crate) fn doze(&self) -> &Arc<Doze> {
        &self.inner.doze
    }

    /// The store of the group's snapshots; `None` when the state machine has none, or the group is closed.
    pub(crate) fn snapshot_store(&self) -> Option<Arc<SnapshotStore>> {
        self.inner.snapshots.upgrade()
    }

    /// The group's snapshots on this replica: the newest, and what is under way.
    pub fn snapshots(&self) -> SnapshotProgress {
        let last = self.snapshot_store().and_then(|store| store.current_id());
        self.inner.counters.progress(last.map(|id| id.index))
    }

    pub(crate) fn processes(&self) -> &Arc<Processes> {
        &self.inner.processes
    }

    pub(crate) fn standing(&self) -> &Arc<Standing> {
        &self.inner.standing
    }

    /// The terms that may be heard of now.
    pub(crate) fn terms(&self) -> TermLimit {
        TermLimit::now(&*self.inner.clock)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    pub(crate) fn lease_reads(&self) -> bool {
        self.inner.lease_reads
    }

    pub(crate) fn election_max(&self) -> Duration {
        self.inner.election_max
    }

    pub(crate) fn applied(&self) -> &watch::Receiver<Option<LogIndex>> {
        &self.inner.applied
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.inner.waits
    }

    pub(crate) fn apply_waits(&self) -> &ApplyWaits {
        &self.inner.apply_waits
    }

    pub(crate) fn waits_max(&self) -> usize {
        self.inner.waits_max
    }

    /// Room for one more read whose leader is being confirmed.
    pub(crate) fn read_permit(&self) -> Result<SemaphorePermit<'_>, ReadIndexError> {
        self.inner.reads.try_acquire().map_err(|_| ReadIndexError::Busy { limit: self.inner.reads_max })
    }

    /// The questions of this replica to its leader.
    pub(crate) fn leader_asked(&self) -> &LeaderAsked {
        &self.inner.leader_asked
    }

    pub(crate) fn everywhere(&self) -> &Everywhere {
        &self.inner.everywhere
    }

    /// The receiver of a message to another replica of the group, as the message names it.
    pub(crate) fn address_of(&self, member: &Member) -> wire::Address {
        protocol::address(self.inner.id, member.replica, &self.inner.cluster)
    }

    pub fn id(&self) -> GroupId {
        self.inner.id
    }

    pub fn cluster(&self) -> &str {
        &self.inner.cluster
    }

    pub(crate) fn shared_cluster(&self) -> Arc<str> {
        self.inner.cluster.clone()
    }

    pub fn replica(&self) -> ReplicaId {
        self.inner.replica
    }

    /// The replicas that forced resets of this one gave up: what they say is not listened to.
    pub fn given_up(&self) -> &[ReplicaId] {
        self.standing().lost()
    }

    pub fn log(&self) -> &raftlog::Log {
        &self.inner.log
    }

    /// The addresses of members as they are now.
    pub fn addresses(&self) -> &AddressBook {
        &self.inner.addresses
    }

    /// Puts a command into the leader's queue. Commands are ordered as their `propose` calls returned.
    pub async fn propose(&self, command: Command) -> Result<Proposal, ProposeError> {
        let GroupInner { raft, proposal_share, proposal_bytes_max, counts, .. } = &*self.inner;
        let bytes = command.meta.len() + command.body.len();
        if bytes > COMMAND_BYTES_MAX {
            counts.tally.too_large.count();
            return Err(ProposeError::TooLarge { bytes, limit: COMMAND_BYTES_MAX });
        }
        if let Err(full) = self.inner.log.space().check_space(bytes) {
            // Room is the leader's matter: one elsewhere may have some.
            let GroupStatus { role, leader, .. } = self.status();
            if role != Role::Leader && leader.is_some() {
                return Err(ProposeError::NotLeader { leader });
            }
            counts.tally.disk_full.count();
            return Err(ProposeError::DiskFull { why: full.to_string() });
        }
        // A command above the whole limit may go when nothing else does.
        let weight = command.weight_bytes().min(*proposal_bytes_max);
        let weight = u32::try_from(weight).expect("commands are below 4 GiB");
        let Ok(share) = proposal_share.clone().try_acquire_many_owned(weight) else {
            counts.tally.busy.count();
            let in_flight = proposal_bytes_max.saturating_sub(proposal_share.available_permits());
            return Err(ProposeError::Busy { in_flight, limit: *proposal_bytes_max });
        };
        let share = Share::new(share, counts.clone());
        self.inner.doze.used();
        let (to, answer) = oneshot::channel();
        raft.client_write_ff(Data::Whole(command), Some(Answer { to, share: Some(share) }))
            .await
            .map_err(|fatal| ProposeError::Stopped { why: fatal.to_string() })?;
        Ok(Proposal { answer, statuses: self.watch() })
    }

    /// Proposes a command as [`Group::propose`] does, and waits for its outcome.
    pub async fn apply(&self, command: Command) -> Result<Done, ProposeError> {
        self.propose(command).await?.done().await
    }

    /// Counts and state of the group, as plain values.
    pub fn metrics(&self) -> GroupMetrics {
        let GroupInner { id, replica, raft, counts, proposal_share, proposal_bytes_max, .. } = &*self.inner;
        let status = self.status();
        let proposal_bytes_in_flight = proposal_bytes_max.saturating_sub(proposal_share.available_permits());
        GroupMetrics {
            proposal_bytes_in_flight,
            snapshots: self.inner.has_snapshots.then(|| self.snapshots()),
            ..GroupMetrics::new(*id, *replica, status, &raft.metrics().borrow_watched(), counts)
        }
    }

    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.inner.counts
    }

    pub fn status(&self) -> GroupStatus {
        let mut status = {
            let metrics = self.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            let unserved = self.inner.unserved.now(&metrics);
            GroupStatus { unserved, ..GroupStatus::of(&metrics, &self.inner.standing) }
        };
        // openraft's metrics lag behind the state machine: `applied` is taken from the machine's own watch.
        status.applied = *self.inner.applied.borrow();
        status.is_dozing = self.inner.doze.is_dozing();
        let known = self.inner.statuses.borrow();
        if known.role == Role::Stopped {
            status.role = Role::Stopped;
            status.leader = None;
            status.failure = known.failure.clone();
        }
        status
    }

    /// A watch of the status, which tells when role, term, leader, removal or failure changes.
    pub fn watch(&self) -> watch::Receiver<GroupStatus> {
        self.inner.statuses.clone()
    }

    /// Whether a majority answers this leader: it has answered something that was sent within the time of two
    /// elections, in which others may have had one, or the leader has not waited that long for the first
    /// answer of its term. openraft's leaders go on believing in themselves when nobody answers; whoever acts
    /// on leadership alone must not.
    pub fn hears_majority(&self) -> bool {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let is_alone = metrics.membership_config.voter_ids().all(|voter| voter == self.inner.replica.0);
        let limit = 2 * self.inner.election_max;
        let silence = match &metrics.last_quorum_acked {
            Some(acked) => acked.elapsed(),
            None => self.inner.first_answer.awaited_since(metrics.current_term).elapsed(),
        };
        is_alone || silence < limit
    }

    /// The leader, as long as this replica hears it, or is it and hears a majority. openraft's followers,
    /// too, go on believing in one that says nothing any more, where nobody else can be elected.
    pub fn heard_leader(&self) -> Option<Member> {
        let status = self.status();
        let is_heard = match status.role {
            Role::Leader => self.hears_majority(),
            _ => self.doze().silence() < 2 * self.inner.election_max,
        };
        status.leader.filter(|_| is_heard)
    }

    /// The reason why the group serves nobody through this replica now: it stopped, hears no leader, or leads
    /// and is not heard.
    pub fn readiness(&self) -> Result<(), String> {
        let status = self.status();
        status.readiness()?;
        match (self.heard_leader(), status.role) {
            (Some(_), _) => Ok(()),
            (None, Role::Leader) => {
                Err("it leads its group, and a majority of its members does not answer".to_owned())
            }
            (None, _) => Err("its group has no leader that it hears".to_owned()),
        }
    }

    /// Waits until no proposal is under way; while the answer is held, no proposal is taken. `None` when it
    /// took longer than `limit`: what is under way then may get no answer.
    pub(crate) async fn drain(&self, limit: Duration) -> Option<OwnedSemaphorePermit> {
        let GroupInner { proposal_share, proposal_bytes_max, .. } = &*self.inner;
        // Who waits for permits stands before who tries to get some, so nothing slips in between.
        let all = u32::try_from(*proposal_bytes_max).expect("limited when the group was opened");
        let drained = tokio::time::timeout(limit, proposal_share.clone().acquire_many_owned(all)).await;
        // Err: the semaphore is closed, which nobody does.
        drained.ok()?.ok()
    }

    /// Stops the group, and waits until the state machine is dropped and the log's files are closed; for a
    /// while only, where a disk hangs. Handles still answer: with [`Role::Stopped`].
    pub(crate) async fn close(&self) {
        self.inner.room_wait.end();
        // A task of its own, which ends when openraft does: after a stop that was given up halfway each later
        // call panics in openraft.
        let raft = self.inner.raft.clone();
        let stop = tokio::spawn(async move { raft.shutdown().await });
        // openraft may wait for a change of the log that waits for space on the disk; closing the log ends
        // that.
        match tokio::time::timeout(CLOSE_MAX, stop).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error)) | Err(error)) => {
                tracing::warn!(group = %self.inner.id, %error, "stop of a group")
            }
            Err(_) => {
                tracing::warn!(group = %self.inner.id, "a group does not stop, its log is closed under it");
                self.inner.log.close().await;
            }
        }
        let tasks = std::mem::take(&mut *self.inner.tasks.lock().expect("no holder panics"));
        for task in tasks.into_iter().chain(self.inner.everywhere.take_watcher()) {
            task.abort();
            let _ = task.await;
        }
        // Nothing moves this key any more; who waits looks for itself.
        self.inner.waits.reach(&Awaited::Everywhere(self.inner.id), OVER);
        if tokio::time::timeout(CLOSE_MAX, self.inner.gone.wait()).await.is_err() {
            tracing::warn!(group = %self.inner.id, "the state machine of a closed group still works");
        }
        self.inner.log.close().await;
    }

    /// Waits, after [`Group::close`], for a state machine that a disk holds up, however long that takes: it
    /// may still write what it owns.
    pub(crate) async fn until_gone(&self) {
        self.inner.gone.wait().await;
    }
}

/// Stands for election until there is a leader, or the replica hears that it is dismissed. Each attempt asks
/// first whether it could win (pre-vote), so that it disturbs nobody; replicas that are not there yet when it
/// starts are asked again soon.
pub(crate) async fn campaign(raft: Raft, mut statuses: watch::Receiver<GroupStatus>) {
    let mut pause = CAMPAIGN_PAUSE_FIRST;
    loop {
        if raft.trigger().elect(true).await.is_err() {
            return;
        }
        let settled = |status: &GroupStatus| {
            status.leader.is_some() || status.is_removed || status.role == Role::Stopped
        };
        match tokio::time::timeout(pause, statuses.wait_for(settled)).await {
            Ok(_) => return,
            Err(_) => pause = (pause * 3 / 2).min(CAMPAIGN_PAUSE_MAX),
        }
    }
}
