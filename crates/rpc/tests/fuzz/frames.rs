use crc32c::crc32c;

/// Numbers from a seed (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// docs/format/frames.md
pub(crate) fn hello() -> Vec<u8> {
    let mut hello = b"\xf1lotilla\x01\0\0\0".to_vec();
    hello.extend((1u32 << 20).to_le_bytes());
    hello.extend((4u32 << 20).to_le_bytes());
    hello.extend(crc32c(&hello).to_le_bytes());
    hello
}

fn frame(length: u32, stream: u32, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(length.to_le_bytes());
    frame.extend(stream.to_le_bytes());
    frame.extend([kind, flags, 0, 0]);
    frame.extend(crc32c(&frame).to_le_bytes());
    frame.extend(payload);
    frame
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat()
}

/// A call that is right.
pub(crate) fn open(stream: u32) -> Vec<u8> {
    let payload = [text(b"/flotilla.none/None"), text(b"te"), text(b"trailers")].concat();
    frame(payload.len() as u32, stream, 1, 0, &payload)
}

/// What one connection sends: mostly frames that are right, some that are nearly, and then bytes that are
/// changed, cut or made up.
pub(crate) fn said(random: &mut Random) -> Vec<u8> {
    let mut said = Vec::new();
    let mut last = 0;
    for _ in 0..1 + random.below(40) {
        last += random.below(3) as u32;
        let stream = if random.one_in(6) { random.below(20) as u32 } else { last };
        let next = match random.below(10) {
            0..=3 => open(stream),
            4..=5 => {
                let count = random.below(3000);
                let payload = random.bytes(count);
                frame(payload.len() as u32, stream, 3, random.below(2) as u8, &payload)
            }
            6 => frame(4, stream, 6, 0, &random.bytes(4)),
            7 => frame(0, stream, 5 + random.below(4) as u8, random.below(4) as u8, &[]),
            8 => {
                let count = random.below(60);
                let payload = random.bytes(count);
                frame(payload.len() as u32, stream, random.below(11) as u8, random.below(3) as u8, &payload)
            }
            _ => frame(random.below(1 << 32) as u32, stream, random.below(11) as u8, 0, &[]),
        };
        said.extend(next);
    }
    if random.one_in(3) {
        let at = random.below(said.len() as u64) as usize;
        said[at] ^= 1 << random.below(8);
    }
    if random.one_in(3) {
        said.truncate(random.below(said.len() as u64) as usize);
    }
    said
}
