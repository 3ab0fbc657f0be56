use crate::adapter::encoding::{applied_from, applied_to, entry_from_meta, first_membership, log_id_of};
use crate::adapter::type_config::{Data, RaftLogId, RaftStoredMembership};
use crate::{Applied, Committed, Member};
use anyhow::Context;
use openraft::{EntryPayload, StoredMembership};
use types::LogId;

/// Turns records of a group's log into what its state machine is given to apply, without a group: what is
/// derived from a log is rebuilt and checked this way. Which records are committed is for the caller to know.
pub struct Replay {
    id: Option<LogId>,
    membership: RaftStoredMembership,
    batch: Vec<Committed>,
}

impl Replay {
    /// Goes on from an applied position, or from the beginning of the log.
    pub fn new(applied: Option<&Applied>) -> anyhow::Result<Replay> {
        let membership = match applied {
            Some(applied) => applied_from(applied).map_err(anyhow::Error::msg)?,
            None => StoredMembership::default(),
        };
        Ok(Replay { id: applied.map(|applied| applied.id), membership, batch: Vec::new() })
    }

    /// Begins behind entries that the log has forgotten, the first of which said that these are its members.
    pub fn behind_first(members: &[Member]) -> anyhow::Result<Replay> {
        let membership = first_membership(members).map_err(anyhow::Error::msg)?;
        let membership = StoredMembership::new(Some(RaftLogId::new(0.into(), 0)), membership);
        Ok(Replay { id: None, membership, batch: Vec::new() })
    }

    /// Takes the next record.
    pub fn push(&mut self, record: raftlog::EntryMeta) -> anyhow::Result<()> {
        let id = record.id;
        let entry = entry_from_meta(record).with_context(|| format!("read entry {}", id.index))?;
        match entry.payload {
            EntryPayload::Blank | EntryPayload::Normal(Data::Reset(_)) => {}
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            EntryPayload::Normal(Data::Located { meta, place, roll_to }) => {
                self.batch.push(Committed { id: log_id_of(&entry.log_id), meta, place, roll_to });
            }
            EntryPayload::Normal(Data::Whole(_)) => unreachable!("an entry without its body is located"),
        }
        self.id = Some(id);
        Ok(())
    }

    /// Commands taken in and not yet given out.
    pub fn pending(&self) -> usize {
        self.batch.len()
    }

    /// The commands since the last time, and the position after them; `None` before the first record.
    pub fn take(&mut self) -> Option<(Vec<Committed>, Applied)> {
        let applied = applied_to(self.id?, &self.membership);
        Some((std::mem::take(&mut self.batch), applied))
    }
}
