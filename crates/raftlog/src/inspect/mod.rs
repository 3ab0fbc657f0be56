//! Looking at a log's files without opening the log: what `flotilla debug` prints, for an operator at three
//! in the morning and for a developer with a damaged file. Reads only, in bounded pieces, also files that
//! somebody writes to.
//!
//! A [`SegmentScan`] goes through one file, record by record, and through damage to the next record; what is
//! wrong is a [`Damage`] with its [`Clue`]s, what a start of the log would make of it a [`Verdict`]. A
//! [`DataDirectory`] does so for whole logs, and rehearses its recovery on a copy that exists only in memory.

mod clue;
mod correct;
mod damage;
mod directory;
mod hard_state;
mod log;
mod record;
mod rehearsal;
mod segment;
mod summary;
mod verdict;
mod window;

pub use clue::Clue;
pub use damage::{Damage, Fault};
pub use directory::{Directory, ReadOnly};
pub use hard_state::{HardStateFault, HardStateFile, HardStateSlot, read_hard_state};
pub use log::{
    DataDirectory, InspectError, KnownLog, LogReport, Opening, OwnerReport, SegmentReport, Surroundings,
};
pub use record::{BadRecord, SeenRecord, SegmentName, decode_record};
pub use rehearsal::Change;
pub use segment::{Item, SegmentScan};
pub use summary::SegmentSummary;
pub use verdict::{Evidence, Verdict, verdict};
