//! Counts of requests, for Prometheus: docs/metrics.md.

use super::Account;
use super::told::RequestEnd;
use axum::http::StatusCode;
use metrics::{Counter, Exposition, Histogram, Metric};
use std::collections::BTreeMap;
use std::time::Duration;

const REQUESTS: Metric = Metric {
    name: "flotilla_s3_requests_total",
    help: "Requests of S3 that have ended, by operation and the class of the answer's status; left: the connection ended before the answer \
           did; cut: the answer was broken off here.",
};
const SECONDS: Metric = Metric {
    name: "flotilla_s3_request_seconds",
    help: "From a request's head to the last byte of its answer, by operation; without those that were left.",
};
const FIRST_BYTE: Metric = Metric {
    name: "flotilla_s3_first_byte_seconds",
    help: "From a request's head to the first byte of its answer, by operation.",
};
const BYTES: Metric = Metric {
    name: "flotilla_s3_body_bytes_total",
    help: "Bytes of the bodies of requests (in) and of answers (out), by operation.",
};
const REFUSED: Metric = Metric {
    name: "flotilla_s3_requests_refused_total",
    help: "Requests answered with an error before they were admitted, by reason.",
};
const SIGNATURE: Metric = Metric {
    name: "flotilla_s3_signature_seconds",
    help: "Time that looking at a request's signature took.",
};

/// The name for requests that are no operation, or were refused before anybody looked which.
const NO_OPERATION: &str = "none";

const REASONS: [&str; 4] = ["busy", "invalid", "not_implemented", "signature"];

/// The reason why a request is refused, by the code it is answered with.
pub(super) fn reason(code: &str) -> &'static str {
    match code {
        "SlowDown" => "busy",
        "NotImplemented" => "not_implemented",
        "AccessDenied"
        | "AuthorizationHeaderMalformed"
        | "AuthorizationQueryParametersError"
        | "InvalidAccessKeyId"
        | "InvalidToken"
        | "RequestTimeTooSkewed"
        | "SignatureDoesNotMatch" => "signature",
        _ => "invalid",
    }
}

/// The class of a request's end; its number is an index of counters.
#[derive(Clone, Copy)]
enum Class {
    Served,
    Redirected,
    Refused,
    /// A request for what this store does not do, whoever asks: the client's doing, whatever HTTP calls it.
    Unknown,
    Failed,
    Left,
    Cut,
}

impl Class {
    const NAMES: [&str; 7] = ["2xx", "3xx", "4xx", "501", "5xx", "left", "cut"];

    fn of(end: RequestEnd, status: Option<StatusCode>) -> Class {
        match (end, status) {
            (RequestEnd::Left, _) | (RequestEnd::Done, None) => Class::Left,
            (RequestEnd::Cut, _) => Class::Cut,
            (RequestEnd::Done, Some(StatusCode::NOT_IMPLEMENTED)) => Class::Unknown,
            (RequestEnd::Done, Some(status)) if status.is_server_error() => Class::Failed,
            (RequestEnd::Done, Some(status)) if status.is_client_error() => Class::Refused,
            (RequestEnd::Done, Some(status)) if status.is_redirection() => Class::Redirected,
            (RequestEnd::Done, Some(_)) => Class::Served,
        }
    }
}

/// Requests of all operations.
pub(super) struct Counted {
    operations: BTreeMap<&'static str, Requests>,
    refused: BTreeMap<&'static str, Counter>,
    signature: Histogram,
}

#[derive(Default)]
struct Requests {
    ended: [Counter; Class::NAMES.len()],
    seconds: Histogram,
    first_byte: Histogram,
    received_bytes: Counter,
    sent_bytes: Counter,
}

impl Requests {
    fn are_none(&self) -> bool {
        self.ended.iter().all(|ended| ended.get() == 0)
    }
}

impl Counted {
    pub(super) fn new(operations: impl Iterator<Item = &'static str>) -> Counted {
        Counted {
            operations: operations.chain([NO_OPERATION]).map(|name| (name, Requests::default())).collect(),
            refused: REASONS.iter().map(|reason| (*reason, Counter::default())).collect(),
            signature: Histogram::default(),
        }
    }

    pub(super) fn close(&self, account: &Account, time: Duration) {
        if let Some(reason) = account.refused_for.and_then(|reason| self.refused.get(reason)) {
            reason.count();
        }
        if let Some(time) = account.told.signature {
            self.signature.record_duration(time);
        }
        let Some(requests) = self.operations.get(account.told.operation.unwrap_or(NO_OPERATION)) else {
            return;
        };
        requests.ended[Class::of(account.end, account.status) as usize].count();
        requests.received_bytes.add(account.progress.bytes());
        requests.sent_bytes.add(account.sent_bytes);
        if let Some(time) = account.first_byte {
            requests.first_byte.record_duration(time);
        }
        if account.end != RequestEnd::Left {
            requests.seconds.record_duration(time);
        }
    }

    /// Adds the counts to the metrics. Operations that nobody has asked for are left out: there are 41, and
    /// most stores see ten of them.
    pub(super) fn expose(&self, exposition: &mut Exposition) {
        for (operation, requests) in &self.operations {
            if requests.are_none() && *operation != NO_OPERATION {
                continue;
            }
            for (class, ended) in Class::NAMES.iter().zip(&requests.ended) {
                exposition.counter(REQUESTS, &[("operation", operation), ("class", class)], ended.get());
            }
            let labels = [("operation", *operation)];
            exposition.histogram(SECONDS, &labels, &requests.seconds.take());
            exposition.histogram(FIRST_BYTE, &labels, &requests.first_byte.take());
            for (direction, bytes) in [("in", &requests.received_bytes), ("out", &requests.sent_bytes)] {
                let labels = [("operation", *operation), ("direction", direction)];
                exposition.counter(BYTES, &labels, bytes.get());
            }
        }
        for (reason, refused) in &self.refused {
            exposition.counter(REFUSED, &[("reason", reason)], refused.get());
        }
        exposition.histogram(SIGNATURE, &[], &self.signature.take());
    }
}
