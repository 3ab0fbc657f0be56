use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below those that the kernel gives to whoever asks for any: a process that is told a port must find it free a moment later.
const PORTS: Range<u64> = 20_000..32_000;
/// One after the other: what one test was given and has yet to bind is given to no other one of this process. Other processes begin
/// elsewhere.
static NEXT: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));

/// Addresses on which nobody listens, for processes that must know each other before they start.
pub fn free_addresses(count: usize) -> Vec<String> {
    let mut held = Vec::new();
    while held.len() < count {
        let port = PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        // Held until all are known: else one might be given twice.
        held.extend(TcpListener::bind(("127.0.0.1", port as u16)).ok());
    }
    held.iter().map(|held| held.local_addr().expect("it is bound").to_string()).collect()
}
