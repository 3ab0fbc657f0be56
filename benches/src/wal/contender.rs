//! One case of the bench, and what takes part in it.

use std::time::Duration;

/// The most payload of all logs together that is appended and not yet acknowledged: half of what our log lets
/// queue.
const UNDER_WAY_BYTES_MAX: usize = 128 << 20;

/// A case: so many logs, and in each of them so many appends of so many bytes always under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub logs: usize,
    pub payload_bytes: usize,
    pub window: usize,
}

impl Case {
    /// All cases of the bench. A window that would hold more than the logs let queue is made smaller.
    pub fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for payload_bytes in [4 << 10, 64 << 10, 1 << 20] {
            for logs in [1, 8, 64] {
                for window in [1, 16] {
                    let window = window.min(UNDER_WAY_BYTES_MAX / (logs * payload_bytes));
                    cases.push(Case { logs, payload_bytes, window });
                }
            }
        }
        cases
    }

    pub fn name(&self) -> String {
        format!("{}x{}/{}", self.logs, self.payload_name(), self.window)
    }

    pub fn payload_name(&self) -> String {
        match self.payload_bytes >> 10 {
            kib if kib < 1024 => format!("{kib}KiB"),
            kib => format!("{}MiB", kib >> 10),
        }
    }
}

/// The limits at which a turn ends: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub duration: Duration,
    pub payload_bytes: u64,
}

/// The result of a turn.
#[derive(Default)]
pub struct Appended {
    pub appends: u64,
    pub elapsed: Duration,
    /// The times from a call to its acknowledgement: one for each append, or for each batch when they are
    /// acknowledged together.
    pub latencies: Vec<Duration>,
}

/// Something that makes appends durable.
pub trait Contender {
    /// Appends to all logs at once until a limit is reached; everything is durable on return.
    fn append(&mut self, limits: Limits) -> Appended;
    /// The number of syncs of files and directories so far.
    fn syncs(&self) -> u64;
    /// Gives back the space of what was appended: the logs go on behind it. Not measured.
    fn reclaim(&mut self);
}

/// Bytes that nothing compresses.
pub(super) fn payload(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut payload = Vec::with_capacity(bytes + 8);
    while payload.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        payload.extend_from_slice(&state.to_le_bytes());
    }
    payload.truncate(bytes);
    payload
}
