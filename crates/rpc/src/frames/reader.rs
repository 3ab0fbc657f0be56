use super::counts::CloseReason;
use super::head::{HEAD_BYTES, Head, Kind, Malformed};
use super::wire::Wire;
use crate::limits::SILENCE_MAX;
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// The least and the most bytes that are asked for at once: few from a peer that is idle, many from one that
/// sends much.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a payload that is always copied out of what was read: a part of that costs more by
/// itself.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// The bytes of a frame that must have come before all of its memory is taken: a sixteenth of that at least.
const BELIEVED_BYTES: usize = 64 << 10;

/// The reason why nothing is read any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("the other side closed it")]
    Closed,
    #[error(transparent)]
    Broken(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("nothing came for {SILENCE_MAX:?}")]
    Silent,
    #[error("nothing was taken for {0:?}")]
    Deaf(Duration),
}

impl Ended {
    /// The end that is counted for this reason.
    pub(super) fn end(&self) -> CloseReason {
        match self {
            Ended::Closed => CloseReason::Closed,
            Ended::Broken(_) => CloseReason::Broken,
            Ended::Silent => CloseReason::Silent,
            Ended::Deaf(_) => CloseReason::Deaf,
            Ended::Malformed(Malformed::Resets) => CloseReason::Resets,
            Ended::Malformed(Malformed::Version(_)) => CloseReason::Version,
            Ended::Malformed(_) => CloseReason::Malformed,
        }
    }
}

/// One side of a connection: does what those frames say that only this side is sent.
pub(super) trait Side {
    /// Whether nothing is read while the other side takes little of what it is sent. Where both sides did
    /// that, both could wait for ever.
    const HOLDS_BACK: bool;
    /// The time for which this side hears nothing until it asks whether the other one is there. Where it were
    /// the same for both, both would ask, each time.
    const PINGS_AFTER: Duration;

    fn on_frame(&mut self, head: Head, payload: Bytes) -> Result<(), Malformed>;

    /// Does what follows when all data of a call has come.
    fn on_end(&mut self, id: u32);
}

/// Reads frames until the connection ends.
pub(super) async fn read<S: Side>(wire: &Wire, mut input: impl AsyncRead + Unpin, side: &mut S) -> Ended {
    let mut frames = Frames { wire, side, buffer: Buffer::default() };
    let (mut read_bytes, mut missing) = (READ_BYTES_MIN, 0);
    let mut heard = Instant::now();
    let mut looked = heard;
    let mut look = std::pin::pin!(tokio::time::sleep_until(heard + S::PINGS_AFTER));
    loop {
        if S::HOLDS_BACK && !wire.has_room(SILENCE_MAX).await {
            return Ended::Deaf(SILENCE_MAX);
        }
        let room = frames.buffer.bytes.capacity() - frames.buffer.bytes.len();
        if missing > 0 && room < missing {
            // A large frame comes into memory of its own.
            frames.buffer.reserve(missing);
        } else if missing == 0 && room < read_bytes / 2 {
            frames.buffer.reserve(read_bytes);
        }
        let read = tokio::select! {
            biased;
            read = input.read_buf(&mut frames.buffer.bytes) => read,
            () = look.as_mut() => {
                let now = Instant::now();
                let silent = now - heard;
                wire.give_up_late();
                looked = now;
                if silent >= SILENCE_MAX {
                    return Ended::Silent;
                }
                if silent >= S::PINGS_AFTER {
                    wire.ping();
                    look.as_mut().reset((now + S::PINGS_AFTER).min(heard + SILENCE_MAX));
                } else {
                    look.as_mut().reset(heard + S::PINGS_AFTER);
                }
                continue;
            }
        };
        let count = match read {
            Ok(0) => return Ended::Closed,
            Ok(count) => count,
            Err(error) => return error.into(),
        };
        heard = Instant::now();
        // Where there is always more to read, the timer is never asked.
        if heard - looked >= S::PINGS_AFTER {
            wire.give_up_late();
            looked = heard;
        }
        read_bytes = match count {
            _ if frames.buffer.bytes.len() == frames.buffer.bytes.capacity() => {
                (read_bytes * 4).min(READ_BYTES_MAX)
            }
            few if few < read_bytes / 8 => (read_bytes / 2).max(READ_BYTES_MIN),
            _ => read_bytes,
        };
        missing = match frames.take_all() {
            Ok(missing) => missing,
            Err(malformed) => return malformed.into(),
        };
    }
}

/// Bytes that were read.
#[derive(Default)]
struct Buffer {
    bytes: BytesMut,
    /// The bytes of the memory that these are a part of.
    memory_bytes: usize,
}

