use super::limits::{check_asked, check_key};
use parking::{LotCounts, Outcome, ParkingLot};
use prost::Message;
use proto::registry::event::Change;
use proto::registry::{Event, watch_request::What};
use proto::{Code, Failure};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The most events that are kept for watches and long polls that come again: at a hundred changes a second,
/// those of almost three minutes.
const EVENTS_MAX: usize = 16_384;
/// The most bytes of events that are kept.
const EVENTS_BYTES_MAX: usize = 16 << 20;
/// The most events that are looked at without a pause for others: applying a command waits for whoever looks,
/// a few microseconds.
const SCAN_MAX: usize = 256;
/// The most watches and long polls that wait at a time, a few hundred bytes each.
const WAITS_MAX: usize = 20_000;
/// The time after which whoever waits looks again, whatever happens: a snapshot that is installed changes
/// everything and tells nobody.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The last changes of the registry as this member has applied them, and who waits for the next.
pub(crate) struct Feed {
    history: Mutex<History>,
    waits: ParkingLot<Topic>,
}

/// Events of the revisions `forgotten + 1 ..= forgotten + events.len()`: each revision is one event.
struct History {
    forgotten: u64,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// The revision of the newest of these events on each topic, so that whoever waits for one need not look
    /// for it.
    newest: HashMap<Topic, u64>,
}

/// The topic that somebody waits for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Topic {
    Everything,
    Instances,
    Service(String),
    Keys,
    Key(String),
}

/// The part of the registry that somebody wants to know of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Interest {
    Everything,
    Instances,
    Service(String),
    Key(String),
    KeysWith(String),
}

/// [`Told`] of the next few events, up to `revision`; `is_end` where there is nothing more to look at, or no
/// room for more events.
enum Look {
    Seen { events: Vec<Arc<Event>>, revision: u64, is_end: bool },
    Forgotten { forgotten: u64 },
}

/// The answer to somebody who asks what happened after a revision.
#[derive(Debug)]
pub(super) enum Told {
    /// All events that matter, up to this revision.
    Events { events: Vec<Arc<Event>>, revision: u64 },
    /// Some of the events are forgotten: those up to this revision.
    Compacted { forgotten: u64 },
}

impl Feed {
    /// A feed for tables that are at `revision`.
    pub(crate) fn new(revision: u64) -> Feed {
        let history = History::new(revision);
        Feed { history: Mutex::new(history), waits: ParkingLot::new(WAITS_MAX) }
    }

    /// Takes in the events of changes that are in the tables now.
    pub(crate) fn push(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let topics: Vec<(u64, [Topic; 3])> =
            events.iter().map(|event| (event.revision, topics_of(event))).collect();
        self.history().push(events, &topics);
        for (revision, topics) in topics {
            topics.iter().for_each(|topic| self.waits.reach(topic, revision));
        }
    }

    /// Begins anew at this revision, since the tables were replaced: what happened on the way to it is not
    /// known here.
    pub(crate) fn reset(&self, revision: u64) {
        *self.history() = History::new(revision);
    }

    /// The events after `revision` that matter, at most `events_max`.
    pub(super) fn after(&self, revision: u64, interest: &Interest, events_max: usize) -> Told {
        let (mut events, mut told) = (Vec::new(), revision);
        loop {
            match self.look(told, interest, events_max - events.len()) {
                Look::Forgotten { .. } if !events.is_empty() => break,
                Look::Forgotten { forgotten } => return Told::Compacted { forgotten },
                Look::Seen { events: more, revision, is_end } => {
                    events.extend(more);
                    told = revision;
                    if is_end || events.len() >= events_max {
                        break;
                    }
                }
            }
        }
        Told::Events { events, revision: told }
    }

