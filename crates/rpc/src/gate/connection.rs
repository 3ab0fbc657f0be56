use super::GateCounts;
use super::share::Places;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// A connection from which nothing comes for so long is closed. Peers answer a ping every two seconds; only
/// one that never began to speak is asked for none.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// A connection that has its place.
pub struct GateConnection {
    tcp: TcpStream,
    place: Places,
    counts: Arc<GateCounts>,
    heard: Instant,
    /// The timer for silence, which is looked at when nothing comes, and set anew only then.
    silence: Pin<Box<Sleep>>,
}

impl GateConnection {
    pub(super) fn new(tcp: TcpStream, place: Places, counts: Arc<GateCounts>) -> GateConnection {
        let heard = Instant::now();
        let silence = Box::pin(tokio::time::sleep_until(heard + SILENCE_MAX));
        GateConnection { tcp, place, counts, heard, silence }
    }

    /// The first byte that comes, which stays to be read. `None`: none does.
    pub(super) async fn first_byte(&self) -> Option<u8> {
        let mut first = [0];
        match tokio::time::timeout(SILENCE_MAX, self.tcp.peek(&mut first)).await {
            Ok(peeked) => peeked.ok().filter(|count| *count > 0).map(|_| first[0]),
            Err(_) => {
                self.counts.connections_silent.count();
                None
            }
        }
    }

    pub(super) fn into_parts(self) -> (TcpStream, Places) {
        (self.tcp, self.place)
    }
}

impl Connected for GateConnection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.tcp.connect_info()
    }
}

impl AsyncRead for GateConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(read) = Pin::new(&mut this.tcp).poll_read(cx, buf) {
            this.heard = Instant::now();
            return Poll::Ready(read);
        }
        while this.silence.as_mut().poll(cx).is_ready() {
            let end = this.heard + SILENCE_MAX;
            if end <= Instant::now() {
                this.counts.connections_silent.count();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            this.silence.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl AsyncWrite for GateConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
