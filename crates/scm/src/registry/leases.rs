use proto::{Code, Failure};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// The time after which a lease that was due and could not be ended is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The least time between two changes of an instance's health that go into the log.
const CHECKS_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The most instances whose checks are written in [`CHECKS_INTERVAL_MIN`]: a tenth of what the group can
/// write.
const CHECKS_WRITTEN_MAX: usize = 200;

/// The instance or key that has a lease.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Holder {
    /// An instance whose time is over may still be there, as critical: renewing brings it back until its
    /// removal is on its way.
    Instance { service: String, id: String },
    /// A key whose time is over is deleted, whatever else happens: nobody renews it any more.
    Key(String),
}

/// The leases of instances and keys, in the leader's memory. Each lease is of one registration, or of one
/// value of a key, and has its stamp, which grows from one to the next. A new leader has none and gives each
/// that it finds in the tables its whole time again.
///
/// The worth of a lease: nothing that ends it is proposed before it is over, and what is over
/// (a key), or ends (an instance), is never renewed. So no end is on its way when a renewal is taken, and
/// none starts before the time that it gave is over.
#[derive(Default, Debug)]
pub(crate) struct Leases {
    by_holder: HashMap<Holder, Lease>,
    by_look: BTreeSet<(Instant, Holder)>,
    pub(super) counts: LeaseCounts,
    /// The times at which checks of instances were written last.
    checks_written: HashMap<Holder, Instant>,
    /// Whether this leader has found all leases there are, and all that earlier leaders decided about them.
    pub(super) is_complete: bool,
}

/// Counts of what this leader has done so far.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LeaseCounts {
    /// Instances that became critical.
    pub(super) instances_lapsed: u64,
    /// Instances that were removed.
    pub(super) instances_expired: u64,
    pub(super) keys_expired: u64,
    pub(super) renewals: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    stamp: u64,
    /// The moment from which on the lease is over.
    over: Instant,
    /// The moment at which a lease that is over is looked at next.
    look: Instant,
    course: Course,
}

/// The stage that the end of an instance has reached. A key has no stages: one whose time is over is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    Runs,
    /// Others know that the lease is over.
    Lapsed,
    /// The instance is about to be removed, or is already: no renewal helps.
    Ends,
}

/// The verdict on an instance that was due: what is to be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The instance was renewed meanwhile, or registered again.
    Lives,
    /// The leader has to tell others that the lease is over.
    Lapses,
    /// The lease has been over for long enough, and nobody can renew it any more.
    Goes,
}

/// The refusal of a renewal that came too late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooLate;

impl Leases {
    /// Gives the holder a lease of this stamp. A lease that it has already runs on, and one of an older
    /// stamp, told late, is no news.
    pub(super) fn hold(&mut self, holder: Holder, stamp: u64, ttl: Duration, now: Instant) {
        if self.is_news(&holder, stamp) {
            self.put(holder, Lease { stamp, over: now + ttl, look: now + ttl, course: Course::Runs });
        }
    }

    /// [`Leases::hold`] of a lease that is over, as others know already; it is looked at again at `look`.
    pub(super) fn hold_lapsed(&mut self, holder: Holder, stamp: u64, now: Instant, look: Instant) {
        if self.is_news(&holder, stamp) {
            self.put(holder, Lease { stamp, over: now, look, course: Course::Lapsed });
        }
    }

    /// Refuses renewals while leases may be missing here.
    pub(super) fn check_complete(&self) -> Result<(), Failure> {
        match self.is_complete {
            true => Ok(()),
            false => Err(Failure::new(Code::Unavailable, "SCM's leader does not know all leases yet")),
        }
    }

    fn is_news(&self, holder: &Holder, stamp: u64) -> bool {
        self.by_holder.get(holder).is_none_or(|lease| lease.stamp < stamp)
    }

    /// Gives the lease its whole time again, from now on.
    pub(super) fn renew(
        &mut self,
        holder: Holder,
        stamp: u64,
        ttl: Duration,
        now: Instant,
    ) -> Result<(), TooLate> {
        let lease = self.by_holder.get(&holder).filter(|lease| lease.stamp == stamp);
        let is_late = lease.is_some_and(|lease| match holder {
            Holder::Key(_) => lease.over <= now,
            Holder::Instance { .. } => lease.course == Course::Ends,
        });
        if is_late {
            return Err(TooLate);
        }
        self.put(holder, Lease { stamp, over: now + ttl, look: now + ttl, course: Course::Runs });
        self.counts.renewals += 1;
        Ok(())
    }

