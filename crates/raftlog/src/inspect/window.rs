use bytes::Bytes;
use disk::File;
use std::io;
use std::sync::Arc;

/// The bytes of one read of a sequential look at a file; bodies and zeros are gone through in pieces of this
/// size.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;

/// A file that is read in order, several small looks with one operation of the disk.
pub(crate) struct Window {
    file: Arc<dyn File>,
    len: u64,
    bytes: Bytes,
    offset: u64,
}

impl Window {
    pub(crate) async fn new(file: Arc<dyn File>) -> io::Result<Window> {
        let len = file.len().await?;
        Ok(Window { file, len, bytes: Bytes::new(), offset: 0 })
    }

    /// The file's length when the look began; what is appended meanwhile is not looked at.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes from `offset`, fewer than asked for only at the end of the file.
    pub(crate) async fn read(&mut self, offset: u64, bytes: usize) -> io::Result<Bytes> {
        let bytes = bytes.min(usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX));
        let start = offset.checked_sub(self.offset).and_then(|start| usize::try_from(start).ok());
        if let Some(start) = start
            && start <= self.bytes.len()
            && bytes <= self.bytes.len() - start
        {
            return Ok(self.bytes.slice(start..start + bytes));
        }
        self.bytes = self.file.read_at(offset, bytes.max(WINDOW_BYTES)).await?;
        self.offset = offset;
        Ok(self.bytes.slice(..bytes.min(self.bytes.len())))
    }

    /// The offset of the first byte other than zero in `[from, to)`.
    pub(crate) async fn first_used(&mut self, from: u64, to: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        while at < to {
            let bytes = self.read(at, WINDOW_BYTES.min((to - at) as usize)).await?;
            if bytes.is_empty() {
                return Ok(None);
            }
            if let Some(used) = bytes.iter().position(|byte| *byte != 0) {
                return Ok(Some(at + used as u64));
            }
            at += bytes.len() as u64;
        }
        Ok(None)
    }

    /// The offset behind the last byte other than zero of `[from, to)`; `from` when all are zero.
    pub(crate) async fn used_end(&mut self, from: u64, to: u64) -> io::Result<u64> {
        let (mut at, mut end) = (from, from);
        while at < to {
            let bytes = self.read(at, WINDOW_BYTES.min((to - at) as usize)).await?;
            if bytes.is_empty() {
                break;
            }
            if let Some(used) = bytes.iter().rposition(|byte| *byte != 0) {
                end = at + used as u64 + 1;
            }
            at += bytes.len() as u64;
        }
        Ok(end)
    }
}
