use crate::idle::Mode;
use anyhow::Context;
use bytes::Bytes;
use disk::RealDisk;
use futures::future::join_all;
use raft::{
    AddressBook, Applied, Command, Committed, Group, GroupSpec, GroupStart, HostOptions, Member, RaftHost,
    Role, StateMachine, Timing,
};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use rpc::{Channel, Connector, TcpConnector};
use serde_json::json;
use statedb::{Db, DbOptions};
use std::io::{BufRead, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::service::RoutesBuilder;
use tower::ServiceExt;
use types::{GroupId, NodeId, OwnerId, PipelineId, ReplicaId};

/// The start of one node: its own arguments, written and read here.
#[derive(Clone, Debug)]
pub struct NodePlan {
    pub(super) mode: Mode,
    pub(super) node: usize,
    pub(super) ports: Vec<u16>,
    pub(super) groups: u64,
    pub(super) dir: PathBuf,
}

impl NodePlan {
    /// The plan in a node's arguments; `None` for other arguments.
    pub fn of(arguments: &[String]) -> Option<NodePlan> {
        let [flag, mode, node, ports, groups, dir] = arguments else { return None };
        (flag == "--node").then(|| NodePlan {
            mode: Mode::of(mode),
            node: node.parse().expect("a node's number"),
            ports: ports.split(',').map(|port| port.parse().expect("a port")).collect(),
            groups: groups.parse().expect("a count"),
            dir: dir.into(),
        })
    }

    pub(super) fn arguments(&self) -> Vec<String> {
        let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
        let dir = self.dir.to_str().expect("temporary directories have plain names");
        let (mode, node, groups) = (self.mode.name(), self.node.to_string(), self.groups.to_string());
        ["--node", mode, &node, &ports.join(","), &groups, dir].map(str::to_owned).into()
    }
}

/// Serves until its input ends, and does what its lines say: `open first`, `open rest`, `status`, `touch`.
pub fn run_node(plan: NodePlan) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    let node = runtime.block_on(Node::start(plan)).expect("start a node");
    answer("started");
    for line in std::io::stdin().lock().lines() {
        match line.expect("lines of text").as_str() {
            "open first" => runtime.block_on(node.open_groups(1..=1)).expect("open a group"),
            "open rest" => runtime.block_on(node.open_groups(2..=node.plan.groups)).expect("open groups"),
            "status" => answer(&node.status()),
            "touch" => answer(&runtime.block_on(node.touch())),
            other => panic!("what is `{other}`?"),
        }
    }
}

fn answer(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("the bench listens");
}

struct Node {
    plan: NodePlan,
    host: RaftHost,
    space: Arc<LogSpace>,
    /// The database of all groups, as a datanode has one for each disk.
    db: Arc<Db>,
    requests: Arc<AtomicU64>,
}

impl Node {
    async fn start(plan: NodePlan) -> anyhow::Result<Node> {
        let id = plan.node as u128 + 1;
        let disk = RealDisk::open(&plan.dir.join("disk"), id).context("open a disk")?;
        // The logs are many, and share a part of one disk.
        let options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() };
        let space = LogSpace::new(Arc::new(disk), options);
        let db = Arc::new(Db::open(&plan.dir.join("db"), &DbOptions::default())?);
        let requests = Arc::new(AtomicU64::new(0));
        let connector = Arc::new(CountingConnector { requests: requests.clone() });
        let host = RaftHost::over(connector, host_options(plan.mode), AddressBook::default());
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", plan.ports[plan.node])).await?;
        // The server ends with the process.
        tokio::spawn(rpc::serve(listener, routes.routes(), std::future::pending()));
        Ok(Node { plan, host, space, db, requests })
    }

    async fn open_groups(&self, numbers: RangeInclusive<u64>) -> anyhow::Result<()> {
        for number in numbers {
            self.open_group(number).await?;
        }
        answer("opened");
        Ok(())
    }

    async fn open_group(&self, number: u64) -> anyhow::Result<()> {
        let group = GroupId::pipeline(PipelineId(number));
        let members = self.plan.ports.iter().enumerate().map(|(n, port)| Member {
            replica: ReplicaId(number * 100 + n as u64),
            node: NodeId(n as u64 + 1),
            address: format!("127.0.0.1:{port}"),
        });
        let members: Vec<_> = members.collect();
        let spec = GroupSpec {
            cluster: "idle".to_owned(),
            group,
            replica: members[self.plan.node].replica,
            timing: Timing::PIPELINE,
            start: GroupStart::First(members.clone()),
            snapshots: None,
            lease_reads: false,
            campaign: number % 3 == self.plan.node as u64,
        };
        let log = LogSpec {
            log: group.to_u64(),
            dir: format!("groups/{group}"),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(number),
        };
        let machine = Counter { db: self.db.clone(), key: group.to_u64().to_le_bytes() };
        self.host.open(spec, &self.space, log, machine).await.map(drop).context("open a group")
    }

    fn status(&self) -> String {
        let groups = self.host.groups();
        let count = |is: fn(&Group) -> bool| groups.iter().filter(|group| is(group)).count();
        json!({
            "led": count(|group| group.status().leader.is_some()),
            "leads": count(|group| group.status().role == Role::Leader),
            "dozing": count(|group| group.status().is_dozing),
            "requests": self.requests.load(Ordering::Relaxed),
        })
        .to_string()
    }

    /// Applies a command in every group that this node leads.
    async fn touch(&self) -> String {
        let groups = self.host.groups();
        let led = groups.iter().filter(|group| group.status().role == Role::Leader);
        let touched = join_all(led.map(async |group| {
            let started = Instant::now();
            let command = Command { meta: Bytes::from_static(b"+"), ..Command::default() };
            let applied = group.apply(command).await;
            (started.elapsed(), applied.is_ok())
        }))
        .await;
        let slowest = touched.iter().map(|(elapsed, _)| *elapsed).max().unwrap_or(Duration::ZERO);
        let refused = touched.iter().filter(|(_, is_applied)| !is_applied).count();
        json!({"touched": touched.len(), "refused": refused, "slowest_ms": slowest.as_millis()}).to_string()
    }
}

fn host_options(mode: Mode) -> HostOptions {
    let default = HostOptions::default();
    match mode {
        Mode::Awake => HostOptions { doze_after: None, ..default },
        Mode::Dozing => default,
    }
}

/// Counts requests on their way to other nodes.
struct CountingConnector {
    requests: Arc<AtomicU64>,
}

impl Connector for CountingConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let requests = self.requests.clone();
        let counted = TcpConnector::default().connect(address)?.map_request(move |request| {
            requests.fetch_add(1, Ordering::Relaxed);
            request
        });
        Ok(Channel::new(counted))
    }
}

/// A state machine that keeps how far it has come, and nothing else.
struct Counter {
    db: Arc<Db>,
    key: [u8; 8],
}

impl StateMachine for Counter {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.db.applied(&self.key)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let mut changes = statedb::Changes::default();
        changes.put(self.key, applied.encode());
        statedb::Tables::write(&*self.db, changes)?;
        Ok(vec![Bytes::new(); batch.len()])
    }
}
