use super::GateCounts;
use super::share::{Places, Shares};
use super::untaken::{Untaken, Waiting};
use bytes::Bytes;
use http_body::Frame;
use proto::{Code, Failure, Retry};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Body as HttpBody;
use tonic::codegen::http::HeaderMap;

/// The most bytes of a piece of an answer that is not counted in frames, of which only so many wait as there
/// is credit for: a call costs more by itself. HTTP/2 makes piece after piece.
pub(crate) const SMALL_BYTES_MAX: usize = 4 << 10;

/// An answer to a call, whose pieces are counted from when they are made until nobody has them: not the queue
/// of a connection either.
pub(super) struct Answer {
    /// The call's place.
    pub(super) _place: Places,
    pub(super) from: Option<IpAddr>,
    pub(super) untaken_bytes: Arc<Shares>,
    /// The pieces that wait on the call's connection, where that is one of HTTP/2.
    pub(super) untaken: Option<Arc<Untaken>>,
    pub(super) counts: Arc<GateCounts>,
}

/// A piece of an answer that somebody has to take yet.
struct Piece {
    bytes: Bytes,
    _room: Places,
    _waiting: Option<Waiting>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Answer {
    /// Hands on what a body has next. Where that has no room, the answer ends with a status that says so.
    pub(super) fn poll(
        &mut self,
        body: &mut Body,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut *body).poll_frame(cx));
        let small_bytes_max = if self.untaken.is_some() { 0 } else { SMALL_BYTES_MAX };
        let is_large =
            |frame: &Frame<Bytes>| frame.data_ref().is_some_and(|data| data.len() > small_bytes_max);
        let bytes = match polled {
            Some(Ok(frame)) if is_large(&frame) => frame.into_data().expect("data has a length"),
            other => return Poll::Ready(other),
        };
        let mut room = self.untaken_bytes.none(self.from);
        if !room.hold(bytes.len()) {
            self.counts.answers_without_room.count();
            *body = Body::empty();
            return Poll::Ready(Some(Ok(Frame::trailers(without_room()))));
        }
        let waiting = self.untaken.as_ref().map(Untaken::begin);
        let piece = Piece { bytes, _room: room, _waiting: waiting };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(piece)))))
    }
}

/// The end of an answer that has no room. What was asked for may have been done.
fn without_room() -> HeaderMap {
    let why = "answers that nobody takes leave no room for this one: ask again, later";
    let failure = Failure { retry: Retry::Unknown, ..Failure::new(Code::Busy, why) };
    let mut trailers = HeaderMap::new();
    Status::from(failure).add_header(&mut trailers).expect("a sentence can be a header");
    trailers
}
