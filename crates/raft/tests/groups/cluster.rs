use crate::ledger::{Ledger, LedgerView};
use crate::links::Links;
use crate::partition::Cables;
use bytes::Bytes;
use disk::RealDisk;
use flotilla_raft::{
    AddressBook, Command, Done, Group, GroupSpec, GroupStart, HostOptions, Member, OpenGroupError,
    ProposeError, RaftHost, Role, SnapshotPolicy, Timing,
};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::service::RoutesBuilder;
use types::{GroupId, LogId, LogIndex, NodeId, OwnerId, Payload, PipelineId, ReplicaId};

pub(crate) const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(500),
    election_max: Duration::from_millis(800),
};

/// The times where no failover is awaited. With [`TIMING`] a machine that stands still for a second and a
/// half, or one slow sync of its disk, costs a healthy leader its office, and half of that the lease without
/// which it takes no commands. Here it takes ten seconds, and six.
pub(crate) const PATIENT: Timing = Timing {
    heartbeat: Duration::from_millis(200),
    election_min: Duration::from_secs(4),
    election_max: Duration::from_secs(6),
};

/// The times between the two, where an office is to be kept, and a lease or a failover is awaited: a leader
/// that three seconds' silence does not depose.
pub(crate) const STEADY: Timing = Timing {
    heartbeat: Duration::from_millis(200),
    election_min: Duration::from_millis(1200),
    election_max: Duration::from_millis(2000),
};

pub(crate) const CLUSTER: &str = "test";

/// Longer than anything takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn pipeline(number: u64) -> GroupId {
    GroupId::pipeline(PipelineId(number))
}

/// A group of metadata: its state can be copied.
pub(crate) fn metadata(number: u64) -> GroupId {
    GroupId::om(number)
}

/// Hosts, mostly three, with a data directory each.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) addresses: AddressBook,
    pub(crate) links: Links,
    log_options: LogSpaceOptions,
    /// The options of nodes that start from here on.
    pub(crate) host_options: HostOptions,
    /// The timing of replicas that are opened from here on.
    pub(crate) timing: Timing,
    /// The policy of metadata groups.
    pub(crate) snapshots: Option<SnapshotPolicy>,
    /// The cables that hosts speak over, where a test cuts them off.
    cables: Option<Cables>,
    _root: TempDir,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) dir: PathBuf,
    running: Option<Running>,
}

pub(crate) struct Running {
    pub(crate) host: RaftHost,
    pub(crate) disk: Arc<RealDisk>,
    pub(crate) space: Arc<LogSpace>,
    pub(crate) ledgers: HashMap<GroupId, LedgerView>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
}

