use crate::memory::Pieces;
use proto::Failure;
use rpc::{Channel, Connector, Local, LocalConnector, TcpConnector, Windows};
use std::sync::Arc;

/// Lazy connections, shared by everything in the client: to an address one for blocks that are read,
/// and one for all else. What is read waits on its connection for whoever asked for it, who may be slow; an
/// answer of OM or an acknowledgement behind it would wait too.
#[derive(Clone)]
pub(crate) struct Channels {
    calls: rpc::Channels,
    reads: rpc::Channels,
    /// Connections for reading where memory is short: of their own, as the window is the same for all streams
    /// of one.
    small_reads: rpc::Channels,
}

/// The windows of connections for calls, whose answers are taken as they come.
const OF_CALLS: Windows = Windows { stream_bytes: 4 << 20, connection_bytes: 32 << 20 };
/// The windows of connections for reads, with room for every stream that stands still: as long as there is a
/// stream to be had, slow readers take nothing from others.
const fn of_reads(pieces: Pieces) -> Windows {
    let windows = Windows { stream_bytes: pieces.window_bytes() as u32, connection_bytes: 1 << 30 };
    assert!(windows.connection_bytes / rpc::CALLS_PER_CONNECTION_MAX >= windows.stream_bytes);
    windows
}

impl Channels {
    /// Channels over TCP, except to services of this process, which are called without a connection.
    pub(crate) fn beside(local: &Local) -> Channels {
        let with = |windows| {
            let (local, others) = (local.clone(), TcpConnector { windows });
            rpc::Channels::new(Arc::new(LocalConnector { local, others }))
        };
        Channels {
            calls: with(OF_CALLS),
            reads: with(const { of_reads(Pieces::Large) }),
            small_reads: with(const { of_reads(Pieces::Small) }),
        }
    }

    pub(crate) fn over(connector: &Arc<dyn Connector>) -> Channels {
        let channels = || rpc::Channels::new(connector.clone());
        Channels { calls: channels(), reads: channels(), small_reads: channels() }
    }

    pub(crate) fn to(&self, address: &str) -> Result<Channel, Failure> {
        self.calls.to(address).map_err(Failure::invalid)
    }

    /// The connections that [`Channels::to`] gives.
    pub(crate) fn of_calls(&self) -> rpc::Channels {
        self.calls.clone()
    }

    /// A connection for reading blocks.
    pub(crate) fn to_read(&self, address: &str, pieces: Pieces) -> Result<Channel, Failure> {
        let reads = match pieces {
            Pieces::Large => &self.reads,
            Pieces::Small => &self.small_reads,
        };
        reads.to(address).map_err(Failure::invalid)
    }
}
