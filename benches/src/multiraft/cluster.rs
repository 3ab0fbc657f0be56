use super::network::{LATENCY, Nic};
use super::time::SLOWED;
use bytes::Bytes;
use disk::sim::{DeviceModel, Keeping, SimDisk, SimOptions};
use raftlog::{Entry, Log, LogSpace, LogSpaceOptions, LogSpec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use types::{LogId, LogIndex, OwnerId, Payload, Term, crc_chunks};

pub const NODES: usize = 3;
pub const DISKS_PER_NODE: usize = 12;

/// The bytes of one log that may be under way, from their proposal until all three replicas are durable. Two
/// logs on a disk are below what a disk lets queue (256 MiB).
const UNDER_WAY_BYTES_MAX: usize = 96 << 20;

/// Three nodes and their disks, and Raft groups of which only what costs time is here: the leader appends and
/// sends to both followers at once, they append, two of three are a quorum. Leaders are spread over the nodes
/// and never change.
pub(super) struct Cluster {
    disks: Vec<SimDisk>,
    nics: Vec<Arc<Nic>>,
    groups: Vec<Group>,
    /// Zeros, shared by all entries: what is written is not kept, so that memory does not grow with it.
    zeros: Bytes,
}

struct Group {
    leader: usize,
    leader_log: Log,
    /// The nodes of the followers, and the way to the log there.
    followers: Vec<(usize, mpsc::UnboundedSender<Replicated>)>,
    next: AtomicU64,
    under_way: Arc<Semaphore>,
}

/// An entry on its way to a follower.
struct Replicated {
    arrives: Instant,
    entry: Entry,
    write: Arc<Write>,
}

/// An entry that is not yet durable everywhere.
struct Write {
    state: Mutex<WriteState>,
}

struct WriteState {
    durable: usize,
    committed: Option<oneshot::Sender<()>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Write {
    /// Notes that one more replica has the entry, as its leader knows; two are a quorum.
    fn durable_on_one_more(&self) {
        let mut state = self.state.lock().expect("no holder panics");
        state.durable += 1;
        if state.durable == 2
            && let Some(committed) = state.committed.take()
        {
            let _ = committed.send(()); // the writer waits for it
        }
        if state.durable == NODES {
            state.permit = None;
        }
    }
}

impl Cluster {
    pub(super) async fn start(logs: usize, seed: u64) -> Arc<Cluster> {
        let nics: Vec<_> = (0..NODES).map(|_| Arc::new(Nic::new())).collect();
        let mut disks = Vec::new();
        for number in 0..NODES * DISKS_PER_NODE {
            disks.push(SimDisk::new(SimOptions {
                seed: seed.wrapping_add(number as u64),
                polls_max: 0,
                device: Some(DeviceModel::HDD.slowed_by(SLOWED)),
                keeping: Keeping::Lengths,
                ..SimOptions::default()
            }));
        }
        let spaces: Vec<_> = disks
            .iter()
            .map(|disk| LogSpace::new(Arc::new(disk.clone()), LogSpaceOptions::default()))
            .collect();
        let mut groups = Vec::new();
        for number in 0..logs {
            groups.push(Group::open(number, &spaces).await);
        }
        Arc::new(Cluster { disks, nics, groups, zeros: Bytes::from(vec![0; 1 << 20]) })
    }

    pub(super) fn logs(&self) -> usize {
        self.groups.len()
    }

    /// Writes one entry, from the moment its writer begins to send it until it is committed.
    pub(super) async fn write(&self, log: usize, bytes: u64) {
        let group = &self.groups[log];
        let permit = group.under_way.clone().acquire_many_owned(bytes as u32).await; // a chunk is 1 MiB at most
        let permit = permit.expect("the semaphore is never closed");
        sleep_until(self.nics[group.leader].receive(bytes)).await;
        let (sender, committed) = oneshot::channel();
        let state = WriteState { durable: 0, committed: Some(sender), permit: Some(permit) };
        self.propose(group, bytes, Arc::new(Write { state: Mutex::new(state) }));
        committed.await.expect("every entry is committed");
    }

    fn propose(&self, group: &Group, bytes: u64, write: Arc<Write>) {
        let index = LogIndex(group.next.fetch_add(1, Ordering::Relaxed));
        // The checksums are not looked at: nobody reads these entries.
        let body = Payload::unverified(
            self.zeros.slice(..bytes as usize),
            vec![0; crc_chunks(bytes as usize)].into(),
        );
        let body = body.expect("as many sums as the length asks for");
        let entry =
            Entry { id: LogId { term: Term(1), index }, kind: 2, meta: Bytes::new(), body, roll_to: None };
        for (node, follower) in &group.followers {
            let arrives = self.nics[group.leader].send(&self.nics[*node], bytes);
            let replicated = Replicated { arrives, entry: entry.clone(), write: write.clone() };
            follower.send(replicated).expect("followers live as long as the cluster");
        }
        append(&group.leader_log, entry, write, Duration::ZERO);
    }

    /// The time for which each disk was at work, node after node.
    pub(super) fn busy(&self) -> Vec<Duration> {
        self.disks.iter().map(SimDisk::busy).collect()
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.disks.iter().map(SimDisk::bytes_written).sum()
    }
}

impl Group {
    /// Creates the replicas of a group, each on its node's disk for it.
    async fn open(number: usize, spaces: &[Arc<LogSpace>]) -> Group {
        let leader = number % NODES;
        let mut leader_log = None;
        let mut followers = Vec::new();
        for node in 0..NODES {
            let spec = LogSpec {
                log: number as u64 + 1,
                dir: format!("groups/{number}"),
                owners_dir: "containers".to_owned(),
                first_owner: OwnerId(number as u64 + 1),
            };
            let space = &spaces[node * DISKS_PER_NODE + number % DISKS_PER_NODE];
            let log = space.open(spec).await.expect("a new log opens");
            if node == leader {
                leader_log = Some(log);
            } else {
                let (sender, entries) = mpsc::unbounded_channel();
                // The task ends when the cluster, and with it the sender, is gone.
                tokio::spawn(follow(log, entries));
                followers.push((node, sender));
            }
        }
        Group {
            leader,
            leader_log: leader_log.expect("the leader is one of the nodes"),
            followers,
            next: AtomicU64::new(1),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_BYTES_MAX)),
        }
    }
}

async fn follow(log: Log, mut entries: mpsc::UnboundedReceiver<Replicated>) {
    while let Some(Replicated { arrives, entry, write }) = entries.recv().await {
        sleep_until(arrives).await;
        append(&log, entry, write, LATENCY);
    }
}

/// Appends, and tells the leader when it is durable; that takes `reply`.
fn append(log: &Log, entry: Entry, write: Arc<Write>, reply: Duration) {
    let token = log.append(vec![entry]).expect("the simulated disk takes every append");
    token.on_durable(move |outcome| {
        if outcome.is_err() {
            return; // the simulation has ended under it; a disk that failed would leave the writer without an answer
        }
        if reply.is_zero() {
            return write.durable_on_one_more();
        }
        // The task ends after one sleep.
        tokio::spawn(async move {
            sleep(reply).await;
            write.durable_on_one_more();
        });
    });
}
