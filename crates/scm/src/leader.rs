use crate::nodes::{Nodes, Silence};
use crate::oms::Oms;
use crate::options::ScmOptions;
use crate::registry::{Confirmations, Leases};
use crate::replication::Replication;
use crate::state_machine::SharedTables;
use crate::tables::Tables;
use crate::view;
use crate::world::World;
use bytes::Bytes;
use prost::Message;
use proto::registry::{RegistryCommand, RegistryReply, registry_command};
use proto::scm::{ClusterView, ScmCommand, ScmReply, scm_command::Command};
use proto::{Code, Failure};
use raft::{AddressBook, Group};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use types::{Clock, Term};

/// SCM's leader: what it knows and does beyond its tables. It is made anew with each leadership and dropped
/// with it.
pub(crate) struct Leader {
    pub(crate) options: ScmOptions,
    pub(crate) group: Group,
    /// The term in which the group is led.
    pub(crate) term: Term,
    pub(crate) addresses: AddressBook,
    pub(crate) tables: SharedTables,
    pub(crate) clock: Arc<dyn Clock>,
    memory: Mutex<Memory>,
    /// Leases of the registry's instances and keys.
    leases: Mutex<Leases>,
    pub(crate) confirmations: Confirmations,
    /// Whether enough was known once in this leadership, or an operator ended safe mode.
    left_safe_mode: AtomicBool,
    /// Told when nodes or disks have changed: there may be places for pipelines.
    pub(crate) places_changed: Notify,
    /// The number of times that nodes or disks have changed.
    places: AtomicU64,
    /// Told when an OM has said something new: there may be something to decide about its groups.
    pub(crate) oms_changed: Notify,
    /// Counts the heartbeats that changed what is known of pipelines, containers or groups of names.
    pub(crate) reports_changed: watch::Sender<u64>,
    /// Rounds of pipeline creation that have ended.
    pub(crate) rounds: watch::Sender<u64>,
    /// The view that watchers see; a slow watcher skips to the newest.
    pub(crate) view: watch::Sender<Arc<ClusterView>>,
    /// Cancelled when leadership ends.
    pub(crate) stop: CancellationToken,
}

/// The leader's memory of what nodes and OMs have said, and what was asked of nodes.
struct Memory {
    nodes: Nodes,
    oms: Oms,
    replication: Replication,
}

impl Leader {
    pub(crate) fn new(
        options: ScmOptions,
        group: Group,
        term: Term,
        addresses: AddressBook,
        tables: SharedTables,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Leader {
        let silence = Silence {
            stale_after: options.stale_after,
            dead_after: options.dead_after,
            disk_lost_after: options.member_fault_grace,
        };
        let now = Instant::now();
        let mut nodes = Nodes::new(silence, now);
        tables.read(|tables| {
            let dead = tables.nodes().iter().filter(|(_, record)| record.is_dead);
            nodes.know_dead(dead.map(|(&node, _)| node));
        });
        let oms = Oms::new(options.stale_after, options.dead_after, now);
        let view = tables.read(|tables| view::cluster_view(&World::of(tables, &nodes, &oms, now, 0, true)));
        Leader {
            options,
            group,
            term,
            addresses,
            tables,
            clock,
            memory: Mutex::new(Memory { nodes, oms, replication: Replication::new(term) }),
            leases: Mutex::default(),
            confirmations: Confirmations::default(),
            left_safe_mode: AtomicBool::new(false),
            places_changed: Notify::new(),
            places: AtomicU64::new(0),
            oms_changed: Notify::new(),
            reports_changed: watch::Sender::new(0),
            rounds: watch::Sender::new(0),
            view: watch::Sender::new(Arc::new(view)),
            stop,
        }
    }

    /// Reads the tables and what nodes report, together.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&World<'_>) -> R) -> R {
        self.plan(|world, _| read(world))
    }

    /// Changes what nodes report.
    pub(crate) fn change_nodes<R>(&self, change: impl FnOnce(&Tables, &mut Nodes) -> R) -> R {
        self.tables.read(|tables| change(tables, &mut self.memory().nodes))
    }

