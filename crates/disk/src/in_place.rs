//! Reads in place: what the page cache has is copied by the thread that asks, which takes less than waking
//! another one, and waits for no disk.

use crate::syscalls;
use bytes::Bytes;
use std::fs::File;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes that are read in place. Copying them takes some 200 µs; more would hold up the other tasks
/// of the thread.
const BYTES_MAX: usize = 2 << 20;

/// One disk's way to its page cache.
#[derive(Default)]
pub(crate) struct InPlace {
    /// Whether the kernel, or the file system, cannot say what it would have to wait for.
    refused: AtomicBool,
}

impl InPlace {
    /// Reads up to `bytes` bytes, fewer only at the end of the file. The error is what the page cache had of
    /// them, from the first on: the disk is to be asked for the rest, also for what is wrong.
    pub(crate) fn read(&self, file: &File, offset: u64, bytes: usize) -> Result<Bytes, Vec<u8>> {
        let mut buffer = Vec::new();
        if bytes > BYTES_MAX || self.refused.load(Ordering::Relaxed) {
            return Err(buffer);
        }
        match syscalls::read_cached_at(file, offset, bytes, &mut buffer) {
            Ok(()) => Ok(buffer.into()),
            Err(error) => {
                if error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                    self.refused.store(true, Ordering::Relaxed);
                }
                Err(buffer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, DiskIo, RealDisk};
    use futures::FutureExt;

    const MIB: usize = 1 << 20;

    /// Whether reads in place are refused on this file system, as the kernel cannot do them there.
    fn is_refused(dir: &std::path::Path) -> bool {
        let (file, in_place) = (tempfile::tempfile_in(dir).unwrap(), InPlace::default());
        let _ = in_place.read(&file, 0, 1);
        let refused = in_place.refused.load(Ordering::Relaxed);
        if refused {
            eprintln!("not tested, the file system of {} cannot do it", dir.display());
        }
        refused
    }

    #[tokio::test]
    async fn what_the_page_cache_has_is_read_at_once() {
        let dir = tempfile::tempdir().unwrap();
        if is_refused(dir.path()) {
            return;
        }
        let disk = RealDisk::open_with(dir.path(), 1, DiskIo::Threads).unwrap();
        let file = disk.open("a", true).await.unwrap();
        let written = Bytes::from((0..4 * MIB).map(|n| (n / 7) as u8).collect::<Vec<_>>());
        file.write_at(0, vec![written.clone()]).await.unwrap();
        let at_once = |offset: usize, bytes| file.read_at(offset as u64, bytes).now_or_never();
        for (offset, bytes) in [(0, 10), (4095, 2), (MIB - 1, 2 * MIB), (4 * MIB - 5, 100), (5 * MIB, 1)] {
            let end = (offset + bytes).min(written.len());
            let read = at_once(offset, bytes).expect("the page cache has it").unwrap();
            assert!(read == written[offset.min(end)..end], "{bytes} bytes from {offset}");
        }
        let opened = std::fs::File::open(dir.path().join("a")).unwrap();
        let much = InPlace::default().read(&opened, 0, 4 * MIB);
        assert_eq!(much, Err(vec![]), "so much is another thread's work");
        file.settle().await.unwrap();
        // Whether or not the page cache has let go of it, and what it has after a read of a page.
        for bytes in [4096, MIB, 2 * MIB] {
            let begun = match InPlace::default().read(&opened, 0, bytes) {
                Ok(whole) => whole,
                Err(begun) => begun.into(),
            };
            assert!(begun == written[..begun.len()], "{} of {bytes} bytes are there", begun.len());
            let again = file.read_at(0, bytes).await.unwrap();
            assert!(again == written[..bytes], "{bytes} bytes, of which {} were there", begun.len());
        }
    }
}
