use axum::body::{Body, Bytes, HttpBody};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Sleep;

/// A request body as it comes from the connection. It notes how far it got, for whoever answers, and ends with
/// [`Stalled`] when its client sends nothing for too long: else a few sleeping clients would hold every permit.
pub(crate) struct RequestBody {
    body: Body,
    progress: Progress,
    idle_max: Duration,
    /// Runs while a reader waits for the next frame.
    idle: Option<Pin<Box<Sleep>>>,
}

/// The words are what `incoming` knows it by: on its way it becomes the text of the protocol layer's own errors.
#[derive(Debug, thiserror::Error)]
#[error("RequestTimeout: nothing of the body came for {0:?}")]
struct Stalled(Duration);

/// How far a request body got; shared with its reader.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Arc<AtomicU8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// There was never anything to read.
    Empty,
    Unread,
    Reading,
    Ended,
    Broken,
    Stalled,
}

impl Progress {
    pub(crate) fn stage(&self) -> Stage {
        use Stage::*;
        let stages = [Empty, Unread, Reading, Ended, Broken, Stalled];
        stages[usize::from(self.0.load(Ordering::Relaxed))]
    }

    fn set(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }
}

impl RequestBody {
    pub(crate) fn new(body: Body, idle_max: Duration) -> (RequestBody, Progress) {
        let stage = if body.is_end_stream() { Stage::Empty } else { Stage::Unread };
        let progress = Progress(Arc::new(AtomicU8::new(stage as u8)));
        (RequestBody { body, progress: progress.clone(), idle_max, idle: None }, progress)
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.progress.stage() == Stage::Unread {
            this.progress.set(Stage::Reading);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            let idle_max = this.idle_max;
            let idle = this.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle_max)));
            return idle.as_mut().poll(cx).map(|()| {
                this.progress.set(Stage::Stalled);
                Some(Err(axum::Error::new(Stalled(idle_max))))
            });
        };
        this.idle = None;
        match &frame {
            Some(Err(_)) => this.progress.set(Stage::Broken),
            // A reader that knows the length does not ask for what follows the last byte.
            Some(Ok(_)) if this.body.is_end_stream() => this.progress.set(Stage::Ended),
            None if this.progress.stage() == Stage::Reading => this.progress.set(Stage::Ended),
            Some(Ok(_)) | None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;

    const IDLE_MAX: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_body_knows_how_far_it_got() {
        let (body, progress) = RequestBody::new(Body::from("data"), IDLE_MAX);
        assert_eq!(progress.stage(), Stage::Unread);
        axum::body::to_bytes(Body::new(body), 100).await.unwrap();
        assert_eq!(progress.stage(), Stage::Ended);

        let (body, progress) = RequestBody::new(Body::empty(), IDLE_MAX);
        axum::body::to_bytes(Body::new(body), 100).await.unwrap();
        assert_eq!(progress.stage(), Stage::Empty);

        let frames = futures::stream::iter([Ok("a"), Err(std::io::Error::other("reset"))]);
        let (body, progress) = RequestBody::new(Body::from_stream(frames), IDLE_MAX);
        let mut body = Body::new(body).into_data_stream();
        body.next().await.unwrap().unwrap();
        assert_eq!(progress.stage(), Stage::Reading);
        body.next().await.unwrap().unwrap_err();
        assert_eq!(progress.stage(), Stage::Broken);
    }

    /// Frames come in time one by one, but all of them take longer than one may.
    #[tokio::test]
    async fn a_client_may_be_slow_but_not_asleep() {
        let idle_max = Duration::from_secs(1);
        let slow = futures::stream::iter([1, 2, 3]).then(|n| async move {
            tokio::time::sleep(Duration::from_millis(400)).await;
            Ok::<_, std::io::Error>(vec![n])
        });
        let body = Body::from_stream(slow.chain(futures::stream::pending()));
        let (body, progress) = RequestBody::new(body, idle_max);
        let mut body = Body::new(body).into_data_stream();
        for _ in 0..3 {
            body.next().await.unwrap().unwrap();
        }
        let error = body.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("RequestTimeout"), "{error}");
        assert_eq!(progress.stage(), Stage::Stalled);
    }
}
