//! What was found out about a closed container by reading its segments: where it ends, what it takes, its hash. A cache that is
//! computed again where it is missing; deleting blocks changes all but the end.

use super::{Index, keys};
use anyhow::ensure;
use bytes::{Buf, BufMut};
use rocksdb::WriteBatch;
use types::{ContainerId, LogId, LogIndex, Term};

const VERSION: u8 = 1;
const HASHED: u8 = 1;
const HASH_BYTES: usize = 32;
const BYTES: usize = 1 + 1 + 8 + 8 + 8 + HASH_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Measure {
    /// `None` where not one record is whole. A closed container never ends with entry 0, which is a membership.
    pub last: Option<LogId>,
    pub disk_bytes: u64,
    /// docs/format/container-hash.md
    pub hash: Option<[u8; HASH_BYTES]>,
}

impl Measure {
    fn encode(&self) -> [u8; BYTES] {
        let mut value = [0; BYTES];
        let mut at = &mut value[..];
        at.put_u8(VERSION);
        at.put_u8(if self.hash.is_some() { HASHED } else { 0 });
        at.put_u64_le(self.last.map_or(0, |last| last.term.0));
        at.put_u64_le(self.last.map_or(0, |last| last.index.0));
        at.put_u64_le(self.disk_bytes);
        at.put_slice(&self.hash.unwrap_or_default());
        value
    }

    fn decode(mut value: &[u8]) -> anyhow::Result<Measure> {
        ensure!(value.len() == BYTES, "a measure has {} bytes, not {BYTES}", value.len());
        let version = value.get_u8();
        ensure!(version == VERSION, "the version {version} of a measure is unknown");
        let flags = value.get_u8();
        ensure!(flags & !HASHED == 0, "unknown flags {flags:#04x} in a measure");
        let (term, index, disk_bytes) = (value.get_u64_le(), value.get_u64_le(), value.get_u64_le());
        let last = (index > 0).then_some(LogId { term: Term(term), index: LogIndex(index) });
        let hash = (flags & HASHED != 0).then(|| value.try_into().expect("the rest has 32 bytes"));
        Ok(Measure { last, disk_bytes, hash })
    }
}

impl Index {
    pub(crate) fn measure(&self, container: ContainerId) -> anyhow::Result<Option<Measure>> {
        self.get(&keys::measure(container), Measure::decode)
    }

    /// Not durable on return.
    pub(crate) fn save_measure(&self, container: ContainerId, measure: Measure) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::measure(container), measure.encode());
        self.db.write(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_laid_out_as_documented() {
        let last = Some(LogId { term: Term(2), index: LogIndex(3) });
        let measure = Measure { last, disk_bytes: 4, hash: Some([5; HASH_BYTES]) };
        let mut bytes = vec![1, 1];
        [2u64, 3, 4].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend([5; HASH_BYTES]);
        assert_eq!(measure.encode(), *bytes);
        assert_eq!(Measure::decode(&bytes).unwrap(), measure);
        assert!(Measure::decode(&bytes[1..]).is_err());
        bytes[1] = 2;
        assert!(Measure::decode(&bytes).is_err(), "unknown flags");
        let none = Measure { last: None, disk_bytes: 0, hash: None };
        assert_eq!(Measure::decode(&none.encode()).unwrap(), none);
    }
}
