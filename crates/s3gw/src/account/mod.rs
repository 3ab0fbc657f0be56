//! The account of each request: counted for Prometheus, and written down where a log is asked for. An
//! [`Account`] is opened with a request's head and closed once, with the last byte of its answer or when
//! somebody gives the request up, whoever that is.

mod counted;
mod line;
mod log;
mod told;

pub use log::RequestLog;
pub(crate) use told::Told;

use crate::admission::operation_names;
use crate::request_body::{Progress, Stage};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;
use counted::Counted;
use http_body::{Frame, SizeHint};
use httpd::RequestId;
use line::Line;
use metrics::Exposition;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;
use told::{RequestEnd, Written, kept};
use types::{Clock, SystemClock};

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
            end: RequestEnd::Left,
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
    /// The reason why the request was refused, if it was answered with an error before it was admitted.
    refused_for: Option<&'static str>,
    first_byte: Option<Duration>,
    sent_bytes: u64,
    end: RequestEnd,
}

impl Account {
    /// Notes the code of the error document with which the request is answered.
    pub(crate) fn error(&mut self, code: &str) {
        if !self.told.admitted {
            self.refused_for = Some(counted::reason(code));
        }
        if let Some(written) = &mut self.told.written {
            written.error = Some(kept(code).to_owned());
        }
    }

    /// Returns the answer as it goes out, which closes the account with its last byte.
    pub(crate) fn answer(mut self, response: Response) -> Response {
        self.status = Some(response.status());
        let body = response.body();
        // An answer without a body is not asked for more: the head is all there is.
        if body.is_end_stream() {
            self.first_byte = Some(self.begun.elapsed());
            self.end = RequestEnd::Done;
            return response;
        }
        // An object's body does not know its own length; the HTTP layer goes by what the head says.
        let said = || response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        let left_bytes = body.size_hint().exact().or_else(said);
        response.map(|body| Body::new(Answer { body, left_bytes, account: self }))
    }

    /// Returns an answer to HEAD, and closes the account: such an answer has a length and no body, and what
    /// comes as one is thrown away by the HTTP layer.
    pub(crate) fn answer_head(mut self, response: Response) -> Response {
        self.status = Some(response.status());
        self.first_byte = Some(self.begun.elapsed());
        self.end = RequestEnd::Done;
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
            self.end = RequestEnd::Left;
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
    /// The bytes still to come, where that is known.
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
            _ if ended => RequestEnd::Done,
            Some(Ok(_)) => RequestEnd::Left,
            Some(Err(_)) | None => RequestEnd::Cut,
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
