use super::TlsRefusal;
use metrics::Counter;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;
use tracing::info;

/// A client that is refused comes again at once, so one line in a second tells of all of them; the counters
/// tell how many.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of what became of the connections to a [`super::TlsIncoming`].
#[derive(Default)]
pub struct TlsCounts {
    accepted: Counter,
    /// Counters in the order of [`TlsRefusal::ALL`].
    refused: [Counter; TlsRefusal::ALL.len()],
    logged_at: Mutex<Option<Instant>>,
}

impl TlsCounts {
    pub fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    pub fn refused(&self, refusal: TlsRefusal) -> u64 {
        self.refused[refusal as usize].get()
    }

    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().map(Counter::get).sum()
    }

    pub(super) fn accept(&self) {
        self.accepted.count();
    }

    pub(super) fn refuse(&self, peer: Option<SocketAddr>, refusal: TlsRefusal, error: Option<&io::Error>) {
        self.refused[refusal as usize].count();
        if self.may_log() {
            info!(?peer, %refusal, error = error.map(tracing::field::display), "refuse a connection");
        }
    }

    fn may_log(&self) -> bool {
        let now = Instant::now();
        let mut logged_at = self.logged_at.lock().expect("no holder panics");
        let is_due = logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL);
        if is_due {
            *logged_at = Some(now);
        }
        is_due
    }
}
