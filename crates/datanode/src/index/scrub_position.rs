//! The position that a disk's scrubber has come to.

use super::{Index, keys};
use anyhow::ensure;
use bytes::{Buf, BufMut};
use rocksdb::WriteBatch;
use types::ContainerId;

const VERSION: u8 = 1;
const BYTES: usize = 1 + 8 + 4 + 8 + 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScrubPosition {
    /// The container at which the scrubber goes on; 0 between two passes.
    pub container: ContainerId,
    pub segment: u32,
    /// The times at which this pass began and the last one ended; milliseconds since the Unix epoch, 0 for
    /// never.
    pub began_ms: u64,
    pub last_pass_ms: u64,
}

impl ScrubPosition {
    fn encode(&self) -> [u8; BYTES] {
        let mut value = [0; BYTES];
        let mut at = &mut value[..];
        at.put_u8(VERSION);
        at.put_u64_le(self.container.0);
        at.put_u32_le(self.segment);
        at.put_u64_le(self.began_ms);
        at.put_u64_le(self.last_pass_ms);
        value
    }

    fn decode(mut value: &[u8]) -> anyhow::Result<ScrubPosition> {
        ensure!(value.len() == BYTES, "the scrubber's position has {} bytes, not {BYTES}", value.len());
        let version = value.get_u8();
        ensure!(version == VERSION, "the version {version} of the scrubber's position is unknown");
        let (container, segment) = (ContainerId(value.get_u64_le()), value.get_u32_le());
        Ok(ScrubPosition {
            container,
            segment,
            began_ms: value.get_u64_le(),
            last_pass_ms: value.get_u64_le(),
        })
    }
}

impl Index {
    pub(crate) fn scrub_position(&self) -> anyhow::Result<Option<ScrubPosition>> {
        self.get(&keys::SCRUB_POSITION, ScrubPosition::decode)
    }

    /// Saves the position; it is not durable on return.
    pub(crate) fn save_scrub_position(&self, position: ScrubPosition) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::SCRUB_POSITION, position.encode());
        self.db.write(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_laid_out_as_documented() {
        let position = ScrubPosition { container: ContainerId(2), segment: 3, began_ms: 4, last_pass_ms: 5 };
        let bytes = [1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(position.encode(), bytes);
        assert_eq!(ScrubPosition::decode(&bytes).unwrap(), position);
        assert!(ScrubPosition::decode(&bytes[1..]).is_err());
    }
}
