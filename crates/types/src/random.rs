//! Randomness that a simulation can choose. Its processes all run on one thread: a seed of the thread reaches
//! tasks that others spawn, like a gRPC server's, where a task-local one would be lost.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng, TryRng};
use std::cell::RefCell;
use std::convert::Infallible;

thread_local! {
    /// `None` where nobody called [`seed_thread`].
    static SEEDED: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
}

/// Makes all that is drawn from [`random`] on this thread, from here on, follow from `seed`.
pub fn seed_thread(seed: u64) {
    SEEDED.set(Some(SmallRng::seed_from_u64(seed)));
}

/// Whether this thread simulates: nothing may be left to another thread then, where nobody decides what comes
/// first.
pub fn is_seeded() -> bool {
    SEEDED.with_borrow(Option::is_some)
}

/// The generator of this thread: the operating system's entropy, or what follows from a seed.
pub fn random() -> ThreadRandom {
    ThreadRandom(())
}

#[derive(Debug)]
pub struct ThreadRandom(());

impl ThreadRandom {
    fn draw<T>(&self, draw: impl FnOnce(&mut dyn Rng) -> T) -> T {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(seeded) => draw(seeded),
            None => draw(&mut rand::rng()),
        })
    }
}

impl TryRng for ThreadRandom {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.draw(|random| random.next_u32()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.draw(|random| random.next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.draw(|random| random.fill_bytes(bytes));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seeded_thread_draws_the_same_again() {
        let draws = |seed| {
            seed_thread(seed);
            [(); 4].map(|()| random().next_u64())
        };
        let first = draws(1);
        assert_eq!(draws(1), first);
        assert_ne!(draws(2), first);
        assert_ne!(first[0], first[1]);
    }

    #[test]
    fn threads_that_nobody_seeded_differ() {
        let draw = || std::thread::spawn(|| (is_seeded(), random().next_u64())).join().unwrap();
        let (first, second) = (draw(), draw());
        assert!(!first.0 && !second.0 && first.1 != second.1);
    }
}
