use bytes::Bytes;
use std::sync::{Arc, OnceLock};

/// Payload bytes are checksummed in pieces of this size, so that a small range of a large record can be read
/// and verified without touching the rest. Part of the disk and wire formats.
pub const CRC_CHUNK_BYTES: usize = 64 * 1024;

/// The number of checksums that a payload of `payload_bytes` carries.
pub const fn crc_chunks(payload_bytes: usize) -> usize {
    payload_bytes.div_ceil(CRC_CHUNK_BYTES)
}

/// Bytes together with the CRC32C of each 64 KiB of them. The sums are computed once, where the data enters
/// the system ([`Payload::checksummed`]); everywhere else they arrive beside the bytes and are verified
/// ([`Payload::verified`]). Cloning shares both.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Payload {
    bytes: Bytes,
    crcs: Arc<[u32]>,
}

/// The bytes of one 64 KiB piece are not the bytes their checksum was computed from.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
#[error(
    "checksum mismatch in the 64 KiB piece at byte {chunk_offset}: stored {stored:#010x}, computed {computed:#010x}"
)]
pub struct ChecksumMismatch {
    pub chunk_offset: usize,
    pub stored: u32,
    pub computed: u32,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum PayloadError {
    #[error("{bytes} payload bytes need {expected} checksums, got {got}")]
    Count { bytes: usize, expected: usize, got: usize },
    #[error(transparent)]
    Mismatch(#[from] ChecksumMismatch),
}

impl Payload {
    /// Computes the checksums: for the place where data enters.
    pub fn checksummed(bytes: Bytes) -> Payload {
        let crcs = bytes.chunks(CRC_CHUNK_BYTES).map(crc32c::crc32c).collect();
        Payload { bytes, crcs }
    }

    /// Accepts bytes from a peer or a disk after checking each piece against its checksum.
    pub fn verified(bytes: Bytes, crcs: impl Into<Arc<[u32]>>) -> Result<Payload, PayloadError> {
        let payload = Payload::unverified(bytes, crcs.into())?;
        for (n, (chunk, &stored)) in
            payload.bytes.chunks(CRC_CHUNK_BYTES).zip(payload.crcs.iter()).enumerate()
        {
            let computed = crc32c::crc32c(chunk);
            if computed != stored {
                return Err(ChecksumMismatch { chunk_offset: n * CRC_CHUNK_BYTES, stored, computed }.into());
            }
        }
        Ok(payload)
    }

    /// Pairs bytes with checksums that the caller verified on another path or will verify. Only the count is
    /// checked.
    pub fn unverified(bytes: Bytes, crcs: Arc<[u32]>) -> Result<Payload, PayloadError> {
        let expected = crc_chunks(bytes.len());
        if crcs.len() != expected {
            return Err(PayloadError::Count { bytes: bytes.len(), expected, got: crcs.len() });
        }
        Ok(Payload { bytes, crcs })
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn crcs(&self) -> &Arc<[u32]> {
        &self.crcs
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn into_parts(self) -> (Bytes, Arc<[u32]>) {
        (self.bytes, self.crcs)
    }
}

/// The CRC32C of a stretch of bytes, put together from those of its pieces without looking at the bytes
/// again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunningCrc(u32);

impl RunningCrc {
    /// Takes in `bytes` more bytes, whose CRC32C is `crc`.
    pub fn push(&mut self, crc: u32, bytes: usize) {
        self.0 = after_zeros(self.0, bytes) ^ crc;
    }

    pub fn push_payload(&mut self, payload: &Payload) {
        for (chunk, &crc) in payload.bytes.chunks(CRC_CHUNK_BYTES).zip(payload.crcs.iter()) {
            self.push(crc, chunk.len());
        }
    }

    pub fn value(self) -> u32 {
        self.0
    }
}

/// The effect of a number of zeros on a CRC, bit by bit.
type Zeros = [u32; 32];

/// The CRC that so many zeros make of a CRC. What each power of two of zeros makes is remembered: so it takes
/// less than a microsecond, where working it out anew (`crc32c_combine`) takes forty.
fn after_zeros(crc: u32, bytes: usize) -> u32 {
    static POWERS: OnceLock<[Zeros; usize::BITS as usize]> = OnceLock::new();
    let powers = POWERS.get_or_init(|| {
        let mut zeros: Zeros = std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, 1));
        std::array::from_fn(|_| {
            let twice = zeros.map(|of_bit| after(&zeros, of_bit));
            std::mem::replace(&mut zeros, twice)
        })
    });
    let of_length = powers.iter().enumerate().filter(|(power, _)| bytes >> power & 1 == 1);
    of_length.fold(crc, |crc, (_, zeros)| after(zeros, crc))
}

fn after(zeros: &Zeros, crc: u32) -> u32 {
    let bits = zeros.iter().enumerate();
    bits.fold(0, |sum, (bit, of_bit)| if crc >> bit & 1 == 1 { sum ^ of_bit } else { sum })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_have_the_sum_of_the_whole(bytes in 0usize..400_000, cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4)) {
            let whole: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes + 1)).chain([0, bytes]).collect();
            cuts.sort_unstable();
            let mut running = RunningCrc::default();
            for cut in cuts.windows(2) {
                running.push_payload(&Payload::checksummed(Bytes::copy_from_slice(&whole[cut[0]..cut[1]])));
            }
            prop_assert_eq!(running.value(), crc32c::crc32c(&whole));
        }

        #[test]
        fn any_flipped_bit_is_found(len in 1usize..200_000, at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let original = vec![0xa5u8; len];
            let sealed = Payload::checksummed(Bytes::from(original.clone()));
            let mut damaged = original;
            let at = at.index(len);
            damaged[at] ^= 1 << bit;
            let result = Payload::verified(Bytes::from(damaged), sealed.crcs().clone());
            let chunk_offset = at / CRC_CHUNK_BYTES * CRC_CHUNK_BYTES;
            match result {
                Err(PayloadError::Mismatch(mismatch)) => prop_assert_eq!(mismatch.chunk_offset, chunk_offset),
                other => prop_assert!(false, "expected a mismatch, got {other:?}"),
            }
        }
    }

    #[test]
    fn checksum_count_must_fit_the_length() {
        let sealed = Payload::checksummed(Bytes::from(vec![1; CRC_CHUNK_BYTES + 1]));
        assert_eq!(sealed.crcs().len(), 2);
        let error = Payload::verified(sealed.bytes().clone(), vec![sealed.crcs()[0]]).unwrap_err();
        assert_eq!(error, PayloadError::Count { bytes: CRC_CHUNK_BYTES + 1, expected: 2, got: 1 });
        assert!(Payload::checksummed(Bytes::new()).crcs().is_empty());
    }
}
