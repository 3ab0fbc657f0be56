use crate::adapter::alive::Alive;
use crate::adapter::config::config;
use crate::adapter::machine::{Machine, Raft};
use crate::adapter::terms::TermLimit;
use crate::counts::{Counts, HostCounts};
use crate::group::everywhere::Everywhere;
use crate::group::parked::{ApplyWaits, Waits};
use crate::group::standstill::Standstill;
use crate::group::status::{GroupStatus, Statuses, publish};
use crate::group::{Group, GroupInner, campaign};
use crate::idle::doze::Doze;
use crate::log::log_store::LogStore;
use crate::log::room_wait::RoomWait;
use crate::log::unserved::Unserved;
use crate::members::first_answer::FirstAnswer;
use crate::members::standing::Standing;
use crate::open_groups::OpenGroups;
use crate::replica::beginning::{Begun, Past, announce, begin, check_log, check_terms, finish_install};
use crate::snapshot::{Counters, Limits, SnapshotStore, keep};
use crate::transport::network::Network;
use crate::transport::processes::Processes;
use crate::transport::service::Service;
use crate::{AddressBook, GroupSpec, GroupStart, HostMetrics, HostOptions, OpenGroupError, StateMachine};
use futures::future::join_all;
use openraft::async_runtime::watch::WatchReceiver;
use raftlog::{Log, LogSpace, LogSpec};
use rpc::{Connector, TcpConnector};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use types::GroupId;

/// The time for which a leader waits for what is under way before its process stops. With a quorum it takes a
/// round trip and two syncs; without one nothing is gained by waiting longer.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// The time for which a leader tries to hand over before its process stops.
const HAND_OVER_MAX: Duration = Duration::from_millis(500);

/// The interval at which a host looks after its groups when none needs it more often.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// All Raft groups of a process.
#[derive(Clone)]
pub struct RaftHost {
    inner: Arc<HostInner>,
}

struct HostInner {
    options: HostOptions,
    addresses: AddressBook,
    connector: Arc<dyn Connector>,
    processes: Arc<Processes>,
    open_groups: Arc<OpenGroups>,
    limits: Arc<Limits>,
    waits: Waits,
    reads: Arc<Semaphore>,
    counts: Arc<HostCounts>,
    /// The task that looks after the groups, from the first that is opened until the host is dropped.
    looking_after: OnceLock<JoinHandle<()>>,
}

impl Drop for HostInner {
    fn drop(&mut self) {
        if let Some(task) = self.looking_after.take() {
            task.abort();
        }
        // Groups whose handles outlive the host go on by themselves.
        self.open_groups.all().iter().for_each(|group| group.doze().wake());
    }
}

impl RaftHost {
    /// A host that reaches others over TCP.
    pub fn new(options: HostOptions, addresses: AddressBook) -> RaftHost {
        RaftHost::over(Arc::new(TcpConnector::default()), options, addresses)
    }

    pub fn over(connector: Arc<dyn Connector>, options: HostOptions, addresses: AddressBook) -> RaftHost {
        let processes = Arc::new(Processes::new(addresses.clone(), connector.clone()));
        let (open_groups, counts, looking_after) = Default::default();
        let limits = Arc::new(Limits::new(&options));
        let waits = Waits::new(options.waits_max);
        let reads = Arc::new(Semaphore::new(options.reads_max.min(Semaphore::MAX_PERMITS)));
        let inner = HostInner {
            options,
            addresses,
            connector,
            processes,
            open_groups,
            limits,
            waits,
            reads,
            counts,
            looking_after,
        };
        RaftHost { inner: Arc::new(inner) }
    }

    /// The way of this process to others, for services beside its groups.
    pub fn connector(&self) -> &Arc<dyn Connector> {
        &self.inner.connector
    }

    /// Mounts the groups' service on the process's gRPC server, made by an [`rpc::Gate`].
    pub fn add_to(&self, routes: &mut tonic::service::RoutesBuilder) {
        let service =
            Service { open_groups: self.inner.open_groups.clone(), counts: self.inner.counts.clone() };
        routes.add_service(service.into_server());
    }

    /// Notes a replica that is new on the disk before anything of it is there: for owners that write about it
    /// themselves before they open it. A replica that is here already stays as it is.
    pub async fn announce(
        &self,
        spec: &GroupSpec,
        space: &LogSpace,
        log: &LogSpec,
    ) -> Result<(), OpenGroupError> {
        let failed = |why| OpenGroupError::Failed { group: spec.group, why: format!("{why:#}") };
        announce(space, log, spec).await.map_err(failed)
    }

