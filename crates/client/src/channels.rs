use proto::Failure;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Lazy HTTP/2 connections, shared by everything in the client: to an address one for blocks that are read, and one for all else. What
/// is read waits on its connection for whoever asked for it, who may be slow; an answer of OM or an acknowledgement behind it would wait too.
#[derive(Clone, Default)]
pub(crate) struct Channels {
    calls: Open,
    reads: Open,
}

type Open = Arc<Mutex<HashMap<String, Channel>>>;

/// Of one stream, and of all on a connection: what may arrive before it is taken.
#[derive(Clone, Copy)]
struct Windows {
    stream_bytes: u32,
    connection_bytes: u32,
}

/// Answers are taken as they come.
const OF_CALLS: Windows = Windows { stream_bytes: 4 << 20, connection_bytes: 32 << 20 };
/// Room for every stream that stands still: as long as there is a stream to be had, slow readers take nothing from others. The pause
/// for an update of the window is short against a quarter of a chunk.
const OF_READS: Windows = Windows { stream_bytes: 256 << 10, connection_bytes: 1 << 30 };
/// What a server takes on a connection at once (`raft::GateOptions` has it).
const READS_MAX: u32 = 4096;
const _: () = assert!(OF_READS.connection_bytes / READS_MAX >= OF_READS.stream_bytes);

/// Addresses change rarely; past this many the old ones are forgotten and made anew when needed.
const CHANNELS_MAX: usize = 4096;

impl Channels {
    /// Connecting happens at the first call, and again by itself after a break.
    pub(crate) fn to(&self, address: &str) -> Result<Channel, Failure> {
        Self::among(&self.calls, address, OF_CALLS)
    }

    /// For reading blocks.
    pub(crate) fn to_read(&self, address: &str) -> Result<Channel, Failure> {
        Self::among(&self.reads, address, OF_READS)
    }

    fn among(open: &Open, address: &str, windows: Windows) -> Result<Channel, Failure> {
        let mut open = open.lock().expect("no holder panics");
        if let Some(channel) = open.get(address) {
            return Ok(channel.clone());
        }
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|err| Failure::invalid(format!("`{address}` is not an address: {err}")))?
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            // A peer that vanished without a FIN is noticed within 2 + 3 seconds.
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(3))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(windows.stream_bytes)
            .initial_connection_window_size(windows.connection_bytes)
            .connect_lazy();
        if open.len() >= CHANNELS_MAX {
            open.clear();
        }
        open.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}
