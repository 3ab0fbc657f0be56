use planted::Bug;

/// Bugs that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// A leader of names answers reads however long ago a majority promised it anything.
    LeasesNotChecked,
    /// What a group remembers of requests does not go along with the bucket that they were about.
    RequestsLeftBehind,
    /// A bucket whose last rows are on their way to another group changes meanwhile.
    FreezeLeftOut,
    /// A group finds a bucket by its number alone, whatever epoch a request names.
    EpochsIgnored,
    /// A replica of names that does not lead answers from what it has.
    FollowersAnswerAlone,
    /// A bucket goes though it has keys.
    BucketsGoWithKeys,
}

/// From here on, what runs on this thread has the bug, or none.
pub(super) fn plant(planted: Option<Planted>) {
    planted::plant(planted.map(|planted| match planted {
        Planted::LeasesNotChecked => Bug::LeasesNotChecked,
        Planted::RequestsLeftBehind => Bug::RequestsLeftBehind,
        Planted::FreezeLeftOut => Bug::FreezeLeftOut,
        Planted::EpochsIgnored => Bug::EpochsIgnored,
        Planted::FollowersAnswerAlone => Bug::FollowersAnswerAlone,
        Planted::BucketsGoWithKeys => Bug::BucketsGoWithKeys,
    }));
}