    /// Opens a replica: creates it when its log does not exist yet. Times that make no sense are refused
    /// before anything is touched.
    pub async fn open(
        &self,
        spec: GroupSpec,
        space: &Arc<LogSpace>,
        log: LogSpec,
        state_machine: impl StateMachine,
    ) -> Result<Group, OpenGroupError> {
        let group = spec.group;
        spec.timing.validate().map_err(|why| OpenGroupError::Timing { group, why })?;
        let reservation = self.inner.open_groups.reserve(group)?;
        self.announce(&spec, space, &log).await?;
        let log =
            space.open(log).await.map_err(|error| OpenGroupError::Log { group, why: error.to_string() })?;
        // Boxed: the future is large, and so would be all in which a group is opened.
        let opened = Box::pin(self.open_on(spec, log, Box::new(state_machine))).await;
        let opened = opened.map_err(|error| OpenGroupError::Failed { group, why: format!("{error:#}") })?;
        self.inner.counts.group_opened(opened.counts().clone());
        reservation.fill(opened.clone());
        let look_after = || tokio::spawn(look_after(self.inner.open_groups.clone()));
        self.inner.looking_after.get_or_init(look_after);
        Ok(opened)
    }

    async fn open_on(
        &self,
        spec: GroupSpec,
        log: Log,
        machine: Box<dyn StateMachine>,
    ) -> anyhow::Result<Group> {
        let HostInner { options, addresses, processes, limits, waits, .. } = &*self.inner;
        let (alive, gone) = Alive::new();
        let counters = Arc::new(Counters::default());
        let snapshots = match machine.snapshots() {
            Some(snapshots) => {
                let opened = SnapshotStore::open(
                    spec.group,
                    snapshots,
                    limits.clone(),
                    counters.clone(),
                    alive.clone(),
                );
                Some(Arc::new(opened.await?))
            }
            None => None,
        };
        let counts = Arc::new(Counts::new(spec.replica));
        let apply_waits = ApplyWaits::new(waits.clone(), spec.group);
        let unserved = Arc::new(Unserved::default());
        let room_wait = RoomWait::default();
        let (mut machine, applied) = Machine::new(
            machine,
            snapshots.clone(),
            alive.clone(),
            counts.clone(),
            apply_waits.clone(),
            room_wait.clone(),
        )?;
        let snapshot = snapshots.as_ref().and_then(|snapshots| snapshots.current_id());
        check_log(&log, machine.applied_id(), snapshot)?;
        check_terms(&log, TermLimit::stored(&*options.clock))?;
        let Begun { past, lost, was_member, unused } = begin(&log, log.space().disk(), &spec).await?;
        finish_install(&log, snapshot).await?;
        let holds_off = spec.lease_reads && past == Past::Restarted;
        let holds_off_until = holds_off.then(|| Instant::now() + spec.timing.election_max);
        let standing = Arc::new(Standing::new(spec.replica, holds_off_until, lost));
        if was_member {
            standing.was_member();
        } else {
            let disk = log.space().disk().clone();
            machine.note_member(disk, spec.group, spec.replica, room_wait.clone()).await?;
        }

        let network = Network {
            cluster: spec.cluster.as_str().into(),
            group: spec.group,
            replica: spec.replica,
            processes: processes.clone(),
            options: options.clone(),
            snapshots: snapshots.clone(),
            unserved: unserved.clone(),
            counts: counts.clone(),
            standing: standing.clone(),
            acknowledged: Arc::default(),
        };
        let config = config(spec.group.to_string(), spec.timing, !holds_off).map_err(anyhow::Error::msg)?;
        let store = LogStore::new(
            log.clone(),
            options.append_bytes_max,
            snapshots.clone(),
            alive,
            counts.clone(),
            unused,
            room_wait.clone(),
        );
        room_wait.begin();
        let raft = Raft::new(spec.replica.0, config, network, store, machine).await?;

        let status = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            standing.decide(&raft, metrics.membership_config.log_id());
            GroupStatus::of(&metrics, &standing)
        };
        let (statuses_tx, statuses) = watch::channel(status);
        let mut tasks = vec![tokio::spawn(publish(raft.clone(), standing.clone(), Statuses(statuses_tx)))];
        // A replica that joins has nobody to ask, and one that restarted may have to wait before it asks.
        if spec.campaign && spec.start != GroupStart::Join && !holds_off {
            tasks.push(tokio::spawn(campaign(raft.clone(), statuses.clone())));
        }
        let doze =
            Arc::new(Doze::new(raft.clone(), log.clone(), spec.timing, options.doze_after, counts.clone()));
        let has_snapshots = snapshots.is_some();
        let weak_snapshots = snapshots.as_ref().map(Arc::downgrade).unwrap_or_default();
        if let (Some(snapshots), Some(policy)) = (snapshots, spec.snapshots) {
            tasks.push(tokio::spawn(keep(raft.clone(), log.clone(), snapshots, policy, applied.clone())));
        }
        // All permits are taken at once when the group is drained, and their number has 32 bits.
        let proposal_bytes_max = options.proposal_bytes_per_group_max.min(u32::MAX as usize >> 3);
        Ok(Group::new(GroupInner {
            cluster: spec.cluster.into(),
            id: spec.group,
            replica: spec.replica,
            election_max: spec.timing.election_max,
            log,
            raft,
            doze,
            addresses: addresses.clone(),
            processes: processes.clone(),
            standing,
            lease_reads: spec.lease_reads && options.leases,
            clock: options.clock.clone(),
            waits: waits.clone(),
            apply_waits,
            waits_max: options.waits_max,
            everywhere: Everywhere::default(),
            standstill: Standstill::default(),
            reads: self.inner.reads.clone(),
            reads_max: options.reads_max,
            leader_asked: Default::default(),
            statuses,
            applied,
            has_snapshots,
            snapshots: weak_snapshots,
            counters,
            unserved,
            proposal_share: Arc::new(Semaphore::new(proposal_bytes_max)),
            proposal_bytes_max,
            counts,
            room_wait,
            first_answer: FirstAnswer::default(),
            tasks: Mutex::new(tasks),
            gone,
        }))
    }

    pub(crate) fn open_groups(&self) -> &Arc<OpenGroups> {
        &self.inner.open_groups
    }

    pub fn group(&self, group: GroupId) -> Option<Group> {
        self.inner.open_groups.get(group)
    }

    pub fn groups(&self) -> Vec<Group> {
        self.inner.open_groups.all()
    }

    /// Stops a group and forgets it; its files stay.
    pub async fn close(&self, group: GroupId) {
        if let Some((group, _reservation)) = self.inner.open_groups.take(group) {
            group.close().await;
            self.closed(&group);
        }
    }

    /// Closes a group as [`RaftHost::close`] does, but so that nobody is kept waiting for an election:
    /// proposals get their answers, and another member leads.
    pub async fn leave(&self, group: GroupId) {
        if let Some(group) = self.group(group) {
            hand_over(&group).await;
        }
        self.close(group).await;
    }

    /// Hands over what this host leads: all groups go on, and on return others lead those that they could
    /// take over in a short time.
    pub async fn hand_over(&self) {
        join_all(self.groups().iter().map(hand_over)).await;
    }

    /// Keeps what a group that was closed did in the totals of its host.
    pub(crate) fn closed(&self, group: &Group) {
        self.inner.counts.group_closed(group.counts());
    }

    /// Counts and state of the host and its groups, as plain values.
    pub fn metrics(&self) -> HostMetrics {
        let HostInner { options, counts, waits, .. } = &*self.inner;
        let groups = self.groups().iter().map(Group::metrics).collect();
        HostMetrics {
            waits: waits.counts(),
            waits_max: options.waits_max,
            ..HostMetrics::new(groups, counts, options.proposal_bytes_per_group_max)
        }
    }

    /// Stops all groups. Where a quorum is, no proposal is left without its answer: leaders take no more
    /// proposals (`Busy`), wait for those they have, and hand over.
    pub async fn shutdown(&self) {
        let groups = self.groups();
        let _drained = join_all(groups.iter().map(|group| group.drain(DRAIN_MAX))).await;
        join_all(groups.iter().map(|group| group.hand_over(HAND_OVER_MAX))).await;
        join_all(groups.iter().map(|group| self.close(group.id()))).await;
    }
}

async fn hand_over(group: &Group) {
    // While leadership moves, proposals would not be answered: none is under way then.
    let _drained = group.drain(DRAIN_MAX).await;
    group.hand_over(HAND_OVER_MAX).await;
}

/// Looks after the groups of a host until it is aborted.
async fn look_after(open_groups: Arc<OpenGroups>) {
    let begun = Instant::now();
    loop {
        let intervals = open_groups.all().into_iter().map(|group| {
            group.doze().look(begun);
            group.look_whether_it_stands();
            group.doze().look_interval()
        });
        let interval = intervals.min().unwrap_or(LOOK_INTERVAL_MAX);
        tokio::time::sleep(interval.min(LOOK_INTERVAL_MAX)).await;
    }
}
