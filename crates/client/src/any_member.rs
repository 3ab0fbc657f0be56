//! Questions that any member of a group of names may answer.

use crate::avoided::Avoided;
use crate::counted::Counted;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use proto::{Code, Failure, Retry};
use rand::RngExt;
use rpc::Local;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use types::random::random;

/// The time for which a member alone may keep a reader waiting; then the next one is asked beside it. A call
/// within a data center takes a millisecond.
const LATE_AFTER: Duration = Duration::from_millis(500);

/// The way to ask any member of a group: it prefers the OM of this very process, and spreads what others are
/// asked.
pub(crate) struct AnyMember {
    local: Local,
    avoided: Avoided,
    counted: Arc<Counted>,
}

impl AnyMember {
    pub(crate) fn new(local: Local, counted: Arc<Counted>) -> AnyMember {
        AnyMember { local, avoided: Avoided::default(), counted }
    }

    /// The first answer, and whose it is: a member is asked when the one before it has failed, or is late.
    /// Where all have been asked, and only those that are late are left, the last failure.
    pub(crate) async fn ask<A, F>(
        &self,
        members: &[String],
        ask: impl Fn(String) -> F,
    ) -> (String, Result<A, Failure>)
    where
        F: Future<Output = Result<A, Failure>>,
    {
        let ask = |member: String| {
            let answer = ask(member.clone());
            async move { (member, answer.await) }
        };
        let mut rest = self.ordered(members).into_iter();
        let mut asked = FuturesUnordered::new();
        let mut failed = (String::new(), Err(Failure::new(Code::Unavailable, "the group has no members")));
        loop {
            let newest = rest.next();
            asked.extend(newest.clone().map(&ask));
            match timeout(LATE_AFTER, asked.next()).await {
                Ok(Some((member, Err(failure)))) if is_of_member(&failure) => {
                    self.pass_over(&member);
                    failed = (member, Err(failure));
                }
                Ok(Some(answered)) => return answered,
                Ok(None) => return failed,
                Err(_) => match newest {
                    Some(late) => self.pass_over(&late),
                    // Who is late may be so for long, and who has failed may know more by now.
                    None if asked.len() < members.len() => return failed,
                    None => {}
                },
            }
        }
    }

    /// The members in the order in which they are asked.
    fn ordered(&self, members: &[String]) -> Vec<String> {
        let mut members = members.to_vec();
        if let Some(first) = random().random::<u64>().checked_rem(members.len() as u64) {
            members.rotate_left(first as usize);
        }
        members.sort_by_key(|member| self.local.has(member));
        self.avoided.to_the_front(&mut members);
        members.reverse();
        members
    }

    /// Counts that a member was of no use, and has others asked before it for a while.
    fn pass_over(&self, member: &str) {
        self.counted.om_repeats.count();
        self.avoided.avoid(member);
    }
}

/// Whether another member may answer otherwise. All members would say alike that no key is there, or that the
/// bucket is elsewhere.
fn is_of_member(failure: &Failure) -> bool {
    match failure.code {
        Code::NotHere => false,
        Code::Internal | Code::WrongCluster => true,
        _ => !matches!(failure.retry, Retry::No | Retry::Unspecified),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::future::pending;
    use std::sync::Mutex;
    use tokio::time::{Instant, advance, sleep};
    use tonic::service::Routes;

    const MEMBERS: [&str; 3] = ["a:1", "b:1", "c:1"];

    fn any(local: &Local) -> AnyMember {
        AnyMember::new(local.clone(), Arc::default())
    }

    async fn ask<F>(any: &AnyMember, ask: impl Fn(String) -> F) -> (String, Result<u64, Failure>)
    where
        F: Future<Output = Result<u64, Failure>>,
    {
        any.ask(&MEMBERS.map(str::to_owned), ask).await
    }

    #[tokio::test(start_paused = true)]
    async fn all_members_are_asked_or_that_of_this_process_and_those_that_failed_just_now_last() {
        let local = Local::default();
        let any = any(&local);
        let first = || {
            let members = MEMBERS.map(str::to_owned);
            (0..200).map(|_| any.ordered(&members)[0].clone()).collect::<BTreeSet<String>>()
        };
        let of = |members: &[&str]| members.iter().map(|member| (*member).to_owned()).collect();
        assert_eq!(first(), of(&MEMBERS));
        any.pass_over("b:1");
        assert_eq!(first(), of(&["a:1", "c:1"]));
        local.open("c:1", Routes::default());
        assert_eq!(first(), of(&["c:1"]));
        any.pass_over("c:1");
        assert_eq!(first(), of(&["a:1"]));
        advance(Duration::from_secs(60)).await;
        assert_eq!(first(), of(&["c:1"]));
        assert!(any.ordered(&[]).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_fails_or_is_silent_is_passed_over_and_the_first_answer_counts() {
        let any = any(&Local::default());
        let begun = Instant::now();
        for round in 0..50 {
            let answer = ask(&any, async |member| match &*member {
                "a:1" => pending().await,
                "b:1" => Err(Failure::not_leader(None)),
                _ => Ok(round),
            });
            assert_eq!(answer.await, ("c:1".to_owned(), Ok(round)));
        }
        assert!(begun.elapsed() <= LATE_AFTER, "the silent one is asked first once: {:?}", begun.elapsed());
        advance(Duration::from_secs(60)).await;

        let begun = Instant::now();
        let (_, answer) = ask(&any, async |member| match &*member {
            "a:1" => pending().await,
            _ => Err(Failure::not_leader(None)),
        })
        .await;
        assert_eq!(answer.unwrap_err().code, Code::NotLeader);
        assert!(begun.elapsed() <= 2 * LATE_AFTER, "nobody else waits for it: {:?}", begun.elapsed());

        // All are late, and who was asked first answers first.
        let asked = Mutex::new(Vec::new());
        let (member, _) = ask(&any, async |member| {
            asked.lock().unwrap().push(member);
            sleep(4 * LATE_AFTER).await;
            Ok(7)
        })
        .await;
        let asked = asked.into_inner().unwrap();
        assert_eq!((&member, asked.len()), (&asked[0], 3));
    }

    #[tokio::test(start_paused = true)]
    async fn what_all_would_say_is_an_answer_and_what_all_fail_with_a_failure() {
        let any = any(&Local::default());
        let asked = Mutex::new(0);
        let say = async |code: Code| {
            *asked.lock().unwrap() = 0;
            let (_, answer) = ask(&any, async |_| {
                *asked.lock().unwrap() += 1;
                Err(Failure::new(code, "so"))
            })
            .await;
            (answer.unwrap_err().code, *asked.lock().unwrap())
        };
        for code in [Code::NoSuchKey, Code::NotHere, Code::NoSuchBucket, Code::Invalid] {
            assert_eq!(say(code).await, (code, 1));
        }
        for code in [Code::Unavailable, Code::NotLeader, Code::Internal, Code::Busy, Code::WrongCluster] {
            assert_eq!(say(code).await, (code, 3));
        }
    }
}
