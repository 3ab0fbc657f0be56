//! Operations that wait for a group: until a replica has applied an entry, or until all members have it. All
//! waits of a host are in one parking lot, so that their number has one limit, and one that ends leaves
//! nothing behind until its deadline.

use parking::{Outcome, ParkingLot};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use tokio::sync::watch;
use tokio::time::Instant;
use types::{GroupId, LogIndex};

/// The things that operations wait for; the value of each is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    Applied(GroupId),
    Everywhere(GroupId),
}

pub(crate) type Waits = ParkingLot<Awaited>;

/// The value past every index: whoever waits looks for itself what became of the entry.
pub(crate) const OVER: u64 = u64::MAX;

/// The waits for what one replica applies. Most of the time there are none, and then applying leaves the
/// host's lot, whose one lock is everybody's, alone.
#[derive(Clone)]
pub(crate) struct ApplyWaits {
    lot: Waits,
    group: GroupId,
    waiting: Arc<AtomicUsize>,
}

impl ApplyWaits {
    pub(crate) fn new(lot: Waits, group: GroupId) -> ApplyWaits {
        ApplyWaits { lot, group, waiting: Arc::default() }
    }

    /// Waits for an index; `is_over` is asked once everybody who applies sees that somebody waits.
    ///
    /// ```text
    ///  who waits              who applies
    ///  waiting += 1           publish the index
    ///  fence                  fence
    ///  is_over: the index?    waiting > 0?
    /// ```
    /// One of the two sees what the other did before its fence, so nobody waits for what is there.
    pub(crate) async fn wait(
        &self,
        index: LogIndex,
        deadline: Instant,
        is_over: impl FnOnce() -> bool,
    ) -> Outcome {
        let _counted = Counted::new(&self.waiting);
        fence(Ordering::SeqCst);
        self.lot.wait(Awaited::Applied(self.group), index.0, deadline, is_over).await
    }

    /// Tells those who wait; to be called after `index` is to be seen by their `is_over`.
    fn reach(&self, index: LogIndex) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.lot.reach(&Awaited::Applied(self.group), index.0);
        }
    }

    /// Ends all waits: nothing will be applied any more.
    fn end(&self) {
        self.lot.reach(&Awaited::Applied(self.group), OVER);
    }
}

/// One more in a count, as long as it is kept.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    fn new(count: &AtomicUsize) -> Counted<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The mark up to which a state machine has applied; whoever waits for it is told.
pub(crate) struct AppliedMark {
    /// The sender of the mark, dropped first when the machine goes, so that nobody begins to wait after the
    /// others were told.
    sender: Option<watch::Sender<Option<LogIndex>>>,
    waits: ApplyWaits,
}

impl AppliedMark {
    pub(crate) fn new(
        applied: Option<LogIndex>,
        waits: ApplyWaits,
    ) -> (AppliedMark, watch::Receiver<Option<LogIndex>>) {
        let (sender, view) = watch::channel(applied);
        (AppliedMark { sender: Some(sender), waits }, view)
    }

    pub(crate) fn set(&self, applied: Option<LogIndex>) {
        if let Some(sender) = &self.sender {
            sender.send_replace(applied);
        }
        if let Some(applied) = applied {
            self.waits.reach(applied);
        }
    }
}

impl Drop for AppliedMark {
    fn drop(&mut self) {
        drop(self.sender.take());
        self.waits.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Timing;
    use std::time::Duration;

    fn parts() -> (Waits, ApplyWaits, AppliedMark, watch::Receiver<Option<LogIndex>>) {
        let lot = Waits::new(100);
        let waits = ApplyWaits::new(lot.clone(), GroupId::om(1));
        let (mark, applied) = AppliedMark::new(None, waits.clone());
        (lot, waits, mark, applied)
    }

    #[tokio::test]
    async fn applying_leaves_the_lot_alone_while_nobody_waits() {
        let (lot, waits, mark, applied) = parts();
        for index in 1..=1000 {
            mark.set(Some(LogIndex(index)));
        }
        assert_eq!(lot.counts().reaches, 0);
        let deadline = Instant::now() + Timing::METADATA.election_max;
        let mut wait = std::pin::pin!(waits.wait(LogIndex(1001), deadline, || false));
        assert!(futures::poll!(&mut wait).is_pending());
        mark.set(Some(LogIndex(1001)));
        assert_eq!((wait.await, lot.counts().reaches), (Outcome::Reached, 1));
        // The finished future is still there; what it counted is not.
        mark.set(Some(LogIndex(1002)));
        assert_eq!((lot.counts().reaches, *applied.borrow()), (1, Some(LogIndex(1002))));
    }

    /// The one who applies and the one who waits are two threads that meet at each index.
    #[test]
    fn no_wait_is_missed_that_begins_while_its_entry_is_applied() {
        const ENTRIES: u64 = 20_000;
        let (_lot, waits, mark, applied) = parts();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let to_apply = asked.clone();
        let applier = std::thread::spawn(move || {
            for index in 1..=ENTRIES {
                while to_apply.load(Ordering::Acquire) < index {
                    std::hint::spin_loop();
                }
                mark.set(Some(LogIndex(index)));
            }
            mark
        });
        runtime.block_on(async {
            for index in (1..=ENTRIES).map(LogIndex) {
                asked.store(index.0, Ordering::Release);
                let deadline = Instant::now() + Duration::from_secs(30);
                let is_over = || *applied.borrow() >= Some(index);
                assert_eq!(waits.wait(index, deadline, is_over).await, Outcome::Reached, "entry {index}");
            }
        });
        drop(applier.join().unwrap());
    }
}
