//! Whether a member of a group comes on.

use std::time::Duration;
use tokio::time::Instant;

/// The time for which a member may stand still behind the others before people are told. While it takes in a
/// snapshot it stands still, too.
const STANDS_STILL_MAX: Duration = Duration::from_secs(60);

/// The applied index of a replica, now and a while ago.
#[derive(Clone, Copy)]
pub(crate) struct Advance {
    index: u64,
    /// The furthest that it was heard to have come, and when that was heard first.
    furthest: (u64, Instant),
    /// An index that it had [`STANDS_STILL_MAX`] ago, or longer: 0 where that is not known.
    earlier: u64,
    /// The moment and the index that `earlier` becomes next.
    sampled: (Instant, u64),
}

impl Advance {
    /// The advance of a replica that is heard of again. One that has less than it had, as after a restart,
    /// comes on once it has more: it may stop at one entry again and again.
    pub(crate) fn next(before: Option<&Advance>, index: u64, now: Instant) -> Advance {
        let anew = Advance { index, furthest: (index, now), earlier: 0, sampled: (now, index) };
        let Some(before) = before else { return anew };
        let furthest = if index > before.furthest.0 { (index, now) } else { before.furthest };
        if index < before.index {
            return Advance { furthest, ..anew };
        }
        let is_old = now.saturating_duration_since(before.sampled.0) >= STANDS_STILL_MAX;
        let (earlier, sampled) =
            if is_old { (before.sampled.1, (now, index)) } else { (before.earlier, before.sampled) };
        Advance { index, furthest, earlier, sampled }
    }

    /// The number of entries that this replica lacks of those that `leader` has, where it has taken none for
    /// long, though the leader has had some for as long.
    pub(crate) fn lacks(&self, leader: &Advance, now: Instant) -> Option<u64> {
        let stands = now.saturating_duration_since(self.furthest.1) >= STANDS_STILL_MAX;
        let lacks = leader.index.checked_sub(self.index).filter(|lacks| *lacks > 0);
        lacks.filter(|_| stands && self.index < leader.earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_stands_still_behind_the_leader_lacks_what_that_has_had_for_long() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let (mut leader, mut member) = (Advance::next(None, 10, start), Advance::next(None, 10, start));
        let mut hear = |seconds: u64, of_leader: u64, of_member: u64| {
            leader = Advance::next(Some(&leader), of_leader, at(seconds));
            member = Advance::next(Some(&member), of_member, at(seconds));
            member.lacks(&leader, at(seconds))
        };
        assert_eq!(hear(3600, 10, 10), None, "nothing is to be done");
        assert_eq!(hear(3601, 11, 10), None, "there has been something for a moment");
        let first = (3602..3800).find_map(|second| Some((second, hear(second, second, 10)?)));
        let (second, lacks) = first.expect("it stands still");
        assert!((3661..=3721).contains(&second), "{second}");
        assert_eq!(lacks, second - 10);
        let comes = (3800..4000).find_map(|second| hear(second, second, second - 3000));
        assert_eq!(comes, None, "it comes on");
        let lost = (4000..4200).find_map(|second| hear(second, 50, 60));
        assert_eq!(lost, None, "the leader has lost what it had");
    }

    #[test]
    fn one_that_dies_at_the_same_entry_again_and_again_stands_still() {
        let start = Instant::now();
        let (mut leader, mut member) = (Advance::next(None, 10, start), Advance::next(None, 10, start));
        let told = (0..300u64).find(|&second| {
            let now = start + Duration::from_secs(second);
            leader = Advance::next(Some(&leader), 10 + second, now);
            member = Advance::next(Some(&member), 10 + second.min(20) - second % 4, now);
            member.lacks(&leader, now).is_some()
        });
        assert!(told.is_some_and(|second| (60..200).contains(&second)), "{told:?}");
    }
}
