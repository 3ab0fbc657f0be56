//! Planted bugs: a disk that lies makes a correct log engine behave like one that forgets a step.

use bytes::Bytes;
use disk::Disk;
use disk::sim::SimDisk;
use diskhooks::{Act, Call, HookedDisk, Operation};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// None: the disk as it is.
    Honest,
    /// Entries are acknowledged before their sync.
    SegmentsNotSynced,
    DirectoriesNotSynced,
    /// Entries may be durable before the vote that was saved before them.
    HardStateNotSynced,
    /// A separate sync does nothing: of a truncation, of what recovery found.
    SyncDataDoesNothing,
    /// Recovery reads what memory shows, also what a failed sync left there.
    MemoryTrusted,
    /// The contents of a cut file stay.
    CutsNotMade,
    /// Checksums in segments always fit.
    ChecksumsIgnored,
    /// No lie of the disk: truncated segments are recycled, and spares go where they were.
    CarelessSpares,
}

impl Lie {
    pub(crate) fn wrap(self, disk: SimDisk) -> Arc<dyn Disk> {
        let liar = HookedDisk::new(Arc::new(disk), move |call| self.told_to(call));
        match self {
            Lie::ChecksumsIgnored => {
                Arc::new(liar.showing(
                    |path, _, bytes| {
                        if is_segment(path) { with_fitting_checksums(bytes) } else { bytes }
                    },
                ))
            }
            _ => Arc::new(liar),
        }
    }

    fn told_to(self, call: Call<'_>) -> Act {
        match (self, call.operation) {
            (Lie::SegmentsNotSynced, Operation::WriteAndSync) if is_segment(call.path) => Act::Weaken,
            (Lie::HardStateNotSynced, Operation::WriteAndSync) if !is_segment(call.path) => Act::Weaken,
            (Lie::DirectoriesNotSynced, Operation::SyncDir) => Act::Skip,
            (Lie::SyncDataDoesNothing, Operation::SyncData | Operation::Settle) => Act::Skip,
            (Lie::MemoryTrusted, Operation::Settle) => Act::Weaken,
            (Lie::CutsNotMade, Operation::SetLen) if is_segment(call.path) => Act::Skip,
            _ => Act::Pass,
        }
    }
}

fn is_segment(path: &str) -> bool {
    path.ends_with(".seg")
}

/// Writes into each record of a segment's bytes the checksums that its contents have
/// (docs/format/segment.md).
fn with_fitting_checksums(bytes: Bytes) -> Bytes {
    const HEADER_BYTES: usize = 72;
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while bytes.len() >= at + HEADER_BYTES && bytes[at..at + 4] == *b"FLog" {
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (meta_bytes, body_bytes) = (field(at + 60), field(at + 64));
        let sums_at = at + HEADER_BYTES;
        let meta_at = sums_at + 4 * body_bytes.div_ceil(65536);
        let (body_at, end) = (meta_at + meta_bytes, meta_at + meta_bytes + body_bytes);
        if end > bytes.len() {
            break;
        }
        let sums: Vec<u8> =
            bytes[body_at..end].chunks(65536).flat_map(|piece| crc32c::crc32c(piece).to_le_bytes()).collect();
        bytes[sums_at..meta_at].copy_from_slice(&sums);
        let head = crc32c::crc32c(&bytes[at..at + 68]);
        let head = crc32c::crc32c_append(head, &bytes[sums_at..body_at]);
        bytes[at + 68..at + 72].copy_from_slice(&head.to_le_bytes());
        at = (end - at).next_multiple_of(8) + at;
    }
    bytes.into()
}
