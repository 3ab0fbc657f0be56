use crate::binary;
use crate::s3::S3;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY};
use tokio::task::JoinSet;

/// Writers that put objects of many sizes until told to stop, each key once, and remember what was
/// acknowledged.
pub(crate) struct Writers {
    tasks: JoinSet<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    stop: AtomicBool,
    acknowledged: Mutex<Vec<u64>>,
    /// The time of each acknowledgement, and how long the write took.
    acks: Mutex<Vec<(Instant, Duration)>>,
    errors: Mutex<Vec<String>>,
}

const WRITERS: usize = 6;
/// The rest of a writer after each object: other tests run beside it, and most of a drill is waiting.
pub(crate) const REST: Duration = Duration::from_millis(600);

/// The time within which all that was killed works again, on a machine that does other things too.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// Sizes that end in each interesting place: nothing, one chunk, a 64 KiB edge, several chunks.
const SIZES: [usize; 8] = [0, 1, 4096, 65_536, 65_537, 300_000, 1 << 20, 2_200_000];

const BODY_BLOCK_BYTES: usize = 4096;

/// The bytes of object `n`, the same whenever they are asked for.
fn body(n: u64) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Blocks that tell of their object and of their place in it, copied: nothing here is optimized.
    let mut block: Vec<u8> = (0..BODY_BLOCK_BYTES / 8).flat_map(|_| next().to_le_bytes()).collect();
    let bytes = SIZES[n as usize % SIZES.len()];
    let mut body = Vec::with_capacity(bytes);
    while body.len() < bytes {
        block[8..16].copy_from_slice(&body.len().to_le_bytes());
        body.extend_from_slice(&block[..BODY_BLOCK_BYTES.min(bytes - body.len())]);
    }
    body
}

fn key(n: u64) -> String {
    format!("drill/{n:06}")
}

impl Writers {
    pub(crate) fn start(s3: &S3, first: u64) -> Writers {
        Writers::paced(s3, first, REST)
    }

    /// Starts writers of which each rests for so long after each object.
    pub(crate) fn paced(s3: &S3, first: u64, rest: Duration) -> Writers {
        let shared = Arc::new(Shared { next: AtomicU64::new(first), ..Shared::default() });
        let mut tasks = JoinSet::new();
        for _ in 0..WRITERS {
            let (s3, shared) = (s3.clone(), shared.clone());
            tasks.spawn(async move {
                while !shared.stop.load(Ordering::Relaxed) {
                    let n = shared.next.fetch_add(1, Ordering::Relaxed);
                    let begun = Instant::now();
                    match s3.put(&key(n), body(n)).await {
                        Ok(()) => {
                            shared.acknowledged.lock().unwrap().push(n);
                            shared.acks.lock().unwrap().push((Instant::now(), begun.elapsed()));
                        }
                        Err(error) => shared.errors.lock().unwrap().push(format!("put {n}: {error}")),
                    }
                    tokio::time::sleep(rest).await;
                }
            });
        }
        Writers { tasks, shared }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().unwrap().len()
    }

