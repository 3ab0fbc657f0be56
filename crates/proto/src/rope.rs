//! Bytes in several pieces, which messages are encoded to and decoded from without their bodies being copied.

use bytes::buf::UninitSlice;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;

/// The least bytes that are shared: for so many a piece of its own costs less than the copy.
pub(crate) const SHARED_BYTES_MIN: usize = 4 << 10;

/// Pieces in their order, of which none is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rope {
    pieces: VecDeque<Bytes>,
    bytes: usize,
}

impl Rope {
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Takes the first `count` bytes, which are there.
    pub(crate) fn split(&mut self, count: usize) -> Rope {
        let mut taken = Rope::default();
        while taken.bytes < count {
            let front = self.pieces.front_mut().expect("there are as many");
            let piece = front.split_to(front.len().min(count - taken.bytes));
            if front.is_empty() {
                self.pieces.pop_front();
            }
            self.bytes -= piece.len();
            taken.push(piece);
        }
        taken
    }

    pub(crate) fn into_pieces(self) -> VecDeque<Bytes> {
        self.pieces
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while count > 0 {
            let front = self.pieces.front_mut().expect("there are as many");
            let passed = front.len().min(count);
            front.advance(passed);
            count -= passed;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// Bytes that lie in one piece are shared, and bodies do lie so.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let mut taken = self.split(count);
        if taken.pieces.len() <= 1 {
            return taken.pieces.pop_front().unwrap_or_default();
        }
        let mut joined = BytesMut::with_capacity(count);
        for piece in taken.pieces {
            joined.extend_from_slice(&piece);
        }
        joined.freeze()
    }
}

/// A rope in the making.
#[derive(Default)]
pub(crate) struct RopeMut {
    done: Rope,
    last: BytesMut,
}

impl RopeMut {
    /// A rope in the making that begins with `first`.
    pub(crate) fn after(first: BytesMut) -> RopeMut {
        RopeMut { done: Rope::default(), last: first }
    }

    pub(crate) fn freeze(mut self) -> Rope {
        self.done.push(self.last.freeze());
        self.done
    }
}

#[allow(unsafe_code)] // the trait is; it is how prost hands bytes on without a copy
// SAFETY: everything about memory is left to `BytesMut`.
unsafe impl BufMut for RopeMut {
    fn remaining_mut(&self) -> usize {
        self.last.remaining_mut()
    }

    unsafe fn advance_mut(&mut self, count: usize) {
        // SAFETY: the caller wrote as much into what `chunk_mut` gave, which is this one's.
        unsafe { self.last.advance_mut(count) }
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        self.last.chunk_mut()
    }

    fn put<B: Buf>(&mut self, mut source: B) {
        let bytes = source.remaining();
        if bytes < SHARED_BYTES_MIN {
            self.last.put(source);
            return;
        }
        self.done.push(self.last.split().freeze());
        // A source that is `Bytes`, as bodies are, is not copied.
        self.done.push(source.copy_to_bytes(bytes));
    }

    fn put_slice(&mut self, source: &[u8]) {
        self.last.put_slice(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datanode::ReadChunk;
    use crate::raft::{AppendRequest, Entry};
    use prost::Message;

    fn encoded(message: &impl Message) -> Rope {
        let mut rope = RopeMut::default();
        message.encode(&mut rope).unwrap();
        rope.freeze()
    }

    #[test]
    fn bodies_go_in_and_come_out_without_a_copy() {
        let body = Bytes::from(vec![7; 100_000]);
        let entry =
            |index| Entry { index, body: body.clone(), meta: Bytes::from_static(b"m"), ..Entry::default() };
        let append = AppendRequest { entries: vec![entry(1), entry(2)], ..AppendRequest::default() };
        let rope = encoded(&append);
        assert_eq!(rope.pieces.len(), 4, "what stands before each body, and the bodies");
        assert_eq!(rope.pieces[1].as_ptr(), body.as_ptr());
        assert_eq!(rope.clone().copy_to_bytes(rope.remaining()), append.encode_to_vec());
        let read = AppendRequest::decode(rope).unwrap();
        assert!(read == append);
        assert_eq!(read.entries[1].body.as_ptr(), body.as_ptr());
    }

    #[test]
    fn a_rope_cut_anywhere_is_read_as_the_whole() {
        let chunk = ReadChunk {
            data: Bytes::from((0..9000).map(|n| n as u8).collect::<Vec<_>>()),
            ..ReadChunk::default()
        };
        let whole: Bytes = chunk.encode_to_vec().into();
        for cut in (0..whole.len()).step_by(97) {
            let mut rope = Rope::default();
            rope.push(whole.slice(..cut));
            rope.push(whole.slice(cut..));
            assert!(ReadChunk::decode(rope).unwrap() == chunk, "cut at {cut}");
        }
    }
}
