use crate::chunked::Chunked;
use crate::error::{GatewayError, Result};
use crate::request_body::{Progress, Stage};
use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use httpd::Room;
use sha2::{Digest, Sha256};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

/// The payload of a request's body, decoded and compared with what its signature says of it, on its way. What
/// differs is an error at the end, so nothing of it may be published before.
pub(crate) struct Payload {
    body: Body,
    progress: Progress,
    coding: Coding,
    /// The part of a frame of the body that was not decoded yet.
    input: Bytes,
    length: Option<u64>,
    trailers: Trailers,
}

/// The coding in which the payload travels.
pub(crate) enum Coding {
    Plain,
    /// A payload with this SHA-256.
    Hashed {
        hasher: Sha256,
        expected: [u8; 32],
    },
    Chunked(Box<Chunked>),
    /// The end was reached.
    Over,
}

/// The trailers of a payload, there once it has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trailers(Arc<OnceLock<HeaderMap>>);

impl Trailers {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get()?.get(name)?.to_str().ok()
    }
}

impl Coding {
    pub(crate) fn hashed(expected: [u8; 32]) -> Coding {
        Coding::Hashed { hasher: Sha256::new(), expected }
    }
}

impl Payload {
    /// Takes a body that travels in this coding; `length` is the payload's, where it is known beforehand.
    pub(crate) fn new(body: Body, progress: Progress, coding: Coding, length: Option<u64>) -> Payload {
        Payload { body, progress, coding, input: Bytes::new(), length, trailers: Trailers::default() }
    }

