use std::time::Duration;

/// The connections that one client may well keep: pools of SDKs hold 10 to 50.
const OF_ONE_CLIENT: usize = 64;

/// Limits of one port: how much it takes of its clients, and how long it waits for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once. One more is let in for an idle one, which is closed; where none is idle, it is
    /// answered with 503. An idle one costs about 20 KiB and a file descriptor: 320 MiB.
    pub connections_max: usize,
    /// Connections of one address, so that one machine cannot take them all; at most a quarter of all
    /// ([`Limits::connections_of_address_max`]), so a proxy in front of many clients needs more of all.
    pub connections_per_address_max: usize,
    /// Request line and headers of a request; more are answered with 431. AWS takes 8 KiB of headers, and a
    /// presigned URL may be as long.
    pub head_bytes_max: usize,
    /// Headers of a request; more are answered with 431.
    pub headers_max: usize,
    /// The time from the first byte of a head to its last; then 408. Nobody needs more than a round trip, and
    /// some retransmissions.
    pub head_max: Duration,
    /// The time that a connection may lie there without a request. Above the 90 s after which Go's client
    /// closes it by itself.
    pub idle_max: Duration,
    /// The time that a client may let us wait for the body of its request, or for taking an answer. It begins
    /// with this much, time in which it is waited for is taken off, and each byte gives some back, as
    /// `bytes_per_second_min` says. So one that stands still is let go after this, and so is one that goes on
    /// slower than it must.
    pub transfer_idle_max: Duration,
    /// The least rate of a transfer, while the client is waited for. 0: any, as long as it does not stand
    /// still.
    pub bytes_per_second_min: u64,
    /// Answers and bodies whose clients have let us wait for [`SLOW_AFTER`](Limits::SLOW_AFTER) or more, of
    /// which a connection of HTTP/2 may have many; above it, the connections that are looked at first are let
    /// go. Each holds what `buffer_bytes_max` says and a piece of its body, whose size is up to whoever makes
    /// it.
    pub slow_max: usize,
    /// Requests of one connection, after which it is closed in an orderly way: clients spread over gateways
    /// that came later.
    pub requests_per_connection_max: u64,
    /// Requests under way at once on a connection of HTTP/2.
    pub http2_streams_max: u32,
    /// Streams of HTTP/2 that a client may reset on a connection within a second; more end it. Each has cost
    /// as much as a request that is answered, and its client nothing. Twice the streams there may be at once:
    /// who closes the connection instead comes to as many as there may be, so less would not spare us much.
    pub http2_resets_per_second_max: u32,
    /// Streams of HTTP/2 that we reset on a connection, as what came for them was wrong or they were too many
    /// at once; more end it.
    pub http2_stream_errors_max: usize,
    /// Bytes of an answer that are taken before more of it is asked for, and of a body that are read at once:
    /// as many as the kernel keeps.
    pub buffer_bytes_max: usize,
    /// Bytes that the kernel keeps of an answer beyond what is on its way, for each connection.
    pub unsent_bytes_max: u32,
    /// Bytes that are read and thrown away of a client that goes on sending after it was refused, so that it
    /// comes to read why.
    pub linger_bytes_max: u64,
    pub linger_max: Duration,
    /// Refused connections that are being told so, at once; more are closed without a word.
    pub refusals_max: usize,
}

impl Limits {
    /// A client that is waited for this long counts as slow.
    pub const SLOW_AFTER: Duration = Duration::from_secs(2);

    /// The connections that one address may have: as many as it is given, and no more than a quarter of all,
    /// or than one client may well keep where a quarter is less than that.
    pub(crate) fn connections_of_address_max(&self) -> usize {
        self.connections_per_address_max.min((self.connections_max / 4).max(OF_ONE_CLIENT))
    }

    /// The time for which something may go unnoticed that is over: a quarter of the shortest time.
    pub(crate) fn look_again_after(&self) -> Duration {
        const AT_LEAST: Duration = Duration::from_millis(10);
        let shortest = self.head_max.min(self.idle_max).min(self.transfer_idle_max);
        (shortest / 4).max(AT_LEAST)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 16_384,
            connections_per_address_max: 4096,
            head_bytes_max: 32 << 10,
            headers_max: 100,
            head_max: Duration::from_secs(10),
            idle_max: Duration::from_secs(120),
            transfer_idle_max: Duration::from_secs(60),
            bytes_per_second_min: 1024,
            slow_max: 1024,
            requests_per_connection_max: 100_000,
            http2_streams_max: 16,
            http2_resets_per_second_max: 32,
            http2_stream_errors_max: 1024,
            buffer_bytes_max: 128 << 10,
            unsent_bytes_max: 128 << 10,
            linger_bytes_max: 16 << 20,
            linger_max: Duration::from_secs(5),
            refusals_max: 256,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_may_have_more_than_a_quarter_unless_that_is_less_than_one_client_keeps() {
        let check = |connections_max, connections_per_address_max, expect| {
            let limits = Limits { connections_max, connections_per_address_max, ..Limits::default() };
            assert_eq!(limits.connections_of_address_max(), expect, "{connections_max}");
        };
        check(16_384, 4096, 4096);
        check(16_384, 100, 100);
        check(4096, 4096, 1024);
        check(256, 4096, 64);
        check(100, 4096, 64);
        check(3, 2, 2);
    }
}