impl Node {
    /// The directory where the node keeps what it made of a group.
    pub(crate) fn db_dir(&self, group: GroupId) -> PathBuf {
        self.dir.join(format!("db-{group}"))
    }
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Cluster::start_with(HostOptions::default(), LogSpaceOptions::default()).await
    }

    pub(crate) async fn start_with(host_options: HostOptions, log_options: LogSpaceOptions) -> Cluster {
        Cluster::start_many(3, host_options, log_options).await
    }

    pub(crate) async fn start_nodes(count: u64) -> Cluster {
        Cluster::start_many(count, HostOptions::default(), LogSpaceOptions::default()).await
    }

    /// Three nodes that can be cut off from each other.
    pub(crate) async fn start_on_cables() -> (Cluster, Cables) {
        let mut cluster = Cluster::start_nodes(3).await;
        let cables = Cables::default();
        for n in 0..3 {
            cluster.stop_node(n).await;
        }
        cluster.cables = Some(cables.clone());
        for n in 0..3 {
            cluster.start_node(n).await;
        }
        (cluster, cables)
    }

    pub(crate) fn with_timing(mut self, timing: Timing) -> Cluster {
        self.timing = timing;
        self
    }

    async fn start_many(count: u64, host_options: HostOptions, log_options: LogSpaceOptions) -> Cluster {
        let root = TempDir::new().expect("make a directory");
        let addresses = AddressBook::default();
        // Test disks are small parts of a shared one.
        let log_options = LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 16 << 20, ..log_options };
        let nodes = (1..=count)
            .map(|id| Node { id: NodeId(id), dir: root.path().join(format!("node-{id}")), running: None })
            .collect();
        let links = Links::new(addresses.clone());
        let mut cluster = Cluster {
            nodes,
            addresses,
            links,
            log_options,
            host_options,
            timing: TIMING,
            snapshots: None,
            cables: None,
            _root: root,
        };
        for n in 0..cluster.nodes.len() {
            cluster.start_node(n).await;
        }
        cluster
    }

    /// Starts a node on a new port; the others learn it from the address book.
    pub(crate) async fn start_node(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        assert!(node.running.is_none(), "{:?} runs already", node.id);
        let disk = RealDisk::open_once_free(&node.dir, u128::from(node.id.0), DEADLINE).await;
        let disk = Arc::new(disk.expect("open a disk"));
        let space = LogSpace::new(disk.clone(), self.log_options.clone());
        let (options, addresses) = (self.host_options.clone(), self.addresses.clone());
        let connector = match &self.cables {
            None => self.links.connector(node.id),
            Some(cables) => Arc::new(cables.of(n)),
        };
        let host = RaftHost::over(connector, options, addresses);

        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a free port");
        let address = listener.local_addr().expect("a bound address").to_string();
        if let Some(cables) = &self.cables {
            cables.learn(&address, n);
        }
        self.addresses.set(node.id, address);
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(rpc::serve(listener, routes.routes(), async { drop(stopped.await) }));
        let ledgers = HashMap::new();
        node.running = Some(Running { host, disk, space, ledgers, stop: Some(stop), server });
    }

    /// Starts a node whose disk has no room.
    pub(crate) async fn start_full(&mut self, n: usize) {
        let reserve_bytes = std::mem::replace(&mut self.log_options.reserve_bytes, 1 << 60);
        self.start_node(n).await;
        self.log_options.reserve_bytes = reserve_bytes;
    }

    /// Stops a node without handing anything over: its server first, so that peers see it vanish.
    pub(crate) async fn stop_node(&mut self, n: usize) {
        let mut running = self.nodes[n].running.take().expect("a running node");
        drop(running.stop.take());
        running.server.abort();
        let _ = running.server.await;
        for group in running.host.groups() {
            running.host.close(group.id()).await;
        }
    }

    /// Forgets entries of a stopped node's log.
    pub(crate) async fn purge_stopped(&mut self, n: usize, group: GroupId, upto: LogId) {
        self.start_node(n).await;
        let log = LogSpec {
            log: group.to_u64(),
            dir: format!("groups/{group}"),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(group.number * 1000 + 1),
        };
        let log = self.running(n).space.open(log).await.expect("open the log");
        log.purge(upto).await.expect("purge the log");
        log.close().await;
        drop(log);
        self.stop_node(n).await;
    }

    /// Does what a crash does to a stopped node whose disk was slower than the others': the log ends before
    /// `first_lost`, and the state machine is applied anew.
    pub(crate) async fn lose_tail(&mut self, n: usize, group: GroupId, first_lost: LogIndex) {
        self.start_node(n).await;
        let node = &mut self.nodes[n];
        let running = node.running.as_ref().expect("just started");
        let log = LogSpec {
            log: group.to_u64(),
            dir: format!("groups/{group}"),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(group.number * 1000 + 1),
        };
        let log = running.space.open(log).await.expect("open the log");
        log.truncate_after(Some(LogIndex(first_lost.0 - 1))).await.expect("cut the log");
        log.close().await;
        drop(log);
        #[allow(clippy::disallowed_methods)] // a test's own directory
        std::fs::remove_dir_all(node.db_dir(group)).expect("remove the state");
        self.stop_node(n).await;
    }

    pub(crate) fn members(&self, group: GroupId) -> Vec<Member> {
        let replica = |n: u64| ReplicaId(group.number * 100 + n);
        let members = self.nodes.iter().map(|node| {
            // Wrong on purpose where the address book knows better.
            Member { replica: replica(node.id.0), node: node.id, address: "127.0.0.1:1".to_owned() }
        });
        members.collect()
    }

    pub(crate) async fn open_on(&mut self, n: usize, group: GroupId) -> Group {
        let members = self.members(group);
        self.open_with(n, group, members).await.expect("open a group")
    }

    pub(crate) async fn open_with(
        &mut self,
        n: usize,
        group: GroupId,
        members: Vec<Member>,
    ) -> Result<Group, OpenGroupError> {
        self.open_at(n, group, members, &format!("groups/{group}"), "containers").await
    }

    pub(crate) async fn open_at(
        &mut self,
        n: usize,
        group: GroupId,
        members: Vec<Member>,
        log_dir: &str,
        owners_dir: &str,
    ) -> Result<Group, OpenGroupError> {
        let spec = GroupSpec {
            cluster: CLUSTER.to_owned(),
            group,
            replica: members[n].replica,
            timing: self.timing,
            start: GroupStart::First(members),
            campaign: n == 0,
            snapshots: self.snapshots,
            lease_reads: false,
        };
        let log = LogSpec {
            log: group.to_u64(),
            dir: log_dir.to_owned(),
            owners_dir: owners_dir.to_owned(),
            first_owner: OwnerId(group.number * 1000 + 1),
        };
        self.open_spec(n, spec, log).await
    }

    pub(crate) async fn open_spec(
        &mut self,
        n: usize,
        spec: GroupSpec,
        log: LogSpec,
    ) -> Result<Group, OpenGroupError> {
        let running = self.nodes[n].running.as_mut().expect("a running node");
        let has_snapshots = spec.group == metadata(spec.group.number);
        let ledger = Ledger::open(&running.disk, &format!("db-{}", spec.group), has_snapshots).await;
        running.ledgers.insert(spec.group, ledger.view());
        running.host.open(spec, &running.space, log, ledger).await
    }

    pub(crate) async fn open(&mut self, group: GroupId) -> Vec<Group> {
        let mut groups = Vec::new();
        for n in 0..3 {
            groups.push(self.open_on(n, group).await);
        }
        groups
    }

    pub(crate) fn running(&self, n: usize) -> &Running {
        self.nodes[n].running.as_ref().expect("a running node")
    }

    pub(crate) fn ledger(&self, n: usize, group: GroupId) -> &LedgerView {
        &self.running(n).ledgers[&group]
    }

    /// The nodes that have the group open.
    pub(crate) fn up(&self, group: GroupId) -> Vec<usize> {
        let has =
            |n: &usize| self.nodes[*n].running.as_ref().is_some_and(|it| it.host.group(group).is_some());
        (0..self.nodes.len()).filter(has).collect()
    }

    pub(crate) fn group(&self, n: usize, group: GroupId) -> Group {
        self.running(n).host.group(group).expect("an open group")
    }

    /// Waits until some node leads and says so.
    pub(crate) async fn leader(&self, group: GroupId) -> usize {
        eventually(&format!("{group} has a leader"), || {
            self.up(group).into_iter().find(|&n| self.group(n, group).status().role == Role::Leader)
        })
        .await
    }

    /// Proposes until a leader takes it; commands may be applied twice when a leader is lost.
    pub(crate) async fn apply(&self, group: GroupId, meta: String, body: Payload) -> Done {
        let deadline = Instant::now() + DEADLINE;
        let command = Command { meta: Bytes::from(meta), body, roll_to: None };
        loop {
            let leader = self.leader(group).await;
            match self.group(leader, group).apply(command.clone()).await {
                Ok(done) => return done,
                Err(ProposeError::TooLarge { .. }) => panic!("test commands are small"),
                Err(error) if Instant::now() > deadline => panic!("no leader took {command:?}: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Waits until all open replicas have applied the same commands up to `index`, and compares what they
    /// made of them.
    pub(crate) async fn assert_same(&self, group: GroupId, index: LogIndex) {
        let up = self.up(group);
        for &n in &up {
            let reached = self.group(n, group).wait_applied(index, DEADLINE).await;
            assert!(reached.is_ok(), "node {n} applies {index}: {:?}", self.group(n, group).status());
        }
        let seen: Vec<_> =
            up.iter().map(|&n| self.ledger(n, group)).map(|it| (it.count(), it.digest())).collect();
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "replicas of {group} differ: {seen:?}");
    }

    pub(crate) async fn stop(mut self) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].running.is_some() {
                self.stop_node(n).await;
            }
        }
    }
}

pub(crate) fn body(seed: u64, bytes: usize) -> Payload {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&next());
    }
    data.truncate(bytes);
    Payload::checksummed(Bytes::from(data))
}

/// Asks again every few milliseconds until there is an answer.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
