use super::clue::{cut_at, flipped_in_head, flipped_in_piece, lengths, zero_sectors};
use super::window::{WINDOW_BYTES, Window};
use super::{Clue, Damage, Fault, SeenRecord, SegmentName};
use crate::Discards;
use crate::record::{ALIGNMENT, DecodeError, HEADER_BYTES, Head, Header, MAGIC, VERSION};
use crate::segment::NUMBER_MAX;
use bytes::Bytes;
use disk::File;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use types::{CRC_CHUNK_BYTES, LogIndex, OwnerId};

/// The number of records that are looked at to learn what a file is.
const IDENTIFYING_RECORDS: usize = 16;

/// The most bytes that the search for records may read as heads that turn out to be none: a body may be full
/// of them.
const SEARCH_BYTES_MAX: u64 = 256 << 20;

/// The most clues that are told of one damage.
const CLUES_MAX: usize = 8;

/// The next thing in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Record(SeenRecord),
    Damage(Damage),
    /// Zeros to the end of the file: allocated ahead, or all that a torn write left.
    Unused {
        offset: u64,
        bytes: u64,
    },
}

/// Goes through a segment from its first byte to its last, verifying everything. Holds one piece of the file
/// at a time.
pub struct SegmentScan {
    window: Window,
    at: u64,
    /// The segment that the file's name names.
    pub named: Option<SegmentName>,
    /// The segment that its records name: they are checked against it.
    pub found: Option<SegmentName>,
    pub log: Option<u64>,
    /// The records that have no body to check, as it was given up.
    pub discards: Discards,
    next_index: Option<LogIndex>,
    /// True after damage: the next record's index is not known.
    gap: bool,
    rolled: bool,
    search_bytes: u64,
}

impl SegmentScan {
    /// Looks at the first records to learn what the file holds: `named`, unless none of them agrees.
    pub async fn new(file: Arc<dyn File>, named: Option<SegmentName>) -> io::Result<SegmentScan> {
        let mut scan = SegmentScan {
            window: Window::new(file).await?,
            at: 0,
            named,
            found: named,
            log: None,
            discards: Discards::none(named.map_or(OwnerId(0), |named| named.owner)),
            next_index: None,
            gap: true,
            rolled: false,
            search_bytes: 0,
        };
        scan.identify().await?;
        Ok(scan)
    }

    pub fn file_bytes(&self) -> u64 {
        self.window.len()
    }

    /// Whether the file's name is not that of its records.
    pub fn is_renamed(&self) -> bool {
        self.named.is_some() && self.named != self.found
    }

    /// Takes the segment to be what most of the first records say, the name having a casting vote.
    async fn identify(&mut self) -> io::Result<()> {
        let mut names: HashMap<(SegmentName, u64), usize> = HashMap::new();
        let mut at = 0;
        for _ in 0..IDENTIFYING_RECORDS {
            // Behind zeros a recycled file holds records of another segment, more of them than its own maybe.
            let is_named = self.named.is_none_or(|named| names.keys().any(|(name, _)| *name == named));
            if !names.is_empty() && is_named && self.is_end(at).await? {
                break;
            }
            let record = match self.head(at).await? {
                Some(record) => record,
                None => match self.search(at + ALIGNMENT, |_, _| true).await? {
                    Some(record) => record,
                    None => break,
                },
            };
            at = record.offset + record.bytes;
            *names.entry((record.segment(), record.log)).or_default() += 1;
        }
        let named = self.named;
        let most = names.into_iter().max_by_key(|((name, log), count)| {
            (Some(*name) == named, *count, std::cmp::Reverse((name.owner, name.segment, *log)))
        });
        if let Some(((name, log), _)) = most {
            (self.found, self.log) = (Some(name), Some(log));
        }
        self.search_bytes = 0;
        Ok(())
    }

    /// Whether a log would end here.
    async fn is_end(&mut self, at: u64) -> io::Result<bool> {
        Ok(self.window.read(at, HEADER_BYTES).await?.iter().all(|byte| *byte == 0))
    }

