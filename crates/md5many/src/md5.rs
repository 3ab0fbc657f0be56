use crate::compress::BLOCK_BYTES;

/// The state of four words that a block changes.
pub(crate) type State = [u32; 4];

/// The MD5 of a body, as far as it came.
#[derive(Clone, Debug)]
pub struct Md5 {
    pub(crate) state: State,
    bytes: u64,
    /// The bytes that fill no block yet.
    rest: [u8; BLOCK_BYTES],
}

impl Default for Md5 {
    fn default() -> Md5 {
        Md5 { state: [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476], bytes: 0, rest: [0; BLOCK_BYTES] }
    }
}

impl Md5 {
    pub fn digest(bytes: &[u8]) -> [u8; 16] {
        let mut md5 = Md5::default();
        md5.update(bytes);
        md5.finish()
    }

    /// Takes bytes alone, on this thread.
    pub fn update(&mut self, bytes: &[u8]) {
        let at = self.fill_rest(bytes);
        let (blocks, rest) = bytes[at..].as_chunks();
        self.compress(blocks);
        self.take_rest(rest);
    }

    pub fn finish(mut self) -> [u8; 16] {
        let bits = self.bytes.wrapping_mul(8);
        // A one bit, zeros, and the length in the last eight bytes of a block.
        let zeros = (BLOCK_BYTES * 2 - 9 - self.rest_bytes()) % BLOCK_BYTES;
        let mut end = [0; BLOCK_BYTES * 2];
        end[0] = 0x80;
        end[1 + zeros..][..8].copy_from_slice(&bits.to_le_bytes());
        self.update(&end[..1 + zeros + 8]);
        let mut digest = [0; 16];
        for (to, word) in digest.chunks_exact_mut(4).zip(self.state) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    /// Makes a block of what is left over and of the first of these bytes; answers how many those are.
    pub(crate) fn fill_rest(&mut self, bytes: &[u8]) -> usize {
        let held = self.rest_bytes();
        if held == 0 {
            return 0;
        }
        let taken = bytes.len().min(BLOCK_BYTES - held);
        self.take_rest(&bytes[..taken]);
        if held + taken == BLOCK_BYTES {
            let block = self.rest;
            crate::compress::one(&mut self.state, &[block]);
        }
        taken
    }

    /// Counts whole blocks that the state has taken in.
    pub(crate) fn count(&mut self, blocks: usize) {
        self.bytes += (blocks * BLOCK_BYTES) as u64;
    }

    /// Keeps what fills no block. There is room for it.
    pub(crate) fn take_rest(&mut self, bytes: &[u8]) {
        let held = self.rest_bytes();
        self.rest[held..held + bytes.len()].copy_from_slice(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn compress(&mut self, blocks: &[[u8; BLOCK_BYTES]]) {
        crate::compress::one(&mut self.state, blocks);
        self.count(blocks.len());
    }

    fn rest_bytes(&self) -> usize {
        (self.bytes % BLOCK_BYTES as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::md5::Digest;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_that_of_the_crate_md5_however_the_bytes_come(
            body in proptest::collection::vec(any::<u8>(), 0..700),
            cuts in proptest::collection::vec(0usize..200, 0..12),
        ) {
            let mut ours = Md5::default();
            let mut rest = &body[..];
            for cut in cuts {
                let (part, after) = rest.split_at(cut.min(rest.len()));
                ours.update(part);
                rest = after;
            }
            ours.update(rest);
            prop_assert_eq!(ours.finish(), <[u8; 16]>::from(::md5::Md5::digest(&body)));
        }
    }
}
