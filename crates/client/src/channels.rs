use proto::Failure;
use rpc::Windows;
use tonic::transport::Channel;

/// Lazy HTTP/2 connections, shared by everything in the client: to an address one for blocks that are read, and one for all else. What
/// is read waits on its connection for whoever asked for it, who may be slow; an answer of OM or an acknowledgement behind it would wait too.
#[derive(Clone)]
pub(crate) struct Channels {
    calls: rpc::Channels,
    reads: rpc::Channels,
}

/// Answers are taken as they come.
const OF_CALLS: Windows = Windows { stream_bytes: 4 << 20, connection_bytes: 32 << 20 };
/// Room for every stream that stands still: as long as there is a stream to be had, slow readers take nothing from others. The pause
/// for an update of the window is short against a quarter of a chunk.
const OF_READS: Windows = Windows { stream_bytes: 256 << 10, connection_bytes: 1 << 30 };
const _: () = assert!(OF_READS.connection_bytes / rpc::CALLS_PER_CONNECTION_MAX >= OF_READS.stream_bytes);

impl Default for Channels {
    fn default() -> Channels {
        Channels { calls: rpc::Channels::new(OF_CALLS), reads: rpc::Channels::new(OF_READS) }
    }
}

impl Channels {
    pub(crate) fn to(&self, address: &str) -> Result<Channel, Failure> {
        self.calls.to(address).map_err(Failure::invalid)
    }

    /// For reading blocks.
    pub(crate) fn to_read(&self, address: &str) -> Result<Channel, Failure> {
        self.reads.to(address).map_err(Failure::invalid)
    }
}