    /// The meta of a record that was seen here; empty when it is there no more.
    pub async fn meta(&mut self, record: &SeenRecord) -> io::Result<Bytes> {
        if record.offset >= self.window.len() {
            return Ok(Bytes::new());
        }
        Ok(self.decode_head(record.offset).await?.map(|head| head.meta).unwrap_or_default())
    }

    /// The entry that a record at the segment's start holds: that proves that what stands before was whole
    /// once.
    pub(crate) async fn first(&mut self) -> io::Result<Option<LogIndex>> {
        Ok(self.head(0).await?.filter(|record| self.is_here(record)).map(|record| record.id.index))
    }

    /// The next record or damage, `None` at the end of the file. Damage ends where the next record of this
    /// segment begins.
    pub async fn next(&mut self) -> io::Result<Option<Item>> {
        let (at, len) = (self.at, self.window.len());
        if at >= len {
            return Ok(None);
        }
        let first_used = self.window.first_used(at, len.min(at + HEADER_BYTES as u64)).await?;
        let zeros_to = match first_used {
            Some(_) => None,
            None => match self.window.first_used(at, len).await? {
                None => {
                    self.at = len;
                    return Ok(Some(Item::Unused { offset: at, bytes: len - at }));
                }
                used => used,
            },
        };
        if std::mem::take(&mut self.rolled) {
            let damage = self.damage(Fault::AfterRoll).await?;
            // The roll ends the log's part of a recycled file as any last record does.
            let fault = zeros_to.map_or(Fault::AfterRoll, |to| Fault::Zeros { to });
            let as_end = Damage { fault, ..damage };
            let fault = if as_end.is_old_bytes() { as_end.fault.clone() } else { Fault::AfterRoll };
            return Ok(Some(Item::Damage(Damage { fault, ..as_end })));
        }
        if let Some(to) = zeros_to {
            return self.damage(Fault::Zeros { to }).await.map(|damage| Some(Item::Damage(damage)));
        }
        match self.record(at).await? {
            Ok(record) => {
                let (found, expected) = (record.id.index, self.next_index);
                let may_follow =
                    |next: LogIndex| found > next && (self.gap || self.discards.are_gone(next..found));
                if let Some(expected) = expected.filter(|next| found != *next && !may_follow(*next)) {
                    (self.next_index, self.gap) = (None, true);
                    let fault = Fault::Index { found, expected };
                    let (index, next_index) = (Some(expected), Some(found));
                    let clues = Vec::new();
                    // The damage has no bytes: the record itself comes next.
                    let damage = Damage { offset: at, end: at, fault, index, next_index, clues };
                    return Ok(Some(Item::Damage(damage)));
                }
                self.pass(&record);
                Ok(Some(Item::Record(record)))
            }
            Err((fault, whole)) => match whole {
                // The record's extent is known; only what is in it is not as it was.
                Some(record) => self.damage_within(fault, record).await.map(Some),
                None => self.damage(fault).await.map(|damage| Some(Item::Damage(damage))),
            },
        }
    }

    fn pass(&mut self, record: &SeenRecord) {
        self.at = record.offset + record.bytes;
        self.next_index = record.id.index.0.checked_add(1).map(LogIndex);
        self.gap = false;
        self.rolled = record.rolls();
    }

    /// The record at an offset, all of it verified; with a fault, its head if that is whole.
    async fn record(&mut self, at: u64) -> io::Result<Result<SeenRecord, (Fault, Option<SeenRecord>)>> {
        let head = match self.decode_head(at).await? {
            Ok(head) => head,
            Err(fault) => return Ok(Err((fault, None))),
        };
        let record = SeenRecord::new(at, head.header);
        let found = self.found.unwrap_or(record.segment());
        let log = self.log.unwrap_or(record.log);
        let checks = head.header.check_place(found.owner, found.segment, at);
        if let Err(DecodeError::Misplaced { field, found, expected }) =
            checks.and_then(|()| head.header.check_log(log))
        {
            // How far a record reaches that belongs elsewhere says nothing about this segment.
            let fault = Fault::Misplaced { record: Box::new(record), field, expected, found };
            return Ok(Err((fault, None)));
        }
        if self.discards.contains(record.id.index, &record.place) {
            return Ok(Ok(record));
        }
        Ok(match self.body_fault(at, &head).await? {
            Some(fault) => Err((fault, Some(record))),
            None => Ok(record),
        })
    }

