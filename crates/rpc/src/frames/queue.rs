use super::head::{HEAD_BYTES, Head, Kind};
use crate::gate::SMALL_BYTES_MAX;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// The most bytes of a frame that is copied to its neighbours: a slice of its own costs more.
const COPIED_BYTES_MAX: usize = 2 << 10;
/// The frames and bytes with more of which a queue is long.
const LONG_FRAMES: usize = 16 << 10;
const LONG_BYTES: usize = 32 << 20;
/// The frames behind which a small payload has memory of its own: until then it may be a part of more.
const SHARING_FRAMES: usize = 16;
/// The bytes that a frame keeps beside its payload.
const FRAME_BYTES: usize = size_of::<Frame>();
/// Bytes that are written before small frames are looked for again.
const BATCH_BYTES: usize = 512 << 10;

struct Frame {
    head: Head,
    payload: Bytes,
}

impl Frame {
    /// The bytes that it keeps and that are counted here: those of a larger piece of an answer are counted
    /// where that is made.
    fn counted(&self) -> usize {
        let is_counted_there = self.head.kind == Kind::Data && self.payload.len() > SMALL_BYTES_MAX;
        FRAME_BYTES + if is_counted_there { 0 } else { self.payload.len() }
    }
}

/// Frames on their way out, those of a stream in their order. Small ones go before large ones of other
/// streams: an acknowledgement does not wait for a body.
#[derive(Default)]
pub(super) struct Queue {
    small: VecDeque<Frame>,
    large: VecDeque<Frame>,
    bytes: usize,
    counted: usize,
}

/// The frames that are written with one call, and the streams whose data that is.
#[derive(Default)]
pub(super) struct Batch {
    slices: VecDeque<Bytes>,
    bytes: usize,
    /// Each stream, with the bytes of its data.
    pub(super) data: Vec<(u32, usize)>,
    pub(super) frames: u64,
    /// The bytes of it that are counted.
    pub(super) counted: usize,
}

