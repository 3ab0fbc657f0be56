//! Finds the single bit which, flipped back, makes a checksum right. CRC32C tells all errors of up to three
//! bits in messages far longer than ours apart from none, so no error of two bits looks like one of one bit.

/// CRC32C's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The byte whose table entry has a given first byte: each has another.
const BY_FIRST_BYTE: [u8; 256] = {
    let mut inverse = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        inverse[(TABLE[byte] >> 24) as usize] = byte as u8;
        byte += 1;
    }
    inverse
};

/// The position of the flipped bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flipped {
    /// Bit `bit` of byte `at` of the message.
    Message { at: usize, bit: u8 },
    /// A bit of the stored checksum, counted from its lowest.
    Checksum { bit: u8 },
}

/// Looks for the one bit that explains a mismatch in a message of `message_bytes`. What a flipped bit does to
/// the sum depends only on its distance from the end: the difference of the sums is run backwards, byte by
/// byte, until it is that of one bit.
pub(crate) fn flipped_bit(message_bytes: usize, stored: u32, computed: u32) -> Option<Flipped> {
    let mut difference = stored ^ computed;
    if difference.count_ones() == 1 {
        return Some(Flipped::Checksum { bit: difference.trailing_zeros() as u8 });
    }
    for at in (0..message_bytes).rev() {
        let byte = BY_FIRST_BYTE[(difference >> 24) as usize];
        // A difference in the last byte alone is that byte's entry; one further ahead has zeros run through
        // after it.
        if byte.is_power_of_two() && TABLE[byte as usize] == difference {
            return Some(Flipped::Message { at, bit: byte.trailing_zeros() as u8 });
        }
        difference = ((difference ^ TABLE[byte as usize]) << 8) | u32::from(byte);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found_and_no_two_look_like_one() {
        let message: Vec<u8> = (0..997u32).map(|n| (n * 31) as u8).collect();
        let stored = crc32c::crc32c(&message);
        let flip = |message: &mut [u8], bit: usize| message[bit / 8] ^= 1 << (bit % 8);
        for bit in 0..message.len() * 8 {
            let mut damaged = message.clone();
            flip(&mut damaged, bit);
            let found = flipped_bit(damaged.len(), stored, crc32c::crc32c(&damaged));
            assert_eq!(found, Some(Flipped::Message { at: bit / 8, bit: (bit % 8) as u8 }));
            flip(&mut damaged, (bit * 7 + 1) % (message.len() * 8));
            if damaged != message {
                assert_eq!(flipped_bit(damaged.len(), stored, crc32c::crc32c(&damaged)), None, "bit {bit}");
            }
        }
        for bit in 0..32 {
            assert_eq!(flipped_bit(997, stored ^ (1 << bit), stored), Some(Flipped::Checksum { bit }));
        }
    }

    #[test]
    fn a_bit_in_a_whole_piece_is_found() {
        let mut piece = vec![0x5a; 65536];
        let stored = crc32c::crc32c(&piece);
        for at in [0, 1, 4096, 65535] {
            piece[at] ^= 0x80;
            let found = flipped_bit(piece.len(), stored, crc32c::crc32c(&piece));
            assert_eq!(found, Some(Flipped::Message { at, bit: 7 }));
            piece[at] ^= 0x80;
        }
    }
}
