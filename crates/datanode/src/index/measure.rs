//! What was found out about a closed container by reading its segments: what it takes, its hash. A cache that
//! is computed again where it is missing; deleting blocks changes all of it. Where the container ends is in
//! its record.

use super::{Index, keys};
use anyhow::ensure;
use bytes::{Buf, BufMut};
use rocksdb::WriteBatch;
use types::{ContainerId, LogIndex};

const VERSION: u8 = 2;
const HASHED: u8 = 1;
const HASH_BYTES: usize = 32;
/// Before the repeats.
const BYTES: usize = 1 + 1 + 8 + HASH_BYTES;
const REPEAT_BYTES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    pub disk_bytes: u64,
    /// docs/format/container-hash.md
    pub hash: Option<[u8; HASH_BYTES]>,
    /// Entries that look like the first chunk of a block and began none; found with the hash. Few: writers
    /// that sent it again.
    pub repeats: Vec<LogIndex>,
}

impl Measure {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut at = Vec::with_capacity(BYTES + self.repeats.len() * REPEAT_BYTES);
        at.put_u8(VERSION);
        at.put_u8(if self.hash.is_some() { HASHED } else { 0 });
        at.put_u64_le(self.disk_bytes);
        at.put_slice(&self.hash.unwrap_or_default());
        self.repeats.iter().for_each(|index| at.put_u64_le(index.0));
        at
    }

    fn decode(mut value: &[u8]) -> anyhow::Result<Measure> {
        let bytes = value.len();
        let is_whole = bytes >= BYTES && (bytes - BYTES).is_multiple_of(REPEAT_BYTES);
        ensure!(is_whole, "a measure of {bytes} bytes is none");
        let version = value.get_u8();
        ensure!(version == VERSION, "the version {version} of a measure is unknown");
        let flags = value.get_u8();
        ensure!(flags & !HASHED == 0, "unknown flags {flags:#04x} in a measure");
        let disk_bytes = value.get_u64_le();
        let (hash, repeats) = value.split_at(HASH_BYTES);
        let hash = (flags & HASHED != 0).then(|| hash.try_into().expect("it has 32 bytes"));
        let repeats = repeats.chunks_exact(REPEAT_BYTES).map(|mut repeat| LogIndex(repeat.get_u64_le()));
        Ok(Measure { disk_bytes, hash, repeats: repeats.collect() })
    }
}

impl Index {
    pub(crate) fn measure(&self, container: ContainerId) -> anyhow::Result<Option<Measure>> {
        self.get(&keys::measure(container), Measure::decode)
    }

    /// Not durable on return.
    pub(crate) fn save_measure(&self, container: ContainerId, measure: &Measure) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::measure(container), measure.encode());
        self.db.write(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_is_laid_out_as_documented() {
        let measure = Measure { disk_bytes: 4, hash: Some([5; HASH_BYTES]), repeats: vec![LogIndex(6)] };
        let mut bytes = vec![2, 1];
        bytes.extend(4u64.to_le_bytes());
        bytes.extend([5; HASH_BYTES]);
        bytes.extend(6u64.to_le_bytes());
        assert_eq!(measure.encode(), bytes);
        assert_eq!(Measure::decode(&bytes).unwrap(), measure);
        assert!(Measure::decode(&bytes[1..]).is_err());
        bytes[1] = 2;
        assert!(Measure::decode(&bytes).is_err(), "unknown flags");
        let none = Measure { disk_bytes: 0, hash: None, repeats: Vec::new() };
        assert_eq!(Measure::decode(&none.encode()).unwrap(), none);
    }
}
