use types::{LogId, OwnerId};

/// Raft's promise to itself. The meaning of the numbers is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HardState {
    pub vote_term: u64,
    pub vote_replica: u64,
    pub vote_committed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    pub hard_state: Option<HardState>,
    /// The last entry the log has forgotten.
    pub purged: Option<LogId>,
    pub last: Option<LogId>,
    /// A hint, not synced: the log was committed at least up to here when the process stopped.
    pub committed: Option<LogId>,
    /// Owner of the next record.
    pub owner: OwnerId,
    /// Bytes of records written for that owner so far.
    pub owner_bytes: u64,
}
