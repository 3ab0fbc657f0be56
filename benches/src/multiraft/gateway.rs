use super::cluster::Cluster;
use super::network::LATENCY;
use super::placement;
use disk::sim::Random;
use futures::StreamExt;
use std::sync::{Arc, Mutex};
use tokio::time::{Instant, sleep};

/// The bytes of a chunk, as the write path cuts objects.
const CHUNK_BYTES: u64 = 1 << 20;

/// The chunks that a stream keeps unacknowledged (16 MiB, DESIGN.md §3).
const CHUNKS_UNDER_WAY_MAX: usize = 16;

/// A note of what was written, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) what: What,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// One Raft entry.
    Chunk,
    Object,
}

/// Writes objects: each goes to one log, as a block does, in chunks of which several are under way.
pub(super) struct Gateway {
    cluster: Arc<Cluster>,
    state: Mutex<State>,
}

struct State {
    random: Random,
    in_flight_bytes: Vec<u64>,
    written: Vec<Written>,
}

impl Gateway {
    pub(super) fn new(cluster: Arc<Cluster>, seed: u64) -> Arc<Gateway> {
        let state = State {
            random: Random::new(!seed),
            in_flight_bytes: vec![0; cluster.logs()],
            written: Vec::new(),
        };
        Arc::new(Gateway { cluster, state: Mutex::new(state) })
    }

    pub(super) async fn write_object(&self, bytes: u64) {
        let began = Instant::now();
        let log = {
            let mut state = self.state.lock().expect("no holder panics");
            let State { random, in_flight_bytes, .. } = &mut *state;
            let log = placement::choose(in_flight_bytes, bytes, random);
            in_flight_bytes[log] += bytes;
            log
        };
        let chunks = (0..bytes.div_ceil(CHUNK_BYTES)).map(|n| CHUNK_BYTES.min(bytes - n * CHUNK_BYTES));
        futures::stream::iter(chunks)
            .map(|bytes| self.write_chunk(log, bytes))
            .buffer_unordered(CHUNKS_UNDER_WAY_MAX)
            .for_each(async |()| ())
            .await;
        self.note(What::Object, began, bytes);
    }

    async fn write_chunk(&self, log: usize, bytes: u64) {
        let began = Instant::now();
        self.cluster.write(log, bytes).await;
        sleep(LATENCY).await;
        self.state.lock().expect("no holder panics").in_flight_bytes[log] -= bytes;
        self.note(What::Chunk, began, bytes);
    }

    fn note(&self, what: What, began: Instant, bytes: u64) {
        let written = Written { what, began, ended: Instant::now(), bytes };
        self.state.lock().expect("no holder panics").written.push(written);
    }

    pub(super) fn take_writes(&self) -> Vec<Written> {
        std::mem::take(&mut self.state.lock().expect("no holder panics").written)
    }
}
