use super::counts::Counts;
use super::oracle::Oracle;
use super::plan::{GroupPlan, Plan};
use super::planted::{Planted, panic_once};
use super::seats::Seat;
use super::watched::{Bodies, SnapshotWork, Watched, WatchedSnapshots};
use crate::mem_snapshots::MemSnapshots;
use crate::world::{Context, ProcessId};
use kv::KvMachine;
use raft::{AddressBook, Group, RaftHost};
use raftlog::LogSpace;
use statedb::Tables;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tonic::service::{Routes, RoutesBuilder};
use types::{GroupId, LogIndex};

/// The time after which a group that a full disk kept from being opened or removed is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// One life of a process that hosts replicas; what the scenario sees of it.
#[derive(Clone)]
pub(super) struct Node {
    state: Arc<Mutex<State>>,
    oracle: Oracle,
}

#[derive(Default)]
struct State {
    server: Option<Server>,
    replicas: BTreeMap<GroupId, Replica>,
    /// The replicas that were opened since somebody asked.
    opened: Vec<(GroupId, Replica)>,
    /// The groups whose replicas were removed since somebody asked.
    removed: Vec<GroupId>,
    /// Whether the disk is full, or was until just now: what fails may be retried.
    disk_is_short: bool,
}

#[derive(Clone)]
struct Server {
    plan: Arc<Plan>,
    process: ProcessId,
    host: RaftHost,
    space: Arc<LogSpace>,
}

/// A replica that is open.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) group: Group,
    seat: Seat,
    /// The tables as the replica's clients read them.
    pub(super) tables: Arc<dyn Tables>,
    pub(super) applied: Arc<Mutex<Option<LogIndex>>>,
    work: Arc<SnapshotWork>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotStage {
    Write,
    Receive,
    Install,
}

impl Replica {
    /// The stage of the snapshot that the replica is at work on.
    pub(super) fn snapshot_stage(&self) -> Option<SnapshotStage> {
        if self.work.is_installing.load(Ordering::Relaxed) {
            return Some(SnapshotStage::Install);
        }
        if self.work.is_writing.load(Ordering::Relaxed) {
            return Some(SnapshotStage::Write);
        }
        let snapshots = self.group.snapshots();
        let received = snapshots.receives_finished + snapshots.receives_failed;
        (snapshots.receives_begun > received).then_some(SnapshotStage::Receive)
    }

    /// Counts a crash by what it hits.
    pub(super) fn crashes(&self, counts: &mut Counts) {
        counts.crashes_amid_member_changes += u64::from(self.group.members().is_joint());
        match self.snapshot_stage() {
            Some(SnapshotStage::Write) => counts.crashes_amid_snapshot_writes += 1,
            Some(SnapshotStage::Receive) => counts.crashes_amid_snapshot_receives += 1,
            Some(SnapshotStage::Install) => counts.crashes_amid_snapshot_installs += 1,
            None => {}
        }
    }
}

impl Node {
    pub(super) fn new(oracle: Oracle) -> Node {
        Node { state: Arc::default(), oracle }
    }

    /// The node for the next life of its process, on the same disk.
    pub(super) fn next(&self) -> Node {
        let next = Node::new(self.oracle.clone());
        next.set_disk_short(self.lock().disk_is_short);
        next
    }

    pub(super) fn replica(&self, group: GroupId) -> Option<Replica> {
        self.lock().replicas.get(&group).cloned()
    }

    /// Forgets a replica that is to be removed, so that nobody opens it again; whether it was open.
    pub(super) fn forget(&self, group: GroupId) -> bool {
        self.lock().replicas.remove(&group).is_some()
    }

    /// Replicas that were opened since the last call.
    pub(super) fn take_opened(&self) -> Vec<(GroupId, Replica)> {
        std::mem::take(&mut self.lock().opened)
    }

    /// Groups whose replicas were removed since the last call.
    pub(super) fn take_removed(&self) -> Vec<GroupId> {
        std::mem::take(&mut self.lock().removed)
    }

    pub(super) fn set_disk_short(&self, is_short: bool) {
        self.lock().disk_is_short = is_short;
    }

