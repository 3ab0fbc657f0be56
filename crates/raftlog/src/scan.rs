use crate::Entry;
use crate::record::{DecodeError, HEADER_BYTES, Head, Header};
use crate::segment::SegmentId;
use bytes::Bytes;
use disk::File;
use std::io;
use std::sync::Arc;

/// The bytes of a reader's first read: small, as many want one head only, or jump from head to head over
/// large bodies.
const WINDOW_BYTES_MIN: usize = 4 << 10;
/// The bytes that a reader comes to read at once where records follow each other.
const WINDOW_BYTES_MAX: usize = 256 << 10;

/// Reads a segment's records, several of them with one operation of the disk.
pub(crate) struct SegmentReader {
    file: Arc<dyn File>,
    id: SegmentId,
    window: Bytes,
    window_offset: u64,
    window_bytes: usize,
}

#[derive(Debug)]
pub(crate) enum ScanError {
    Io(io::Error),
    Bad(DecodeError),
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        ScanError::Io(error)
    }
}

impl From<DecodeError> for ScanError {
    fn from(error: DecodeError) -> Self {
        ScanError::Bad(error)
    }
}

impl SegmentReader {
    pub(crate) fn new(file: Arc<dyn File>, id: SegmentId) -> SegmentReader {
        SegmentReader { file, id, window: Bytes::new(), window_offset: 0, window_bytes: WINDOW_BYTES_MIN }
    }

    /// Everything before the body of the record at `offset`, verified, of whatever log.
    pub(crate) async fn head(&mut self, offset: u64) -> Result<Head, ScanError> {
        let header = Header::decode(&self.bytes(offset, HEADER_BYTES).await?)?;
        header.check_place(self.id.owner, self.id.segment, offset)?;
        let head = Head::decode(header, &self.bytes(offset, header.head_bytes() as usize).await?)?;
        if header.body_bytes() >= WINDOW_BYTES_MAX / 2 {
            self.window_bytes = WINDOW_BYTES_MIN;
        }
        Ok(head)
    }

    /// The whole record whose head was read, verified.
    pub(crate) async fn entry(&mut self, head: Head) -> Result<Entry, ScanError> {
        let (offset, bytes) = (head.header.place.offset, head.header.record_bytes() as usize);
        let record = self.bytes(offset, bytes).await?;
        Ok(head.decode_entry(&record)?)
    }

    /// Bytes from `offset`, fewer than asked for only at the end of the file.
    pub(crate) async fn bytes(&mut self, offset: u64, bytes: usize) -> io::Result<Bytes> {
        let start = offset.checked_sub(self.window_offset).and_then(|start| usize::try_from(start).ok());
        if let Some(start) = start
            && start + bytes <= self.window.len()
        {
            return Ok(self.window.slice(start..start + bytes));
        }
        if !self.window.is_empty() && start.is_some_and(|start| start <= self.window.len()) {
            self.window_bytes = (self.window_bytes * 4).min(WINDOW_BYTES_MAX);
        }
        self.window = self.file.read_at(offset, bytes.max(self.window_bytes)).await?;
        self.window_offset = offset;
        Ok(self.window.slice(..bytes.min(self.window.len())))
    }
}
