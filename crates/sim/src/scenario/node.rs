use super::oracle::Oracle;
use super::plan::{GroupPlan, Plan};
use super::watched::Watched;
use crate::mem_tables::MemTables;
use crate::world::{Context, ProcessId};
use kv::KvMachine;
use raft::{AddressBook, Group, RaftHost, StateMachine, Tables};
use raftlog::LogSpace;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tonic::service::{Routes, RoutesBuilder};
use types::{GroupId, LogIndex};

/// How often a group that a full disk kept from opening is tried again.
const REOPEN_INTERVAL: Duration = Duration::from_millis(300);

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
    /// Opened since somebody asked.
    opened: Vec<(GroupId, Replica)>,
    /// The disk is full, or was until just now: what fails may be retried.
    disk_is_short: bool,
}

#[derive(Clone)]
struct Server {
    plan: Arc<Plan>,
    process: ProcessId,
    host: RaftHost,
    space: Arc<LogSpace>,
    tables: BTreeMap<GroupId, MemTables>,
}

/// A replica that is open.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) group: Group,
    /// As its clients read them.
    pub(super) tables: Arc<dyn Tables>,
    pub(super) applied: Arc<Mutex<Option<LogIndex>>>,
}

impl Node {
    pub(super) fn new(oracle: Oracle) -> Node {
        Node { state: Arc::default(), oracle }
    }

    pub(super) fn replica(&self, group: GroupId) -> Option<Replica> {
        self.lock().replicas.get(&group).cloned()
    }

    /// Replicas that were opened since the last call.
    pub(super) fn take_opened(&self) -> Vec<(GroupId, Replica)> {
        std::mem::take(&mut self.lock().opened)
    }

    pub(super) fn set_disk_short(&self, is_short: bool) {
        self.lock().disk_is_short = is_short;
    }

    /// The process: opens its replicas and answers for them.
    pub(super) async fn run(
        self,
        context: Context,
        plan: Arc<Plan>,
        tables: BTreeMap<GroupId, MemTables>,
    ) -> Routes {
        let disk = match plan.planted {
            Some(planted) => planted.wrap_disk(context.disk.clone()),
            None => Arc::new(context.disk.clone()),
        };
        let space = LogSpace::new(disk, plan.space.clone());
        let host = RaftHost::over(context.connector(), plan.host.clone(), AddressBook::default());
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        let server = Server { plan: plan.clone(), process: context.process, host, space, tables };
        self.lock().server = Some(server.clone());
        for group in plan.groups_of(context.process) {
            tokio::spawn(self.clone().open(server.clone(), group.clone()));
        }
        routes.routes()
    }

    async fn open(self, server: Server, group: GroupPlan) {
        loop {
            let was_short = self.lock().disk_is_short;
            match self.try_open(&server, &group).await {
                Ok(replica) => {
                    let state = &mut *self.lock();
                    state.replicas.insert(group.id, replica.clone());
                    state.opened.push((group.id, replica));
                    return;
                }
                Err(_) if was_short || self.lock().disk_is_short => {
                    tokio::time::sleep(REOPEN_INTERVAL).await;
                }
                Err(error) => {
                    self.oracle.fail(format!("{} cannot open {:?}: {error:#}", server.process, group.id));
                    return;
                }
            }
        }
    }

    async fn try_open(&self, server: &Server, group: &GroupPlan) -> anyhow::Result<Replica> {
        let store = &server.tables[&group.id];
        let tables: Arc<dyn Tables> = match server.plan.planted {
            Some(planted) => planted.wrap_tables(store.clone()),
            None => Arc::new(store.clone()),
        };
        let applied = Arc::default();
        let machine = Watched {
            inner: KvMachine::new(tables.clone(), None),
            oracle: self.oracle.clone(),
            group: group.id,
            name: server.process.to_string(),
            applied: Arc::clone(&applied),
        };
        let at = machine.applied()?.map(|applied| applied.id.index);
        let found = kv::records(&*tables)?.into_iter().collect();
        self.oracle.check_tables(group.id, &machine.name, at, &found);
        let spec = group.spec_on(server.process);
        let group = server.host.open(spec, &server.space, group.log_spec(), machine).await?;
        Ok(Replica { group, tables, applied })
    }

    /// Closes one replica, and opens it again after a pause.
    pub(super) async fn reopen(self, group: GroupId, pause: Duration) {
        let Some(server) = self.lock().server.clone() else { return };
        if self.lock().replicas.remove(&group).is_none() {
            return;
        }
        server.host.close(group).await;
        tokio::time::sleep(pause).await;
        let plan = server.plan.group(group).clone();
        self.open(server, plan).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of a node panics")
    }
}
