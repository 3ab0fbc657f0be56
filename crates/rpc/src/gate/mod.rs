//! The door of a process's gRPC port: how many connections and calls one address may have, how large a
//! message may be, before anything of it is gathered in memory, how much may be gathered, and how much may be
//! answered that nobody takes. A caller is known by its address alone; docs/security.md.

mod answer;
mod connection;
mod counts;
mod incoming;
mod message;
mod share;
#[cfg(test)]
mod tests;
mod untaken;

pub(crate) use answer::SMALL_BYTES_MAX;
pub use connection::GateConnection;
pub use counts::GateCounts;
pub use incoming::GateIncoming;
pub use message::{Gated, GatedBody, caller};

use crate::frames;
use crate::limits::{CALLS_PER_CONNECTION_MAX, PING_ANSWER_MAX, PING_INTERVAL, Windows};
use futures::future::FusedFuture;
use futures::{FutureExt, StreamExt};
use share::{Places, Shares, holder};
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower::Layer;
use tower::layer::util::{Identity, Stack};

/// Limits of a gRPC port.
#[derive(Clone, Copy, Debug)]
pub struct GateOptions {
    /// Connections in all. A process has a few to each other one, a client a few to each server: a cluster of
    /// a thousand nodes and clients comes to some thousands, at some 20 KiB each.
    pub connections_max: usize,
    /// Connections from one address, behind which several processes may be.
    pub connections_per_address_max: usize,
    /// Connections of HTTP/2 among these, which commands have and others' clients, and those of one address.
    pub http2_connections_max: usize,
    pub http2_connections_per_address_max: usize,
    /// Calls under way in all. A call that stands idle costs some 16 KiB, so 512 MiB where all do.
    pub calls_max: usize,
    /// Calls under way from one address: two streams for each group that two processes share, and short ones.
    pub calls_per_address_max: usize,
    /// Bytes of messages of which a part came and the rest is waited for, or that came and wait to be read,
    /// in all: 512 MiB, as much as idle calls may cost, or 21 of the largest messages, 24 MiB. As a rule
    /// there are none.
    pub gathered_bytes_max: usize,
    /// Bytes of such messages from one address: half, so that who sends no rest leaves the other half to
    /// others. A node that sends another 4 MiB for each of 64 groups at once has that, or one that sends ten
    /// messages of 24 MiB.
    pub gathered_bytes_per_address_max: usize,
    /// Bytes of answers that were made and that nobody has taken yet, in all: as much as of messages that
    /// came in part. A datanode has a limit of its own for what it reads, which is less.
    pub untaken_bytes_max: usize,
    /// Bytes of such answers to one address: half of these, so that who takes none leaves the other half to
    /// others.
    pub untaken_bytes_per_address_max: usize,
}

impl GateOptions {
    /// So many connections at most, of which one address has no more than half.
    pub fn with_connections(self, connections_max: usize) -> GateOptions {
        let connections_max = self.connections_max.min(connections_max);
        let connections_per_address_max = self.connections_per_address_max.min(connections_max / 2);
        GateOptions { connections_max, connections_per_address_max, ..self }
    }
}

impl Default for GateOptions {
    fn default() -> Self {
        GateOptions {
            connections_max: 8192,
            connections_per_address_max: 512,
            http2_connections_max: 1024,
            http2_connections_per_address_max: 128,
            calls_max: 32_768,
            calls_per_address_max: 8192,
            gathered_bytes_max: 512 << 20,
            gathered_bytes_per_address_max: 256 << 20,
            untaken_bytes_max: 512 << 20,
            untaken_bytes_per_address_max: 256 << 20,
        }
    }
}

/// The most bytes of a call in one frame of HTTP/2. A frame is gathered before anything looks at it, and room
/// for all of it is taken when its head comes: no more than a message may have of which nothing is known yet.
const FRAME_BYTES_MAX: u32 = 64 << 10;
/// The most bytes that come over HTTP/2 and are not read: so many that the 128 connections of an address come
/// to 256 MiB. Small frames count against half a connection's window as if each had 256 bytes, which small
/// calls come in, a thousand at once.
const HTTP2_WINDOWS: Windows = Windows { stream_bytes: 256 << 10, connection_bytes: 2 << 20 };
/// The most bytes of a call's headers. Ours have some 300 bytes, a status with its details some KiB.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// The most connections over HTTP/2 that wait to be taken.
const HTTP2_WAITING_MAX: usize = 16;
/// The most calls that a peer may open and give up before they are looked at; past it the connection is
/// closed.
const RESETS_MAX: usize = 64;

/// Answers calls behind a door of its own that lets all connections in: what has few, and needs no counts.
pub async fn serve(listener: TcpListener, routes: Routes, stop: impl Future<Output = ()>) {
    Gate::new(GateOptions::default()).serve(listener, routes, stop).await;
}