impl Buffer {
    /// Makes room for `more`: in new memory, unless it is free again where small frames come. A large frame
    /// has memory of its own.
    fn reserve(&mut self, more: usize) {
        if self.memory_bytes < 2 * READ_BYTES_MAX && self.bytes.try_reclaim(more) {
            return;
        }
        let mut bytes = BytesMut::with_capacity(self.bytes.len() + more);
        bytes.extend_from_slice(&self.bytes);
        *self = Buffer { memory_bytes: bytes.capacity(), bytes };
    }

    /// Takes the payload that is here. A part of what was read keeps all of that in memory, so what is less
    /// than half of it is copied: nobody holds more than twice what is counted.
    fn take_payload(&mut self, bytes: usize) -> Bytes {
        if bytes > COPIED_BYTES_MAX && 2 * bytes >= self.memory_bytes {
            return self.bytes.split_to(bytes).freeze();
        }
        // The payload is copied by hand: `copy_to_bytes` of this buffer would give a part of it.
        let payload = Bytes::copy_from_slice(&self.bytes[..bytes]);
        self.bytes.advance(bytes);
        payload
    }
}

struct Frames<'a, S> {
    wire: &'a Wire,
    side: &'a mut S,
    buffer: Buffer,
}

impl<S: Side> Frames<'_, S> {
    /// Takes all whole frames; answers how many bytes to ask for next.
    fn take_all(&mut self) -> Result<usize, Malformed> {
        loop {
            let here = self.buffer.bytes.len();
            let Some(head) = self.buffer.bytes.first_chunk::<HEAD_BYTES>() else { return Ok(0) };
            let head = Head::decode(head)?;
            let missing = (HEAD_BYTES + head.bytes as usize).saturating_sub(here);
            if missing > 0 {
                // What was announced gets its memory when a part of it came.
                return Ok(if here >= BELIEVED_BYTES { missing } else { missing.min(BELIEVED_BYTES - here) });
            }
            self.buffer.bytes.advance(HEAD_BYTES);
            let payload = self.buffer.take_payload(head.bytes as usize);
            self.take(head, payload)?;
        }
    }

    fn take(&mut self, head: Head, payload: Bytes) -> Result<(), Malformed> {
        match (head.kind, payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))) {
            (Kind::Data, _) => {
                self.wire.received_data(head, payload)?;
                if head.is_last {
                    self.side.on_end(head.stream);
                }
            }
            (Kind::Credit, Some(bytes)) => self.wire.received_credit(head.stream, bytes)?,
            (Kind::Ping, _) => self.wire.pong(),
            (Kind::Pong, _) => {}
            _ => {
                self.side.on_frame(head, payload)?;
                if head.kind == Kind::Open && head.is_last {
                    self.wire.received_data(head, Bytes::new())?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_payload_does_not_keep_what_was_read_with_it() {
        let half = READ_BYTES_MAX / 2;
        let small = [(1, false), (COPIED_BYTES_MAX + 1, false), (half - 1, false)];
        for payloads in [&small[..], &[(COPIED_BYTES_MAX, false), (half, true), (1, false)]] {
            let mut buffer = Buffer::default();
            buffer.reserve(READ_BYTES_MAX);
            buffer.bytes.resize(READ_BYTES_MAX, 7);
            let read = buffer.bytes.as_ptr_range();
            for (bytes, is_part) in payloads {
                let payload = buffer.take_payload(*bytes);
                assert_eq!((payload.len(), read.contains(&payload.as_ptr())), (*bytes, *is_part));
            }
            assert_eq!(
                buffer.bytes.len(),
                READ_BYTES_MAX - payloads.iter().map(|(bytes, _)| bytes).sum::<usize>()
            );
        }
    }

    #[test]
    fn a_large_frame_has_its_memory_for_itself_and_is_not_copied() {
        let mut buffer = Buffer::default();
        buffer.reserve(READ_BYTES_MIN);
        buffer.bytes.extend_from_slice(&[7; 100]);
        buffer.reserve(4 * READ_BYTES_MAX);
        assert_eq!(buffer.memory_bytes, 100 + 4 * READ_BYTES_MAX);
        let bytes = buffer.memory_bytes;
        buffer.bytes.resize(bytes, 7);
        let read = buffer.bytes.as_ptr();
        assert_eq!(buffer.take_payload(bytes).as_ptr(), read);
        // What comes next has memory of its own, though nobody has the frame any more.
        buffer.reserve(READ_BYTES_MIN);
        assert_eq!((buffer.memory_bytes, buffer.bytes.capacity()), (READ_BYTES_MIN, READ_BYTES_MIN));
    }
}