    /// [`Feed::after`], of the next few events only.
    fn look(&self, revision: u64, interest: &Interest, events_max: usize) -> Look {
        let history = self.history();
        if revision < history.forgotten {
            return Look::Forgotten { forgotten: history.forgotten };
        }
        let (mut events, mut seen) = (Vec::new(), revision);
        for event in history.after(revision).take(SCAN_MAX) {
            if interest.covers(event) {
                if events.len() == events_max {
                    // The answer goes up to before this event.
                    return Look::Seen { events, revision: seen, is_end: true };
                }
                events.push(event.clone());
            }
            seen = event.revision;
        }
        Look::Seen { events, revision: seen, is_end: seen >= history.revision() }
    }

    /// Whether something that matters has changed after the revision `looked`; true where that is not known
    /// any more. Moves `looked` on over events that do not matter.
    fn has_changed(&self, looked: &mut u64, interest: &Interest) -> bool {
        if let Some(topic) = interest.exact() {
            let history = self.history();
            let newest = history.newest.get(&topic).copied().unwrap_or(0);
            return *looked < history.forgotten || newest > *looked;
        }
        loop {
            match self.look(*looked, interest, 1) {
                Look::Forgotten { .. } => return true,
                Look::Seen { events, .. } if !events.is_empty() => return true,
                Look::Seen { revision, is_end, .. } => {
                    *looked = revision;
                    if is_end {
                        return false;
                    }
                }
            }
        }
    }

    /// Waits until something that matters has changed after a revision, at most until the deadline. Safe to
    /// cancel.
    pub(super) async fn changed(
        &self,
        revision: u64,
        interest: &Interest,
        deadline: Instant,
    ) -> Result<(), Failure> {
        // The next revision that this wait has not looked at.
        let mut next = revision.saturating_add(1);
        let mut looked = revision;
        while !self.has_changed(&mut looked, interest) {
            let now = Instant::now();
            if now >= deadline {
                return Ok(());
            }
            let seen = self.history().revision();
            next = next.max(seen + 1);
            let until = deadline.min(now + LOOK_INTERVAL);
            let has_reached = || self.has_changed(&mut looked, interest);
            match self.waits.wait(interest.topic(), next, until, has_reached).await {
                Outcome::Reached | Outcome::Expired => {}
                Outcome::Full => {
                    let message = format!("{WAITS_MAX} watches and long polls wait, which is the limit");
                    return Err(Failure::new(Code::Busy, message));
                }
            }
        }
        Ok(())
    }

    pub(super) fn counts(&self) -> LotCounts {
        self.waits.counts()
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no holder of the history panics")
    }
}

impl History {
    fn new(revision: u64) -> History {
        History { forgotten: revision, events: VecDeque::new(), bytes: 0, newest: HashMap::new() }
    }

    /// The revision of the newest event.
    fn revision(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    fn push(&mut self, events: Vec<Event>, topics: &[(u64, [Topic; 3])]) {
        for event in events {
            assert_eq!(event.revision, self.revision() + 1, "each revision is one event");
            self.bytes += event.encoded_len();
            self.events.push_back(Arc::new(event));
        }
        for (revision, topics) in topics {
            self.newest.extend(topics.iter().map(|topic| (topic.clone(), *revision)));
        }
        while self.events.len() > EVENTS_MAX || self.bytes > EVENTS_BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= oldest.encoded_len();
            self.forgotten = oldest.revision;
            for topic in topics_of(&oldest) {
                if self.newest.get(&topic) == Some(&oldest.revision) {
                    self.newest.remove(&topic);
                }
            }
        }
    }

    /// The events after `revision`, which must not be before what is forgotten.
    fn after(&self, revision: u64) -> impl Iterator<Item = &Arc<Event>> {
        let known = revision.saturating_sub(self.forgotten).min(self.events.len() as u64);
        self.events.range(known as usize..)
    }
}

impl Interest {
    /// Refuses names that nothing can have: they are kept for as long as somebody watches.
    pub(super) fn of(what: Option<What>) -> Result<Interest, Failure> {
        Ok(match what {
            None => Interest::Everything,
            Some(What::Service(service)) if service.is_empty() => Interest::Instances,
            Some(What::Service(service)) => {
                check_asked(&service)?;
                Interest::Service(service)
            }
            Some(What::Key(key)) => {
                check_key(&key, true)?;
                Interest::Key(key)
            }
            Some(What::KeyPrefix(prefix)) => {
                check_key(&prefix, true)?;
                Interest::KeysWith(prefix)
            }
        })
    }