    async fn decode_head(&mut self, at: u64) -> io::Result<Result<Head, Fault>> {
        let left = self.window.len() - at;
        let header = self.window.read(at, HEADER_BYTES).await?;
        let header = match Header::decode(&header) {
            Ok(header) => header,
            Err(error) => return Ok(Err(head_fault(error, at, left, None))),
        };
        let bytes = self.window.read(at, header.head_bytes() as usize).await?;
        let head = Head::decode(header, &bytes);
        Ok(head.map_err(|error| head_fault(error, at, left, Some(header.record_bytes()))))
    }

    /// The head at an offset, if a whole one is there.
    async fn head(&mut self, at: u64) -> io::Result<Option<SeenRecord>> {
        if at >= self.window.len() {
            return Ok(None);
        }
        Ok(self.decode_head(at).await?.ok().map(|head| SeenRecord::new(at, head.header)))
    }

    async fn body_fault(&mut self, at: u64, head: &Head) -> io::Result<Option<Fault>> {
        let (body_start, record_end) = (at + head.header.head_bytes(), at + head.header.record_bytes());
        let body_end = body_start + head.header.body_bytes() as u64;
        let count = head.body_crcs.len();
        let mut fault = None;
        for (piece, stored) in head.body_crcs.iter().copied().enumerate() {
            let offset = body_start + (piece * CRC_CHUNK_BYTES) as u64;
            let bytes = CRC_CHUNK_BYTES.min((body_end - offset) as usize);
            let read = self.window.read(offset, bytes).await?;
            if read.len() < bytes {
                let found_bytes = self.window.len() - at;
                return Ok(Some(Fault::Cut { found_bytes, record_bytes: Some(record_end - at) }));
            }
            let computed = crc32c::crc32c(&read);
            if computed != stored {
                let first = Fault::BodyChecksum { piece, offset, stored, computed, bad: 0, count };
                if let Fault::BodyChecksum { bad, .. } = fault.get_or_insert(first) {
                    *bad += 1;
                }
            }
        }
        if fault.is_some() {
            return Ok(fault);
        }
        let padding = self.window.read(body_end, (record_end - body_end) as usize).await?;
        if (padding.len() as u64) < record_end - body_end {
            let found_bytes = self.window.len() - at;
            return Ok(Some(Fault::Cut { found_bytes, record_bytes: Some(record_end - at) }));
        }
        let used = padding.iter().position(|byte| *byte != 0);
        Ok(used.map(|used| Fault::Padding { offset: body_end + used as u64 }))
    }

    /// Damage within a record whose head is whole: the next one follows it.
    async fn damage_within(&mut self, fault: Fault, record: SeenRecord) -> io::Result<Item> {
        let at = record.offset;
        let end = (at + record.bytes).min(self.window.len());
        let mut clues = Vec::new();
        match &fault {
            Fault::BodyChecksum { .. } => self.body_clues(&record, &mut clues).await?,
            Fault::Cut { .. } => clues.push(cut_at(self.window.len())),
            _ => {}
        }
        let index = Some(record.id.index);
        self.pass(&record);
        self.at = end;
        let next_index = self.head(end).await?.filter(|next| self.is_here(next)).map(|next| next.id.index);
        Ok(Item::Damage(Damage { offset: at, end, fault, index, next_index, clues }))
    }

