//! Reading entries by index: from memory when they are recent, else from their segments.

use crate::core::Core;
use crate::index::Located;
use crate::record::{Head, check_field};
use crate::scan::{ScanError, SegmentReader};
use crate::segment::SegmentId;
use crate::{Entry, EntryMeta, Log, ReadError};
use disk::ReadFault;
use std::io;
use std::ops::Range;
use types::LogIndex;

/// The most entries that one call plans for; the caller comes back for more.
const PLANNED_MAX: usize = 4096;

enum Planned {
    Cached(Entry, Located),
    OnDisk(Located),
}

impl Log {
    /// Reads entries of `range`, from its start, at least one, until `bytes_max` is passed. A range that ends
    /// after the log is cut short.
    pub async fn read(&self, range: Range<LogIndex>, bytes_max: usize) -> Result<Vec<Entry>, ReadError> {
        let core = self.core();
        let plan = plan(core, range, bytes_max)?;
        let mut source = Source { core, reader: None };
        let mut entries = Vec::with_capacity(plan.len());
        for planned in plan {
            entries.push(match planned {
                Planned::Cached(entry, _) => entry,
                Planned::OnDisk(located) => source.entry(located).await?,
            });
        }
        Ok(entries)
    }

    /// Reads entries as [`Log::read`] does, without their bodies: recent ones from memory alone, of older
    /// ones the heads from the disk.
    pub async fn read_meta(
        &self,
        range: Range<LogIndex>,
        count_max: usize,
    ) -> Result<Vec<EntryMeta>, ReadError> {
        let core = self.core();
        let end = LogIndex(range.end.0.min(range.start.0.saturating_add(count_max.max(1) as u64)));
        let plan = plan(core, range.start..end, usize::MAX)?;
        let mut source = Source { core, reader: None };
        let mut metas = Vec::with_capacity(plan.len());
        for planned in plan {
            metas.push(match planned {
                Planned::Cached(Entry { id, kind, meta, roll_to, .. }, located) => {
                    EntryMeta { id, kind, meta, roll_to, place: located.place() }
                }
                Planned::OnDisk(located) => source.meta(located).await?,
            });
        }
        Ok(metas)
    }
}

/// Decides under one lock what to read and from where, so that the answer is of one moment.
fn plan(core: &Core, range: Range<LogIndex>, bytes_max: usize) -> Result<Vec<Planned>, ReadError> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let state = core.lock();
    let (first, end) = (state.index.first(), state.end());
    if range.start < first || range.start >= end {
        return Err(ReadError::OutOfRange { index: range.start, first, end });
    }
    let (mut plan, mut bytes) = (Vec::new(), 0usize);
    for index in (range.start.0..range.end.min(end).0).map(LogIndex) {
        let located = state.index.get(index).expect("between first and end");
        bytes = bytes.saturating_add(located.meta_bytes as usize + located.body_bytes as usize);
        if !plan.is_empty() && (bytes > bytes_max || plan.len() >= PLANNED_MAX) {
            break;
        }
        plan.push(match state.cache.get(index, end) {
            Some(entry) => Planned::Cached(entry.clone(), located),
            None => Planned::OnDisk(located),
        });
    }
    Ok(plan)
}

/// Reads entries from segments; neighbours share reads.
struct Source<'a> {
    core: &'a Core,
    reader: Option<(SegmentId, SegmentReader)>,
}

impl Source<'_> {
    async fn entry(&mut self, located: Located) -> Result<Entry, ReadError> {
        let read = async {
            let head = self.head(located).await?;
            self.reader(located).await?.entry(head).await
        };
        let result = read.await;
        result.map_err(|error| self.explain(located, error))
    }

    async fn meta(&mut self, located: Located) -> Result<EntryMeta, ReadError> {
        let head = self.head(located).await.map_err(|error| self.explain(located, error))?;
        let Head { header, meta, .. } = head;
        Ok(EntryMeta { id: header.id, kind: header.kind, meta, roll_to: header.roll_to, place: header.place })
    }

    async fn head(&mut self, located: Located) -> Result<Head, ScanError> {
        let log = self.core.spec.log;
        let head = self.reader(located).await?.head(located.position.offset).await?;
        head.header.check_log(log)?;
        check_field("index", head.header.id.index.0, located.id.index.0)?;
        check_field("term", head.header.id.term.0, located.id.term.0)?;
        Ok(head)
    }

    async fn reader(&mut self, located: Located) -> io::Result<&mut SegmentReader> {
        let id = located.position.file();
        if self.reader.as_ref().is_none_or(|(open, _)| *open != id) {
            let file = self.core.space.files().open(&id.path(&self.core.spec.owners_dir)).await?;
            self.reader = Some((id, SegmentReader::new(file, id)));
        }
        Ok(&mut self.reader.as_mut().expect("opened above").1)
    }

    /// The error of a read that failed: where the entry was truncated meanwhile, that is no damage.
    fn explain(&self, located: Located, error: ScanError) -> ReadError {
        let state = self.core.lock();
        let index = located.id.index;
        if state.index.get(index) != Some(located) {
            return ReadError::OutOfRange { index, first: state.index.first(), end: state.end() };
        }
        let file = located.position.file().path(&self.core.spec.owners_dir);
        read_error(file, located.position.offset, error)
    }
}

pub(crate) fn read_error(file: String, offset: u64, error: ScanError) -> ReadError {
    match error {
        ScanError::Io(error) if error.kind() == io::ErrorKind::NotFound => ReadError::NotFound { file },
        ScanError::Io(error) => ReadError::Io { file, fault: ReadFault::of(&error), why: error.to_string() },
        ScanError::Bad(why) => ReadError::Damaged { file, offset, why: why.to_string() },
    }
}
