use crate::checksum::{Algorithm, Hasher, Kind};
use crate::error::{GatewayError, Result};
use crate::incoming::{BODY_BYTES_MAX, Incoming};
use bytes::Bytes;
use client::{Ack, Client, ClientError, Written};
use futures::Stream;
use proto::om::Checksum;

/// The promise that a client made about a body.
pub(crate) struct Promise {
    pub(crate) bytes: Option<u64>,
    pub(crate) md5: Option<[u8; 16]>,
    /// The algorithm of the checksum, which is computed in any case, and kept with the object.
    pub(crate) algorithm: Algorithm,
    /// The sum in base64, if it came before the body.
    pub(crate) sum: Option<String>,
    /// Whether the sum comes in a trailer.
    pub(crate) sum_in_trailer: bool,
    /// The acknowledgement that the client asked for.
    pub(crate) ack: Ack,
}

/// A body whose promises were kept, in blocks that no key refers to yet.
pub(crate) struct Stored {
    pub(crate) written: Written,
    pub(crate) checksum: Checksum,
}

/// Streams a body into blocks and verifies it. Nothing is committed: what breaks its promise leaves orphaned
/// blocks. `trailer` is asked for a header's value after the body has ended.
pub(crate) async fn store<S>(
    client: &Client,
    body: S,
    promise: Promise,
    trailer: impl FnOnce(&str) -> Option<String>,
) -> Result<Stored>
where
    S: Stream<Item = std::result::Result<Bytes, Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    if promise.bytes.is_some_and(|bytes| bytes > BODY_BYTES_MAX) {
        return Err(GatewayError::EntityTooLarge);
    }
    if let Some(sum) = &promise.sum {
        promise.algorithm.decode(sum)?;
    }
    let mut incoming = Incoming::new(body, promise.bytes, Hasher::new(promise.algorithm));
    let written = client.with_ack(promise.ack).write_blocks(&mut incoming).await.map_err(own_error)?;
    let computed = incoming.finish();

    if promise.md5.is_some_and(|md5| md5 != written.md5) {
        return Err(GatewayError::BadDigest { what: "Content-MD5".to_owned() });
    }
    let expected = match promise.sum {
        None if promise.sum_in_trailer => {
            Some(trailer(promise.algorithm.header()).ok_or(GatewayError::MalformedTrailer)?)
        }
        sum => sum,
    };
    if expected.is_some_and(|expected| expected != computed) {
        return Err(GatewayError::BadDigest { what: promise.algorithm.name().to_owned() });
    }
    Ok(Stored { written, checksum: checksum(promise.algorithm, Kind::FullObject, computed) })
}

pub(crate) fn checksum(algorithm: Algorithm, kind: Kind, value: String) -> Checksum {
    Checksum { algorithm: algorithm.name().to_owned(), value, full_object: kind == Kind::FullObject }
}

/// Our own errors come back out of the client as errors of the body it was given.
fn own_error(error: ClientError) -> GatewayError {
    match &error {
        ClientError::Body(body) => match body.downcast_ref::<GatewayError>() {
            Some(own) => own.clone(),
            None => GatewayError::IncompleteBody,
        },
        _ => GatewayError::Client(error),
    }
}