    fn topic(&self) -> Topic {
        match self {
            Interest::Everything => Topic::Everything,
            Interest::Instances => Topic::Instances,
            Interest::Service(service) => Topic::Service(service.clone()),
            Interest::Key(key) => Topic::Key(key.clone()),
            Interest::KeysWith(_) => Topic::Keys,
        }
    }

    /// The topic that covers the interest and nothing else, if there is one.
    fn exact(&self) -> Option<Topic> {
        match self {
            Interest::KeysWith(_) => None,
            Interest::Everything | Interest::Instances | Interest::Service(_) | Interest::Key(_) => {
                Some(self.topic())
            }
        }
    }

    fn covers(&self, event: &Event) -> bool {
        let Some(change) = &event.change else { return false };
        match (self, change) {
            (Interest::Everything, _) => true,
            (Interest::Instances, Change::Instance(_) | Change::InstanceGone(_)) => true,
            (Interest::Service(service), Change::Instance(instance)) => instance.service == *service,
            (Interest::Service(service), Change::InstanceGone(name)) => name.service == *service,
            (Interest::Key(key), Change::Key(entry)) => entry.key == *key,
            (Interest::Key(key), Change::KeyGone(gone)) => gone == key,
            (Interest::KeysWith(prefix), Change::Key(entry)) => entry.key.starts_with(prefix),
            (Interest::KeysWith(prefix), Change::KeyGone(gone)) => gone.starts_with(prefix),
            (Interest::Instances | Interest::Service(_), Change::Key(_) | Change::KeyGone(_)) => false,
            (Interest::Key(_) | Interest::KeysWith(_), Change::Instance(_) | Change::InstanceGone(_)) => {
                false
            }
        }
    }
}

