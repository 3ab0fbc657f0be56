//! Rates and counts that all copies of a node share.

use parking::Throttle;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// Containers that are sent at a time, with a few MiB each on their way; SCM asks for far fewer.
const SENDS_MAX: usize = 32;

pub(crate) struct Copies {
    pub sending: Throttle,
    pub receiving: Throttle,
    /// A permit for each container that may be sent.
    pub sends: Arc<Semaphore>,
    pub counters: CopyCounters,
}

#[derive(Debug, Default)]
pub(crate) struct CopyCounters {
    pub sent_bytes: AtomicU64,
    pub sending_failed: AtomicU64,
    pub received_bytes: AtomicU64,
    pub receiving_failed: AtomicU64,
    pub received: AtomicU64,
    pub deleted: AtomicU64,
}

/// [`CopyCounters`] at one moment, since the process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStats {
    /// The bytes sent to nodes that make replicas.
    pub sent_bytes: u64,
    pub sending_failed: u64,
    pub received_bytes: u64,
    /// Attempts to make a replica here that failed.
    pub receiving_failed: u64,
    /// Replicas made here.
    pub received: u64,
    /// Replicas deleted here.
    pub deleted: u64,
}

impl Copies {
    pub(crate) fn new(bytes_per_second: u64) -> Copies {
        Copies {
            sending: Throttle::new(bytes_per_second),
            receiving: Throttle::new(bytes_per_second),
            sends: Arc::new(Semaphore::new(SENDS_MAX)),
            counters: CopyCounters::default(),
        }
    }

    pub(crate) fn stats(&self) -> CopyStats {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        CopyStats {
            sent_bytes: number(&counters.sent_bytes),
            sending_failed: number(&counters.sending_failed),
            received_bytes: number(&counters.received_bytes),
            receiving_failed: number(&counters.receiving_failed),
            received: number(&counters.received),
            deleted: number(&counters.deleted),
        }
    }
}