    /// Waits until `more` further objects are acknowledged.
    pub(crate) async fn progress(&self, more: usize) {
        let goal = self.acknowledged() + more;
        let give_up = Instant::now() + Duration::from_secs(120);
        while self.acknowledged() < goal {
            assert!(
                Instant::now() < give_up,
                "writers stand still at {} of {goal}; errors: {:?}",
                self.acknowledged(),
                self.shared.errors.lock().unwrap()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The longest time in which nothing was acknowledged to any of them, from that moment until the last
    /// acknowledgement.
    pub(crate) fn longest_silence_since(&self, from: Instant) -> Duration {
        let acks = self.shared.acks.lock().unwrap();
        let mut at: Vec<Instant> = acks.iter().map(|(at, _)| *at).filter(|at| *at > from).collect();
        at.push(from);
        at.sort_unstable();
        at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// The longest that one took, of those acknowledged after that moment.
    pub(crate) fn slowest_since(&self, from: Instant) -> Duration {
        let acks = self.shared.acks.lock().unwrap();
        acks.iter().filter(|(at, _)| *at > from).map(|(_, took)| *took).max().unwrap_or_default()
    }

    pub(crate) async fn stop(mut self) -> Written {
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        self.written()
    }

    /// The objects that stand so far, with the writers still running (or cut off).
    pub(crate) fn written(&self) -> Written {
        Written {
            acknowledged: self.shared.acknowledged.lock().unwrap().clone(),
            errors: self.shared.errors.lock().unwrap().clone(),
            next: self.shared.next.load(Ordering::Relaxed),
        }
    }
}

/// Readers that get objects until told to stop, one after the other, and remember how long each took.
pub(crate) struct Readers {
    tasks: JoinSet<()>,
    shared: Arc<SharedReads>,
}

#[derive(Default)]
struct SharedReads {
    next: AtomicU64,
    stop: AtomicBool,
    /// The time when each read began, and how long it took.
    reads: Mutex<Vec<(Instant, Duration)>>,
    errors: Mutex<Vec<String>>,
}

const READERS: usize = 6;

impl Readers {
    pub(crate) fn start(s3: &S3, objects: &[u64]) -> Readers {
        let shared = Arc::new(SharedReads::default());
        let mut tasks = JoinSet::new();
        for _ in 0..READERS {
            let (s3, shared, objects) = (s3.clone(), shared.clone(), objects.to_vec());
            tasks.spawn(async move {
                while !shared.stop.load(Ordering::Relaxed) {
                    let n = objects[shared.next.fetch_add(1, Ordering::Relaxed) as usize % objects.len()];
                    let begun = Instant::now();
                    let found = s3.get(&key(n)).await;
                    shared.reads.lock().unwrap().push((begun, begun.elapsed()));
                    match found {
                        Ok(Some(found)) if found == body(n) => {}
                        Ok(found) => {
                            let bytes = found.map(|found| found.len());
                            shared.errors.lock().unwrap().push(format!("get {n}: {bytes:?} other bytes"));
                        }
                        Err(error) => shared.errors.lock().unwrap().push(format!("get {n}: {error}")),
                    }
                }
            });
        }
        Readers { tasks, shared }
    }

    pub(crate) async fn stop(mut self) -> Reads {
        self.shared.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let reads = self.shared.reads.lock().unwrap().clone();
        Reads { reads, errors: self.shared.errors.lock().unwrap().clone() }
    }
}

pub(crate) struct Reads {
    reads: Vec<(Instant, Duration)>,
    pub(crate) errors: Vec<String>,
}

impl Reads {
    /// The times of the reads that began within `begun`, the shortest first.
    pub(crate) fn took(&self, begun: std::ops::Range<Instant>) -> Vec<Duration> {
        let begun = self.reads.iter().filter(|(at, _)| begun.contains(at));
        let mut took: Vec<Duration> = begun.map(|(_, took)| *took).collect();
        took.sort_unstable();
        took
    }
}

pub(crate) struct Written {
    pub(crate) acknowledged: Vec<u64>,
    pub(crate) errors: Vec<String>,
    pub(crate) next: u64,
}

/// Checks that all that was acknowledged can be read at once.
pub(crate) async fn assert_all_there(s3: &S3, acknowledged: &[u64]) {
    assert_all_read(s3, acknowledged, Duration::ZERO).await;
}

/// Checks, after everything has started anew, when pipelines still elect, that all that was acknowledged can
/// be read soon, and until then nothing else is.
pub(crate) async fn assert_all_come_back(s3: &S3, acknowledged: &[u64]) {
    assert_all_read(s3, acknowledged, BACK_WITHIN).await;
}

/// Reads objects and puts them again, as somebody does who is about to give up what they are in.
pub(crate) async fn put_again(s3: &S3, acknowledged: &[u64]) {
    for &n in acknowledged {
        let found = s3.get(&key(n)).await.unwrap().expect("it is there");
        s3.put(&key(n), found).await.unwrap();
    }
}

/// Checks, while members are away for good or not, that what cannot be read says so, and what can is right.
/// Returns the number of reads that were refused.
pub(crate) async fn assert_none_wrong(s3: &S3, acknowledged: &[u64]) -> usize {
    let mut reads = JoinSet::new();
    for &n in acknowledged {
        let s3 = s3.clone();
        reads.spawn(async move { (n, s3.get(&key(n)).await) });
    }
    let mut refused = 0;
    for (n, found) in reads.join_all().await {
        match found {
            Ok(Some(found)) => assert!(found == body(n), "object {n} has bytes that nobody wrote"),
            Ok(None) => panic!("object {n} was acknowledged and is gone"),
            Err(_) => refused += 1,
        }
    }
    refused
}

async fn assert_all_read(s3: &S3, acknowledged: &[u64], within: Duration) {
    let give_up = Instant::now() + within;
    for &n in acknowledged {
        let found = read(s3, n, give_up).await;
        let found = found.unwrap_or_else(|| panic!("object {n} was acknowledged and is gone"));
        assert!(
            found == body(n),
            "object {n} has {} other bytes than the {} that were acknowledged",
            found.len(),
            body(n).len()
        );
    }
}

/// `None`: it is not there. What cannot be read is tried again until `give_up`.
async fn read(s3: &S3, n: u64, give_up: Instant) -> Option<Vec<u8>> {
    loop {
        match s3.get(&key(n)).await {
            Ok(found) => return found,
            Err(error) => assert!(Instant::now() < give_up, "object {n} cannot be read: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Checks, after everything has started anew, that a key that was never acknowledged has no other bytes than
/// its own, if it exists.
async fn assert_none_mixed(s3: &S3, keys: impl Iterator<Item = u64>) {
    let give_up = Instant::now() + BACK_WITHIN;
    for n in keys {
        if let Some(found) = read(s3, n, give_up).await {
            assert!(found == body(n), "object {n} has bytes that nobody wrote");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_datanode_is_not_noticed_by_clients() {
    let mut cluster = Cluster::start(binary(), &ClusterOptions::default());
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
    s3.create_bucket().await.unwrap();
    let writers = Writers::start(&s3, 0);
    writers.progress(20).await;

    // Each datanode in turn, so that leaders are hit wherever they are.
    for at in 0..cluster.datanodes.len() {
        cluster.datanodes[at].kill9();
        writers.progress(30).await;
        let so_far = writers.written();
        assert_eq!(so_far.errors, Vec::<String>::new(), "with datanode {} dead", at + 1);
        let recent = so_far.acknowledged.len().saturating_sub(50);
        assert_all_there(&s3, &so_far.acknowledged[recent..]).await;
        cluster.datanodes[at].start_again();
        wait_for_three_healthy(&cluster).await;
    }

    writers.progress(20).await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new());
    assert_all_there(&s3, &written.acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_killed_at_once_loses_nothing_acknowledged() {
    let mut cluster = Cluster::start(binary(), &ClusterOptions::default());
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
    s3.create_bucket().await.unwrap();
    let mut acknowledged = Vec::new();
    let mut next = 0;
    for round in 0..3 {
        let writers = Writers::start(&s3, next);
        writers.progress(25).await;
        cluster.kill9_all();
        let written = writers.stop().await;
        acknowledged.extend(&written.acknowledged);

        let started = Instant::now();
        cluster.start_all_again();
        println!("round {round}: {} acknowledged, back after {:?}", acknowledged.len(), started.elapsed());
        assert_all_come_back(&s3, &acknowledged).await;
        assert_none_mixed(&s3, next..written.next).await;
        next = written.next;
    }
    s3.put(&key(next), body(next)).await.expect("the cluster takes writes again");
}

/// Pipelines, replicas and containers have the same numbers in every cluster, and a node may get a port that
/// another cluster's node had: only the cluster's id tells them apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datanode_refuses_requests_meant_for_another_cluster() {
    use proto::datanode::datanode_client::DatanodeClient;
    use proto::datanode::{ReadRequest, WriteChunk};
    let cluster = Cluster::start(binary(), &ClusterOptions::default());
    let datanodes = crate::commands::admin_json(&cluster.scm_address, &["datanode", "list"]);
    let address = datanodes[0]["address"].as_str().unwrap();
    let mut datanode = DatanodeClient::connect(format!("http://{address}")).await.unwrap();
    for claimed in ["", "another"] {
        let read = proto::in_cluster(tonic::Request::new(ReadRequest::default()), claimed);
        let refused = proto::Failure::from(datanode.read(read).await.unwrap_err());
        assert_eq!(refused.code, proto::Code::WrongCluster, "{refused}");
        let chunks = tokio_stream::iter([WriteChunk::default()]);
        let write = proto::in_cluster(tonic::Request::new(chunks), claimed);
        let refused = proto::Failure::from(datanode.write(write).await.unwrap_err());
        assert_eq!(refused.code, proto::Code::WrongCluster, "{refused}");
    }
}

/// The replica that was away must have caught up before the next one goes: two of three are a quorum, one is
/// not.
async fn wait_for_three_healthy(cluster: &Cluster) {
    let give_up = Instant::now() + Duration::from_secs(60);
    loop {
        let listed = crate::commands::admin_json(&cluster.scm_address, &["datanode", "list"]);
        let datanodes = listed.as_array().expect("a list");
        if datanodes.len() == 3 && datanodes.iter().all(|datanode| datanode["state"] == "healthy") {
            return;
        }
        assert!(Instant::now() < give_up, "datanodes stay unhealthy: {listed}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
