use planted::Bug;

/// Bugs that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// SCM takes a replica that is still being copied for a good one, and deletes others.
    CopiesCountEarly,
    /// A datanode that ends without a leader marks as CLOSED what it has.
    QuasiClosedIsClosed,
    /// A datanode takes a copy in without looking at it.
    ImportsUnverified,
    /// A replica that ended by itself answers for all it has, by places alone.
    TailsAreRead,
    /// SCM takes what a member without its log has left for all it had.
    LogsNeedNoProof,
    /// SCM has a member that it once heard of made anew, and takes its silence for a proof.
    BegunIsForgotten,
    /// SCM waits for members that stand still.
    ComingForEver,
    /// SCM draws numbers again that it gave out before a forced reset.
    NumbersDrawnAgain,
    /// SCM calls blocks gone once one replica has discarded them.
    GoneEarly,
    /// SCM leaves a replica as it is that comes back with blocks that the others have discarded.
    DiscardsNotTaken,
    /// OM carries out again what it is asked again.
    RequestIdsIgnored,
    /// A bucket whose last rows are on their way to another group changes meanwhile.
    FreezeLeftOut,
    /// What a group remembers of requests does not go along with the bucket that they were about.
    RequestsLeftBehind,
    /// A group takes blocks of containers that are looked through for blocks without a name.
    FencesIgnored,
    /// What groups know of a container counts, though a bucket has moved while they were asked.
    MovesOverlooked,
    /// What was filed is not looked up before it goes.
    NamedBlocksGo,
    /// A group that has fewer names than it had is taken for what it is now.
    LessIsOverlooked,
    /// A compaction leaves out records that were not discarded.
    CompactionLosesRecords,
}

impl Planted {
    /// Whether blocks are to be deleted to show it.
    pub(super) fn is_of_discards(self) -> bool {
        matches!(self, Planted::GoneEarly | Planted::DiscardsNotTaken)
    }

    /// Whether names are to be on several groups to show it.
    pub(super) fn is_of_moves(self) -> bool {
        matches!(
            self,
            Planted::FreezeLeftOut
                | Planted::RequestsLeftBehind
                | Planted::FencesIgnored
                | Planted::MovesOverlooked
        )
    }

    /// Whether what no key names is to go to show it.
    pub(super) fn is_of_sweeps(self) -> bool {
        matches!(
            self,
            Planted::FencesIgnored
                | Planted::MovesOverlooked
                | Planted::NamedBlocksGo
                | Planted::LessIsOverlooked
                | Planted::CompactionLosesRecords
        )
    }
}

/// From here on, what runs on this thread has the bug, or none.
pub(super) fn plant(planted: Option<Planted>) {
    planted::plant(planted.map(|planted| match planted {
        Planted::CopiesCountEarly => Bug::CopiesCountEarly,
        Planted::QuasiClosedIsClosed => Bug::QuasiClosedIsClosed,
        Planted::ImportsUnverified => Bug::ImportsUnverified,
        Planted::TailsAreRead => Bug::TailsAreRead,
        Planted::LogsNeedNoProof => Bug::LogsNeedNoProof,
        Planted::BegunIsForgotten => Bug::BegunIsForgotten,
        Planted::ComingForEver => Bug::ComingForEver,
        Planted::NumbersDrawnAgain => Bug::NumbersDrawnAgain,
        Planted::GoneEarly => Bug::GoneEarly,
        Planted::DiscardsNotTaken => Bug::DiscardsNotTaken,
        Planted::RequestIdsIgnored => Bug::RequestIdsIgnored,
        Planted::FreezeLeftOut => Bug::FreezeLeftOut,
        Planted::RequestsLeftBehind => Bug::RequestsLeftBehind,
        Planted::FencesIgnored => Bug::FencesIgnored,
        Planted::MovesOverlooked => Bug::MovesOverlooked,
        Planted::NamedBlocksGo => Bug::NamedBlocksGo,
        Planted::LessIsOverlooked => Bug::LessIsOverlooked,
        Planted::CompactionLosesRecords => Bug::CompactionLosesRecords,
    }));
}
