use super::GateCounts;
use super::share::Places;
use super::untaken::Untaken;
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
pub struct GateConnection<T = TcpStream> {
    tcp: T,
    place: Places,
    /// A place among those of HTTP/2, once it is known to be one.
    _place_among: Option<Places>,
    untaken: Arc<Untaken>,
    counts: Arc<GateCounts>,
    heard: Instant,
    /// The timer for silence, which is looked at when nothing comes, and set anew only then.
    silence: Pin<Box<Sleep>>,
}

/// The part of a connection that its calls know.
#[derive(Clone)]
pub struct ConnectionInfo {
    pub(super) tcp: TcpConnectInfo,
    pub(super) untaken: Arc<Untaken>,
}

impl<T> GateConnection<T> {
    pub(super) fn new(tcp: T, place: Places, counts: Arc<GateCounts>) -> GateConnection<T> {
        let heard = Instant::now();
        let silence = Box::pin(tokio::time::sleep_until(heard + SILENCE_MAX));
        GateConnection { tcp, place, _place_among: None, untaken: Arc::default(), counts, heard, silence }
    }
}

impl GateConnection {
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

    /// The same connection, which holds one more place.
    pub(super) fn among(self, place: Places) -> GateConnection {
        GateConnection { _place_among: Some(place), ..self }
    }

    pub(super) fn into_parts(self) -> (TcpStream, Places) {
        (self.tcp, self.place)
    }
}

impl Connected for GateConnection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo { tcp: self.tcp.connect_info(), untaken: self.untaken.clone() }
    }
}

#[cfg(test)]
impl Connected for GateConnection<tokio::io::DuplexStream> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        let tcp = TcpConnectInfo { local_addr: None, remote_addr: None };
        ConnectionInfo { tcp, untaken: self.untaken.clone() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GateConnection<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // This is asked every few seconds, as pings are answered.
        if this.untaken.is_late() {
            this.counts.frames.answers_not_taken.count();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
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

impl<T: AsyncWrite + Unpin> AsyncWrite for GateConnection<T> {
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