    /// Looks for clues to a body's bad pieces, one after another.
    async fn body_clues(&mut self, record: &SeenRecord, clues: &mut Vec<Clue>) -> io::Result<()> {
        let Ok(head) = self.decode_head(record.offset).await? else { return Ok(()) };
        let body_start = record.offset + head.header.head_bytes();
        let body_end = body_start + head.header.body_bytes() as u64;
        for (piece, stored) in head.body_crcs.iter().copied().enumerate() {
            let from = body_start + (piece * CRC_CHUNK_BYTES) as u64;
            let bytes = CRC_CHUNK_BYTES.min((body_end - from) as usize);
            let computed = crc32c::crc32c(&self.window.read(from, bytes).await?);
            if computed == stored || clues.len() >= CLUES_MAX {
                continue;
            }
            let to = from + bytes as u64;
            match flipped_in_piece(from, bytes, stored, computed) {
                Some(clue) => clues.push(clue),
                None => {
                    clues.extend(zero_sectors(&mut self.window, from, to).await?);
                    clues.extend(self.foreign(from, to).await?);
                }
            }
        }
        Ok(())
    }

    /// Damage that ends where a record of this segment is found again.
    async fn damage(&mut self, fault: Fault) -> io::Result<Damage> {
        let (at, len) = (self.at, self.window.len());
        let header = self.window.read(at, HEADER_BYTES).await?;
        let mut clues = Vec::new();
        // A flipped length may reach past the end of the file.
        let is_head = matches!(fault, Fault::HeadChecksum { .. } | Fault::Field { .. } | Fault::Cut { .. });
        let flipped = if is_head { flipped_in_head(&mut self.window, at).await? } else { None };
        // The record behind this one, if its length can be believed, else the next one that is found.
        let record_bytes = match &flipped {
            Some((_, record_bytes)) => Some(*record_bytes),
            None if header.len() == HEADER_BYTES => {
                let (meta_bytes, body_bytes) = lengths(&header);
                Some(crate::record::record_bytes(meta_bytes as usize, body_bytes as usize))
            }
            None => None,
        };
        let mut next = None;
        if let Some(record_bytes) = record_bytes {
            next = self.head(at + record_bytes).await?.filter(|next| self.is_here(next));
        }
        if next.is_none() {
            let (here, log) = (self.found, self.log);
            next = self.search(at + ALIGNMENT, |record, at| is_at(record, at, here, log)).await?;
        }
        let end = match (&next, &flipped) {
            (Some(next), _) => next.offset,
            (None, Some((_, record_bytes))) => (at + record_bytes).min(len),
            (None, None) => self.window.used_end(at, len).await?.next_multiple_of(ALIGNMENT).min(len),
        };
        match (flipped, &fault) {
            (Some((clue, _)), _) => clues.push(clue),
            (None, Fault::Cut { .. }) => clues.push(cut_at(len)),
            (None, Fault::Misplaced { .. }) => {}
            (None, _) => {
                let zeros_to = record_bytes.map_or(end, |bytes| (at + bytes).clamp(end.min(len), len));
                let zeros_to = if next.is_some() { end } else { zeros_to };
                let zeros = zero_sectors(&mut self.window, at, zeros_to).await?;
                let foreign = self.foreign(at, end).await?;
                // Zeros among old bytes tell nothing.
                clues.extend(zeros.filter(|_| !matches!(foreign, Some(Clue::Recycled { .. }))));
                clues.extend(foreign);
            }
        }
        if self.search_bytes > SEARCH_BYTES_MAX {
            clues.push(Clue::GaveUp { offset: at });
        }
        let index = self.next_index.filter(|_| !self.gap);
        let next_index = next.map(|next| next.id.index);
        (self.at, self.gap) = (end, true);
        Ok(Damage { offset: at, end, fault, index, next_index, clues })
    }

