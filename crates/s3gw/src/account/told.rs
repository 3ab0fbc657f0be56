//! A request as its account keeps it: what it turned out to be, and how it ended.

use axum::http::Method;
use httpd::RequestId;
use std::net::SocketAddr;
use std::time::Duration;

/// Longest part of a request's text that is kept: the longest key, with each of its bytes encoded.
const TEXT_BYTES_MAX: usize = 4096;

/// The beginning of a text that a client may make as long as it likes.
pub(super) fn kept(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// The facts that a request turns out to have, as they are told by who admits it.
#[derive(Default)]
pub(crate) struct Told {
    /// `None` where no request is written down.
    pub(super) written: Option<Written>,
    pub(super) operation: Option<&'static str>,
    /// The time that looking at the request's signature took.
    pub(super) signature: Option<Duration>,
    pub(super) admitted: bool,
}

/// The part of a request that only the log wants to know.
pub(super) struct Written {
    pub(super) at_ms: u64,
    pub(super) id: RequestId,
    pub(super) peer: Option<SocketAddr>,
    pub(super) access_key: Option<String>,
    pub(super) method: Method,
    /// The path with the bucket in front, as it came: encoded.
    pub(super) path: String,
    pub(super) version: Option<String>,
    pub(super) error: Option<String>,
}

impl Told {
    /// Puts a bucket that stands in the host's name in front of the path.
    pub(crate) fn bucket_in_host(&mut self, bucket: &str) {
        if let Some(written) = &mut self.written {
            written.path = format!("/{bucket}{}", written.path);
        }
    }

    pub(crate) fn signature_took(&mut self, time: Duration) {
        self.signature = Some(time);
    }

    /// Notes whose signature is right: another reader of the request may have understood another key.
    pub(crate) fn is_signed_by(&mut self, access_key: &str) {
        if let Some(written) = &mut self.written {
            written.access_key = Some(access_key.to_owned());
        }
    }

    pub(crate) fn is_operation(&mut self, operation: &'static str, version: Option<&str>) {
        self.operation = Some(operation);
        if let Some(written) = &mut self.written {
            written.version = version.map(|version| kept(version).to_owned());
        }
    }

    pub(crate) fn is_admitted(&mut self) {
        self.admitted = true;
    }
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestEnd {
    /// Its answer was handed over to the last byte.
    Done,
    /// Its connection ended before that: the client closed it, or was let go of.
    Left,
    /// Its answer was broken off here: the rest could not be had, or was not what had been written.
    Cut,
}

impl RequestEnd {
    pub(super) fn name(self) -> &'static str {
        match self {
            RequestEnd::Done => "done",
            RequestEnd::Left => "left",
            RequestEnd::Cut => "cut",
        }
    }
}