/// The door of one gRPC port.
#[derive(Clone)]
pub struct Gate {
    connections: Arc<Shares>,
    http2_connections: Arc<Shares>,
    calls: Arc<Shares>,
    gathered: Arc<Shares>,
    untaken_bytes: Arc<Shares>,
    counts: Arc<GateCounts>,
}

/// Places for the bytes of a connection that wait for whoever takes them.
pub(crate) struct Room {
    /// Those that came and that no call reads.
    pub(crate) unread: Places,
    /// Those of small frames that the peer does not take. Larger pieces of answers have their own places.
    pub(crate) unsent: Places,
}

impl Gate {
    pub fn new(options: GateOptions) -> Gate {
        let shares = |all_max, each_max| Arc::new(Shares::new(all_max, each_max));
        Gate {
            connections: shares(options.connections_max, options.connections_per_address_max),
            http2_connections: shares(
                options.http2_connections_max,
                options.http2_connections_per_address_max,
            ),
            calls: shares(options.calls_max, options.calls_per_address_max),
            gathered: shares(options.gathered_bytes_max, options.gathered_bytes_per_address_max),
            untaken_bytes: shares(options.untaken_bytes_max, options.untaken_bytes_per_address_max),
            counts: Arc::default(),
        }
    }

    pub fn counts(&self) -> &Arc<GateCounts> {
        &self.counts
    }

    /// No places yet, for a connection of an address.
    pub(crate) fn room(&self, from: &TcpConnectInfo) -> Room {
        let from = from.remote_addr().map(|from| holder(from.ip()));
        Room { unread: self.gathered.none(from), unsent: self.untaken_bytes.none(from) }
    }

    /// An HTTP/2 server behind this door that notices peers that are gone. Its windows are small, as what is
    /// in them and not read is in no share: our own processes, which send much, do so in frames.
    pub fn server(&self) -> Server<Stack<Gate, Identity>> {
        let windows = HTTP2_WINDOWS;
        Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(windows.stream_bytes)
            .initial_connection_window_size(windows.connection_bytes)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .http2_max_pending_accept_reset_streams(Some(RESETS_MAX))
            .http2_max_local_error_reset_streams(Some(RESETS_MAX))
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_ANSWER_MAX))
            .layer(self.clone())
    }

    /// Answers the calls that come to a port, in frames of ours or over HTTP/2 as other programs speak gRPC,
    /// until `stop`. Then no call is taken any more, and this ends with the last one.
    pub async fn serve(&self, listener: TcpListener, routes: Routes, stop: impl Future<Output = ()>) {
        let stopping = CancellationToken::new();
        let (to_http2, http2) = mpsc::channel(HTTP2_WAITING_MAX);
        let http2 = self
            .server()
            .add_routes(routes.clone())
            .serve_with_incoming_shutdown(ReceiverStream::new(http2), stopping.clone().cancelled_owned());
        // HTTP/2 is served here and not in a task: what it serves is let go of with this future.
        let http2 = async {
            if let Err(error) = http2.await {
                tracing::error!(%error, "the server of HTTP/2 ended");
            }
        };
        let mut http2 = std::pin::pin!(http2.fuse());
        let mut connections = JoinSet::new();
        let mut incoming = GateIncoming::new(listener, self.connections.clone(), self.counts.clone());
        let mut stop = std::pin::pin!(stop);
        loop {
            let connection = tokio::select! {
                () = stop.as_mut() => break,
                () = http2.as_mut(), if !http2.is_terminated() => continue,
                Some(Ok(connection)) = incoming.next() => connection,
                Some(_) = connections.join_next() => continue,
            };
            let (gate, calls) = (self.clone(), self.layer(routes.clone()));
            connections.spawn(gate.let_in(connection, calls, to_http2.clone(), stopping.clone()));
        }
        drop((incoming, to_http2));
        stopping.cancel();
        let others = async {
            if !http2.is_terminated() {
                http2.await;
            }
        };
        tokio::join!(connections.join_all(), others);
    }

    async fn let_in(
        self,
        connection: GateConnection,
        calls: Gated<Routes>,
        http2: mpsc::Sender<io::Result<GateConnection>>,
        stopping: CancellationToken,
    ) {
        let first = tokio::select! {
            first = connection.first_byte() => first,
            () = stopping.cancelled() => None,
        };
        match first {
            Some(frames::FIRST_BYTE) => {
                let from = connection.connect_info().tcp;
                let (tcp, _place) = connection.into_parts();
                let counts = self.counts.frames.clone();
                let room = self.room(&from);
                frames::serve(tcp.into_split(), from, calls, room, counts, stopping).await;
            }
            Some(_) => {
                let from = connection.connect_info().tcp.remote_addr();
                match self.http2_connections.take(from.map(|from| holder(from.ip()))) {
                    // A server that ended takes none.
                    Some(place) => drop(http2.send(Ok(connection.among(place))).await),
                    None => self.counts.connections_refused.count(),
                }
            }
            None => {}
        }
    }
}
