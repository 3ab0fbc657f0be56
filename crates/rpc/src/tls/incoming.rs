use super::{HTTP2, TlsConnection, TlsCounts, TlsIdentity, TlsRefusal};
use futures::stream::{BoxStream, Stream, StreamExt};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::TcpIncoming;

/// The time that a handshake may take: our own clients give up after a second.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// The most handshakes at a time; more wait in the listener's queue. They take some 50 KiB each while they
/// last, so 25 MiB.
const HANDSHAKES_MAX: usize = 512;
/// The most bytes that are read from a client that was refused, so that the reason reaches it: what hello and
/// HTTP/2 preface of a client of ours come to, with room.
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// Connections to a listener whose handshakes are done, for `serve_with_incoming` of a server made by a
/// [`crate::Gate`]. Handshakes run beside each other while the stream is polled and end with it; one that
/// fails is counted, logged and forgotten. Whoever fills all places with silent connections delays new ones,
/// those that stand go on.
pub struct TlsIncoming {
    connections: BoxStream<'static, io::Result<TlsConnection>>,
    counts: Arc<TlsCounts>,
}

impl TlsIncoming {
    pub fn new(listener: TcpListener, identity: &TlsIdentity) -> TlsIncoming {
        let acceptor = TlsAcceptor::from(identity.server.clone());
        let counts = Arc::new(TlsCounts::default());
        let counting = counts.clone();
        let connections = TcpIncoming::from(listener)
            .with_nodelay(Some(true))
            .map(move |accepted| accept(accepted, acceptor.clone(), counting.clone()))
            .buffer_unordered(HANDSHAKES_MAX)
            .filter_map(std::future::ready)
            .boxed();
        TlsIncoming { connections, counts }
    }

    pub fn counts(&self) -> Arc<TlsCounts> {
        self.counts.clone()
    }
}

impl Stream for TlsIncoming {
    type Item = io::Result<TlsConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_next_unpin(cx)
    }
}

/// Makes the handshake of a connection. `None`: it was refused. An error is the listener's own.
async fn accept(
    accepted: io::Result<TcpStream>,
    acceptor: TlsAcceptor,
    counts: Arc<TlsCounts>,
) -> Option<io::Result<TlsConnection>> {
    let tcp = match accepted {
        Ok(tcp) => tcp,
        Err(error) => return Some(Err(error)),
    };
    let peer = tcp.peer_addr().ok();
    let refuse = |refusal, error: Option<&io::Error>| counts.refuse(peer, refusal, error);
    let handshake = timeout(HANDSHAKE_MAX, acceptor.accept(tcp).into_fallible()).await;
    match handshake {
        Err(_) => refuse(TlsRefusal::TooSlow, None),
        Ok(Err((error, tcp))) => {
            refuse(TlsRefusal::of(&error), Some(&error));
            let _late = timeout(HANDSHAKE_MAX, linger(tcp)).await;
        }
        // A client that names no protocol passes the handshake.
        Ok(Ok(tls)) if tls.get_ref().1.alpn_protocol() != Some(HTTP2) => refuse(TlsRefusal::NotHttp2, None),
        Ok(Ok(tls)) => {
            counts.accept();
            return Some(Ok(TlsConnection(tls)));
        }
    }
    None
}

/// Closes our half and reads until the peer closes its own. A socket closed with bytes unread is reset, and a
/// reset takes the alert that says what is wrong out of the peer's hands: in TLS 1.3 a client has sent its
/// first request by then.
async fn linger(mut tcp: TcpStream) {
    if tcp.shutdown().await.is_ok() {
        let mut rest = tcp.take(LINGER_BYTES_MAX);
        let _broken = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    }
}