impl Queue {
    /// Appends a frame; `is_behind`: a large frame of its stream is still in the queue.
    pub(super) fn push(&mut self, head: Head, payload: Bytes, is_behind: bool) -> FrameSize {
        let is_shared = payload.len() <= COPIED_BYTES_MAX && self.small.len() >= SHARING_FRAMES;
        let payload = if is_shared { Bytes::copy_from_slice(&payload) } else { payload };
        let frame = Frame { head, payload };
        self.bytes += frame.payload.len();
        self.counted += frame.counted();
        // Headers come first on their streams, and in the order of these.
        let is_large = head.kind == Kind::Data && frame.payload.len() > COPIED_BYTES_MAX;
        if is_behind || is_large {
            self.large.push_back(frame);
            FrameSize::Large
        } else {
            self.small.push_back(frame);
            FrameSize::Small
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }

    /// The bytes that wait here, but for larger pieces of answers.
    pub(super) fn counted(&self) -> usize {
        self.counted
    }

    pub(super) fn is_long(&self) -> bool {
        self.small.len() + self.large.len() > LONG_FRAMES || self.bytes > LONG_BYTES
    }

    /// Takes what goes next; tells `left` of each large frame's stream.
    pub(super) fn take(&mut self, mut left: impl FnMut(u32)) -> Batch {
        let (mut batch, mut joined) = (Batch::default(), BytesMut::with_capacity(1 << 10));
        while batch.bytes < BATCH_BYTES
            && let Some(frame) = self.small.pop_front()
        {
            self.bytes -= frame.payload.len();
            batch.push(frame, &mut joined);
        }
        // One large frame at least, however many small ones there are.
        while let Some(frame) = self.large.pop_front() {
            left(frame.head.stream);
            self.bytes -= frame.payload.len();
            batch.push(frame, &mut joined);
            if batch.bytes >= BATCH_BYTES {
                break;
            }
        }
        self.counted -= batch.counted;
        batch.slices.extend(Some(joined.freeze()).filter(|joined| !joined.is_empty()));
        batch
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameSize {
    Small,
    Large,
}

impl Batch {
    fn push(&mut self, frame: Frame, joined: &mut BytesMut) {
        self.counted += frame.counted();
        let Frame { head, payload } = frame;
        self.frames += 1;
        self.bytes += HEAD_BYTES + payload.len();
        if head.kind == Kind::Data && !payload.is_empty() {
            self.data.push((head.stream, payload.len()));
        }
        joined.extend_from_slice(&head.encode());
        if payload.len() <= COPIED_BYTES_MAX {
            joined.extend_from_slice(&payload);
        } else {
            self.slices.push_back(joined.split().freeze());
            self.slices.push_back(payload);
        }
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.slices.front().map_or(&[], |slice| slice)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (to, from) in slices.iter_mut().zip(&self.slices) {
            *to = IoSlice::new(from);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while count > 0 {
            let front = self.slices.front_mut().expect("no more than remains");
            let taken = front.len().min(count);
            front.advance(taken);
            count -= taken;
            if front.is_empty() {
                self.slices.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(stream: u32, bytes: usize) -> (Head, Bytes) {
        let head = Head { bytes: bytes as u32, stream, kind: Kind::Data, is_last: false };
        (head, vec![stream as u8; bytes].into())
    }

    fn drained(queue: &mut Queue) -> Vec<(u32, usize)> {
        let mut order = Vec::new();
        while !queue.is_empty() {
            let mut batch = queue.take(|_| {});
            order.append(&mut batch.data);
            let mut bytes = batch.copy_to_bytes(batch.remaining());
            while bytes.has_remaining() {
                let head = Head::decode(bytes.split_to(HEAD_BYTES)[..].try_into().unwrap()).unwrap();
                let payload = bytes.split_to(head.bytes as usize);
                assert!(payload.iter().all(|byte| u32::from(*byte) == head.stream), "its own bytes");
            }
        }
        order
    }

    #[test]
    fn a_small_frame_goes_before_the_bodies_of_others_and_after_its_own() {
        let mut queue = Queue::default();
        let mut push = |(head, payload): (Head, Bytes), is_behind| queue.push(head, payload, is_behind);
        assert_eq!(push(data(1, 200_000), false), FrameSize::Large);
        assert_eq!(push(data(1, 5), true), FrameSize::Large);
        assert_eq!(push(data(2, 7), false), FrameSize::Small);
        assert_eq!(drained(&mut queue), [(2, 7), (1, 200_000), (1, 5)]);
    }

    #[test]
    fn a_batch_ends_so_that_small_frames_do_not_wait_for_all_large_ones() {
        let mut queue = Queue::default();
        for stream in 1..=6 {
            let (head, payload) = data(stream, 200_000);
            queue.push(head, payload, false);
        }
        let mut left = Vec::new();
        let first = queue.take(|stream| left.push(stream));
        assert_eq!((left, first.frames), (vec![1, 2, 3], 3));
        let (head, payload) = data(9, 1);
        queue.push(head, payload, false);
        assert_eq!(drained(&mut queue)[0], (9, 1));
    }

    #[test]
    fn a_small_payload_behind_many_keeps_nothing_beside_itself() {
        let (shared, mut queue) = (Bytes::from(vec![7; 8 << 10]), Queue::default());
        for stream in 0..20 {
            queue.push(data(stream, 10).0, shared.slice(..10), false);
        }
        let is_part = |frame: &&Frame| shared.as_ptr_range().contains(&frame.payload.as_ptr());
        assert_eq!(queue.small.iter().filter(is_part).count(), SHARING_FRAMES);
        assert_eq!(queue.counted(), 20 * (FRAME_BYTES + 10));
        let (head, payload) = data(20, SMALL_BYTES_MAX + 1);
        queue.push(head, payload, false);
        let batch = queue.take(|_| {});
        assert_eq!((batch.counted, queue.counted()), (20 * (FRAME_BYTES + 10) + FRAME_BYTES, 0));
    }
}
