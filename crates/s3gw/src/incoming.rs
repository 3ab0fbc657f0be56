use crate::checksum::Hasher;
use crate::error::GatewayError;
use bytes::Bytes;
use client::ClientError;
use futures::Stream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The most bytes of an object, or a part, that is sent in one request.
pub(crate) const BODY_BYTES_MAX: u64 = 5 << 30;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request body on its way in: counted against what was declared, or what one may have at most, and hashed.
pub(crate) struct Incoming<S> {
    body: S,
    declared_bytes: Option<u64>,
    bytes_max: u64,
    bytes: u64,
    hasher: Option<Hasher>,
}

impl<S> Incoming<S> {
    pub(crate) fn new(body: S, declared_bytes: Option<u64>, hasher: Hasher) -> Incoming<S> {
        Incoming { body, declared_bytes, bytes_max: BODY_BYTES_MAX, bytes: 0, hasher: Some(hasher) }
    }

    /// Returns the checksum of the whole body, once its end was reached.
    pub(crate) fn finish(mut self) -> String {
        self.hasher.take().expect("finish takes it, once").finish()
    }
}

impl<S> Stream for Incoming<S>
where
    S: Stream<Item = Result<Bytes, BoxError>> + Unpin,
{
    type Item = Result<Bytes, GatewayError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        Poll::Ready(match ready!(Pin::new(&mut this.body).poll_next(cx)) {
            Some(Ok(frame)) => {
                this.bytes += frame.len() as u64;
                if this.declared_bytes.is_some_and(|declared| this.bytes > declared) {
                    return Poll::Ready(Some(Err(GatewayError::IncompleteBody)));
                }
                // What was not declared is written no further than this.
                if this.bytes > this.bytes_max {
                    return Poll::Ready(Some(Err(GatewayError::EntityTooLarge)));
                }
                if let Some(hasher) = &mut this.hasher {
                    hasher.update(&frame);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(own(error))),
            // A body that simply stops, between two of its chunks for example, must not become an object.
            None if this.declared_bytes.is_some_and(|declared| this.bytes < declared) => {
                Some(Err(GatewayError::IncompleteBody))
            }
            None => None,
        })
    }
}

/// The errors of a payload come back through the protocol layer as they were, and those of a copy's source as
/// what the client says of it.
fn own(error: BoxError) -> GatewayError {
    match error.downcast::<GatewayError>() {
        Ok(own) => *own,
        Err(error) => error
            .downcast::<ClientError>()
            .map_or(GatewayError::IncompleteBody, |of_source| GatewayError::Client(*of_source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Algorithm;
    use futures::StreamExt;

    async fn check(
        declared: Option<u64>,
        frames: Vec<Result<Bytes, BoxError>>,
    ) -> Result<String, GatewayError> {
        let body = futures::stream::iter(frames);
        let mut incoming = Incoming::new(body, declared, Hasher::new(Algorithm::Crc32));
        while let Some(frame) = incoming.next().await {
            frame?;
        }
        Ok(incoming.finish())
    }

    #[tokio::test]
    async fn bodies_must_have_the_declared_length() {
        let frames = || vec![Ok(Bytes::from_static(b"12345")), Ok(Bytes::from_static(b"6789"))];
        assert_eq!(check(Some(9), frames()).await.unwrap(), "y/Q5Jg==");
        assert_eq!(check(None, frames()).await.unwrap(), "y/Q5Jg==");
        for wrong in [8, 10] {
            assert!(
                matches!(check(Some(wrong), frames()).await, Err(GatewayError::IncompleteBody)),
                "{wrong}"
            );
        }
        let body = futures::stream::iter(frames());
        let mut endless = Incoming::new(body, None, Hasher::new(Algorithm::Crc32));
        endless.bytes_max = 8;
        assert!(endless.next().await.unwrap().is_ok());
        assert!(matches!(endless.next().await, Some(Err(GatewayError::EntityTooLarge))), "no more is taken");
    }

    #[tokio::test]
    async fn errors_of_the_payload_keep_their_meaning() {
        let check = async |error: BoxError| check(None, vec![Err(error)]).await.unwrap_err();
        assert!(matches!(check(GatewayError::ChunkSignature.into()).await, GatewayError::ChunkSignature));
        assert!(matches!(check(GatewayError::RequestTimeout.into()).await, GatewayError::RequestTimeout));
        assert!(matches!(check("reset".into()).await, GatewayError::IncompleteBody));
        // An error of a copy's source, which no client can mend by sending its body again.
        let of_source = ClientError::Unavailable("nobody answers".to_owned());
        assert!(matches!(check(of_source.into()).await, GatewayError::Client(ClientError::Unavailable(_))));
    }
}
