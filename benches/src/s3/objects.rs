use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of the objects of one row.
#[derive(Debug, PartialEq, Eq)]
pub struct Size {
    pub name: &'static str,
    pub bytes: usize,
    /// The number of objects that are there to be read: enough to differ, few enough to be written in
    /// seconds.
    pub kept: u64,
}

impl Size {
    pub const ALL: [Size; 4] = [
        Size { name: "4KiB", bytes: 4 << 10, kept: 2000 },
        Size { name: "64KiB", bytes: 64 << 10, kept: 1000 },
        Size { name: "1MiB", bytes: 1 << 20, kept: 128 },
        Size { name: "16MiB", bytes: 16 << 20, kept: 16 },
    ];
}

const LONGEST: usize = Size::ALL[Size::ALL.len() - 1].bytes;
/// Bodies begin anywhere in the first so many bytes of the pattern.
const SHIFT_MAX: usize = 1 << 20;

/// The contents of objects: parts of one pattern that nothing makes smaller, each another part.
#[derive(Clone)]
pub struct Objects {
    pattern: Arc<[u8]>,
    /// The number of the next object that is written besides those that are kept.
    next: Arc<AtomicU64>,
}

impl Default for Objects {
    fn default() -> Self {
        let mut random = Random::new(1);
        let words = std::iter::repeat_with(|| random.next().to_le_bytes());
        let pattern = words.take((LONGEST + SHIFT_MAX) / 8).flatten().collect();
        Objects { pattern, next: Arc::default() }
    }
}

impl Objects {
    pub(crate) fn body(&self, size: &Size, number: u64) -> &[u8] {
        let start = (number as usize).wrapping_mul(4099) % SHIFT_MAX;
        &self.pattern[start..start + size.bytes]
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// xorshift64: cheap, and good enough to draw objects.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
