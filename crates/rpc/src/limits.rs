use std::time::Duration;

/// The time that a connection may take to come about.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(1);
/// A connection whose peer answers no ping for `PING_INTERVAL + PING_ANSWER_MAX` is dead.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(2);
pub(crate) const PING_ANSWER_MAX: Duration = Duration::from_secs(3);
/// The time for which nothing comes until the other side of a connection of frames counts as gone.
pub(crate) const SILENCE_MAX: Duration = PING_INTERVAL.saturating_add(PING_ANSWER_MAX);

/// The most calls at a time on one connection; HTTP/2 servers stop at 200 by default, which groups that two
/// processes share are soon past.
pub const CALLS_PER_CONNECTION_MAX: u32 = 4096;
/// The most calls that a peer may give up in a second on one connection: all that it may have under way. Each
/// has cost us what any other costs, and its caller nothing, and leaves room for the next at once.
pub(crate) const RESETS_PER_SECOND_MAX: u32 = CALLS_PER_CONNECTION_MAX;

/// The most unacknowledged bytes of a stream and of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub stream_bytes: u32,
    pub connection_bytes: u32,
}

impl Default for Windows {
    /// Windows in which one entry of a MiB needs no round trips, and several groups can be in the middle of
    /// theirs.
    fn default() -> Windows {
        Windows { stream_bytes: 4 << 20, connection_bytes: 16 << 20 }
    }
}
