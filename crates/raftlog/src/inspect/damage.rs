use super::{Clue, SeenRecord};
use std::fmt;
use types::LogIndex;

/// Bytes of a segment that are not the record that should stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub offset: u64,
    /// The offset at which the next record, or what is unused, begins.
    pub end: u64,
    pub fault: Fault,
    /// The entry that should stand here, when the records before say.
    pub index: Option<LogIndex>,
    /// The entry the next record holds.
    pub next_index: Option<LogIndex>,
    /// The clues that could be found, most telling first.
    pub clues: Vec<Clue>,
}

impl Damage {
    pub fn bytes(&self) -> u64 {
        self.end - self.offset
    }

    /// Whether this is what a recycled file held before, by the file alone: behind the zeros that end a log
    /// there is nothing of this segment, but whole records that stand where they stood in another one.
    pub fn is_old_bytes(&self) -> bool {
        matches!(self.fault, Fault::Zeros { .. }) && self.next_index.is_none() && self.old_record().is_some()
    }

    /// Whether this may be what a recycled file held before, when recovery says that the log ends here.
    pub(crate) fn may_be_old_bytes(&self) -> bool {
        let is_end = match &self.fault {
            Fault::Zeros { .. } => true,
            Fault::Misplaced { .. } | Fault::Field { field: "magic", .. } => self.old_record().is_some(),
            _ => false,
        };
        is_end && self.next_index.is_none()
    }

    /// Words for what is no damage after all.
    pub fn told_as_old_bytes(&self) -> String {
        let mut told = format!("offset {} old bytes of a recycled file, {} bytes", self.offset, self.bytes());
        if let Some(record) = self.old_record() {
            told += &format!(": records of {} of log {}", record.segment(), record.log);
        }
        told
    }

    /// The first whole record of another segment that stands where it stood there.
    pub fn old_record(&self) -> Option<&SeenRecord> {
        if let Fault::Misplaced { record, .. } = &self.fault
            && record.place.offset == record.offset
        {
            return Some(record);
        }
        self.clues.iter().find_map(|clue| match clue {
            Clue::Recycled { record, .. } => Some(&**record),
            _ => None,
        })
    }

    /// The number of entries that are gone, when the records on both sides say.
    pub fn entries_lost(&self) -> Option<u64> {
        self.next_index?.0.checked_sub(self.index?.0)
    }
}

/// The fault in a segment, in the words of docs/format/segment.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Zeros, with something else behind them.
    Zeros {
        to: u64,
    },
    /// A field of the header has a value that no record has.
    Field {
        field: &'static str,
        found: String,
        allowed: String,
    },
    /// The wrong checksum of header, body sums and meta.
    HeadChecksum {
        stored: u32,
        computed: u32,
    },
    /// The wrong checksum of one of the body's 64 KiB pieces, the first of `bad` wrong ones of `count`.
    BodyChecksum {
        piece: usize,
        offset: u64,
        stored: u32,
        computed: u32,
        bad: usize,
        count: usize,
    },
    Padding {
        offset: u64,
    },
    /// The file ends before the record does.
    Cut {
        found_bytes: u64,
        record_bytes: Option<u64>,
    },
    /// A whole record that belongs to another place or log.
    Misplaced {
        record: Box<SeenRecord>,
        field: &'static str,
        expected: u64,
        found: u64,
    },
    /// A whole record of this place whose index does not follow.
    Index {
        found: LogIndex,
        expected: LogIndex,
    },
    /// The record before sends the log to another owner.
    AfterRoll,
}

impl Fault {
    /// Whether everything before the body is as it was written: then the log opens, and only readers of the
    /// entry fail.
    pub fn is_in_body(&self) -> bool {
        matches!(self, Fault::BodyChecksum { .. } | Fault::Padding { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Zeros { to } => write!(f, "zeros up to byte {to} where a record should begin"),
            Fault::Field { field, found, allowed } => write!(f, "{field} is {found}, {allowed} is allowed"),
            Fault::HeadChecksum { stored, computed } => write!(
                f,
                "checksum of header, body sums and meta: stored {stored:#010x}, computed {computed:#010x}"
            ),
            Fault::BodyChecksum { piece, offset, stored, computed, bad, count } => write!(
                f,
                "checksum of body piece {piece} (at byte {offset}): stored {stored:#010x}, computed {computed:#010x}; \
                 {bad} of {count} pieces are bad"
            ),
            Fault::Padding { offset } => write!(f, "padding is not zero at byte {offset}"),
            Fault::Cut { found_bytes, record_bytes: Some(bytes) } => {
                write!(f, "the file ends after {found_bytes} of the record's {bytes} bytes")
            }
            Fault::Cut { found_bytes, record_bytes: None } => {
                write!(f, "the file ends after {found_bytes} bytes, inside the header")
            }
            Fault::Misplaced { field, expected, found, .. } => {
                write!(f, "a whole record of another place: its {field} is {found}, here it is {expected}")
            }
            Fault::Index { found, expected } => {
                write!(f, "a whole record of entry {found} where entry {expected} should stand")
            }
            Fault::AfterRoll => write!(f, "something stands behind the record that ends this owner"),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_old_bytes() {
            return f.write_str(&self.told_as_old_bytes());
        }
        write!(f, "offset {} DAMAGED {} bytes: {}", self.offset, self.bytes(), self.fault)?;
        match (self.index, self.next_index) {
            (Some(index), Some(next)) if next.0.saturating_sub(1) > index.0 => {
                write!(f, "; entries {index} to {} are lost", next.0 - 1)
            }
            (Some(index), _) => write!(f, "; entry {index}"),
            _ => Ok(()),
        }
    }
}
