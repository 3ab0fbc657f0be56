//! Numbers from a seed, and what is made of them.

#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 11) % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Characters that mean something to somebody on the way.
    pub(crate) fn text(&mut self, chars_max: usize) -> String {
        const CHARS: &[char] = &[
            'a', 'b', 'Z', '0', '9', '-', '_', '.', '/', '+', ' ', '%', '&', '=', '?', ':', ';', ',', '"',
            '<', '>', '~', '*', 'é', '雪', '\u{1}', '\t',
        ];
        (0..self.below(chars_max + 1)).map(|_| CHARS[self.below(CHARS.len())]).collect()
    }

    /// Changes one place of it.
    pub(crate) fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len() + 1);
        match self.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 => bytes.truncate(at),
            2 => bytes.insert(
                at,
                self.pick(&[&b'0', &b'\r', &b'\n', &b'-', &b'%', &b' ', &b'f', &0xff]).to_owned(),
            ),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            4 => {
                // A piece of it comes again, at another place.
                let from = self.below(bytes.len() + 1);
                let end = (from + self.below(40)).min(bytes.len());
                let piece = bytes[from..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let end = (at + self.below(8)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}
