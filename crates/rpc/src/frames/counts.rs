use metrics::{Counter, Exposition, Metric};
use std::sync::{Arc, LazyLock};

const FRAMES: Metric = Metric {
    name: "flotilla_rpc_frames_sent_total",
    help: "Frames of calls that were written, by the end of the connection that this process is.",
};
const WRITES: Metric =
    Metric { name: "flotilla_rpc_frame_writes_total", help: "Writes in which these went together." };
const ENDED: Metric = Metric {
    name: "flotilla_rpc_frame_connections_ended_total",
    help: "Connections of frames that ended, by the end that this process was, and by reason.",
};

/// The reason why a connection ended. Numbers index counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The other side closed it.
    Closed,
    /// Reading or writing failed.
    Broken,
    /// The other side was silent: nothing came, not even the answer to a ping.
    Silent,
    /// The other side took nothing of what was sent to it.
    Deaf,
    /// Calls were given up too quickly.
    Resets,
    /// Bytes came that no peer of ours sends.
    Malformed,
    /// The other side speaks another version.
    Version,
    /// The other side did not say hello in time.
    NoHello,
    /// This process stops, or nobody needs it any more.
    Stopping,
}

impl CloseReason {
    const ALL: [(CloseReason, &str); 9] = [
        (CloseReason::Closed, "closed"),
        (CloseReason::Broken, "broken"),
        (CloseReason::Silent, "silent"),
        (CloseReason::Deaf, "deaf"),
        (CloseReason::Resets, "resets"),
        (CloseReason::Malformed, "malformed"),
        (CloseReason::Version, "version"),
        (CloseReason::NoHello, "no_hello"),
        (CloseReason::Stopping, "stopping"),
    ];
}

/// Counts of what one end of connections did.
#[derive(Debug, Default)]
pub struct FrameCounts {
    pub frames_sent: Counter,
    pub writes: Counter,
    /// Answers that were given up, as their callers took nothing of them.
    pub answers_not_taken: Counter,
    /// Calls that were given up, as they were sent more than they read.
    pub calls_unread: Counter,
    ended: [Counter; CloseReason::ALL.len()],
}

impl FrameCounts {
    /// The counts of all connections that this process made.
    pub fn of_clients() -> &'static Arc<FrameCounts> {
        static OF_CLIENTS: LazyLock<Arc<FrameCounts>> = LazyLock::new(Arc::default);
        &OF_CLIENTS
    }

    pub fn ended(&self, end: CloseReason) -> &Counter {
        &self.ended[end as usize]
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition, end: &str) {
        exposition.counter(FRAMES, &[("end", end)], self.frames_sent.get());
        exposition.counter(WRITES, &[("end", end)], self.writes.get());
        for (reason, name) in CloseReason::ALL {
            exposition.counter(ENDED, &[("end", end), ("reason", name)], self.ended(reason).get());
        }
    }
}
