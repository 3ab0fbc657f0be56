//! The hash of a container: docs/format/container-hash.md.

use raftlog::WalkedRecord;
use sha2::{Digest, Sha256};

/// Takes in a container's records in the order of their places.
#[derive(Default)]
pub(crate) struct ContainerHash {
    hash: Sha256,
}

impl ContainerHash {
    /// The next record, unless its body was given up.
    pub(crate) fn add(&mut self, record: &WalkedRecord) {
        self.hash.update(&record.head);
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}

pub(crate) fn to_hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
