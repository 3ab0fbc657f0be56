//! The commit index rides with entries. openraft tells each follower of each commit with a message of its
//! own, unless entries for it wait already; where one write follows the other that message goes a moment
//! before entries that would have told the same, and costs both sides nearly as much as they do.

use crate::adapter::ids::RaftLogId;
use std::any::type_name;
use std::time::Duration;
use tokio::time::Instant;

/// The longest that a commit index waits for entries to ride with: a follower hears of a commit so much later
/// at most (and up to a tick of tokio's timer, a millisecond), and whoever reads from it what was written a
/// moment ago waits as long. About what one client takes from a write to the next.
const RIDE_MAX: Duration = Duration::from_millis(2);

/// The commit index on its way to one follower. It is held back where entries came soon enough the last
/// time: a writer that takes longer, and whoever reads what it wrote, find it sent at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Ride {
    is_likely: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The follower was sent all that was noticed.
    #[default]
    Sent,
    /// A commit was noticed then, and entries are waited for.
    Held(Instant),
    /// A commit that was noticed then goes alone, with the message that is made next.
    Goes(Instant),
    /// A commit that was noticed then went alone; the next entries show whether waiting for them would have
    /// been worth it.
    WentAlone(Instant),
}

impl Ride {
    /// The ride of a watch of a `T`, if that is the commit index; `None` for all others. The type is known by
    /// its name, as watches are made of types that may borrow, which have no `TypeId`. openraft has more
    /// watches of this type, for callers that we are not.
    pub(super) fn of<T>() -> Option<Ride> {
        (type_name::<T>() == type_name::<Option<RaftLogId>>()).then(Ride::default)
    }

    /// Resolves when a commit that is not sent yet is to go alone. Cancellation safe: it goes on where it
    /// was.
    pub(super) async fn over(&mut self) {
        let noticed = match self.state {
            State::Held(noticed) => noticed,
            State::Sent | State::Goes(_) | State::WentAlone(_) => Instant::now(),
        };
        if self.is_likely {
            self.state = State::Held(noticed);
            tokio::time::sleep_until(noticed + RIDE_MAX).await;
            self.is_likely = false;
        }
        self.state = State::Goes(noticed);
    }

    /// Takes note that a message is made that tells the commit index of now.
    pub(super) fn told(&mut self) {
        self.state = match self.state {
            State::Goes(noticed) => State::WentAlone(noticed),
            State::WentAlone(noticed) => {
                self.is_likely = noticed.elapsed() < RIDE_MAX;
                State::Sent
            }
            State::Sent | State::Held(_) => State::Sent,
        };
    }
}
