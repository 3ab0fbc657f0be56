//! The system's randomness, which std's hash maps and tokio's `select!` and watch channels draw their order
//! from. On a thread that simulates it comes from a seed, so that the same seed takes the same steps. std
//! looks for `getrandom` by its name and allows that it is replaced; this is that replacement, for binaries
//! that simulate.

#![allow(unsafe_code)] // a function that C declares cannot be replaced by safe code

use disk::sim::Random;
use std::cell::RefCell;

thread_local! {
    static ENTROPY: RefCell<Option<Random>> = const { RefCell::new(None) };
}

/// From here on this thread's randomness follows from `seed`. To be called before anything else on a thread:
/// what std has drawn stays. Tokio also counts the runtimes of a process, so only one simulation of a process
/// can be compared with another.
pub(crate) fn fix_entropy(seed: u64) {
    ENTROPY.set(Some(Random::new(seed)));
}

/// Fills a buffer from the thread's seed; false where there is none.
fn fill(buffer: &mut [u8]) -> bool {
    let filled = ENTROPY.try_with(|entropy| {
        let mut entropy = entropy.try_borrow_mut().ok()?;
        let random = entropy.as_mut()?;
        buffer.fill_with(|| random.next_u64() as u8);
        Some(())
    });
    matches!(filled, Ok(Some(())))
}

/// As libc declares it.
#[unsafe(no_mangle)]
extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    bytes: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if !buffer.is_null() && bytes > 0 {
        // SAFETY: whoever calls `getrandom` gives it a buffer of so many bytes to write to; u8 takes any
        // value.
        let wanted = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
        if fill(wanted) {
            return bytes as libc::ssize_t;
        }
    }
    // SAFETY: the arguments are passed on as they came, to the call that they are for.
    unsafe { libc::syscall(libc::SYS_getrandom, buffer, bytes, flags) as libc::ssize_t }
}
