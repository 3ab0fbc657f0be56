use super::{Damage, HardStateSlot};
use std::fmt;
use types::LogIndex;

/// The evidence beside the segment: recovery goes by this.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// The slot of the log's hard state that counts.
    pub hard_state: Option<&'a HardStateSlot>,
    /// The first entry of the owner's next segment that begins with a record of this log, and the segment's
    /// number.
    pub later: Option<(u32, LogIndex)>,
    /// Whether anybody looked for later segments.
    pub is_looked: bool,
    /// Whether opening the log was rehearsed, and how that ended: a segment's index may spare it from reading
    /// heads.
    pub opens: Option<bool>,
}

/// The verdict of recovery on a damage: what opening the log would do (docs/format/segment.md, "Recovery").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The log opens; who reads the entry gets a typed error.
    OpensWithoutEntry { index: Option<LogIndex> },
    /// The log has forgotten the entry: only reads by place meet the damage.
    NotLookedAt { purged: LogIndex },
    /// Opening is refused, because the record was there once.
    Refused { why: String },
    /// The damage is taken for a torn tail: it and all behind it is cut.
    Cut { from: u64 },
    /// The bytes are cut, as the log no longer owns them: a roll sent it elsewhere.
    Trimmed,
    /// The file alone does not say.
    Depends,
}

/// Judges the first damage of a segment that recovery comes to.
pub fn verdict(damage: &Damage, evidence: Evidence<'_>) -> Verdict {
    if damage.fault == super::Fault::AfterRoll {
        return Verdict::Trimmed;
    }
    let index = damage.index;
    if let Some(slot) = evidence.hard_state {
        if let (Some(purged), Some(index)) = (slot.purged, index)
            && index <= purged.index
        {
            return Verdict::NotLookedAt { purged: purged.index };
        }
        // Where nothing says the index, the damage is the log's first record or stands behind another damage:
        // then the first damage counts.
        if let Some(durable) = slot.durable
            && index.is_none_or(|index| index <= durable.index)
        {
            if damage.fault.is_in_body() || evidence.opens == Some(true) {
                return Verdict::OpensWithoutEntry { index };
            }
            return Verdict::Refused { why: refused(durable.index, evidence.opens) };
        }
    }
    if let Some((segment, first)) = evidence.later {
        let why = format!("segment {segment:08x} goes on with entry {first}, so the ones before were synced");
        return Verdict::Refused { why };
    }
    if evidence.hard_state.is_some() && evidence.is_looked {
        return Verdict::Cut { from: damage.offset };
    }
    Verdict::Depends
}

fn refused(durable: LogIndex, opens: Option<bool>) -> String {
    let unless = match opens {
        None => ", unless an .idx file beside the segment spares the start from reading this",
        Some(_) => "",
    };
    format!("entry {durable} was durable{unless}")
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::OpensWithoutEntry { index } => {
                write!(f, "the log opens (what was synced is not all read at the start); reading ")?;
                match index {
                    Some(index) => write!(f, "entry {index} fails"),
                    None => write!(f, "the entry fails"),
                }
            }
            Verdict::NotLookedAt { purged } => write!(
                f,
                "the log has forgotten its entries up to {purged} and opens; reading this record by place fails"
            ),
            Verdict::Refused { why } => write!(f, "opening the log is refused as damage: {why}"),
            Verdict::Cut { from } => write!(
                f,
                "opening takes it for a torn tail, which nobody was told is durable: all from byte {from} on is cut"
            ),
            Verdict::Trimmed => write!(f, "the log goes on in another owner: opening cuts it off"),
            Verdict::Depends => write!(
                f,
                "refused as damage if the log's hard state says that the entry was durable, or a later segment goes on; \
                 else cut as a torn tail. What is known here does not say"
            ),
        }
    }
}
