use crate::Snapshots;
use anyhow::Context;
use bytes::Bytes;
use prost::Message;
use proto::raft as wire;
use raftlog::Place;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Payload, Term};

/// A command to replicate. `meta` reaches every state machine; `body` only reaches the disks.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub meta: Bytes,
    pub body: Payload,
    /// The owner of the log's records after this command, where it is another.
    pub roll_to: Option<OwnerId>,
}

impl Command {
    /// The weight of the command in queues: its bytes and what its bookkeeping costs.
    pub(crate) fn weight_bytes(&self) -> usize {
        const BOOKKEEPING_BYTES: usize = 256;
        BOOKKEEPING_BYTES + self.meta.len() + self.body.len()
    }
}

/// A committed command as a state machine sees it.
#[derive(Clone, Debug)]
pub struct Committed {
    pub id: LogId,
    pub meta: Bytes,
    /// The place of the record with the body.
    pub place: Place,
    pub roll_to: Option<OwnerId>,
}

/// The position that a state machine has come to, to be stored in the same batch as its effects. `membership`
/// is opaque.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    pub id: LogId,
    pub membership: Bytes,
}

impl Applied {
    /// The position's encoding in a state machine's tables.
    pub fn encode(&self) -> Vec<u8> {
        let id = wire::LogId { term: self.id.term.0, index: self.id.index.0 };
        wire::Applied { id: Some(id), membership: self.membership.clone() }.encode_to_vec()
    }

    pub fn decode(bytes: &[u8]) -> anyhow::Result<Applied> {
        let wire::Applied { id, membership } =
            wire::Applied::decode(bytes).context("decode the applied position")?;
        let wire::LogId { term, index } = id.context("the applied position names no entry")?;
        Ok(Applied { id: LogId { term: Term(term), index: LogIndex(index) }, membership })
    }
}

/// The state that a group replicates. Deterministic: a pure function of its state and the commands.
pub trait StateMachine: Send + Sync + 'static {
    /// The position that the state on disk has come to; `None` for a new one.
    fn applied(&self) -> anyhow::Result<Option<Applied>>;

    /// Applies commands in order and stores `applied` in the same atomic write; commands at or below the
    /// stored position never come again. Answers each command, in order. `batch` is empty when only `applied`
    /// moves on. An error stops the group: it means a broken disk or a bug, never a command that cannot be
    /// carried out. An apply that found no room has changed nothing.
    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>>;

    /// Whether an apply, or a reset, ended with this error only because the disk has no room for its effects
    /// now: it is tried again until there is some, and the group goes on.
    fn lacks_room(&self, _failed: &anyhow::Error) -> bool {
        false
    }

    /// Takes note that the group was reset by force here: whatever its lost members had committed beyond this
    /// state is gone, and what others were told of it may still be around. It is as deterministic as `apply`,
    /// and one atomic write with `applied`.
    fn reset(&mut self, applied: Applied) -> anyhow::Result<()> {
        self.apply(Vec::new(), applied).map(drop)
    }

    /// The way in which the state is copied; `None` when it cannot be: such a group keeps its whole log, and
    /// a member that the log cannot bring up to date is lost.
    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        None
    }
}
