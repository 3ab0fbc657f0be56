use crate::traffic::CloseReason;
use metrics::{Counter, Exposition, Metric};
use std::sync::atomic::{AtomicU64, Ordering};

const CONNECTIONS: Metric = Metric { name: "flotilla_http_connections", help: "Connections open." };
const CONNECTIONS_MAX: Metric =
    Metric { name: "flotilla_http_connections_max", help: "Connections that may be open at once." };
const SLOW: Metric =
    Metric { name: "flotilla_http_transfers_slow", help: "Answers and bodies whose clients let us wait." };
const ACCEPTED: Metric =
    Metric { name: "flotilla_http_connections_accepted_total", help: "Connections accepted." };
const REFUSED: Metric = Metric {
    name: "flotilla_http_connections_refused_total",
    help: "Connections accepted above a limit, and closed with or without an answer.",
};
const CLOSED: Metric =
    Metric { name: "flotilla_http_connections_closed_total", help: "Connections closed, by reason." };
const ACCEPT_FAILURES: Metric = Metric {
    name: "flotilla_http_accept_failures_total",
    help: "Connections that could not be accepted, mostly for lack of file descriptors.",
};
const REQUESTS: Metric = Metric { name: "flotilla_http_requests_total", help: "Requests begun." };
const UNDER_WAY: Metric = Metric {
    name: "flotilla_http_requests_under_way",
    help: "Requests under way, to the last byte of their answers.",
};
const STALLED: Metric = Metric {
    name: "flotilla_http_request_bodies_stalled_total",
    help: "Requests whose clients sent their bodies too slowly, or not at all.",
};
const BYTES: Metric = Metric { name: "flotilla_http_bytes_total", help: "Bytes received and sent." };
const WORKING: Metric = Metric {
    name: "flotilla_http_requests_working",
    help: "Requests that the process works for now, and that do not wait for their clients.",
};
const WORKING_MAX: Metric =
    Metric { name: "flotilla_http_requests_working_max", help: "Requests that may be worked for at once." };
const WORK_REFUSED: Metric = Metric {
    name: "flotilla_http_requests_refused_total",
    help: "Requests refused because as many as may be are worked for.",
};
const BODIES: Metric = Metric {
    name: "flotilla_http_bodies_bytes",
    help: "Bodies that are held as a whole: those of requests as they come, and answers until they are taken.",
};
const BODIES_MAX: Metric =
    Metric { name: "flotilla_http_bodies_max_bytes", help: "Limit of that, of all clients together." };
const BODIES_REFUSED: Metric = Metric {
    name: "flotilla_http_bodies_refused_total",
    help: "Requests refused because their bodies or answers had no memory, of all or of their address.",
};

/// The counters of one port.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) accepted: Counter,
    pub(crate) accept_failures: Counter,
    pub(crate) refused_all: Counter,
    pub(crate) refused_of_address: Counter,
    pub(crate) open: Level,
    pub(crate) slow: Level,
    pub(crate) requests: Counter,
    pub(crate) under_way: Level,
    pub(crate) stalled: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) working: Level,
    pub(crate) working_max: Level,
    pub(crate) work_refused: Counter,
    pub(crate) bodies_bytes: Level,
    pub(crate) bodies_bytes_max: Level,
    pub(crate) bodies_refused: Counter,
    pub(crate) connections_max: Level,
    closed: [Counter; CloseReason::ALL.len()],
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub(crate) struct Level(AtomicU64);

impl Level {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn change(&self, from: usize, to: usize) {
        self.0.fetch_add((to as u64).wrapping_sub(from as u64), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn closed(&self, end: CloseReason) {
        self.closed[end as usize].count();
    }

    /// Shows all counters, with the port's name as the label `port`.
    pub fn expose(&self, port: &str, exposition: &mut Exposition) {
        let labels = [("port", port)];
        exposition.gauge(CONNECTIONS, &labels, self.open.get());
        exposition.gauge(CONNECTIONS_MAX, &labels, self.connections_max.get());
        exposition.gauge(SLOW, &labels, self.slow.get());
        exposition.counter(ACCEPTED, &labels, self.accepted.get());
        exposition.counter(ACCEPT_FAILURES, &labels, self.accept_failures.get());
        let refused = [("connections", &self.refused_all), ("address", &self.refused_of_address)];
        for (reason, counter) in refused {
            exposition.counter(REFUSED, &[("port", port), ("reason", reason)], counter.get());
        }
        for end in CloseReason::ALL {
            let count = self.closed[end as usize].get();
            exposition.counter(CLOSED, &[("port", port), ("reason", end.name())], count);
        }
        exposition.counter(REQUESTS, &labels, self.requests.get());
        exposition.gauge(UNDER_WAY, &labels, self.under_way.get());
        exposition.counter(STALLED, &labels, self.stalled.get());
        for (direction, counter) in [("in", &self.received_bytes), ("out", &self.sent_bytes)] {
            exposition.counter(BYTES, &[("port", port), ("direction", direction)], counter.get());
        }
        if self.working_max.get() > 0 {
            exposition.gauge(WORKING, &labels, self.working.get());
            exposition.gauge(WORKING_MAX, &labels, self.working_max.get());
            exposition.counter(WORK_REFUSED, &labels, self.work_refused.get());
        }
        if self.bodies_bytes_max.get() > 0 {
            exposition.gauge(BODIES, &labels, self.bodies_bytes.get());
            exposition.gauge(BODIES_MAX, &labels, self.bodies_bytes_max.get());
            exposition.counter(BODIES_REFUSED, &labels, self.bodies_refused.get());
        }
    }
}
