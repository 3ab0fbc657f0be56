use crate::addresses::{Addresses, Full};
use crate::connection;
use crate::counters::Counters;
use crate::limits::Limits;
use crate::refusal::{Document, Refusal};
use crate::transport::Transport;
use axum::Router;
use axum::http::HeaderName;
use socket2::SockRef;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

/// The pause after accepting failed for want of something, of file descriptors mostly. Clients
/// wait in the kernel's queue meanwhile; trying again at once would take a processor and change nothing.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A port: the router that serves it, and the limits for its clients.
pub struct Port {
    /// The name in logs and metrics: `s3`, `http`.
    pub name: &'static str,
    pub router: Router,
    pub limits: Arc<Limits>,
    pub counters: Arc<Counters>,
    /// The words of refusals that no request came to ask for.
    pub document: Document,
    /// The header in which answers name their requests.
    pub request_id_header: HeaderName,
}

/// Serves connections until `stop`; then accepts no more, and returns when those there are have finished what
/// they were doing. Dropped before that, it ends them.
pub async fn serve<T: Transport>(listener: TcpListener, port: Port, transport: T, stop: CancellationToken) {
    let limits = port.limits.clone();
    let addresses = Addresses::new(limits.connections_max, limits.connections_of_address_max());
    port.counters.connections_max.set(limits.connections_max);
    let builder = Arc::new(connection::builder(&port));
    let refusals = Arc::new(Semaphore::new(limits.refusals_max));
    let port = Arc::new(port);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            () = stop.cancelled() => break,
        };
        let (connection, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                accept_failed(&error, &port, &stop).await;
                continue;
            }
        };
        port.counters.accepted.count();
        prepare(&connection, &limits);
        match addresses.take(peer.ip(), Instant::now()) {
            Ok(place) => {
                let (port, transport, builder) = (port.clone(), transport.clone(), builder.clone());
                let stop = stop.clone();
                connections.spawn(async move {
                    let _open = Open::new(port.counters.clone());
                    let counters = port.counters.clone();
                    let end = connection::run(connection, peer, place, port, transport, builder, stop);
                    counters.closed(end.await);
                });
            }
            Err(full) => {
                let (port, transport, stop) = (port.clone(), transport.clone(), stop.clone());
                let refusal = match full {
                    Full::All => Refusal::Connections,
                    Full::OfAddress => Refusal::ConnectionsOfAddress,
                };
                match full {
                    Full::All => port.counters.refused_all.count(),
                    Full::OfAddress => port.counters.refused_of_address.count(),
                }
                let Ok(permit) = refusals.clone().try_acquire_owned() else { continue };
                connections.spawn(async move {
                    let _permit = permit;
                    refuse(connection, refusal, &port, &transport, &stop).await;
                });
            }
        }
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
}

/// An open connection, counted.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: Arc<Counters>) -> Open {
        counters.open.up();
        Open(counters)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.down();
    }
}

/// Sets a socket's options. Small answers go at once: without `TCP_NODELAY` the second part of one waits for
/// the first one's acknowledgement, which a client delays by 40 ms. And the kernel keeps little beyond what
/// is on its way: a reader's pace is seen as it is.
fn prepare(connection: &TcpStream, limits: &Limits) {
    let _ = connection.set_nodelay(true);
    let _ = SockRef::from(connection).set_tcp_notsent_lowat(limits.unsent_bytes_max);
}

async fn refuse<T: Transport>(
    connection: TcpStream,
    refusal: Refusal,
    port: &Port,
    transport: &T,
    stop: &CancellationToken,
) {
    let opened = tokio::time::timeout(port.limits.linger_max, transport.open(connection)).await;
    if let Ok(Ok(stream)) = opened {
        connection::refuse(stream, refusal, port, stop).await;
    }
}

/// Pauses after a failure to accept, unless it is that of one connection, and so its client's. Every other is
/// ours, and passes only when something is given back.
async fn accept_failed(error: &io::Error, port: &Port, stop: &CancellationToken) {
    port.counters.accept_failures.count();
    let of_client = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionRefused,
        io::ErrorKind::Interrupted,
    ];
    if of_client.contains(&error.kind()) {
        return;
    }
    info!(port = port.name, %error, "no connection can be accepted");
    tokio::select! {
        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
        () = stop.cancelled() => {}
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(failure) = ended
        && failure.is_panic()
    {
        error!(%failure, "a connection's task panicked");
    }
}
