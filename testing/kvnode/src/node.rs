use crate::frame::{Answer, GroupFacts, NodeFacts, Request};
use crate::lane::{Lane, LaneOptions, QUEUE_COUNT_MAX, Queued, Work, write_failed};
use crate::prefixed::Prefixed;
use crate::session::{Caller, serve};
use crate::{Args, DbPer};
use anyhow::Context;
use bytes::Bytes;
use disk::RealDisk;
use diskhooks::Syncs;
use kv::{KvMachine, check_ops};
use raft::{AddressBook, Command, Group, GroupSpec, GroupStart, HostOptions, Member, RaftHost, Role};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use statedb::{Db, DbOptions, Tables};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tonic::service::RoutesBuilder;
use types::{GroupId, LogIndex, NodeId, OwnerId, Payload, ReplicaId};

const CLUSTER: &str = "kv";
/// The time that clients may take to hear that the process stops: above what one of them may take to leave,
/// and what the last answers take.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// A running node.
pub struct Node {
    raft_address: SocketAddr,
    client_address: SocketAddr,
    host: RaftHost,
    stop_serving: oneshot::Sender<()>,
    raft_server: JoinHandle<()>,
    clients: JoinHandle<()>,
    stop_clients: watch::Sender<bool>,
    lanes: JoinSet<()>,
    served: Arc<Served>,
}

/// The parts of a node that its sessions need.
pub(crate) struct Served {
    groups: Vec<ServedGroup>,
    syncs: Syncs,
    /// Proposals and transfers, which go past the lanes.
    tasks: Mutex<JoinSet<()>>,
}

struct ServedGroup {
    number: u32,
    group: Group,
    lane: mpsc::Sender<Queued>,
}

/// The id of a metadata group, which may be reset by force when its majority is lost.
fn group_id(number: u32) -> GroupId {
    GroupId::om(u64::from(number))
}

/// The replica of a group on a node.
pub fn replica_id(number: u32, node: u64) -> ReplicaId {
    ReplicaId(u64::from(number) * 100 + node)
}

impl Node {
    pub async fn start(args: Args) -> anyhow::Result<Node> {
        let raft = TcpListener::bind(args.raft).await.with_context(|| format!("bind {}", args.raft))?;
        let clients =
            TcpListener::bind(args.client).await.with_context(|| format!("bind {}", args.client))?;
        let (raft_address, client_address) = (raft.local_addr()?, clients.local_addr()?);

        let addresses = AddressBook::default();
        for (node, address) in &args.peers {
            addresses.set(NodeId(*node), address.clone());
        }
        let mut options = HostOptions::default();
        options.window_bytes = args.window_bytes.unwrap_or(options.window_bytes);
        let host = RaftHost::new(options, addresses);
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        let (stop_serving, stopped) = oneshot::channel::<()>();
        // Whether the sender spoke or was dropped, the node stops.
        let raft_server = tokio::spawn(rpc::serve(raft, routes.routes(), async { drop(stopped.await) }));

        let mut lanes = JoinSet::new();
        let served = Arc::new(open_groups(&args, &host, &mut lanes).await?);
        let (stop_clients, stop) = watch::channel(false);
        let clients = tokio::spawn(accept(clients, served.clone(), stop));
        Ok(Node {
            raft_address,
            client_address,
            host,
            stop_serving,
            raft_server,
            clients,
            stop_clients,
            lanes,
            served,
        })
    }

    pub fn raft_address(&self) -> SocketAddr {
        self.raft_address
    }

    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// Hands the node's groups over and closes them; what clients ask meanwhile is answered with the new
    /// leader. Then they hear goodbye: each knows of all it asked whether it was taken.
    pub async fn stop(mut self) {
        self.host.shutdown().await;
        self.stop_clients.send_replace(true);
        if tokio::time::timeout(GOODBYE_MAX, &mut self.clients).await.is_err() {
            self.clients.abort();
            let _ = self.clients.await;
        }
        let mut tasks = std::mem::take(&mut *self.served.tasks.lock().expect("no holder panics"));
        tasks.shutdown().await;
        drop(self.served);
        while self.lanes.join_next().await.is_some() {}
        drop(self.stop_serving);
        self.raft_server.abort();
        let _ = self.raft_server.await;
    }
}

async fn open_groups(args: &Args, host: &RaftHost, lanes: &mut JoinSet<()>) -> anyhow::Result<Served> {
    let real = RealDisk::open(&args.data.join("disk"), u128::from(args.node)).context("open the disk")?;
    let syncs = Syncs::default();
    let options = LogSpaceOptions { reserve_bytes: args.reserve_bytes, ..LogSpaceOptions::default() };
    let space = LogSpace::new(Arc::new(syncs.of(Arc::new(real))), options);
    let open_db = |name: &str, options: DbOptions| -> anyhow::Result<Arc<dyn Tables>> {
        Ok(Arc::new(Db::open(&args.data.join(name), &options).with_context(|| format!("open {name}"))?))
    };
    let shared = match args.db {
        DbPer::Node => {
            Some(open_db("db", DbOptions { write_buffer_bytes: 64 << 20, ..DbOptions::default() })?)
        }
        DbPer::Group => None,
    };
    let lane_options = LaneOptions {
        rounds: args.rounds.max(1),
        merge: args.merge.max(1),
        reads_apart: args.reads_apart,
        planted_early_ack: args.planted_early_ack,
    };
    let mut groups = Vec::new();
    for number in 1..=args.groups {
        let tables: Arc<dyn Tables> = match &shared {
            Some(db) => Arc::new(Prefixed::new(db.clone(), number)),
            None => open_db(&format!("db-{number}"), DbOptions::default())?,
        };
        let machine = KvMachine::new(tables.clone(), None);
        let group = host.open(group_spec(args, number), &space, log_spec(number), machine).await?;
        let (lane, queue) = mpsc::channel(QUEUE_COUNT_MAX);
        lanes.spawn(Lane { group: group.clone(), tables, options: lane_options }.run(queue));
        groups.push(ServedGroup { number, group, lane });
    }
    Ok(Served { groups, syncs, tasks: Mutex::default() })
}

