//! Planted bugs: a disk that lies makes a correct log engine behave like one that forgets a step.

use bytes::Bytes;
use disk::sim::SimDisk;
use disk::{Disk, File, IoFuture, Space};
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
        if self == Lie::Honest { Arc::new(disk) } else { Arc::new(Liar { disk, lie: self }) }
    }
}

struct Liar {
    disk: SimDisk,
    lie: Lie,
}

struct LyingFile {
    file: Arc<dyn File>,
    lie: Lie,
    is_segment: bool,
}

fn nothing() -> IoFuture<()> {
    Box::pin(async { Ok(()) })
}

impl Disk for Liar {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        let (opened, lie, is_segment) = (self.disk.open(path, create), self.lie, path.ends_with(".seg"));
        Box::pin(
            async move { Ok(Arc::new(LyingFile { file: opened.await?, lie, is_segment }) as Arc<dyn File>) },
        )
    }
    fn create_dir_all(&self, path: &str) -> IoFuture<()> {
        self.disk.create_dir_all(path)
    }
    fn sync_dir(&self, path: &str) -> IoFuture<()> {
        if self.lie == Lie::DirectoriesNotSynced { nothing() } else { self.disk.sync_dir(path) }
    }
    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        self.disk.list(path)
    }
    fn rename(&self, from: &str, to: &str) -> IoFuture<()> {
        self.disk.rename(from, to)
    }
    fn remove_file(&self, path: &str) -> IoFuture<()> {
        self.disk.remove_file(path)
    }
    fn remove_dir_all(&self, path: &str) -> IoFuture<()> {
        self.disk.remove_dir_all(path)
    }
    fn space(&self) -> IoFuture<Space> {
        self.disk.space()
    }
    fn failure(&self) -> Option<String> {
        self.disk.failure()
    }
}

impl File for LyingFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        self.file.write_at(offset, buffers)
    }
    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        match (self.lie, self.is_segment) {
            (Lie::SegmentsNotSynced, true) | (Lie::HardStateNotSynced, false) => {
                self.file.write_at(offset, buffers)
            }
            _ => self.file.write_and_sync(offset, buffers),
        }
    }
    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        let read = self.file.read_at(offset, bytes);
        if self.lie != Lie::ChecksumsIgnored || !self.is_segment {
            return read;
        }
        Box::pin(async move { Ok(with_fitting_checksums(read.await?)) })
    }
    fn sync_data(&self) -> IoFuture<()> {
        if self.lie == Lie::SyncDataDoesNothing { nothing() } else { self.file.sync_data() }
    }
    fn settle(&self) -> IoFuture<()> {
        match self.lie {
            Lie::SyncDataDoesNothing => nothing(),
            Lie::MemoryTrusted => self.file.sync_data(),
            _ => self.file.settle(),
        }
    }

    fn preallocate(&self, bytes: u64) -> IoFuture<()> {
        self.file.preallocate(bytes)
    }
    fn set_len(&self, bytes: u64) -> IoFuture<()> {
        if self.lie == Lie::CutsNotMade && self.is_segment { nothing() } else { self.file.set_len(bytes) }
    }
    fn punch_hole(&self, offset: u64, bytes: u64) -> IoFuture<()> {
        self.file.punch_hole(offset, bytes)
    }
    fn len(&self) -> IoFuture<u64> {
        self.file.len()
    }
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