fn topics_of(event: &Event) -> [Topic; 3] {
    let service = |name: &String| [Topic::Everything, Topic::Instances, Topic::Service(name.clone())];
    let key = |name: &String| [Topic::Everything, Topic::Keys, Topic::Key(name.clone())];
    match &event.change {
        Some(Change::Instance(instance)) => service(&instance.service),
        Some(Change::InstanceGone(name)) => service(&name.service),
        Some(Change::Key(entry)) => key(&entry.key),
        Some(Change::KeyGone(name)) => key(name),
        None => [const { Topic::Everything }; 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::registry::KeyValue;

    fn event(revision: u64, key: &str) -> Event {
        let entry = KeyValue { key: key.to_owned(), mod_revision: revision, ..KeyValue::default() };
        Event { revision, change: Some(Change::Key(entry)), expired: false }
    }

    fn revisions(told: Told) -> (Vec<u64>, u64) {
        match told {
            Told::Events { events, revision } => {
                (events.iter().map(|event| event.revision).collect(), revision)
            }
            Told::Compacted { forgotten } => panic!("forgotten up to {forgotten}"),
        }
    }

    #[test]
    fn a_watch_goes_on_where_it_was() {
        let feed = Feed::new(7);
        feed.push(vec![event(8, "a/1"), event(9, "b"), event(10, "a/2"), event(11, "b")]);
        let with_a = Interest::KeysWith("a/".to_owned());
        assert_eq!(revisions(feed.after(7, &with_a, 10)), (vec![8, 10], 11));
        assert_eq!(revisions(feed.after(8, &with_a, 10)), (vec![10], 11));
        assert_eq!(revisions(feed.after(7, &with_a, 1)), (vec![8], 9), "the rest comes next time");
        assert_eq!(revisions(feed.after(9, &with_a, 1)), (vec![10], 11));
        assert_eq!(revisions(feed.after(11, &Interest::Everything, 10)), (vec![], 11));
        assert_eq!(revisions(feed.after(99, &Interest::Everything, 10)), (vec![], 99));
        assert_eq!(revisions(feed.after(7, &Interest::Instances, 10)), (vec![], 11));
        assert!(matches!(feed.after(6, &with_a, 10), Told::Compacted { forgotten: 7 }));
    }

    #[test]
    fn old_events_are_forgotten_and_that_is_said() {
        let feed = Feed::new(0);
        (1..=EVENTS_MAX as u64 + 5).for_each(|revision| feed.push(vec![event(revision, "k")]));
        assert!(matches!(feed.after(4, &Interest::Everything, 1), Told::Compacted { forgotten: 5 }));
        assert_eq!(revisions(feed.after(5, &Interest::Everything, 2)), (vec![6, 7], 7));
        let mut large = event(EVENTS_MAX as u64 + 6, "k");
        let Some(Change::Key(entry)) = &mut large.change else { unreachable!() };
        entry.value = vec![0; EVENTS_BYTES_MAX].into();
        feed.push(vec![large]);
        assert_eq!(feed.history().events.len(), 0, "bytes are bounded too");
        assert_eq!(feed.history().bytes, 0);
        assert!(feed.history().newest.is_empty(), "and so is what is known of each thing");
        feed.reset(1_000_000);
        assert!(matches!(feed.after(20_000, &Interest::Everything, 1), Told::Compacted { .. }));
    }

    /// A wait finds by the index or bit by bit what a look through all events finds.
    #[test]
    fn whether_something_has_changed_is_known_without_looking_through_it_all() {
        let feed = Feed::new(0);
        let last = 3 * SCAN_MAX as u64 + 7;
        let key = |revision: u64| match revision {
            _ if revision.is_multiple_of(500) => "rare".to_owned(),
            _ => format!("k/{}", revision % 3),
        };
        (1..=last).for_each(|revision| feed.push(vec![event(revision, &key(revision))]));
        let interests = ["rare", "k/1", "none"].map(str::to_owned).map(Interest::Key);
        let prefixes = ["r", "k/", "x", ""].map(str::to_owned).map(Interest::KeysWith);
        let others = [Interest::Everything, Interest::Instances];
        for interest in interests.into_iter().chain(prefixes).chain(others) {
            for revision in 0..=last + 1 {
                let expect = feed.history().after(revision).any(|event| interest.covers(event));
                let mut looked = revision;
                let found = feed.has_changed(&mut looked, &interest);
                assert_eq!(found, expect, "{interest:?} after {revision}");
                let passed = (revision + 1..=looked).any(|at| {
                    feed.history().after(at - 1).next().is_some_and(|event| interest.covers(event))
                });
                assert!(!passed, "{interest:?} after {revision} was passed over on the way to {looked}");
            }
            let all = revisions(feed.after(0, &interest, usize::MAX)).0;
            let mut one_by_one = Vec::new();
            let mut told = 0;
            while told < last {
                let (events, revision) = revisions(feed.after(told, &interest, 1));
                one_by_one.extend(events);
                told = revision;
            }
            assert_eq!(one_by_one, all, "{interest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_end_with_what_they_wait_for_or_with_their_time() {
        let feed = Arc::new(Feed::new(0));
        let started = Instant::now();
        let waits = |interest: Interest, seconds: u64| {
            let feed = feed.clone();
            tokio::spawn(async move {
                feed.changed(0, &interest, started + Duration::from_secs(seconds)).await.unwrap();
                started.elapsed().as_secs()
            })
        };
        let of_b = waits(Interest::Key("b".to_owned()), 60);
        let with_a = waits(Interest::KeysWith("a".to_owned()), 60);
        let instances = waits(Interest::Instances, 35);
        tokio::time::sleep(Duration::from_secs(3)).await;
        feed.push(vec![event(1, "ab")]);
        tokio::time::sleep(Duration::from_secs(4)).await;
        feed.push(vec![event(2, "b")]);
        assert_eq!(with_a.await.unwrap(), 3);
        assert_eq!(of_b.await.unwrap(), 7);
        assert_eq!(instances.await.unwrap(), 35);
        assert_eq!(feed.counts().pending, 0);
        feed.changed(1, &Interest::Key("b".to_owned()), started).await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 35, "what has happened already is not waited for");
    }
}
