use crate::{AddressBook, Member};
use proto::raft::raft_transport_client::RaftTransportClient;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tracing::info;

/// How long a connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// A connection whose peer answers no ping for `PING_INTERVAL + PING_ANSWER_MAX` is dead.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_ANSWER_MAX: Duration = Duration::from_secs(3);
/// Unacknowledged bytes: of a stream, so that one entry of a MiB needs no round trips, and of a connection, so that
/// several groups can be in the middle of theirs.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Streams at a time on one connection: two long ones for each group that two processes share, one way each, and
/// short ones for heartbeats and votes. HTTP/2 servers stop at 200 by default.
const STREAMS_MAX: u32 = 16_384;
/// Addresses remembered; past it all are forgotten and made anew as they are needed.
const PEERS_MAX: usize = 4096;

/// A gRPC server that takes entries of MiB sizes at full speed, and notices peers that are gone. Mount
/// [`crate::RaftHost::add_to`] on one made here: gRPC's own defaults stop a sender every 64 KiB.
pub fn server_builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_ANSWER_MAX))
}

/// Connections to other processes: one to each address, shared by all groups.
pub(crate) struct Peers {
    addresses: AddressBook,
    by_address: Mutex<HashMap<String, Arc<Peer>>>,
}

/// A process that members of our groups live in.
pub(crate) struct Peer {
    address: String,
    client: RaftTransportClient<Channel>,
    /// So that a peer that is down is one line in the log, not one for each group and heartbeat.
    is_down: AtomicBool,
}

impl Peers {
    pub(crate) fn new(addresses: AddressBook) -> Peers {
        Peers { addresses, by_address: Mutex::default() }
    }

    /// The process a member lives in now. Nothing is connected until something is sent.
    pub(crate) fn of(&self, member: &Member) -> Result<Arc<Peer>, String> {
        let address = self.addresses.of(member);
        let mut by_address = self.by_address.lock().expect("no holder panics");
        if let Some(peer) = by_address.get(&address) {
            return Ok(peer.clone());
        }
        if by_address.len() >= PEERS_MAX {
            by_address.clear();
        }
        let peer = Arc::new(Peer::new(address.clone())?);
        by_address.insert(address, peer.clone());
        Ok(peer)
    }
}

impl Peer {
    fn new(address: String) -> Result<Peer, String> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| format!("`{address}` is not a host:port: {error}"))?
            .connect_timeout(CONNECT_MAX)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_ANSWER_MAX)
            .keep_alive_while_idle(true);
        let client = RaftTransportClient::new(endpoint.connect_lazy())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        Ok(Peer { address, client, is_down: AtomicBool::new(false) })
    }

    pub(crate) fn client(&self) -> RaftTransportClient<Channel> {
        self.client.clone()
    }

    pub(crate) fn answered(&self) {
        if self.is_down.swap(false, Ordering::Relaxed) {
            info!(address = %self.address, "peer is reachable again");
        }
    }

    pub(crate) fn failed(&self, why: &str) {
        if !self.is_down.swap(true, Ordering::Relaxed) {
            info!(address = %self.address, why, "peer is unreachable");
        }
    }
}
