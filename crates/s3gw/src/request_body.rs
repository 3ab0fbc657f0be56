use axum::body::{Body, Bytes, HttpBody};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

/// A request body as it comes from the connection. It notes how far it got, for whoever answers. The words of
/// its errors are what `incoming` knows them by: on their way they become the text of the protocol layer's
/// own.
pub(crate) struct RequestBody {
    body: Body,
    progress: Progress,
}

/// The progress of a request body; shared with its reader.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Arc<(AtomicU8, AtomicU64)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// The body is empty: there was never anything to read.
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
        stages[usize::from(self.0.0.load(Ordering::Relaxed))]
    }

    fn set(&self, stage: Stage) {
        self.0.0.store(stage as u8, Ordering::Relaxed);
    }

    /// The bytes that have come, as they travelled.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    pub(crate) fn new(body: Body) -> (RequestBody, Progress) {
        let stage = if body.is_end_stream() { Stage::Empty } else { Stage::Unread };
        let progress = Progress(Arc::new((AtomicU8::new(stage as u8), AtomicU64::new(0))));
        (RequestBody { body, progress: progress.clone() }, progress)
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
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            this.progress.0.1.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        match &frame {
            Some(Err(error)) if httpd::Stalled::caused(error) => this.progress.set(Stage::Stalled),
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

    #[tokio::test]
    async fn a_body_knows_how_far_it_got() {
        let (body, progress) = RequestBody::new(Body::from("data"));
        assert_eq!(progress.stage(), Stage::Unread);
        axum::body::to_bytes(Body::new(body), 100).await.unwrap();
        assert_eq!((progress.stage(), progress.bytes()), (Stage::Ended, 4));

        let (body, progress) = RequestBody::new(Body::empty());
        axum::body::to_bytes(Body::new(body), 100).await.unwrap();
        assert_eq!(progress.stage(), Stage::Empty);

        let frames = futures::stream::iter([Ok("a"), Err(std::io::Error::other("reset"))]);
        let (body, progress) = RequestBody::new(Body::from_stream(frames));
        let mut body = Body::new(body).into_data_stream();
        body.next().await.unwrap().unwrap();
        assert_eq!(progress.stage(), Stage::Reading);
        body.next().await.unwrap().unwrap_err();
        assert_eq!(progress.stage(), Stage::Broken);
    }

    #[tokio::test]
    async fn a_client_that_was_given_up_is_told_apart_from_one_that_broke_off() {
        let frames = futures::stream::iter([Ok("a"), Err(httpd::Stalled)]);
        let (body, progress) = RequestBody::new(Body::from_stream(frames));
        let error = axum::body::to_bytes(Body::new(body), 100).await.unwrap_err();
        assert!(error.to_string().contains("RequestTimeout"), "{error}");
        assert_eq!(progress.stage(), Stage::Stalled);
    }
}
