//! Panics on a thread, for whoever must know of them: tokio catches those of tasks, and of most tasks nobody
//! asks what became.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::PanicHookInfo;
use std::sync::Once;

thread_local! {
    /// The first panic since somebody began to watch; the outer one is `None` while nobody does.
    static FIRST: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// Remembers the first panic on the thread that made it, for as long as it lives.
pub(super) struct Panics {
    _of_this_thread: PhantomData<*const ()>,
}

impl Panics {
    /// Installs a hook, which may do little: whoever panicked may hold any lock. So it takes notes, and
    /// others act on them.
    pub(super) fn watch() -> Panics {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                note(panic);
                before(panic);
            }));
        });
        FIRST.set(Some(None));
        Panics { _of_this_thread: PhantomData }
    }

    /// Takes the message and place of the panic.
    pub(super) fn take(&self) -> Option<String> {
        FIRST.with_borrow_mut(|first| first.as_mut().and_then(Option::take))
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        FIRST.set(None);
    }
}

fn note(panic: &PanicHookInfo<'_>) {
    FIRST.with(|first| {
        if let Ok(mut first) = first.try_borrow_mut()
            && let Some(first) = first.as_mut()
        {
            first.get_or_insert_with(|| panic.to_string().replace('\n', " "));
        }
    });
}
