use crate::traffic::UnderWay;
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;
use tracing::Span;

/// The largest piece in which an answer on HTTP/2 is handed over. A client stops an answer by leaving its
/// window closed, and what is handed over then stays in memory: small pieces, so that it is noticed before
/// the last.
const HTTP2_FRAME_BYTES_MAX: usize = 16 << 10;

/// An answer's body on its way out. Its request is under way as long as it exists.
pub(crate) struct ResponseBody {
    body: Body,
    /// The state for HTTP/2: the rest of a frame, and what the pace is kept with. HTTP/1 has one answer at a
    /// time, whose pace is the stream's.
    rest: Bytes,
    http2: bool,
    under_way: Arc<UnderWay>,
    span: Span,
}

impl ResponseBody {
    pub(crate) fn new(body: Body, http2: bool, under_way: Arc<UnderWay>, span: Span) -> ResponseBody {
        ResponseBody { body, rest: Bytes::new(), http2, under_way, span }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.under_way.asked_for_more(Instant::now());
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                end => return Poll::Ready(end),
            }
        }
        let bytes = self.rest.len().min(HTTP2_FRAME_BYTES_MAX);
        self.under_way.answered(bytes, Instant::now());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let span = this.span.clone();
        let _entered = span.enter();
        if this.http2 { this.poll_piece(cx) } else { Pin::new(&mut this.body).poll_frame(cx) }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
