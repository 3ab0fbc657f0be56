use super::time::SLOWED;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The time of a message between any two machines, one way.
pub(super) const LATENCY: Duration = Duration::from_micros(200 * SLOWED as u64);

/// The rate of a network interface: 25 Gbit/s. With 10 the network, not the disks, would be the limit of
/// nodes with twelve of them.
const BYTES_PER_SECOND: u64 = 25_000_000_000 / 8 / SLOWED as u64;

/// A node's network interface, both directions at full speed; in each, messages follow one another.
pub(super) struct Nic {
    sending: Mutex<Instant>,
    receiving: Mutex<Instant>,
}

impl Nic {
    pub(super) fn new() -> Nic {
        let idle_since = Instant::now();
        Nic { sending: Mutex::new(idle_since), receiving: Mutex::new(idle_since) }
    }

    /// The time when a message that is sent now has arrived, whole.
    pub(super) fn send(&self, to: &Nic, bytes: u64) -> Instant {
        take(&to.receiving, take(&self.sending, Instant::now(), bytes), bytes) + LATENCY
    }

    /// The time when a message has arrived that somebody outside of the cluster sends now.
    pub(super) fn receive(&self, bytes: u64) -> Instant {
        take(&self.receiving, Instant::now(), bytes) + LATENCY
    }
}

fn take(free_from: &Mutex<Instant>, now: Instant, bytes: u64) -> Instant {
    let mut free_from = free_from.lock().expect("no holder panics");
    *free_from = (*free_from).max(now) + Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND);
    *free_from
}