fn group_spec(args: &Args, number: u32) -> GroupSpec {
    let members = args.peers.iter().map(|(node, address)| Member {
        replica: replica_id(number, *node),
        node: NodeId(*node),
        address: address.clone(),
    });
    let first_members: Vec<Member> = members.collect();
    // Each node leads its share of the groups at first.
    let favoured = first_members.get((number as usize - 1) % first_members.len().max(1));
    let campaign = favoured.is_some_and(|member| member.node == args.id());
    GroupSpec {
        cluster: CLUSTER.to_owned(),
        group: group_id(number),
        replica: replica_id(number, args.node),
        timing: args.timing,
        start: GroupStart::First(first_members),
        campaign,
        lease_reads: false,
        snapshots: None,
    }
}

/// The place of a group's log on the node's disk.
fn log_spec(number: u32) -> LogSpec {
    let group = group_id(number);
    LogSpec {
        log: group.to_u64(),
        dir: format!("groups/{group}"),
        owners_dir: "containers".to_owned(),
        first_owner: OwnerId(u64::from(number)),
    }
}

/// Takes connections until `stop` is true, and ends when all of them have; dropping it ends them at once.
async fn accept(listener: TcpListener, served: Arc<Served>, mut stop: watch::Receiver<bool>) {
    let mut sessions = JoinSet::new();
    let for_sessions = stop.clone();
    loop {
        tokio::select! {
            // Err: the node is gone, and stops thereby.
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.accept() => {
                if let Ok((socket, _)) = accepted {
                    // Without this the answers are only late: small ones would wait for larger ones.
                    let _ = socket.set_nodelay(true);
                    sessions.spawn(serve(socket, served.clone(), for_sessions.clone()));
                }
            }
            Some(_) = sessions.join_next() => {}
        }
    }
    drop(listener);
    while sessions.join_next().await.is_some() {}
}

impl Served {
    fn group(&self, number: u32) -> Option<&ServedGroup> {
        self.groups.get((number as usize).checked_sub(1)?)
    }

    pub(crate) fn take(self: &Arc<Self>, number: u32, request: Request, caller: Caller) {
        if request == Request::Facts {
            return caller.answer(Answer::Done(self.facts().encode()));
        }
        let Some(served) = self.group(number) else {
            return caller.answer(Answer::Invalid(format!("there is no group {number}")));
        };
        match request {
            Request::Facts => {}
            Request::Ops(ops) => match check_ops(&ops) {
                Ok(count) => served.queue(Queued { caller, work: Work::Ops { ops, count } }),
                Err(error) => caller.answer(Answer::Invalid(error.to_string())),
            },
            Request::Read(keys) => served.queue(Queued { caller, work: Work::Read(keys) }),
            Request::Put(body) => {
                let group = served.group.clone();
                self.spawn(async move { caller.answer(put(group, body).await) });
            }
            Request::Transfer(to) => {
                let group = served.group.clone();
                let to = replica_id(number, to.0);
                self.spawn(async move {
                    let answer = match group.transfer_leader(to).await {
                        Ok(()) => Answer::Done(Bytes::new()),
                        Err(error) => Answer::Unavailable(format!("{error:#}")),
                    };
                    caller.answer(answer);
                });
            }
        }
    }

    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().expect("no holder panics");
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn facts(&self) -> NodeFacts {
        let facts = |served: &ServedGroup| {
            let status = served.group.status();
            let count = |index: Option<LogIndex>| index.map_or(0, |index| index.0 + 1);
            GroupFacts {
                group: served.number,
                is_leader: status.role == Role::Leader,
                term: status.term.0,
                leader: status.leader.map_or(0, |leader| leader.node.0),
                last: count(status.last),
                committed: count(status.committed),
                applied: count(status.applied),
                has_failed: status.failure.is_some(),
                is_removed: status.is_removed,
            }
        };
        NodeFacts { syncs: self.syncs.count(), groups: self.groups.iter().map(facts).collect() }
    }
}

impl ServedGroup {
    fn queue(&self, queued: Queued) {
        use mpsc::error::TrySendError;
        match self.lane.try_send(queued) {
            Ok(()) => {}
            Err(TrySendError::Full(queued)) => queued.caller.answer(Answer::Busy),
            Err(TrySendError::Closed(queued)) => {
                queued.caller.answer(Answer::Unavailable("the node stops".to_owned()));
            }
        }
    }
}

/// Replicates bytes, whose checksums are made here, where they enter.
async fn put(group: Group, body: Bytes) -> Answer {
    let command = Command { body: Payload::checksummed(body), ..Command::default() };
    match group.apply(command).await {
        Ok(_) => Answer::Done(Bytes::new()),
        Err(error) => write_failed(error),
    }
}
