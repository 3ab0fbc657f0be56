use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The layer between a TCP connection and HTTP: nothing, or TLS.
pub trait Transport: Clone + Send + Sync + 'static {
    type Stream: Stream;

    /// Makes a stream of a connection: the place of a TLS handshake. Given up after
    /// [`Limits::head_max`](crate::Limits).
    fn open(&self, connection: TcpStream) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Bytes in both directions, on a TCP connection that can still be got at.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn tcp(&self) -> &TcpStream;
}

/// TCP and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Transport for Plain {
    type Stream = TcpStream;

    async fn open(&self, connection: TcpStream) -> io::Result<TcpStream> {
        Ok(connection)
    }
}

impl Stream for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}