    /// Decides what is to be done about an instance that was due. It is asked immediately before its end is
    /// proposed: it may have been renewed since it was taken out as due.
    pub(super) fn verdict(&mut self, holder: &Holder, stamp: u64, now: Instant) -> Verdict {
        match self.by_holder.get_mut(holder) {
            Some(lease) if lease.stamp == stamp && lease.over <= now => match lease.course {
                Course::Runs => Verdict::Lapses,
                Course::Lapsed | Course::Ends => {
                    lease.course = Course::Ends;
                    Verdict::Goes
                }
            },
            _ => Verdict::Lives,
        }
    }

    /// Notes that others know that an instance's lease is over, which is looked at again at `look`. False
    /// where it was renewed meanwhile.
    pub(super) fn lapsed(&mut self, holder: &Holder, stamp: u64, now: Instant, look: Instant) -> bool {
        let found = self.by_holder.get_mut(holder);
        let Some(lease) = found.filter(|lease| lease.stamp == stamp && lease.over <= now) else {
            return false;
        };
        lease.course = Course::Lapsed;
        self.look_again(holder, look);
        true
    }

    /// Whether what an instance says of itself may be written once more: at most once a second for one
    /// instance, and for [`CHECKS_WRITTEN_MAX`] of them in that time. One that is refused says the same again
    /// with its next renewal.
    pub(super) fn may_write_checks(&mut self, holder: &Holder, now: Instant) -> bool {
        self.checks_written.retain(|_, written| now < *written + CHECKS_INTERVAL_MIN);
        let may = self.checks_written.len() < CHECKS_WRITTEN_MAX && !self.checks_written.contains_key(holder);
        if may {
            self.checks_written.insert(holder.clone(), now);
        }
        may
    }

    pub(super) fn release(&mut self, holder: &Holder) {
        if let Some(lease) = self.by_holder.remove(holder) {
            self.by_look.remove(&(lease.look, holder.clone()));
        }
    }

    /// Forgets the leases of holders that are not there.
    pub(super) fn retain(&mut self, is_there: impl Fn(&Holder) -> bool) {
        let gone: Vec<Holder> = self.by_holder.keys().filter(|holder| !is_there(holder)).cloned().collect();
        gone.iter().for_each(|holder| self.release(holder));
    }

    /// Takes holders whose leases are due to be looked at, the longest due first, with their stamps. They are
    /// due again in a second, if they are still there.
    pub(super) fn take_due(&mut self, now: Instant, count_max: usize) -> Vec<(Holder, u64)> {
        let due = self.by_look.iter().take_while(|(look, _)| *look <= now).take(count_max);
        let due: Vec<(Holder, u64)> =
            due.map(|(_, holder)| (holder.clone(), self.by_holder[holder].stamp)).collect();
        for (holder, _) in &due {
            self.look_again(holder, now + RETRY_INTERVAL);
        }
        due
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_look.first().map(|(look, _)| *look)
    }

    fn look_again(&mut self, holder: &Holder, look: Instant) {
        if let Some(lease) = self.by_holder.get_mut(holder) {
            self.by_look.remove(&(lease.look, holder.clone()));
            lease.look = look;
            self.by_look.insert((look, holder.clone()));
        }
    }

