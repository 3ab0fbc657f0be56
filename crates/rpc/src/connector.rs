use crate::frames::FrameLink;
use crate::limits::{CONNECT_MAX, PING_ANSWER_MAX, PING_INTERVAL, Windows};
use tonic::Status;
use tonic::codegen::http::uri::Authority;
use tonic::codegen::http::{Request, Response};
use tonic::transport::Endpoint;
use tower::util::BoxCloneSyncService;

/// The most bytes of an answer in one frame of HTTP/2: those of a chunk come in one or two, where HTTP/2's
/// own 16 KiB make 64 of it, each with a read and a buffer of its own. What waits behind a frame waits for a
/// MiB more at most.
const FRAME_BYTES_MAX: u32 = 1 << 20;
/// A way to the gRPC services of one process; cheap to clone.
pub type Channel = BoxCloneSyncService<Request<tonic::body::Body>, Response<tonic::body::Body>, Status>;

/// The way in which a process reaches others: over TCP, over TLS ([`crate::TlsConnector`]), or in a
/// simulation.
pub trait Connector: Send + Sync + 'static {
    /// A channel to "host:port". Nothing is connected until something is sent; an error says what is wrong
    /// with the address.
    fn connect(&self, address: &str) -> Result<Channel, String>;
}

/// Frames of our own over TCP, one connection for each channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector {
    pub windows: Windows,
}

impl Connector for TcpConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let authority: Result<Authority, _> = address.parse();
        match authority.map(|authority| authority.port().is_some()) {
            Ok(true) => Ok(BoxCloneSyncService::new(FrameLink::new(address, self.windows))),
            Ok(false) => Err(format!("`{address}` is not a host:port")),
            Err(error) => Err(format!("`{address}` is not a host:port: {error}")),
        }
    }
}

/// The settings of a connection over HTTP/2.
pub(crate) fn endpoint(scheme: &str, address: &str, windows: Windows) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(|error| format!("`{address}` is not a host:port: {error}"))?
        .connect_timeout(CONNECT_MAX)
        .tcp_nodelay(true)
        .initial_stream_window_size(windows.stream_bytes)
        .initial_connection_window_size(windows.connection_bytes)
        .max_frame_size(FRAME_BYTES_MAX)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_ANSWER_MAX)
        .keep_alive_while_idle(true);
    Ok(endpoint)
}
