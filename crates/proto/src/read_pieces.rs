//! A message of a read whose data stay in the pieces in which they came: putting them together would copy
//! them.

use crate::datanode::ReadChunk;
use crate::limits::Carried;
use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{
    DecodeContext, WireType, check_wire_type, decode_varint, encode_key, encode_varint, encoded_len_varint,
    key_len,
};
use prost::{DecodeError, Message};

/// The field of a [`ReadChunk`] that has its data.
const DATA_TAG: u32 = 2;

/// A [`ReadChunk`] as its reader has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadPieces {
    /// All but the data.
    pub about: ReadChunk,
    pub data: Vec<Bytes>,
}

impl ReadPieces {
    pub fn data_bytes(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }
}

impl Carried for ReadPieces {
    const ASKED: Option<usize> = None;
}

/// The message is a [`ReadChunk`] on the wire.
impl Message for ReadPieces {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        self.about.encode_raw(buffer);
        encode_key(DATA_TAG, WireType::LengthDelimited, buffer);
        encode_varint(self.data_bytes() as u64, buffer);
        self.data.iter().for_each(|piece| buffer.put(&piece[..]));
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != DATA_TAG {
            return self.about.merge_field(tag, wire_type, buffer, context);
        }
        check_wire_type(WireType::LengthDelimited, wire_type)?;
        let length = decode_varint(buffer)?;
        let mut left = usize::try_from(length).unwrap_or(usize::MAX);
        if left > buffer.remaining() {
            // Only prost makes its errors: the one for a number of which nothing is left says as much.
            return decode_varint(&mut Bytes::new()).map(drop);
        }
        self.data.clear();
        while left > 0 {
            // A piece of a rope is shared.
            let piece = buffer.copy_to_bytes(left.min(buffer.chunk().len()));
            left -= piece.len();
            self.data.push(piece);
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let bytes = self.data_bytes();
        self.about.encoded_len() + key_len(DATA_TAG) + encoded_len_varint(bytes as u64) + bytes
    }

    fn clear(&mut self) {
        *self = ReadPieces::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::Rope;

    fn chunk() -> ReadChunk {
        let data = Bytes::from((0..9000).map(|n| n as u8).collect::<Vec<_>>());
        ReadChunk { offset: 7, data, data_crcs: vec![1, 2], first_piece_bytes: 900 }
    }

    #[test]
    fn data_are_shared_with_the_pieces_that_came() {
        let whole: Bytes = chunk().encode_to_vec().into();
        for cut in (0..whole.len()).step_by(97) {
            let (first, second) = (whole.slice(..cut), whole.slice(cut..));
            let mut rope = Rope::default();
            rope.push(first.clone());
            rope.push(second.clone());
            let ReadPieces { about, data } = ReadPieces::decode(rope).unwrap();
            assert_eq!(about, ReadChunk { data: Bytes::new(), ..chunk() });
            assert_eq!(data.concat(), chunk().data, "cut at {cut}");
            let is_shared = |piece: &Bytes| {
                let came = [first.as_ptr_range(), second.as_ptr_range()];
                came.iter().any(|range| range.contains(&piece.as_ptr()))
            };
            assert!(data.len() <= 2 && data.iter().all(is_shared), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_encoded_is_the_chunk() {
        let pieces = ReadPieces {
            about: ReadChunk { data: Bytes::new(), ..chunk() },
            data: vec![chunk().data.slice(..10), chunk().data.slice(10..)],
        };
        assert_eq!(pieces.encoded_len(), pieces.encode_to_vec().len());
        assert_eq!(ReadChunk::decode(&pieces.encode_to_vec()[..]).unwrap(), chunk());
    }

    #[test]
    fn data_that_are_cut_or_no_bytes_are_refused() {
        for bad in [&b"\x12\x05abcd"[..], b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x10\x05"] {
            assert!(ReadPieces::decode(bad).is_err(), "{bad:?}");
        }
        assert_eq!(ReadPieces::decode(&b"\x12\x00"[..]).unwrap(), ReadPieces::default());
    }
}
