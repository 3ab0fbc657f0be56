use super::head::{HEAD_BYTES, Head, Kind, Malformed};
use super::wire::Wire;
use crate::connector::{PING_ANSWER_MAX, PING_INTERVAL};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// Bytes that are asked for at once: few from who is idle, many in the middle of bodies.
const READ_BYTES_MIN: usize = 4 << 10;
const READ_BYTES_MAX: usize = 256 << 10;
/// Data is handed on in parts of so much, or as the frame ends: however slowly it comes, little is held, and no part
/// is small.
const PART_BYTES_MIN: usize = 16 << 10;

/// Then the other side is gone.
pub(super) const SILENCE_MAX: Duration = PING_INTERVAL.saturating_add(PING_ANSWER_MAX);

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
    #[error("nothing was taken for {SILENCE_MAX:?}")]
    Deaf,
}

/// Does what frames say that only one side of a connection is sent.
pub(super) trait Side {
    /// Nothing is read while the other side takes little of what it is sent. Where both sides did that, both could
    /// wait for ever.
    const HOLDS_BACK: bool;

    fn on_frame(&mut self, head: Head, payload: Bytes) -> Result<(), Malformed>;

    /// All data of a call came.
    fn on_end(&mut self, id: u32);
}

/// Reads frames until the connection ends.
pub(super) async fn read<S: Side>(wire: &Wire, mut input: impl AsyncRead + Unpin, side: &mut S) -> Ended {
    let mut frames = Frames { wire, side, buffer: BytesMut::new(), data: None };
    let mut read_bytes = READ_BYTES_MIN;
    let mut heard = Instant::now();
    let mut look = std::pin::pin!(tokio::time::sleep_until(heard + PING_INTERVAL));
    loop {
        if S::HOLDS_BACK && !wire.has_room(SILENCE_MAX).await {
            return Ended::Deaf;
        }
        if frames.buffer.capacity() - frames.buffer.len() < read_bytes / 2 {
            frames.buffer.reserve(read_bytes);
        }
        let read = tokio::select! {
            biased;
            read = input.read_buf(&mut frames.buffer) => read,
            () = look.as_mut() => {
                let now = Instant::now();
                let silent = now - heard;
                if silent >= SILENCE_MAX {
                    return Ended::Silent;
                }
                if silent >= PING_INTERVAL {
                    wire.ping();
                    look.as_mut().reset(heard + SILENCE_MAX);
                } else {
                    look.as_mut().reset(heard + PING_INTERVAL);
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
        read_bytes = match count {
            _ if frames.buffer.len() == frames.buffer.capacity() => (read_bytes * 4).min(READ_BYTES_MAX),
            few if few < read_bytes / 8 => (read_bytes / 2).max(READ_BYTES_MIN),
            _ => read_bytes,
        };
        if let Err(malformed) = frames.take_all() {
            return malformed.into();
        }
    }
}

struct Frames<'a, S> {
    wire: &'a Wire,
    side: &'a mut S,
    buffer: BytesMut,
    /// A frame of data of which so much is still to come.
    data: Option<Head>,
}

impl<S: Side> Frames<'_, S> {
    fn take_all(&mut self) -> Result<(), Malformed> {
        loop {
            let is_taken = match self.data {
                Some(head) => self.take_data(head),
                None => self.take_frame()?,
            };
            if !is_taken {
                return Ok(());
            }
        }
    }

    fn take_data(&mut self, head: Head) -> bool {
        let bytes = self.buffer.len().min(head.bytes as usize);
        let left = head.bytes - bytes as u32;
        if left > 0 && bytes < PART_BYTES_MIN {
            return false;
        }
        let part = self.buffer.split_to(bytes).freeze();
        self.wire.received_data(head.stream, part, left == 0);
        if left == 0 && head.is_last {
            self.end(head.stream);
        }
        self.data = Some(Head { bytes: left, ..head }).filter(|head| head.bytes > 0);
        true
    }

    fn end(&mut self, id: u32) {
        self.wire.received_end(id);
        self.side.on_end(id);
    }

    fn take_frame(&mut self) -> Result<bool, Malformed> {
        let Some(head) = self.buffer.first_chunk::<HEAD_BYTES>() else { return Ok(false) };
        let head = Head::decode(head)?;
        if head.kind == Kind::Data {
            self.buffer.advance(HEAD_BYTES);
            self.wire.received_head(head)?;
            match head.bytes {
                0 => self.end(head.stream),
                _ => self.data = Some(head),
            }
            return Ok(true);
        }
        if self.buffer.len() < HEAD_BYTES + head.bytes as usize {
            return Ok(false);
        }
        self.buffer.advance(HEAD_BYTES);
        let payload = self.buffer.split_to(head.bytes as usize).freeze();
        match (head.kind, payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))) {
            (Kind::Credit, Some(bytes)) => self.wire.received_credit(head.stream, bytes)?,
            (Kind::Ping, _) => self.wire.pong(),
            (Kind::Pong, _) => {}
            _ => self.side.on_frame(head, payload)?,
        }
        Ok(true)
    }
}
