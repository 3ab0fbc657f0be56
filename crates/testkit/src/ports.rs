use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;

/// Below those that the kernel gives to whoever asks for any: a process that is told a port must find it free a moment later.
const PORTS: Range<u64> = 20_000..32_000;

/// Addresses on which nobody listens, for processes that must know each other before they start.
pub fn free_addresses(count: usize) -> Vec<String> {
    let mut held = Vec::new();
    while held.len() < count {
        let random = RandomState::new().build_hasher().finish();
        let port = PORTS.start + random % (PORTS.end - PORTS.start);
        // Held until all are known: else one might be given twice.
        held.extend(TcpListener::bind(("127.0.0.1", port as u16)).ok());
    }
    held.iter().map(|held| held.local_addr().expect("it is bound").to_string()).collect()
}
