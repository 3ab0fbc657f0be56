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
    /// The moment when it was first heard that it has come so far.
    since: Instant,
    /// An index that it had [`STANDS_STILL_MAX`] ago, or longer: 0 where that is not known.
    earlier: u64,
    /// The moment and the index that `earlier` becomes next.
    sampled: (Instant, u64),
}

impl Advance {
    /// The advance of a replica that is heard of again. One that has lost what it had begins anew.
    pub(crate) fn next(before: Option<&Advance>, index: u64, now: Instant) -> Advance {
        let Some(before) = before.filter(|before| before.index <= index) else {
            return Advance { index, since: now, earlier: 0, sampled: (now, index) };
        };
        let since = if before.index == index { before.since } else { now };
        let is_old = now.saturating_duration_since(before.sampled.0) >= STANDS_STILL_MAX;
        let (earlier, sampled) =
            if is_old { (before.sampled.1, (now, index)) } else { (before.earlier, before.sampled) };
        Advance { index, since, earlier, sampled }
    }

    /// The number of entries that this replica lacks of those that `leader` has, where it has taken none for
    /// long, though the leader has had some for as long.
    pub(crate) fn lacks(&self, leader: &Advance, now: Instant) -> Option<u64> {
        let stands = now.saturating_duration_since(self.since) >= STANDS_STILL_MAX;
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
}
