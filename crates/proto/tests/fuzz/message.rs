//! Protobuf that is well formed, mostly.

/// Numbers from a seed.
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

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Fields, some of them many times, some with others inside, a few of them nonsense.
pub(crate) fn message(random: &mut Random, bytes_max: usize) -> Vec<u8> {
    let mut out = fields(random, bytes_max, 4);
    for _ in 0..random.below(3) {
        let at = random.below(out.len() as u64 + 1) as usize;
        match random.below(8) {
            0 if at < out.len() => out[at] ^= 1 << random.below(8),
            1 => out.truncate(at),
            2 => out.splice(at..at, [0xff; 9]).for_each(drop),
            _ => {}
        }
    }
    out
}

fn fields(random: &mut Random, bytes_max: usize, depth: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..random.below(12) {
        let field = field(random, bytes_max / 4, depth);
        // What is small and comes often is what is dear.
        let most = 1 << random.below(16);
        let times = if random.one_in(3) { 1 + random.below(most) } else { 1 };
        let room = bytes_max.saturating_sub(out.len()) / field.len();
        out.extend(field.repeat(room.min(times as usize)));
    }
    out
}

fn field(random: &mut Random, bytes_max: usize, depth: u32) -> Vec<u8> {
    let number = if random.one_in(40) { random.next() >> random.below(64) } else { 1 + random.below(20) };
    let mut out = Vec::new();
    let kind = if random.one_in(300) { 3 } else { [0, 1, 2, 2, 2, 2, 5][random.below(7) as usize] };
    put_varint(&mut out, number << 3 | kind);
    match kind {
        0 => put_varint(&mut out, random.next() >> random.below(64)),
        1 => out.extend(random.next().to_le_bytes()),
        5 => out.extend((random.next() as u32).to_le_bytes()),
        _ => {
            let within = match random.below(3) {
                0 => Vec::new(),
                1 if depth > 0 => fields(random, bytes_max, depth - 1),
                _ => vec![
                    random.next() as u8;
                    random.below(bytes_max as u64 + 1).min(random.below(5000)) as usize
                ],
            };
            put_varint(&mut out, within.len() as u64);
            out.extend(within);
        }
    }
    out
}