    /// Changes what OMs report.
    pub(crate) fn change_oms<R>(&self, change: impl FnOnce(&mut Oms) -> R) -> R {
        change(&mut self.memory().oms)
    }

    /// Reads tables and reports, and changes what is asked of the nodes.
    pub(crate) fn plan<R>(&self, plan: impl FnOnce(&World<'_>, &mut Replication) -> R) -> R {
        self.tables.read(|tables| {
            let Memory { nodes, oms, replication } = &mut *self.memory();
            let in_safe_mode = !self.has_left_safe_mode() || !tables.switches().leave_safe_mode;
            let (now, now_ms) = (Instant::now(), self.clock.now_ms());
            plan(&World::of(tables, nodes, oms, now, now_ms, in_safe_mode), replication)
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("no holder of the memory panics")
    }

    /// Looks at leases or changes them. `look` takes no other lock; the tables' may be held.
    pub(crate) fn leases<R>(&self, look: impl FnOnce(&mut Leases) -> R) -> R {
        look(&mut self.leases.lock().expect("no holder of the leases panics"))
    }

    /// Safe mode, as [`World::in_safe_mode`] has it.
    pub(crate) fn in_safe_mode(&self) -> bool {
        self.read(|world| world.in_safe_mode)
    }

    /// Refuses what rests on knowing all that is there.
    pub(crate) fn check_knows_all(&self) -> Result<(), Failure> {
        match self.in_safe_mode() {
            true => {
                Err(Failure::new(Code::NotYet, "SCM is in safe mode: not all that is there is known yet"))
            }
            false => Ok(()),
        }
    }

    pub(crate) fn places(&self) -> u64 {
        self.places.load(Ordering::Relaxed)
    }

    pub(crate) fn note_places_changed(&self) {
        self.places.fetch_add(1, Ordering::Relaxed);
        self.places_changed.notify_one();
    }

    pub(crate) fn has_left_safe_mode(&self) -> bool {
        self.left_safe_mode.load(Ordering::Relaxed)
    }

    pub(crate) fn set_left_safe_mode(&self) {
        self.left_safe_mode.store(true, Ordering::Relaxed);
    }

    /// Carries a command through the log; the reply says whether it was refused.
    pub(crate) async fn propose(&self, command: Command) -> Result<ScmReply, Failure> {
        let meta = Bytes::from(ScmCommand { command: Some(command) }.encode_to_vec());
        let done = self.group.apply(raft::Command { meta, ..raft::Command::default() }).await;
        let done = done.map_err(|error| error.into_failure(&self.addresses))?;
        ScmReply::decode(done.reply)
            .map_err(|error| Failure::internal(format!("decode SCM's reply: {error}")))
    }

    /// Carries a change of the registry through the log.
    pub(crate) async fn propose_registry(
        &self,
        command: registry_command::Command,
    ) -> Result<RegistryReply, Failure> {
        self.propose_registry_with(RegistryCommand { command: Some(command), only_in_term: 0 }).await
    }

    /// [`Leader::propose_registry`] for what this leader decided by its memory alone: where another has led
    /// since, that counts for nothing.
    pub(crate) async fn propose_registry_in_term(
        &self,
        command: registry_command::Command,
    ) -> Result<RegistryReply, Failure> {
        let only_in_term = self.term.0;
        self.propose_registry_with(RegistryCommand { command: Some(command), only_in_term }).await
    }

    async fn propose_registry_with(&self, command: RegistryCommand) -> Result<RegistryReply, Failure> {
        let command = Command::Registry(command);
        let reply = self.propose(command).await?.registry;
        let reply = reply.ok_or_else(|| Failure::internal("the registry gave no reply"))?;
        match reply.refused {
            Some(refused) => Err(refused.into()),
            None => Ok(reply),
        }
    }

    /// Refuses callers of another cluster; one that has joined none yet names none.
    pub(crate) fn check_cluster(&self, theirs: &str) -> Result<(), Failure> {
        let ours = self.tables.read(|tables| tables.cluster().to_owned());
        if theirs.is_empty() || theirs == ours {
            return Ok(());
        }
        let message = format!("this is cluster {ours}, the caller belongs to cluster {theirs}");
        Err(Failure::new(Code::WrongCluster, message))
    }
}
