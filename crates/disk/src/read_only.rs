use crate::{File, IoFuture, syscalls};
use bytes::Bytes;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Opens one file of a data directory to look at it, for tools: the directory is neither locked nor stamped
/// nor changed, and may be in use by a server, whose file then grows while it is read. Every change is
/// refused with [`io::ErrorKind::PermissionDenied`]. Reads happen in the call, on the caller's thread.
pub fn open_read_only(path: &Path) -> io::Result<Arc<dyn File>> {
    // Before it is opened: that would wait for whoever writes to a pipe, and may change a device.
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is no regular file"));
    }
    Ok(Arc::new(ReadOnlyFile { file: fs::File::open(path)? }))
}

struct ReadOnlyFile {
    file: fs::File,
}

fn done<T: Send + 'static>(result: io::Result<T>) -> IoFuture<T> {
    Box::pin(std::future::ready(result))
}

fn refused() -> IoFuture<()> {
    done(Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened to be read only")))
}

impl File for ReadOnlyFile {
    fn write_at(&self, _offset: u64, _buffers: Vec<Bytes>) -> IoFuture<()> {
        refused()
    }

    fn write_and_sync(&self, _offset: u64, _buffers: Vec<Bytes>) -> IoFuture<()> {
        refused()
    }

    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        let mut buffer = Vec::new();
        done(syscalls::read_at(&self.file, offset, bytes, &mut buffer).map(|()| buffer.into()))
    }

    fn sync_data(&self) -> IoFuture<()> {
        refused()
    }

    fn settle(&self) -> IoFuture<()> {
        refused()
    }

    fn preallocate(&self, _bytes: u64) -> IoFuture<()> {
        refused()
    }

    fn set_len(&self, _bytes: u64) -> IoFuture<()> {
        refused()
    }

    fn punch_holes(&self, _holes: Vec<Range<u64>>) -> IoFuture<()> {
        refused()
    }

    fn len(&self) -> IoFuture<u64> {
        done(self.file.metadata().map(|metadata| metadata.len()))
    }
}
