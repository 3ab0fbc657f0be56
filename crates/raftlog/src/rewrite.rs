//! Copying an owner's records into new segments of the same owner: what a compaction writes
//! (docs/format/compacted.md). An entry stays what it is; of its head only what says where it stands changes.

use crate::compacted::Compacted;
use crate::record::move_head;
use crate::segment::{Position, SegmentId, owner_dir};
use crate::{LogSpace, Place, WalkedRecord, segment_index};
use bytes::{BufMut, Bytes, BytesMut};
use disk::{Disk, File};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use types::OwnerId;

/// The bytes that are written at once: enough that they go around the page cache.
const WRITE_BYTES: usize = 1 << 20;

/// The new segments of an owner, as far as they are written. None of them counts before the file `compacted`
/// says so ([`Compacted::write`]).
pub struct Rewrite {
    disk: Arc<dyn Disk>,
    owners_dir: String,
    segment_bytes_max: u64,
    /// The place of the next record, if it fits.
    at: Position,
    open: Option<Arc<dyn File>>,
    /// The bytes that are yet to be written; `buffer_offset` is where they begin.
    buffer: BytesMut,
    buffer_offset: u64,
    segments: Range<u32>,
    bytes: u64,
}

impl Rewrite {
    /// Whether the record goes to a segment that is yet to be begun, by [`Rewrite::begin_segment`].
    pub fn needs_segment(&self, record: &WalkedRecord) -> bool {
        self.open.is_none() || self.at.fit(record.bytes, self.segment_bytes_max) != self.at
    }

    /// Finishes the segment before, and creates the next. The owner must have no segment of that number which
    /// counts.
    pub async fn begin_segment(&mut self) -> io::Result<()> {
        self.finish_segment().await?;
        let segment = self.segments.end;
        self.at = Position { segment, offset: 0, ..self.at };
        let file = self.disk.open(&self.at.file().path(&self.owners_dir), true).await?;
        // The file may be one that a compaction before this one left.
        file.set_len(0).await?;
        (self.open, self.buffer_offset, self.segments.end) = (Some(file), 0, segment + 1);
        Ok(())
    }

    /// Takes the next record, with all of its body and what pads it; answers where it stands from now on.
    pub async fn push(&mut self, record: &WalkedRecord, body: &[Bytes]) -> io::Result<Place> {
        assert!(!self.needs_segment(record), "a segment was begun for the record");
        let place = self.at.place(record.meta.place.body_bytes);
        self.buffer.put(move_head(&record.head, place.segment, place.offset));
        body.iter().for_each(|part| self.buffer.put_slice(part));
        let written = self.buffer_offset + self.buffer.len() as u64;
        assert_eq!(written, place.offset + record.bytes, "a record is as long as it says");
        self.at = self.at.after(record.bytes, None);
        self.bytes += record.bytes;
        if self.buffer.len() >= WRITE_BYTES {
            self.write_buffer().await?;
        }
        Ok(place)
    }

    /// Finishes the copy: all of it is durable on return, and counts for nothing yet. Answers the numbers of
    /// its segments.
    pub async fn finish(mut self) -> io::Result<Range<u32>> {
        self.finish_segment().await?;
        self.disk.sync_dir(&owner_dir(&self.owners_dir, self.at.owner)).await?;
        Ok(self.segments)
    }

    /// The bytes of the records so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    async fn finish_segment(&mut self) -> io::Result<()> {
        self.write_buffer().await?;
        match self.open.take() {
            Some(file) => file.sync_data().await,
            None => Ok(()),
        }
    }

    async fn write_buffer(&mut self) -> io::Result<()> {
        let Some(file) = self.open.as_ref().filter(|_| !self.buffer.is_empty()) else { return Ok(()) };
        let bytes = self.buffer.split().freeze();
        let offset = self.buffer_offset;
        self.buffer_offset += bytes.len() as u64;
        file.write_at(offset, vec![bytes]).await
    }
}

impl LogSpace {
    /// Begins to write an owner anew, in segments from `first` on.
    pub fn rewrite(&self, owners_dir: &str, owner: OwnerId, first: u32) -> Rewrite {
        Rewrite {
            disk: self.disk().clone(),
            owners_dir: owners_dir.to_owned(),
            segment_bytes_max: self.options().segment_bytes_max,
            at: Position { segment: first, ..Position::start_of(owner) },
            open: None,
            buffer: BytesMut::new(),
            buffer_offset: 0,
            segments: first..first,
            bytes: 0,
        }
    }

    /// The number that no segment of an owner has had, in whatever state its compactions are.
    pub async fn unused_segment(&self, owners_dir: &str, owner: OwnerId) -> io::Result<u32> {
        let numbers = segments(&**self.disk(), owners_dir, owner).await?;
        Ok(numbers.into_iter().max().map_or(0, |last| last + 1))
    }

    /// Removes segments that are no part of an owner any more, durably; answers their bytes. None of them
    /// becomes a spare: somebody may be reading it still, and reads on what it was.
    pub async fn remove_stray_segments(&self, owners_dir: &str, owner: OwnerId) -> io::Result<u64> {
        let strays = stray_segments(&**self.disk(), owners_dir, owner).await?;
        let mut bytes = 0;
        for segment in &strays {
            let id = SegmentId { owner, segment: *segment };
            let path = id.path(owners_dir);
            bytes += self.disk().open(&path, false).await?.len().await?;
            segment_index::remove(&**self.disk(), owners_dir, id).await?;
            self.disk().remove_file(&path).await?;
        }
        if !strays.is_empty() {
            let dir = owner_dir(owners_dir, owner);
            self.files().forget(&dir);
            self.disk().sync_dir(&dir).await?;
        }
        Ok(bytes)
    }
}

/// The segments of an owner that are no part of it: left by a compaction, or never finished.
pub async fn stray_segments(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Vec<u32>> {
    stray_segments_of(disk, owners_dir, owner, &Compacted::read(disk, owners_dir, owner).await?).await
}

/// [`stray_segments`] of an owner whose record of its compaction was read.
pub async fn stray_segments_of(
    disk: &dyn Disk,
    owners_dir: &str,
    owner: OwnerId,
    compacted: &Compacted,
) -> io::Result<Vec<u32>> {
    let mut numbers = segments(disk, owners_dir, owner).await?;
    numbers.retain(|number| !compacted.segments.contains(number));
    numbers.sort_unstable();
    Ok(numbers)
}

async fn segments(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Vec<u32>> {
    let names = disk.list(&owner_dir(owners_dir, owner)).await?;
    Ok(names.iter().filter_map(|name| SegmentId::parse_number(name)).collect())
}