    /// Looks for whole records in a range that is no record of this segment.
    async fn foreign(&mut self, from: u64, to: u64) -> io::Result<Option<Clue>> {
        let (mut first, mut count, mut at) = (None, 0, from.next_multiple_of(ALIGNMENT));
        let (mut old, mut old_count) = (None::<SeenRecord>, 0);
        let (here, log) = (self.found, self.log);
        while let Some(record) = self.search(at, |record, at| !is_at(record, at, here, log)).await? {
            if record.offset >= to {
                break;
            }
            at = record.offset + record.bytes;
            if record.place.offset == record.offset
                && Some(record.segment()) != here
                && old.as_ref().is_none_or(|old| old.segment() == record.segment())
            {
                old_count += 1;
                old.get_or_insert(record);
                continue;
            }
            count += 1;
            first.get_or_insert(record);
        }
        // Old bytes may be those of an object that holds records itself: only what is in its place says what
        // they are.
        let old = old.map(|record| Clue::Recycled { record: Box::new(record), count: old_count });
        Ok(old.or(first.map(|record| Clue::Foreign { record: Box::new(record), count })))
    }

    fn is_here(&self, record: &SeenRecord) -> bool {
        is_at(record, record.offset, self.found, self.log)
    }

    /// The first whole head from `from` on that is wanted.
    async fn search(
        &mut self,
        from: u64,
        is_wanted: impl Fn(&SeenRecord, u64) -> bool,
    ) -> io::Result<Option<SeenRecord>> {
        let mut at = from;
        while at + HEADER_BYTES as u64 <= self.window.len() && self.search_bytes <= SEARCH_BYTES_MAX {
            let bytes = self.window.read(at, WINDOW_BYTES).await?;
            let starts = bytes.chunks(ALIGNMENT as usize).position(|chunk| chunk.starts_with(&MAGIC));
            let Some(nth) = starts else {
                at += (bytes.len() as u64).next_multiple_of(ALIGNMENT);
                continue;
            };
            at += nth as u64 * ALIGNMENT;
            match self.head(at).await? {
                Some(record) if is_wanted(&record, at) => return Ok(Some(record)),
                _ => {
                    let header = self.window.read(at, HEADER_BYTES).await?;
                    let read = Header::decode(&header).map_or(HEADER_BYTES as u64, |it| it.head_bytes());
                    self.search_bytes += read;
                }
            }
            at += ALIGNMENT;
        }
        Ok(None)
    }
}

fn is_at(record: &SeenRecord, at: u64, here: Option<SegmentName>, log: Option<u64>) -> bool {
    record.place.offset == at
        && here.is_none_or(|here| here == record.segment())
        && log.is_none_or(|log| log == record.log)
}

fn head_fault(error: DecodeError, at: u64, found_bytes: u64, record_bytes: Option<u64>) -> Fault {
    let field = |field, found: String, allowed: String| Fault::Field { field, found, allowed };
    match error {
        DecodeError::Magic(magic) => {
            field("magic", format!("{magic:02x?}"), format!("{MAGIC:02x?} (`FLog`)"))
        }
        DecodeError::Version(version) => field("version", version.to_string(), VERSION.to_string()),
        DecodeError::Flags(flags) => field("flags", format!("{flags:#06x}"), "0 or 1".to_owned()),
        DecodeError::Length { field: name, bytes, limit } => {
            let name = if name == "meta" { "meta_bytes" } else { "body_bytes" };
            field(name, bytes.to_string(), format!("at most {limit}"))
        }
        DecodeError::Misplaced { field: name, found, expected } => {
            field(name, found.to_string(), expected.to_string())
        }
        DecodeError::Index(index) => field("index", index.to_string(), format!("at most {NUMBER_MAX}")),
        DecodeError::Cut => Fault::Cut { found_bytes, record_bytes },
        DecodeError::HeadChecksum { stored, computed } => Fault::HeadChecksum { stored, computed },
        // A head has neither body nor padding; how far zeros reach is for the caller who asks.
        DecodeError::Zeros | DecodeError::Body(_) | DecodeError::Padding => Fault::Zeros { to: at },
    }
}
