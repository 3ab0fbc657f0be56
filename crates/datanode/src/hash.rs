//! The hash of a container: docs/format/container-hash.md.

use raftlog::WalkedRecord;
use sha2::{Digest, Sha256};

/// Takes in a container's records in the order of their indexes. The place where they stand is no part of it:
/// a replica has the same hash before and after it was compacted.
#[derive(Clone, Default)]
pub(crate) struct ContainerHash {
    hash: Sha256,
}

impl ContainerHash {
    /// Takes in the next record; the caller leaves out one whose body was given up.
    pub(crate) fn add(&mut self, record: &WalkedRecord) {
        record.placeless_head().iter().for_each(|part| self.hash.update(part));
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}

/// The hash of a text that [`to_hex`] made; `None` of other text.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (n, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(hash)
}

pub(crate) fn to_hex(hash: &[u8; 32]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
