use super::correct::{Flipped, flipped_bit};
use crate::HardState;
use crate::hard_state::{CRC_AT, FILE_BYTES, SLOT_BYTES, SLOT_OFFSETS, SlotRecord};
use disk::File;
use std::fmt;
use std::io;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId};

/// Both slots of a file `hard-state`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardStateFile {
    pub file_bytes: u64,
    pub slots: [Result<HardStateSlot, HardStateFault>; 2],
}

/// A slot that checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardStateSlot {
    pub sequence: u64,
    pub log: u64,
    pub vote: Option<HardState>,
    pub purged: Option<LogId>,
    pub committed: Option<LogId>,
    /// The last record that was synced when the slot was written.
    pub durable: Option<LogId>,
    pub start_owner: OwnerId,
    pub start_segment: u32,
    pub start_offset: u64,
    pub start_owner_bytes: u64,
    /// Owner and number of the newest segment whose file was made.
    pub begun: Option<(OwnerId, u32)>,
}

/// The reasons why a slot does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HardStateFault {
    /// The slot is all zeros: a new log has written only the first.
    NeverWritten,
    Cut {
        found_bytes: usize,
    },
    Checksum {
        stored: u32,
        computed: u32,
        /// Byte of the slot and its bit, when one flipped bit explains it.
        flipped: Option<(usize, u8)>,
    },
    /// The slot checks, and is not what this version writes.
    Unknown,
}

impl HardStateFile {
    /// The slot that counts, as opening would choose it.
    pub fn newest(&self) -> Option<&HardStateSlot> {
        self.slots.iter().flatten().max_by_key(|slot| slot.sequence)
    }

    /// Whether neither slot says anything, or one that was written no longer does.
    pub fn is_damaged(&self) -> bool {
        let is_bad = |fault: &HardStateFault| *fault != HardStateFault::NeverWritten;
        self.newest().is_none() || self.slots.iter().any(|slot| slot.as_ref().is_err_and(is_bad))
    }
}

/// Reads both slots; answers what is there, whatever it is.
pub async fn read_hard_state(file: Arc<dyn File>) -> io::Result<HardStateFile> {
    let mut slots = Vec::with_capacity(2);
    for offset in SLOT_OFFSETS {
        slots.push(decode_slot(&file.read_at(offset, SLOT_BYTES).await?));
    }
    let slots = slots.try_into().expect("there are two offsets");
    Ok(HardStateFile { file_bytes: file.len().await?, slots })
}

/// Decodes one slot's bytes.
fn decode_slot(slot: &[u8]) -> Result<HardStateSlot, HardStateFault> {
    if let Some((sequence, record)) = SlotRecord::decode(slot) {
        let SlotRecord { log, hard_state, purged, start, committed, durable, begun } = record;
        return Ok(HardStateSlot {
            sequence,
            log,
            vote: hard_state,
            purged,
            committed,
            durable,
            start_owner: start.owner,
            start_segment: start.segment,
            start_offset: start.offset,
            start_owner_bytes: start.owner_bytes,
            begun: begun.map(|begun| (begun.owner, begun.segment)),
        });
    }
    if slot.len() < SLOT_BYTES {
        return Err(HardStateFault::Cut { found_bytes: slot.len() });
    }
    if slot.iter().all(|byte| *byte == 0) {
        return Err(HardStateFault::NeverWritten);
    }
    let stored = u32::from_le_bytes(slot[CRC_AT..].try_into().expect("four bytes"));
    let computed = crc32c::crc32c(&slot[..CRC_AT]);
    if stored == computed {
        return Err(HardStateFault::Unknown);
    }
    let flipped = flipped_bit(CRC_AT, stored, computed).map(|flipped| match flipped {
        Flipped::Message { at, bit } => (at, bit),
        Flipped::Checksum { bit } => (CRC_AT + usize::from(bit / 8), bit % 8),
    });
    Err(HardStateFault::Checksum { stored, computed, flipped })
}

impl fmt::Display for HardStateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HardStateFault::NeverWritten => write!(f, "never written"),
            HardStateFault::Cut { found_bytes } => {
                write!(f, "the file ends after {found_bytes} of the slot's {SLOT_BYTES} bytes")
            }
            HardStateFault::Checksum { stored, computed, flipped } => {
                write!(f, "checksum: stored {stored:#010x}, computed {computed:#010x}")?;
                match flipped {
                    Some((at, bit)) => {
                        write!(f, "; one flipped bit explains it: bit {bit} of the slot's byte {at}")
                    }
                    None => write!(f, "; torn, or overwritten"),
                }
            }
            HardStateFault::Unknown => {
                write!(f, "the checksum is right, but this is no hard state of version 1")
            }
        }
    }
}

/// An id as term/index.
struct Id(Option<LogId>);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(LogId { term, index: LogIndex(index) }) => write!(f, "{term}/{index}"),
            None => write!(f, "-"),
        }
    }
}

impl fmt::Display for HardStateSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {} log {} vote ", self.sequence, self.log)?;
        match self.vote {
            Some(HardState { vote_term, vote_replica, vote_committed }) => {
                let committed = if vote_committed { " committed" } else { "" };
                write!(f, "term {vote_term} replica {vote_replica}{committed}")?;
            }
            None => write!(f, "-")?,
        }
        write!(
            f,
            " purged {} committed {} durable {} start owner {:016x} segment {:08x} offset {}",
            Id(self.purged),
            Id(self.committed),
            Id(self.durable),
            self.start_owner.0,
            self.start_segment,
            self.start_offset
        )?;
        match self.begun {
            Some((owner, segment)) => write!(f, " begun owner {:016x} segment {segment:08x}", owner.0),
            None => write!(f, " begun -"),
        }
    }
}

impl fmt::Display for HardStateFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newest = self.newest().map(|slot| slot.sequence);
        for (nth, slot) in self.slots.iter().enumerate() {
            match slot {
                Ok(slot) => {
                    let counts = if Some(slot.sequence) == newest { " (counts)" } else { "" };
                    writeln!(f, "slot {nth}: {slot}{counts}")?;
                }
                Err(fault) => writeln!(f, "slot {nth}: INVALID: {fault}")?,
            }
        }
        if self.file_bytes != FILE_BYTES {
            writeln!(f, "the file has {} bytes, not {FILE_BYTES}", self.file_bytes)?;
        }
        match newest {
            Some(_) => Ok(()),
            None => writeln!(f, "neither slot holds a whole hard state: the log does not open"),
        }
    }
}
