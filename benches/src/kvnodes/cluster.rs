use kvnode::{Client, ClientOptions};
use raft::AddressBook;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use testkit::{Process, Ready};
use tokio::time::Instant;
use types::NodeId;

const NODES: u64 = 3;
/// The units in which the kernel counts CPU time, in a second (USER_HZ).
const TICKS_PER_SECOND: u32 = 100;
const START_MAX: Duration = Duration::from_secs(30);
/// The time for a write: longer than any of a bench takes.
const WRITE_MAX: Duration = Duration::from_secs(60);

/// Three nodes on free ports of this machine, in a temporary directory.
pub struct KvCluster {
    nodes: Vec<Process>,
    addresses: AddressBook,
    groups: u32,
    // After the processes, so that they end before their directories go.
    dir: TempDir,
}

/// The use of the three nodes so far, together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub cpu: Duration,
    pub syncs: u64,
    pub device_bytes: u64,
}

impl KvCluster {
    /// Starts the nodes. `more`: further arguments of all.
    pub async fn start(groups: u32, more: &[String]) -> KvCluster {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let addresses = AddressBook::default();
        let peers: Vec<String> =
            free_ports().iter().zip(1..).map(|(port, n)| format!("{n}=127.0.0.1:{port}")).collect();
        let mut nodes = Vec::new();
        for n in 1..=NODES {
            let line = format!(
                "--node {n} --groups {groups} --peers {} --raft {} --data {}/node{n}",
                peers.join(","),
                peers[n as usize - 1].split_once('=').expect("made above").1,
                dir.path().display(),
            );
            let args = line.split_whitespace().map(str::to_owned).chain(more.iter().cloned()).collect();
            let (node, ready): (Process, Ready) =
                Process::start(&kvnode_binary(), dir.path(), &format!("node{n}"), args);
            addresses.set(NodeId(n), ready["CLIENT"].clone());
            nodes.push(node);
        }
        let cluster = KvCluster { nodes, addresses, groups, dir };
        cluster.wait_for_leaders().await;
        cluster
    }

    pub fn client(&self, batching: bool) -> Client {
        let nodes: Vec<_> = (1..=NODES).map(NodeId).collect();
        let options = ClientOptions { batching, within: WRITE_MAX };
        Client::new(self.addresses.clone(), &nodes, self.groups, options)
    }

    pub fn groups(&self) -> u32 {
        self.groups
    }

    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(Process::pid).collect()
    }

    pub async fn counters(&self) -> Counters {
        let client = self.client(false);
        let mut counters = Counters::default();
        for (node, n) in self.nodes.iter().zip(1..) {
            counters.cpu += cpu_of(node.pid());
            counters.device_bytes += node.device_bytes_written();
            counters.syncs += client.facts(NodeId(n)).await.expect("a node tells about itself").syncs;
        }
        counters
    }

    async fn wait_for_leaders(&self) {
        let client = self.client(false);
        let give_up = Instant::now() + START_MAX;
        for group in 1..=self.groups {
            while client.read(group, b"nothing").await.is_err() {
                assert!(Instant::now() < give_up, "group {group} has no leader");
            }
        }
    }
}

/// Ports that were taken and let go again: another process could come in between, and the node would say so.
fn free_ports() -> Vec<u16> {
    let bound = (0..NODES).map(|_| TcpListener::bind("127.0.0.1:0").expect("bind a free port"));
    let bound: Vec<_> = bound.collect();
    bound.iter().map(|listener| listener.local_addr().expect("a bound address").port()).collect()
}

fn cpu_of(pid: u32) -> Duration {
    let stat =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the kernel tells about a process");
    // The name in parentheses may hold anything; user and system time are fields 14 and 15.
    let after_name = stat.rsplit_once(')').expect("stat names the program").1;
    let ticks = after_name.split_whitespace().skip(11).take(2);
    let ticks: u32 = ticks.map(|ticks| ticks.parse::<u32>().expect("ticks are a number")).sum();
    Duration::from_secs(1) * ticks / TICKS_PER_SECOND
}

fn kvnode_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("KVNODE_BIN") {
        return path.into();
    }
    let bench = std::env::current_exe().expect("know where this bench is");
    let profile_dir = bench.ancestors().nth(2).expect("target/<profile>/deps/<bench>");
    let binary = profile_dir.join("kvnode");
    assert!(binary.exists(), "no {}: run this through `./dev bench`, which builds it", binary.display());
    binary
}
