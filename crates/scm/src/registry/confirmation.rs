use crate::leader::Leader;
use proto::{Code, Failure, Retry};
use raft::{ReadPolicy, Role};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// The most renewals that wait at a time, some hundred bytes each: those of every instance and a key of each,
/// all at once.
const WAITS_MAX: usize = 20_000;

/// Confirmations that this process still leads. Others may have elected another leader without its knowledge;
/// what it says from its memory alone is worth something only if a majority has followed it since. Asking a
/// majority costs a round of messages, however many wait for its outcome:
///
/// ```text
/// asks        a         b c d           e
/// rounds      |── 1 ──|── 2 ─────────|── 3 ──|     a is told by 1; b, c and d came when 1 had begun: by 2
/// ```
pub(crate) struct Confirmations {
    asked: Notify,
    rounds: watch::Sender<Rounds>,
}

struct Rounds {
    begun: u64,
    ended: u64,
    /// The outcome of the last round that has ended.
    outcome: Result<(), Failure>,
}

impl Default for Confirmations {
    fn default() -> Self {
        let rounds = Rounds { begun: 0, ended: 0, outcome: Ok(()) };
        Confirmations { asked: Notify::new(), rounds: watch::Sender::new(rounds) }
    }
}

impl Leader {
    /// On return, this process led at some moment after the call, and everything that was acknowledged before
    /// that moment is in its tables.
    pub(super) async fn confirm(&self) -> Result<(), Failure> {
        // The sender of rounds is this leader's, which its tasks may outlive: then the token says so.
        let confirmed = self.stop.run_until_cancelled(self.confirmations.next_round()).await;
        confirmed.unwrap_or_else(|| Err(leads_no_more()))?;
        // The round has confirmed the replica as the leader. This `Leader`, whose memory was asked, has no
        // successor in the process as long as it is not stopped.
        match self.stop.is_cancelled() || !self.leads() {
            true => Err(leads_no_more()),
            false => Ok(()),
        }
    }

    /// Whether this process leads in this leader's term, as far as it knows.
    fn leads(&self) -> bool {
        let status = self.group.status();
        status.role == Role::Leader && status.term == self.term
    }
}

fn leads_no_more() -> Failure {
    Failure::not_leader(None)
}

impl Confirmations {
    /// The outcome of a round that begins after the call, or of a later one.
    async fn next_round(&self) -> Result<(), Failure> {
        if self.rounds.receiver_count() >= WAITS_MAX {
            return Err(Failure::new(Code::Busy, format!("{WAITS_MAX} renewals wait, which is the limit")));
        }
        let mut rounds = self.rounds.subscribe();
        let next = rounds.borrow().begun + 1;
        self.asked.notify_one();
        match rounds.wait_for(|rounds| rounds.ended >= next).await {
            Ok(rounds) => rounds.outcome.clone(),
            Err(_) => Err(leads_no_more()),
        }
    }

    /// The number of rounds that have ended.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.borrow().ended
    }

    /// Waits until somebody asks, and counts the round as begun.
    async fn begin_round(&self) {
        self.asked.notified().await;
        // Nobody waits for a beginning.
        self.rounds.send_if_modified(|rounds| {
            rounds.begun += 1;
            false
        });
    }

    fn end_round(&self, outcome: Result<(), Failure>) {
        self.rounds.send_modify(|rounds| {
            rounds.ended = rounds.begun;
            rounds.outcome = outcome;
        });
    }
}

/// Runs one round after the other, as long as somebody asks, until the leadership ends.
pub(crate) async fn confirm_leadership(leader: &Leader) {
    loop {
        leader.confirmations.begin_round().await;
        // Others may have a leader of their own after that time: whoever renews a lease is better off with
        // that one.
        let deadline = Instant::now() + leader.options.timing.election_max;
        let read = leader.group.read(ReadPolicy::Index, deadline).await;
        let outcome = read.map(|_| ()).map_err(|error| {
            let message = format!("a majority of SCM's members does not confirm this leader: {error}");
            Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) }
        });
        leader.confirmations.end_round(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::cell::Cell;
    use std::time::Duration;
    use tokio::time::sleep;

    const ROUND: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn who_asks_together_is_answered_together_by_a_round_that_began_later() {
        let confirmations = Confirmations::default();
        let (began, rounds) = (Instant::now(), Cell::new(0));
        let answering = async {
            loop {
                confirmations.begin_round().await;
                rounds.set(rounds.get() + 1);
                sleep(ROUND).await;
                confirmations.end_round(Ok(()));
            }
        };
        let asking = async {
            let ask_at = async |ms: u64| {
                sleep(Duration::from_millis(ms)).await;
                confirmations.next_round().await.unwrap();
                began.elapsed().as_millis()
            };
            let asks = [0, 1, 5, 9].into_iter().chain([3; 1000]).map(ask_at);
            let answered = join_all(asks).await;
            assert_eq!(answered[0], 10);
            assert!(answered[1..].iter().all(|at| *at == 20), "the round that ran proves nothing to them");
            assert_eq!(rounds.get(), 2);
            sleep(ROUND * 10).await;
            assert_eq!(rounds.get(), 2, "nobody asks");
        };
        tokio::select! {
            () = answering => {}
            () = asking => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_fails_confirms_nobody() {
        let confirmations = Confirmations::default();
        let answering = async {
            confirmations.begin_round().await;
            confirmations.end_round(Err(Failure::new(Code::Unavailable, "no quorum")));
            confirmations.begin_round().await;
            confirmations.end_round(Ok(()));
            std::future::pending().await
        };
        let asking = async {
            assert_eq!(confirmations.next_round().await.unwrap_err().code, Code::Unavailable);
            assert_eq!(confirmations.next_round().await, Ok(()));
        };
        tokio::select! {
            () = answering => {}
            () = asking => {}
        }
    }
}