    /// Runs the process: opens its replicas and answers for them.
    pub(super) async fn run(self, context: Context, plan: Arc<Plan>, seats: Vec<(GroupId, Seat)>) -> Routes {
        let disk = match plan.planted {
            Some(planted) => planted.wrap_disk(context.disk.clone()),
            None => Arc::new(context.disk.clone()),
        };
        let space = LogSpace::new(disk, plan.space.clone());
        let host = RaftHost::over(context.connector(), plan.host.clone(), AddressBook::default());
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        self.lock().server = Some(Server { plan: plan.clone(), process: context.process, host, space });
        if plan.planted == Some(Planted::TaskPanics) {
            tokio::spawn(panic_once());
        }
        for (group, seat) in seats {
            if seat.is_leaving {
                tokio::spawn(self.clone().remove(group));
            } else {
                tokio::spawn(self.clone().open(group, seat));
            }
        }
        routes.routes()
    }

    /// Opens a replica, when its disk has space for it.
    pub(super) async fn open(self, group: GroupId, seat: Seat) {
        let Some(server) = self.server() else { return };
        let plan = server.plan.group(group);
        loop {
            let was_short = self.lock().disk_is_short;
            match self.try_open(&server, plan, &seat).await {
                Ok(replica) => {
                    let state = &mut *self.lock();
                    state.replicas.insert(group, replica.clone());
                    state.opened.push((group, replica));
                    return;
                }
                Err(_) if was_short || self.lock().disk_is_short => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => {
                    self.oracle.fail(format!("{} cannot open {group:?}: {error:#}", server.process));
                    return;
                }
            }
        }
    }

    async fn try_open(&self, server: &Server, group: &GroupPlan, seat: &Seat) -> anyhow::Result<Replica> {
        let tables: Arc<dyn Tables> = match server.plan.planted {
            Some(planted) => planted.wrap_tables(seat.tables.clone()),
            None => Arc::new(seat.tables.clone()),
        };
        let snapshots = MemSnapshots {
            tables: seat.tables.clone(),
            disk: server.space.disk().clone(),
            applied_key: kv::APPLIED_KEY,
            filler_bytes: server.plan.snapshot_filler_bytes,
            leaves_out_unflushed: server.plan.planted == Some(Planted::SnapshotsShort),
        };
        let (oracle, work) = (self.oracle.clone(), Arc::<SnapshotWork>::default());
        let snapshots = WatchedSnapshots { inner: Arc::new(snapshots), oracle, work: work.clone() };
        let bodies = Bodies {
            space: server.space.clone(),
            owners_dir: group.log_spec().owners_dir,
            is_there: Arc::new(()),
        };
        let applied = Arc::default();
        let machine = Watched {
            inner: KvMachine::new(tables.clone(), Some(Arc::new(snapshots))),
            tables: tables.clone(),
            oracle: self.oracle.clone(),
            group: group.id,
            name: server.process.to_string(),
            applied: Arc::clone(&applied),
            bodies,
        };
        let spec = group.spec(seat.replica);
        let group = server.host.open(spec, &server.space, group.log_spec(), machine).await?;
        Ok(Replica { group, seat: seat.clone(), tables, applied, work })
    }

    /// Closes one replica, and opens it again after a pause.
    pub(super) async fn reopen(self, group: GroupId, pause: Duration) {
        let Some(server) = self.server() else { return };
        let Some(replica) = self.lock().replicas.remove(&group) else { return };
        server.host.close(group).await;
        tokio::time::sleep(pause).await;
        self.open(group, replica.seat).await;
    }

    /// Deletes a replica that was forgotten, here or in an earlier life of the process.
    pub(super) async fn remove(self, group: GroupId) {
        let Some(server) = self.server() else { return };
        let log = server.plan.group(group).log_spec();
        loop {
            let was_short = self.lock().disk_is_short;
            match server.host.remove(group, &server.space, &log).await {
                Ok(()) => return self.lock().removed.push(group),
                Err(_) if was_short || self.lock().disk_is_short => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) => {
                    return self.oracle.fail(format!("{} cannot remove {group:?}: {error}", server.process));
                }
            }
        }
    }

    fn server(&self) -> Option<Server> {
        self.lock().server.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of a node panics")
    }
}
