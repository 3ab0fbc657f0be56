use std::time::Duration;
use tokio::time::Instant;

/// The length of the head of a frame of HTTP/2: three bytes of length, one of type, one of flags, four of the
/// stream's number.
const HEAD_BYTES: usize = 9;
const TYPE_AT: usize = 3;
const FLAGS_AT: usize = 4;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// The length of what a client sends before its first frame.
const PREFACE_BYTES: usize = 24;

const PERIOD: Duration = Duration::from_secs(1);

/// The frames that a client of HTTP/2 sends, read in its bytes for what hyper does not limit.
///
/// Streams that it resets: a request that is opened and taken back has cost us what any other costs, and its
/// client neither the answer nor its turn, as a stream that was reset leaves room for the next at once.
///
/// A request's head of which a part has come: for the rest hyper waits as long as the connection lasts.
#[derive(Debug)]
pub(crate) struct Frames {
    resets_per_second_max: u32,
    /// Bytes to come of the preface or of a payload, which are no head.
    skip: usize,
    head: [u8; HEAD_BYTES],
    head_known: usize,
    period_begun: Instant,
    in_period: u32,
    /// The moment when a request's head began, if the frame that began last has a part of it.
    request_head_since: Option<Instant>,
    /// Whether the head ends with that frame.
    request_head_ends: bool,
}

impl Frames {
    pub(crate) fn new(resets_per_second_max: u32, now: Instant) -> Frames {
        Frames {
            resets_per_second_max,
            skip: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_known: 0,
            period_begun: now,
            in_period: 0,
            request_head_since: None,
            request_head_ends: false,
        }
    }

    /// The moment since which the rest of a request's head is waited for.
    pub(crate) fn request_head_since(&self) -> Option<Instant> {
        let is_whole = self.request_head_ends && self.skip == 0;
        self.request_head_since.filter(|_| !is_whole)
    }

    /// Takes what the client sent next, from the connection's first byte on. Answers whether it resets more
    /// than it may.
    pub(crate) fn take(&mut self, bytes: &[u8], now: Instant) -> bool {
        if now.saturating_duration_since(self.period_begun) >= PERIOD {
            (self.period_begun, self.in_period) = (now, 0);
        }
        self.in_period = self.in_period.saturating_add(self.count_resets(bytes, now));
        self.in_period > self.resets_per_second_max
    }

    fn count_resets(&mut self, mut bytes: &[u8], now: Instant) -> u32 {
        let mut resets = 0;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = bytes.len().min(HEAD_BYTES - self.head_known);
            self.head[self.head_known..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_known += taken;
            bytes = &bytes[taken..];
            if self.head_known == HEAD_BYTES {
                self.head_known = 0;
                self.skip =
                    self.head[..TYPE_AT].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                resets += u32::from(self.head[TYPE_AT] == RST_STREAM);
                self.note_request_head(now);
            }
        }
        resets
    }

    /// Notes what the frame that begins has of a request's head.
    fn note_request_head(&mut self, now: Instant) {
        match self.head[TYPE_AT] {
            HEADERS => self.request_head_since = Some(now),
            CONTINUATION => {}
            _ => self.request_head_since = None,
        }
        self.request_head_ends = self.head[FLAGS_AT] & END_HEADERS != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    /// A payload that looks like resets, and none of it is one.
    fn sent(resets: usize) -> Vec<u8> {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(frame(4, &[]));
        for _ in 0..resets {
            sent.extend(frame(0, &frame(RST_STREAM, &[0; 4]).repeat(100)));
            sent.extend(frame(RST_STREAM, &[0; 4]));
        }
        sent
    }

    #[test]
    fn resets_are_counted_however_the_bytes_are_cut() {
        let now = Instant::now();
        for piece in [1, 2, 8, 9, 10, 1000, usize::MAX] {
            let mut frames = Frames::new(u32::MAX, now);
            let bytes = sent(7);
            bytes.chunks(piece.min(bytes.len())).for_each(|bytes| assert!(!frames.take(bytes, now)));
            assert_eq!(frames.in_period, 7, "in pieces of {piece}");
        }
    }

    #[test]
    fn as_many_as_may_be_in_each_second_are_let_pass() {
        let mut now = Instant::now();
        let mut frames = Frames::new(7, now);
        let sent = sent(7);
        let (preface, resets) = sent.split_at(PREFACE_BYTES);
        assert!(!frames.take(preface, now));
        for _ in 0..9 {
            assert!(!frames.take(resets, now));
            now += PERIOD;
        }
        assert!(!frames.take(resets, now));
        assert!(frames.take(&frame(RST_STREAM, &[0; 4]), now));
    }

    #[test]
    fn a_head_is_waited_for_from_its_first_frame_to_the_end_of_its_last() {
        let with_flags = |kind, flags, payload: &[u8]| {
            let mut frame = frame(kind, payload);
            frame[FLAGS_AT] = flags;
            frame
        };
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut frames = Frames::new(7, begin);
        let mut now = begin;
        let mut check = |bytes: &[u8], expect: Option<u32>| {
            now += second;
            frames.take(bytes, now);
            assert_eq!(frames.request_head_since(), expect.map(|seconds| begin + seconds * second));
        };
        check(&sent(0), None);
        check(&with_flags(HEADERS, END_HEADERS, b"whole"), None);
        check(&with_flags(HEADERS, 0, b"half"), Some(3));
        check(&with_flags(CONTINUATION, 0, b"and half"), Some(3));
        check(&with_flags(CONTINUATION, END_HEADERS, b"of the rest")[..HEAD_BYTES + 1], Some(3));
        check(b"f the rest", None);
        let one_and_a_half = with_flags(HEADERS, END_HEADERS, b"whole").repeat(2);
        check(&one_and_a_half[..one_and_a_half.len() - 1], Some(7));
        check(b"e", None);
        check(&with_flags(HEADERS, END_HEADERS, b""), None);
        check(&frame(0, b"data")[..HEAD_BYTES + 1], None);
    }
}
