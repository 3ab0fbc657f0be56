use super::cluster::Counters;
use super::{BlocksCluster, Window, Windows};
use crate::open_pipelines;
use anyhow::Context;
use bytes::Bytes;
use futures::TryStreamExt;
use proto::om::BlockPiece;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use types::Payload;

/// The number of blocks under way at any moment.
pub const WRITERS: usize = 32;
pub const READERS: usize = 32;
/// The bytes of a chunk, as the client cuts bodies.
const CHUNK_BYTES: usize = 1 << 20;

/// The measurements of one window.
pub struct Measured {
    pub operations: u64,
    pub elapsed: Duration,
    /// The latencies in microseconds, sorted.
    latencies: Vec<u32>,
    /// The processor time of the three datanodes.
    pub cpu_seconds: f64,
    pub syncs: u64,
    pub device_bytes: u64,
    /// The memory of the three datanodes at the window's end.
    pub resident_bytes: u64,
}

impl Measured {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    /// The processor time of the three datanodes together.
    pub fn cpu_ms_per_operation(&self) -> f64 {
        self.cpu_seconds * 1e3 / self.operations as f64
    }

    pub fn syncs_per_operation(&self) -> f64 {
        self.syncs as f64 / self.operations as f64
    }

    pub fn percentile_ms(&self, share: f64) -> f64 {
        let nth = (self.latencies.len() as f64 * share) as usize;
        let nth = nth.min(self.latencies.len().saturating_sub(1));
        self.latencies.get(nth).map_or(f64::NAN, |micros| f64::from(*micros) / 1e3)
    }
}

/// Writes blocks with the same share of the writers on each pipeline: what a datanode has to cope with when
/// many gateways write.
pub async fn write_spread(
    cluster: &BlocksCluster,
    block_bytes: usize,
    windows: Windows,
) -> anyhow::Result<Measured> {
    let chunks: Arc<[Payload]> = body(block_bytes)
        .chunks(CHUNK_BYTES)
        .map(|chunk| Payload::checksummed(Bytes::copy_from_slice(chunk)))
        .collect();
    let lanes = open_pipelines(&cluster.cluster.scm_address, cluster.pipelines).await?;
    let window = Arc::new(Window::new());
    let mut tasks = JoinSet::new();
    for lane in lanes {
        tasks.spawn(lane.write_while(chunks.clone(), WRITERS / cluster.pipelines, window.clone()));
    }
    measure(cluster, tasks, &window, windows, |latencies| latencies).await
}

/// Writes blocks to pipelines that are chosen as a gateway chooses them, through its code. Answers with the
/// blocks that were written too.
pub async fn write_chosen(
    cluster: &BlocksCluster,
    block_bytes: usize,
    windows: Windows,
) -> anyhow::Result<(Measured, Vec<BlockPiece>)> {
    let body = Bytes::from(body(block_bytes));
    let window = Arc::new(Window::new());
    let mut tasks = JoinSet::new();
    for _ in 0..WRITERS {
        let (client, body, window) = (cluster.client.clone(), body.clone(), window.clone());
        tasks.spawn(async move {
            let (mut latencies, mut pieces) = (Vec::new(), Vec::new());
            while !window.is_over() {
                let begun = Instant::now();
                let one = futures::stream::iter([Ok::<_, std::io::Error>(body.clone())]);
                let written = client.write_blocks(one).await?;
                window.note(begun, &mut latencies);
                pieces.extend(written.pieces);
            }
            anyhow::Ok((latencies, pieces))
        });
    }
    let mut all = Vec::new();
    let measured = measure(cluster, tasks, &window, windows, |(latencies, pieces): (Vec<u32>, _)| {
        all.extend::<Vec<BlockPiece>>(pieces);
        latencies
    });
    let measured = measured.await?;
    Ok((measured, all))
}

/// Reads whole blocks, drawn at random from `pieces`, from whichever replica the client asks.
pub async fn read(
    cluster: &BlocksCluster,
    pieces: Vec<BlockPiece>,
    windows: Windows,
) -> anyhow::Result<Measured> {
    let pieces: Arc<[BlockPiece]> = pieces.into();
    let window = Arc::new(Window::new());
    let mut tasks = JoinSet::new();
    for seed in 0..READERS as u64 {
        let (client, pieces, window) = (cluster.client.clone(), pieces.clone(), window.clone());
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            let mut random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            while !window.is_over() {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let piece = &pieces[(random % pieces.len() as u64) as usize];
                let begun = Instant::now();
                let read = client.read(std::slice::from_ref(piece), 0..piece.length);
                let bytes = read.try_fold(0, async |bytes, part| Ok(bytes + part.len() as u64)).await?;
                anyhow::ensure!(bytes == piece.length, "a block of {} bytes gave {bytes}", piece.length);
                window.note(begun, &mut latencies);
            }
            Ok(latencies)
        });
    }
    measure(cluster, tasks, &window, windows, |latencies| latencies).await
}

/// Lets the tasks run through the window, and adds up what they saw and what the datanodes used.
async fn measure<T: Send + 'static>(
    cluster: &BlocksCluster,
    mut tasks: JoinSet<anyhow::Result<T>>,
    window: &Window,
    windows: Windows,
    mut latencies_of: impl FnMut(T) -> Vec<u32>,
) -> anyhow::Result<Measured> {
    tokio::time::sleep(windows.warm_up).await;
    let before = cluster.counters()?;
    let began = Instant::now();
    window.count();
    tokio::time::sleep(windows.measured).await;
    window.end();
    let elapsed = began.elapsed();
    let after = cluster.counters()?;
    let mut latencies = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        latencies.extend(latencies_of(ended?.context("load on the cluster")?));
    }
    latencies.sort_unstable();
    Ok(Measured::between(&before, &after, elapsed, latencies))
}

impl Measured {
    fn between(before: &Counters, after: &Counters, elapsed: Duration, latencies: Vec<u32>) -> Measured {
        Measured {
            operations: latencies.len() as u64,
            elapsed,
            latencies,
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            syncs: after.syncs - before.syncs,
            device_bytes: after.device_bytes - before.device_bytes,
            resident_bytes: after.resident_bytes,
        }
    }
}

/// Bytes that no file system or device makes smaller.
fn body(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut body: Vec<u8> = words.take(bytes.div_ceil(8)).flatten().collect();
    body.truncate(bytes);
    body
}
