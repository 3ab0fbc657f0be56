use std::time::Duration;
use tokio::time::Instant;

/// The length of the head of a frame of HTTP/2: three bytes of length, one of type, one of flags, four of the
/// stream's number.
const HEAD_BYTES: usize = 9;
const TYPE_AT: usize = 3;
const RST_STREAM: u8 = 3;
/// The length of what a client sends before its first frame.
const PREFACE_BYTES: usize = 24;

const PERIOD: Duration = Duration::from_secs(1);

/// The streams that a client of HTTP/2 resets, counted in the bytes it sends. A request that is opened and
/// taken back has cost us what any other costs, and its client neither the answer nor its turn: a stream that
/// was reset leaves room for the next at once.
#[derive(Debug)]
pub(crate) struct Resets {
    per_second_max: u32,
    /// Bytes to come of the preface or of a payload, which are no head.
    skip: usize,
    head: [u8; HEAD_BYTES],
    head_known: usize,
    period_begun: Instant,
    in_period: u32,
}

impl Resets {
    pub(crate) fn new(per_second_max: u32, now: Instant) -> Resets {
        let head = [0; HEAD_BYTES];
        Resets { per_second_max, skip: PREFACE_BYTES, head, head_known: 0, period_begun: now, in_period: 0 }
    }

    /// Takes what the client sent next, from the connection's first byte on. Answers whether it resets more
    /// than it may.
    pub(crate) fn take(&mut self, bytes: &[u8], now: Instant) -> bool {
        if now.saturating_duration_since(self.period_begun) >= PERIOD {
            (self.period_begun, self.in_period) = (now, 0);
        }
        self.in_period = self.in_period.saturating_add(self.count(bytes));
        self.in_period > self.per_second_max
    }

    fn count(&mut self, mut bytes: &[u8]) -> u32 {
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
            }
        }
        resets
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
            let mut resets = Resets::new(u32::MAX, now);
            let bytes = sent(7);
            bytes.chunks(piece.min(bytes.len())).for_each(|bytes| assert!(!resets.take(bytes, now)));
            assert_eq!(resets.in_period, 7, "in pieces of {piece}");
        }
    }

    #[test]
    fn as_many_as_may_be_in_each_second_are_let_pass() {
        let mut now = Instant::now();
        let mut resets = Resets::new(7, now);
        let sent = sent(7);
        let (preface, frames) = sent.split_at(PREFACE_BYTES);
        assert!(!resets.take(preface, now));
        for _ in 0..9 {
            assert!(!resets.take(frames, now));
            now += PERIOD;
        }
        assert!(!resets.take(frames, now));
        assert!(resets.take(&frame(RST_STREAM, &[0; 4]), now));
    }
}