    fn put(&mut self, holder: Holder, lease: Lease) {
        self.release(&holder);
        self.by_look.insert((lease.look, holder.clone()));
        self.by_holder.insert(holder, lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn key(name: &str) -> Holder {
        Holder::Key(name.to_owned())
    }

    fn instance() -> Holder {
        Holder::Instance { service: "web".to_owned(), id: "a".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_unless_it_is_renewed() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.hold(key("a"), 1, TTL, at(0));
        leases.hold(key("b"), 2, TTL, at(2));
        assert_eq!(leases.next_due(), Some(at(10)));
        leases.renew(key("a"), 1, TTL, at(9)).unwrap();
        leases.hold(key("b"), 2, TTL, at(9));
        assert_eq!(leases.take_due(at(11), 9), []);
        assert_eq!(leases.take_due(at(12), 9), [(key("b"), 2)], "held is not renewed");
        assert_eq!(leases.take_due(at(12), 9), [], "it is being ended");
        assert_eq!(leases.take_due(at(13), 9), [(key("b"), 2)], "which may fail");
        leases.release(&key("b"));
        assert_eq!(leases.take_due(at(100), 9), [(key("a"), 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_over_is_renewed_no_more() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.hold(key("a"), 1, TTL, at(0));
        assert_eq!(leases.renew(key("a"), 1, TTL, at(10)), Err(TooLate), "also where nobody has looked yet");
        assert_eq!(leases.take_due(at(10), 9), [(key("a"), 1)]);
        assert_eq!(leases.renew(key("a"), 1, TTL, at(11)), Err(TooLate));
        leases.hold(key("a"), 5, TTL, at(12));
        assert_eq!(leases.renew(key("a"), 5, TTL, at(13)), Ok(()), "somebody has put it again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_instance_comes_back_until_its_removal_is_on_its_way() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.hold(instance(), 1, TTL, at(0));
        assert_eq!(leases.take_due(at(10), 9), [(instance(), 1)]);
        assert_eq!(leases.renew(instance(), 1, TTL, at(11)), Ok(()));
        assert_eq!(leases.verdict(&instance(), 1, at(11)), Verdict::Lives, "renewed since it was taken");
        assert!(!leases.lapsed(&instance(), 1, at(12), at(50)));

        assert_eq!(leases.take_due(at(21), 9), [(instance(), 1)]);
        assert_eq!(leases.verdict(&instance(), 1, at(21)), Verdict::Lapses);
        assert!(leases.lapsed(&instance(), 1, at(21), at(50)));
        assert_eq!(leases.next_due(), Some(at(50)));
        assert_eq!(leases.renew(instance(), 1, TTL, at(30)), Ok(()), "it may come back");
        assert_eq!(leases.take_due(at(40), 9), [(instance(), 1)]);
        assert_eq!(leases.verdict(&instance(), 1, at(40)), Verdict::Lapses, "and lapse again");
        assert!(leases.lapsed(&instance(), 1, at(40), at(60)));
        assert_eq!(leases.take_due(at(60), 9), [(instance(), 1)]);
        assert_eq!(leases.verdict(&instance(), 1, at(60)), Verdict::Goes);
        assert_eq!(leases.renew(instance(), 1, TTL, at(60)), Err(TooLate));
        assert_eq!(leases.verdict(&instance(), 1, at(61)), Verdict::Goes, "until that is done");
        leases.hold(instance(), 7, TTL, at(62));
        assert_eq!(leases.renew(instance(), 7, TTL, at(63)), Ok(()), "another registration");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_had_lapsed_has_its_whole_time_to_come_back() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.hold_lapsed(instance(), 1, at(0), at(600));
        leases.hold(instance(), 1, TTL, at(1));
        assert_eq!(leases.take_due(at(599), 9), []);
        assert_eq!(leases.take_due(at(600), 9), [(instance(), 1)]);
        assert_eq!(leases.verdict(&instance(), 1, at(600)), Verdict::Goes);
    }

    #[tokio::test(start_paused = true)]
    async fn health_that_flaps_is_written_once_a_second() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut leases = Leases::default();
        let written: Vec<u64> =
            (0..30).map(|n| n * 100).filter(|ms| leases.may_write_checks(&key("a"), at(*ms))).collect();
        assert_eq!(written, [0, 1000, 2000]);
        let many = (0..300).filter(|n| leases.may_write_checks(&key(&n.to_string()), at(5000)));
        assert_eq!(many.count(), CHECKS_WRITTEN_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn another_stamp_is_another_lease() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.hold(key("a"), 1, TTL, at(0));
        leases.hold(key("a"), 5, TTL, at(6));
        leases.hold(key("a"), 1, TTL, at(7));
        assert_eq!(leases.take_due(at(15), 9), []);
        assert!(!leases.lapsed(&key("a"), 1, at(15), at(6)));
        assert_eq!(leases.next_due(), Some(at(16)), "an old decision is none about the new lease");
        leases.retain(|_| false);
        assert!(leases.by_look.is_empty() && leases.by_holder.is_empty());
    }
}
