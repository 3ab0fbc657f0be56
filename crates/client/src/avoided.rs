use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The time for which an address that failed, or was late, is asked last. A path that stays broken then costs
/// one reader in so many seconds a wait, and one that is mended is found again as soon.
const AVOIDED_FOR: Duration = Duration::from_secs(10);
/// The most addresses that are remembered; past it those that nobody avoids any more are forgotten, and then
/// all.
const ADDRESSES_MAX: usize = 1024;
/// The most reads of this process that ask a second replica at a time. When everything is slow it is load
/// that makes it slow, and more reads would add to it.
const SECOND_READS_MAX: usize = 16;

/// The addresses of datanodes that readers have found to fail, for those that come after them.
pub(crate) struct Avoided {
    until: Mutex<HashMap<String, Instant>>,
    pub(crate) second_reads: Semaphore,
}

impl Default for Avoided {
    fn default() -> Avoided {
        Avoided { until: Mutex::default(), second_reads: Semaphore::new(SECOND_READS_MAX) }
    }
}

impl Avoided {
    pub(crate) fn avoid(&self, address: &str) {
        let now = Instant::now();
        let mut until = self.until.lock().expect("no holder panics");
        if until.len() >= ADDRESSES_MAX {
            until.retain(|_, until| *until > now);
        }
        if until.len() >= ADDRESSES_MAX {
            until.clear();
        }
        until.insert(address.to_owned(), now + AVOIDED_FOR);
    }

    /// Puts addresses that are avoided first in a list that is asked from its end; the order of the others
    /// stays.
    pub(crate) fn to_the_front(&self, addresses: &mut [String]) {
        let now = Instant::now();
        let until = self.until.lock().expect("no holder panics");
        addresses.sort_by_key(|address| until.get(address).is_none_or(|until| *until <= now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_failed_is_asked_last_for_a_while() {
        let avoided = Avoided::default();
        let order = |avoided: &Avoided| {
            let mut addresses = ["a", "b", "c"].map(str::to_owned);
            avoided.to_the_front(&mut addresses);
            addresses.concat()
        };
        assert_eq!(order(&avoided), "abc");
        avoided.avoid("c");
        avoided.avoid("b");
        assert_eq!(order(&avoided), "bca", "a is asked first");
        tokio::time::advance(AVOIDED_FOR).await;
        assert_eq!(order(&avoided), "abc");
    }
}