    pub(crate) fn trailers(&self) -> Trailers {
        self.trailers.clone()
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    /// Reads the whole payload, if it is not longer than `bytes_max`, in room that is taken as it comes: who
    /// announces much and sends little holds little.
    pub(crate) async fn read(mut self, bytes_max: usize, mut room: Room) -> Result<Bytes> {
        let too_long = || {
            let why = format!("Your request was too big: its document may have {bytes_max} bytes.");
            GatewayError::refused("MaxMessageLengthExceeded", 400, why)
        };
        if self.length.is_some_and(|length| length > bytes_max as u64) {
            return Err(too_long());
        }
        let mut all = Vec::new();
        while let Some(data) = self.next().await {
            let data = data?;
            let bytes = all.len() + data.len();
            if bytes > bytes_max {
                return Err(too_long());
            }
            room.hold(bytes)?;
            all.extend_from_slice(&data);
        }
        Ok(room.of(all.into()))
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Bytes>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        loop {
            if !self.input.is_empty() {
                match self.decode() {
                    Ok(None) => continue,
                    other => return Poll::Ready(other.transpose()),
                }
            }
            if matches!(self.coding, Coding::Over) {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Trailers of HTTP itself are left out: nobody asks for them.
                Some(Ok(frame)) => self.input = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => {
                    self.coding = Coding::Over;
                    return Poll::Ready(Some(Err(self.failure())));
                }
                None => return Poll::Ready(self.end().err().map(Err)),
            }
        }
    }

    fn decode(&mut self) -> Result<Option<Bytes>> {
        match &mut self.coding {
            Coding::Plain => Ok(Some(std::mem::take(&mut self.input))),
            Coding::Hashed { hasher, .. } => {
                hasher.update(&self.input);
                Ok(Some(std::mem::take(&mut self.input)))
            }
            Coding::Chunked(chunked) => match chunked.decode(&mut self.input) {
                Ok(data) => Ok(data),
                Err(error) => {
                    self.coding = Coding::Over;
                    self.input.clear();
                    Err(error)
                }
            },
            Coding::Over => {
                self.input.clear();
                Ok(None)
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.coding, Coding::Over) {
            Coding::Plain | Coding::Over => Ok(()),
            Coding::Hashed { hasher, expected } => {
                let is_right = <[u8; 32]>::from(hasher.finalize()) == expected;
                is_right.then_some(()).ok_or(GatewayError::ContentSha256Mismatch)
            }
            Coding::Chunked(chunked) => {
                let trailers = chunked.finish()?;
                self.trailers.0.get_or_init(|| trailers);
                Ok(())
            }
        }
    }

    fn failure(&self) -> GatewayError {
        match self.progress.stage() {
            Stage::Stalled => GatewayError::RequestTimeout,
            _ => GatewayError::IncompleteBody,
        }
    }
}

impl HttpBody for Payload {
    type Data = Bytes;
    type Error = GatewayError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.poll_data(cx).map_ok(Frame::data)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_body::RequestBody;
    use futures::StreamExt;
    use httpd::BodyMemory;

    fn room() -> Room {
        BodyMemory::new(1 << 20, Arc::default()).room(None)
    }

    fn payload(body: Body, coding: Coding, length: Option<u64>) -> Payload {
        let (body, progress) = RequestBody::new(body);
        Payload::new(Body::new(body), progress, coding, length)
    }

    #[tokio::test]
    async fn documents_are_read_up_to_their_limit() {
        let check = async |bytes: usize, length: Option<u64>| {
            payload(Body::from(vec![7; bytes]), Coding::Plain, length).read(1000, room()).await.is_ok()
        };
        assert!(check(1000, None).await);
        assert!(!check(1001, None).await);
        assert!(check(1000, Some(1000)).await);
        // A payload that declares too many bytes is refused before one of them is read.
        assert!(!check(0, Some(1001)).await);
    }

    #[tokio::test]
    async fn payloads_have_the_signed_hash() {
        let hash: [u8; 32] = Sha256::digest(b"data").into();
        let read = async |body: &'static str| {
            payload(body.into(), Coding::hashed(hash), None).read(100, room()).await
        };
        assert_eq!(read("data").await.unwrap(), "data");
        assert!(matches!(read("date").await, Err(GatewayError::ContentSha256Mismatch)));
        assert!(matches!(read("").await, Err(GatewayError::ContentSha256Mismatch)));
    }

    /// Without this limit two hundred documents of four MiB less a byte took 840 MiB.
    #[tokio::test]
    async fn a_document_is_in_room_from_its_first_byte_to_the_last_that_anybody_has_of_it() {
        let memory = BodyMemory::new(64 << 10, Arc::default());
        let frames = |count| futures::stream::iter((0..count).map(|_| Ok::<_, std::io::Error>("12345678")));
        let body = |count| Body::from_stream(frames(count));
        let length = Some(32 << 10);
        let mut reading = Box::pin(async {
            let body = Body::from_stream(frames(1024).chain(futures::stream::pending()));
            payload(body, Coding::Plain, length).read(64 << 10, memory.room(None)).await
        });
        assert!(futures::poll!(&mut reading).is_pending());
        assert_eq!(memory.bytes_in_use(), 8 << 10, "of what came, and not of what is announced");
        drop(reading);
        let document =
            payload(body(4096), Coding::Plain, length).read(64 << 10, memory.room(None)).await.unwrap();
        let slice = document.slice(..1);
        drop(document);
        assert_eq!(memory.bytes_in_use(), 32 << 10);
        let refused = payload(body(8192), Coding::Plain, None).read(64 << 10, memory.room(None)).await;
        assert!(matches!(refused, Err(GatewayError::Client(_))), "{refused:?}");
        drop(slice);
        assert_eq!(memory.bytes_in_use(), 0);
    }

    #[tokio::test]
    async fn trailers_are_there_at_the_end() {
        let announced = vec!["x-amz-checksum-crc32".parse().unwrap()];
        let coding = Coding::Chunked(Box::new(Chunked::new(2, None, announced)));
        let payload = payload("2\r\nhi\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n".into(), coding, Some(2));
        let trailers = payload.trailers();
        assert_eq!(trailers.get("x-amz-checksum-crc32"), None);
        assert_eq!(payload.read(100, room()).await.unwrap(), "hi");
        assert_eq!(trailers.get("x-amz-checksum-crc32"), Some("AA=="));
    }

    #[tokio::test]
    async fn a_broken_body_and_a_sleeping_client_are_told_apart() {
        let broken = Body::from_stream(futures::stream::iter([Ok("a"), Err(std::io::Error::other("reset"))]));
        let read = payload(broken, Coding::Plain, None).read(100, room()).await;
        assert!(matches!(read, Err(GatewayError::IncompleteBody)));
        let asleep = Body::from_stream(futures::stream::iter([Ok("a"), Err(httpd::Stalled)]));
        let read = payload(asleep, Coding::Plain, None).read(100, room()).await;
        assert!(matches!(read, Err(GatewayError::RequestTimeout)));
    }
}
