use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The ports that tests give away, below those that the kernel gives to whoever asks for any: a process that
/// is told a port must find it free a moment later.
const PORTS: Range<u64> = 20_000..32_000;
/// The variable with the ports of those that this process may give away: "20000..23000". `testing/runner`
/// parts them among tests that run at the same time, since a port that a stopped process will want again is
/// free meanwhile.
const VARIABLE: &str = "FLOTILLA_TEST_PORTS";
static MINE: LazyLock<Range<u64>> = LazyLock::new(|| match std::env::var(VARIABLE) {
    Ok(text) => parse(&text).unwrap_or_else(|| panic!("{VARIABLE}={text} is no part of {PORTS:?}")),
    Err(_) => PORTS,
});
/// The next port. Ports are given one after the other: what one test was given and has yet to bind is given
/// to no other one of this process. Other processes begin elsewhere.
static NEXT: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));

/// Addresses on which nobody listens, for processes that must know each other before they start.
pub fn free_addresses(count: usize) -> Vec<String> {
    let mut held = Vec::new();
    while held.len() < count {
        let port = MINE.start + NEXT.fetch_add(1, Ordering::Relaxed) % (MINE.end - MINE.start);
        // Listeners are held until all ports are known: else one might be given twice.
        held.extend(TcpListener::bind(("127.0.0.1", port as u16)).ok());
    }
    held.iter().map(|held| held.local_addr().expect("it is bound").to_string()).collect()
}

/// Reads a range of ports; `None` unless it is a part of [`PORTS`] with something in it.
fn parse(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once("..")?;
    let range = start.parse().ok()?..end.parse().ok()?;
    let fits = !range.is_empty() && PORTS.start <= range.start && range.end <= PORTS.end;
    fits.then_some(range)
}
