use crate::pace::Pace;
use crate::traffic::UnderWay;
use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::{Instant, Sleep};

/// A request's body as it comes from the connection. It ends with [`Stalled`] when its client lets us wait
/// for too long.
pub(crate) struct RequestBody<B> {
    body: B,
    under_way: Arc<UnderWay>,
    pace: Pace,
    /// The timer that runs while a reader waits for the next frame.
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether the body's end has come, and not because the client stalled.
    ended: bool,
    stalled: bool,
}

/// The client of a request sent its body too slowly, or stopped.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("RequestTimeout: the body came too slowly, or not at all")]
pub struct Stalled;

impl Stalled {
    /// Whether a stalled client is behind an error that a body ended with.
    pub fn caused(error: &(dyn Error + 'static)) -> bool {
        std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.is::<Stalled>())
    }
}

impl<B: Body<Data = Bytes> + Unpin> RequestBody<B> {
    pub(crate) fn new(body: B, under_way: Arc<UnderWay>) -> RequestBody<B> {
        let limits = &under_way.traffic.limits;
        let pace = Pace::new(limits.transfer_idle_max, limits.bytes_per_second_min);
        let ended = body.is_end_stream();
        RequestBody { body, under_way, pace, timer: None, ended, stalled: false }
    }

    /// Resolves when the client has let us wait for too long.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.timer.is_none() {
            let now = Instant::now();
            self.pace.wait(now);
            self.under_way.body_is_waited_for(Some(now));
        }
        let over_at = self.pace.over_at().expect("it is waited for");
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(over_at)));
        timer.as_mut().poll(cx)
    }

    fn moved(&mut self, bytes: usize) {
        if self.timer.take().is_some() {
            self.under_way.body_is_waited_for(None);
        }
        self.pace.moved(bytes, Instant::now());
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + Send + Sync + 'static,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        if this.stalled {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            ready!(this.poll_over(cx));
            this.stalled = true;
            this.under_way.traffic.counters.stalled.count();
            return Poll::Ready(Some(Err(Stalled.into())));
        };
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        };
        this.moved(bytes);
        this.ended = frame.is_none() || this.body.is_end_stream();
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for RequestBody<B> {
    fn drop(&mut self) {
        if self.timer.is_some() {
            self.under_way.body_is_waited_for(None);
        }
        if !self.ended {
            self.under_way.body_is_left_unread();
        }
    }
}
