//! Protobuf for gRPC, with a look at what a server is asked with before it is decoded.

use crate::Failure;
use crate::limits::{Carried, check};
use bytes::Buf;
use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// The codec of all our methods, on both sides.
pub struct CheckedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for CheckedCodec<T, U> {
    fn default() -> Self {
        CheckedCodec(PhantomData)
    }
}

impl<T, U> Codec for CheckedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Carried + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CheckedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> CheckedDecoder<U> {
        CheckedDecoder(ProstDecoder::default())
    }
}

pub struct CheckedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default + Carried> Decoder for CheckedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if let Some(shape) = U::ASKED {
            // gRPC hands a message over in one piece; of one in several only the first would be looked at.
            if buffer.chunk().len() != buffer.remaining() {
                return Err(Failure::internal("a message in pieces").into());
            }
            check(shape, &mut buffer.chunk()).map_err(Failure::from)?;
        }
        self.0.decode(buffer)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
