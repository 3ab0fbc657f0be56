//! Bugs that tests plant in shipped code, to see that they would find them. A place that can have one asks
//! [`has`]; a test that wants it, and runs what it tests on its own thread, says [`plant`].
//!
//! Only with the cargo feature `planted`, which simulations and crash tests ask for. Without it, as in every
//! release, [`has`] is the constant `false` and the compiler removes what it guards:
//! `crates/cli/tests/layering.rs` and `./dev release --check` hold a release to that.

/// The bugs that can be planted, each in the crate that its comment names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `raft`: a leader that was restarted leads on without an election, as openraft does by default
    /// (docs/adr/0002).
    LeadersRestored,
    /// `raft`: a leader relies on what it was promised, however long ago.
    LeasesNotChecked,
    /// `raftlog`: truncated segments are recycled, and spares go where they were.
    CarelessSpares,
    /// `datanode`: what ended without a leader is marked as CLOSED.
    QuasiClosedIsClosed,
    /// `datanode`: a copy is taken in without a look at its records.
    ImportsUnverified,
    /// `datanode`: a compaction leaves out records that were not discarded.
    CompactionLosesRecords,
    /// `datanode`: what a compaction copied goes before the index durably points to the copies.
    OldSegmentsGoFirst,
    /// `scm`: a replica counts as a good one while it is being copied.
    CopiesCountEarly,
    /// `om`: a request that is repeated takes effect again.
    RequestIdsIgnored,
    /// `om`: a request is forgotten when two others came after it.
    RequestsForgottenSoon,
    /// `om`: a part that is committed again replaces what came after it.
    PartsRepeated,
    /// `om`: a request that was refused may take effect when it is repeated.
    RefusalsForgotten,
    /// `om`: a bucket whose last rows are being sent to another group changes meanwhile.
    FreezeLeftOut,
    /// `om`: what a group remembers of requests does not go along with the bucket that they were about.
    RequestsLeftBehind,
    /// `om`: a bucket is found by its number alone, whatever epoch a request names.
    EpochsIgnored,
    /// `om`: a bucket goes though it has keys.
    BucketsGoWithKeys,
    /// `om`: a replica that does not lead answers from what it has.
    FollowersAnswerAlone,
    /// `om`: what was filed is not looked up before it goes.
    NamedBlocksGo,
    /// `om`: a group takes blocks of containers that it was told to take none of any more.
    FencesIgnored,
    /// `om`: what groups know of a container counts, though a bucket has moved while they were asked.
    MovesOverlooked,
    /// `om`: a group that has fewer names than it had is taken for what it is now.
    LessIsOverlooked,
    /// A group that was reset serves its buckets before the root has said which are its own.
    DoubtIgnored,
    /// `om`: moves are counted again for each part of a container, and groups are those of before.
    GroupsBeforeCount,
    /// `datanode`: a replica that ended by itself answers for all that it has, by places and not by names.
    TailsAreRead,
    /// `scm`: what a member that lost its log has left counts in decisions, be it damaged or not.
    LogsNeedNoProof,
    /// `scm`: a member that has begun is made anew where it says nothing.
    BegunIsForgotten,
    /// `scm`: a member that runs and takes nothing is waited for.
    ComingForEver,
    /// `scm`: after a forced reset numbers are drawn from where the one that is left was.
    NumbersDrawnAgain,
    /// `scm`: blocks are called gone once one replica has discarded them, whoever else has a replica.
    GoneEarly,
    /// `scm`: a replica that has not discarded what others have is left as it is.
    DiscardsNotTaken,
    /// `om`: an OM belongs to no cluster, and does what is meant for any.
    OmOfNoCluster,
}

/// Whether this build can have bugs planted.
pub const POSSIBLE: bool = cfg!(feature = "planted");

/// Whether what runs on this thread has this bug.
#[cfg(not(feature = "planted"))]
pub const fn has(_: Bug) -> bool {
    false
}

#[cfg(feature = "planted")]
pub use planting::{has, plant};

#[cfg(feature = "planted")]
mod planting {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Gives what runs on this thread this bug from here on, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
