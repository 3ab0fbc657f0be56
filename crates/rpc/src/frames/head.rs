use crate::limits::{RESETS_PER_SECOND_MAX, Windows};
use crc32c::crc32c;

/// The bytes of the head that each frame begins with: docs/format/frames.md.
pub(super) const HEAD_BYTES: usize = 16;
/// The most bytes that go with a frame other than data: headers of a call, of which ours have some 300.
pub(super) const META_BYTES_MAX: u32 = 16 << 10;
/// The most bytes of data in one frame: a chunk of a MiB comes in one piece. What waits behind it waits for
/// as long as that takes.
pub(super) const DATA_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A call begins: its path and headers.
    Open = 1,
    /// A call is answered: status and headers.
    Answer = 2,
    /// Bytes of a body.
    Data = 3,
    /// Headers after a body, which end the call.
    Trailers = 4,
    /// A call is over, whatever was under way.
    Reset = 5,
    /// The other side may send so many bytes more, on a stream or, on stream 0, on all together.
    Credit = 6,
    Ping = 7,
    Pong = 8,
    /// The server takes no calls after the one with this number.
    Leaving = 9,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The bytes that follow the head.
    pub(super) bytes: u32,
    /// The call's number; 0 where the frame is about the connection.
    pub(super) stream: u32,
    pub(super) kind: Kind,
    /// Whether nothing more follows on this stream from this side.
    pub(super) is_last: bool,
}

/// The reason why a connection ends: its bytes are none that a peer of ours sends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a frame's head has the wrong checksum")]
    Checksum,
    #[error("a frame has the unknown kind {0}")]
    Kind(u8),
    #[error("{bytes} bytes in a frame of kind {kind:?}")]
    Bytes { kind: Kind, bytes: u32 },
    #[error("more was sent than there was room for, or is let be sent than makes sense")]
    Window,
    #[error("calls were given up too quickly: more than {RESETS_PER_SECOND_MAX} in a second")]
    Resets,
    #[error("headers that are none")]
    Headers,
    #[error("a frame for a call that cannot be")]
    Stream,
    #[error("it does not speak Flotilla's frames")]
    Hello,
    #[error("it speaks version {0} of the frames, this process version {VERSION}")]
    Version(u16),
}

impl Head {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[0..4].copy_from_slice(&self.bytes.to_le_bytes());
        head[4..8].copy_from_slice(&self.stream.to_le_bytes());
        head[8] = self.kind as u8;
        head[9] = self.is_last.into();
        let crc = crc32c(&head[..12]);
        head[12..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    pub(super) fn decode(head: &[u8; HEAD_BYTES]) -> Result<Head, Malformed> {
        if crc32c(&head[..12]) != u32_at(head, 12) {
            return Err(Malformed::Checksum);
        }
        let kind = match head[8] {
            1 => Kind::Open,
            2 => Kind::Answer,
            3 => Kind::Data,
            4 => Kind::Trailers,
            5 => Kind::Reset,
            6 => Kind::Credit,
            7 => Kind::Ping,
            8 => Kind::Pong,
            9 => Kind::Leaving,
            unknown => return Err(Malformed::Kind(unknown)),
        };
        let bytes = u32_at(head, 0);
        let is_possible = match kind {
            Kind::Data => bytes as usize <= DATA_BYTES_MAX,
            Kind::Open | Kind::Answer | Kind::Trailers => bytes <= META_BYTES_MAX,
            Kind::Credit | Kind::Leaving => bytes == 4,
            Kind::Reset | Kind::Ping | Kind::Pong => bytes == 0,
        };
        if !is_possible {
            return Err(Malformed::Bytes { kind, bytes });
        }
        Ok(Head { bytes, stream: u32_at(head, 4), kind, is_last: head[9] & 1 != 0 })
    }
}

/// The version that a hello names: that of all frames on the connection.
pub(super) const VERSION: u16 = 1;
/// The byte that tells these frames from HTTP/2, which begins with a `P`.
pub(crate) const FIRST_BYTE: u8 = MAGIC[0];
const MAGIC: &[u8; 8] = b"\xf1lotilla";
pub(super) const HELLO_BYTES: usize = 24;
/// The most that a peer may be allowed to send, and the least: with less, answers would go on in frames not
/// worth their heads.
const WINDOW_MAX: u32 = 1 << 30;
const WINDOW_MIN: u32 = 64 << 10;

/// The hello that either side says first: its version, and how much the other one may send.
pub(super) fn hello(windows: Windows) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    hello[0..8].copy_from_slice(MAGIC);
    hello[8..10].copy_from_slice(&VERSION.to_le_bytes());
    hello[12..16].copy_from_slice(&windows.stream_bytes.to_le_bytes());
    hello[16..20].copy_from_slice(&windows.connection_bytes.to_le_bytes());
    let crc = crc32c(&hello[..20]);
    hello[20..].copy_from_slice(&crc.to_le_bytes());
    hello
}

/// The windows of the peer that said this hello: how much may be sent to it. The version is looked at before
/// the rest, which may come to mean something else.
pub(super) fn heard(hello: &[u8; HELLO_BYTES]) -> Result<Windows, Malformed> {
    if hello[..8] != MAGIC[..] {
        return Err(Malformed::Hello);
    }
    let version = u16::from_le_bytes([hello[8], hello[9]]);
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    if crc32c(&hello[..20]) != u32_at(hello, 20) {
        return Err(Malformed::Checksum);
    }
    let windows = Windows { stream_bytes: u32_at(hello, 12), connection_bytes: u32_at(hello, 16) };
    let is_possible = |bytes: u32| (WINDOW_MIN..=WINDOW_MAX).contains(&bytes);
    match is_possible(windows.stream_bytes) && is_possible(windows.connection_bytes) {
        true => Ok(windows),
        false => Err(Malformed::Window),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_no_bit_of_it_may_change() {
        let head = Head { bytes: 70_000, stream: 0x0102_0304, kind: Kind::Data, is_last: true };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Ok(head));
        for bit in 0..HEAD_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&changed), Err(Malformed::Checksum), "bit {bit}");
        }
    }

    #[test]
    fn no_frame_announces_more_than_its_kind_has() {
        for (kind, bytes) in [
            (Kind::Data, DATA_BYTES_MAX as u32 + 1),
            (Kind::Open, META_BYTES_MAX + 1),
            (Kind::Ping, 1),
            (Kind::Credit, 3),
        ] {
            let head = Head { bytes, stream: 1, kind, is_last: false };
            assert_eq!(Head::decode(&head.encode()), Err(Malformed::Bytes { kind, bytes }));
        }
    }

    #[test]
    fn who_says_hello_otherwise_is_told_apart() {
        let windows = Windows::default();
        let good = hello(windows);
        assert_eq!(heard(&good).map(|heard| heard.stream_bytes), Ok(windows.stream_bytes));
        let changed = |at: usize, byte: u8| {
            let mut hello = good;
            hello[at] = byte;
            heard(&hello).unwrap_err()
        };
        assert_eq!(heard(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap_err(), Malformed::Hello);
        assert_eq!((changed(8, 2), changed(13, 9)), (Malformed::Version(2), Malformed::Checksum));
        for stream_bytes in [u32::MAX, WINDOW_MAX + 1, WINDOW_MIN - 1, 0] {
            let hello = hello(Windows { stream_bytes, ..windows });
            assert_eq!(heard(&hello).unwrap_err(), Malformed::Window, "{stream_bytes}");
        }
        let little = Windows { stream_bytes: WINDOW_MIN, connection_bytes: WINDOW_MIN };
        assert!(heard(&hello(little)).is_ok());
    }
}
