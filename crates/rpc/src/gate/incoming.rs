use super::GateCounts;
use super::connection::GateConnection;
use super::share::{Shares, holder};
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;

/// The pause after a connection could not be taken, for instance because the process has no file descriptors
/// left: the listener says so again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections of a listener, each counted as long as it lasts. One past its address's share is closed at
/// once.
pub struct GateIncoming(BoxStream<'static, io::Result<GateConnection>>);

impl GateIncoming {
    pub(super) fn new(listener: TcpListener, shares: Arc<Shares>, counts: Arc<GateCounts>) -> GateIncoming {
        let accepted = stream::unfold(listener, move |listener| {
            let (shares, counts) = (shares.clone(), counts.clone());
            async move {
                loop {
                    let (tcp, from) = match listener.accept().await {
                        Ok(accepted) => accepted,
                        Err(error) => {
                            tracing::warn!(%error, "accept a connection");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                            continue;
                        }
                    };
                    let Some(place) = shares.take(Some(holder(from.ip()))) else {
                        counts.connections_refused.count();
                        tracing::debug!(%from, "refuse a connection: too many");
                        continue;
                    };
                    // Without this option answers are slow, and still right.
                    let _ = tcp.set_nodelay(true);
                    return Some((Ok(GateConnection::new(tcp, place, counts)), listener));
                }
            }
        });
        GateIncoming(accepted.boxed())
    }
}

impl Stream for GateIncoming {
    type Item = io::Result<GateConnection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}
