//! Counts how much memory a piece of code asks for at once: a length that an input claims must not be
//! believed before the input is that long.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(bytes: usize) {
    // A thread that is ending has no counter any more, and is not measured.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
}

// SAFETY: every call is handed on to the system's allocator as it came; counting allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of this method, which is that of the one called.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `then`; an error when it asked for more than `bytes_max` at once.
pub(crate) fn bounded<T>(bytes_max: usize, then: impl FnOnce() -> T) -> Result<T, String> {
    LARGEST.set(0);
    let result = then();
    let largest = LARGEST.get();
    if largest > bytes_max {
        return Err(format!("{largest} bytes were allocated at once, at most {bytes_max} were to be"));
    }
    Ok(result)
}
