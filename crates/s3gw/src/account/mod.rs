//! What becomes of each request: counted for Prometheus, and written down where a log is asked for. An [`Account`] is opened with a
//! request's head and closed once, with the last byte of its answer or when somebody gives the request up, whoever that is.

mod counted;
mod line;
mod log;

pub use log::RequestLog;

use crate::admission::operation_names;
use crate::request_body::{Progress, Stage};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use counted::Counted;
use http_body::{Frame, SizeHint};
use httpd::RequestId;
use line::Line;
use metrics::Exposition;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;
use types::{Clock, SystemClock};

/// Longest part of a request's text that is kept: the longest key, with each of its bytes encoded.
const TEXT_BYTES_MAX: usize = 4096;

/// The requests of one gateway: what is counted of them, and where they are written down.
pub struct Accounts {
    counted: Counted,
    log: Option<RequestLog>,
}

impl Accounts {
    pub fn new(log: Option<RequestLog>) -> Arc<Accounts> {
        Arc::new(Accounts { counted: Counted::new(operation_names()), log })
    }

    pub fn log(&self) -> Option<&RequestLog> {
        self.log.as_ref()
    }

    pub fn expose(&self, exposition: &mut Exposition) {
        self.counted.expose(exposition);
        log::expose(self.log.as_ref(), exposition);
    }

    pub(crate) fn open(self: &Arc<Self>, request: &Request, id: RequestId, progress: Progress) -> Account {
        let path = request.uri().path();
        let written = self.log.as_ref().map(|_| Written {
            at_ms: SystemClock.now_ms(),
            id,
            peer: request.extensions().get().copied(),
            access_key: line::access_key(request),
            method: request.method().clone(),
            path: kept(path).to_owned(),
            version: None,
            error: None,
        });
        Account {
            accounts: self.clone(),
            begun: Instant::now(),
            told: Told { written, operation: None, signature: None, admitted: false },
            progress,
            status: None,
            refused_for: None,
            first_byte: None,
            sent_bytes: 0,
            end: End::Left,
        }
    }
}

/// The beginning of a text that a client may make as long as it likes.
fn kept(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// What a request turns out to be; who admits it tells.
#[derive(Default)]
pub(crate) struct Told {
    /// `None` where no request is written down.
    written: Option<Written>,
    operation: Option<&'static str>,
    /// How long its signature was looked at.
    signature: Option<Duration>,
    admitted: bool,
}

/// What only the log wants to know of a request.
struct Written {
    at_ms: u64,
    id: RequestId,
    peer: Option<SocketAddr>,
    access_key: Option<String>,
    method: Method,
    /// With the bucket in front, as it came: encoded.
    path: String,
    version: Option<String>,
    error: Option<String>,
}

impl Told {
    /// The bucket stands in the host's name.
    pub(crate) fn bucket_in_host(&mut self, bucket: &str) {
        if let Some(written) = &mut self.written {
            written.path = format!("/{bucket}{}", written.path);
        }
    }

    pub(crate) fn signature_took(&mut self, time: Duration) {
        self.signature = Some(time);
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

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its answer was handed over to the last byte.
    Done,
    /// Its connection ended before that: the client closed it, or was let go of.
    Left,
    /// Its answer was broken off here: the rest could not be had, or was not what had been written.
    Cut,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Done => "done",
            End::Left => "left",
            End::Cut => "cut",
        }
    }
}

/// One request under way. Dropped, it is closed as one whose connection ended.
pub(crate) struct Account {
    accounts: Arc<Accounts>,
    begun: Instant,
    pub(crate) told: Told,
    progress: Progress,
    status: Option<StatusCode>,
    /// The code of an error that it was answered with before it was admitted.
    refused_for: Option<&'static str>,
    first_byte: Option<Duration>,
    sent_bytes: u64,
    end: End,
}

impl Account {
    /// The code of the error document that it is answered with.
    pub(crate) fn error(&mut self, code: &str) {
        if !self.told.admitted {
            self.refused_for = Some(counted::reason(code));
        }
        if let Some(written) = &mut self.told.written {
            written.error = Some(kept(code).to_owned());
        }
    }

    /// The answer as it goes out: closes the account with its last byte.
    pub(crate) fn answer(mut self, response: Response) -> Response {
        self.status = Some(response.status());
        let body = response.body();
        // Without a body nothing is asked of it any more: the head is all there is.
        if body.is_end_stream() {
            self.first_byte = Some(self.begun.elapsed());
            self.end = End::Done;
            return response;
        }
        // An object's body does not know its own length; the HTTP layer goes by what the head says.
        let said = || response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let left_bytes = body.size_hint().exact().or_else(said);
        response.map(|body| Body::new(Answer { body, left_bytes, account: self }))
    }

    /// An answer to HEAD has a length and no body: what comes as one is thrown away by the HTTP layer.
    pub(crate) fn answer_head(mut self, response: Response) -> Response {
        self.status = Some(response.status());
        self.first_byte = Some(self.begun.elapsed());
        self.end = End::Done;
        response
    }

    fn sent(&mut self, bytes: usize) {
        self.first_byte.get_or_insert_with(|| self.begun.elapsed());
        self.sent_bytes += bytes as u64;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // An answer about a body that broke off reaches nobody.
        if self.progress.stage() == Stage::Broken {
            self.end = End::Left;
        }
        let time = self.begun.elapsed();
        self.accounts.counted.close(self, time);
        if let (Some(written), Some(log)) = (self.told.written.take(), &self.accounts.log) {
            log.write(Line {
                written,
                operation: self.told.operation,
                status: self.status.map(|status| status.as_u16()),
                end: self.end,
                received_bytes: self.progress.bytes(),
                sent_bytes: self.sent_bytes,
                time,
                first_byte: self.first_byte,
            });
        }
    }
}

/// An answer's body on its way out.
struct Answer {
    body: Body,
    /// What is still to come, where that is known.
    left_bytes: Option<u64>,
    account: Account,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let ended = match &frame {
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                this.account.sent(bytes);
                this.left_bytes = this.left_bytes.map(|left| left.saturating_sub(bytes as u64));
                // Whoever knows the length does not ask for what follows the last byte.
                this.left_bytes == Some(0) || this.body.is_end_stream()
            }
            Some(Err(_)) => false,
            None => this.left_bytes.is_none_or(|left| left == 0),
        };
        this.account.end = match &frame {
            _ if ended => End::Done,
            Some(Ok(_)) => End::Left,
            Some(Err(_)) | None => End::Cut,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
