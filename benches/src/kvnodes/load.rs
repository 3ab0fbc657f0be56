use super::{Counters, KvCluster};
use bytes::{BufMut, Bytes, BytesMut};
use kv::Op;
use kvnode::{CallError, Client};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The times for which load runs before it counts, and while it does.
#[derive(Clone, Copy)]
pub struct Windows {
    pub warm_up: Duration,
    pub measured: Duration,
}

/// A load of 16-byte keys and values: `write_share` of a hundred operations set, the rest read.
#[derive(Clone, Copy)]
pub struct KvLoad {
    pub outstanding: usize,
    pub batching: bool,
    pub write_share: u64,
}

/// A load of bytes to replicate.
#[derive(Clone)]
pub struct PutLoad {
    pub outstanding: usize,
    pub body: Bytes,
}

/// The measurements of one window.
pub struct Measured {
    pub operations: u64,
    pub failed: u64,
    pub elapsed: Duration,
    /// The latencies in microseconds, sorted.
    pub latencies: Vec<u32>,
    pub used: Counters,
}

/// One operation of a task that makes one after the other.
pub trait Operation: Clone + Send + Sync + 'static {
    fn outstanding(&self) -> usize;
    fn batching(&self) -> bool;
    fn run(
        &self,
        client: &Client,
        groups: u32,
        random: u64,
    ) -> impl Future<Output = Result<(), CallError>> + Send;
}

/// The number of distinct keys of a group.
const KEYS: u64 = 1 << 16;

impl Operation for KvLoad {
    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn batching(&self) -> bool {
        self.batching
    }

    async fn run(&self, client: &Client, groups: u32, random: u64) -> Result<(), CallError> {
        let group = (random % u64::from(groups)) as u32 + 1;
        let mut key = BytesMut::with_capacity(16);
        key.put_u64((random >> 16) % KEYS);
        key.put_u64(0x5a5a_5a5a_5a5a_5a5a);
        let key = key.freeze();
        if (random >> 40) % 100 < self.write_share {
            let mut value = BytesMut::with_capacity(16);
            value.put_u64(random);
            value.put_u64(random.rotate_left(17));
            let set = Op::Set { key, value: Some(value.freeze()) };
            client.apply(group, &[set]).await.map(drop)
        } else {
            client.read(group, &key).await.map(drop)
        }
    }
}

impl Operation for PutLoad {
    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn batching(&self) -> bool {
        false
    }

    async fn run(&self, client: &Client, groups: u32, random: u64) -> Result<(), CallError> {
        client.put((random % u64::from(groups)) as u32 + 1, self.body.clone()).await
    }
}

mod phase {
    pub(super) const WARM_UP: u8 = 0;
    pub(super) const MEASURED: u8 = 1;
    pub(super) const OVER: u8 = 2;
}

/// Keeps `outstanding` operations under way, and counts those that end within the measured window.
pub async fn run(cluster: &KvCluster, load: impl Operation, windows: Windows) -> Measured {
    let client = cluster.client(load.batching());
    let phase = Arc::new(AtomicU8::new(phase::WARM_UP));
    let mut tasks = JoinSet::new();
    for seed in 0..load.outstanding() as u64 {
        tasks.spawn(repeat(load.clone(), client.clone(), cluster.groups(), seed, phase.clone()));
    }
    tokio::time::sleep(windows.warm_up).await;
    let before = cluster.counters().await;
    let began = Instant::now();
    phase.store(phase::MEASURED, Ordering::Relaxed);
    tokio::time::sleep(windows.measured).await;
    phase.store(phase::OVER, Ordering::Relaxed);
    let elapsed = began.elapsed();
    let after = cluster.counters().await;
    let mut latencies = Vec::new();
    let mut failed = 0;
    for (of_task, failed_of_task) in tasks.join_all().await {
        latencies.extend(of_task);
        failed += failed_of_task;
    }
    latencies.sort_unstable();
    let used = Counters {
        cpu: after.cpu - before.cpu,
        syncs: after.syncs - before.syncs,
        device_bytes: after.device_bytes - before.device_bytes,
    };
    Measured { operations: latencies.len() as u64, failed, elapsed, latencies, used }
}

async fn repeat(
    load: impl Operation,
    client: Client,
    groups: u32,
    seed: u64,
    phase: Arc<AtomicU8>,
) -> (Vec<u32>, u64) {
    let mut random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (mut latencies, mut failed) = (Vec::new(), 0);
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let began = Instant::now();
        let result = load.run(&client, groups, random).await;
        match phase.load(Ordering::Relaxed) {
            phase::WARM_UP => {}
            phase::OVER => return (latencies, failed),
            _ if result.is_ok() => {
                latencies.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
            _ => failed += 1,
        }
    }
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    pub fn percentile_ms(&self, share: f64) -> f64 {
        let nth = (self.latencies.len() as f64 * share) as usize;
        let nth = nth.min(self.latencies.len().saturating_sub(1));
        self.latencies.get(nth).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
    }

    /// The processor time of the three servers together.
    pub fn cpu_ms_per_operation(&self) -> f64 {
        self.used.cpu.as_secs_f64() * 1e3 / self.operations as f64
    }

    pub fn syncs_per_operation(&self) -> f64 {
        self.used.syncs as f64 / self.operations as f64
    }

    /// The cores that the servers used.
    pub fn server_cores(&self) -> f64 {
        self.used.cpu.as_secs_f64() / self.elapsed.as_secs_f64()
    }
}
