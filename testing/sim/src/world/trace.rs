use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The number of events that are shown with a violation.
const RECENT_MAX: usize = 60;

/// A trace of what happened, in order: hashed, counted, the last of it remembered, and printed when somebody
/// wants to see it all.
#[derive(Clone)]
pub struct Trace {
    state: Arc<Mutex<State>>,
}

struct State {
    now: Duration,
    hash: DefaultHasher,
    events: u64,
    recent: VecDeque<String>,
    is_printed: bool,
}

impl Trace {
    pub fn new(is_printed: bool) -> Trace {
        let state = State {
            now: Duration::ZERO,
            hash: DefaultHasher::new(),
            events: 0,
            recent: VecDeque::new(),
            is_printed,
        };
        Trace { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn set_now(&self, now: Duration) {
        self.lock().now = now;
    }

    /// The world's time.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    pub fn event(&self, what: fmt::Arguments<'_>) {
        let state = &mut *self.lock();
        let mut line = match state.recent.len() {
            RECENT_MAX.. => state.recent.pop_front().unwrap_or_default(),
            _ => String::new(),
        };
        line.clear();
        let _ = fmt::write(&mut line, format_args!("{:>11.3} ms  {what}", state.now.as_secs_f64() * 1000.0));
        state.hash.write(line.as_bytes());
        state.events += 1;
        if state.is_printed {
            eprintln!("{line}");
        }
        state.recent.push_back(line);
    }

    /// Adds a number to the hash that is nothing to read.
    pub fn mix(&self, number: u64) {
        self.lock().hash.write_u64(number);
    }

    pub fn hash(&self) -> u64 {
        self.lock().hash.finish()
    }

    pub fn events(&self) -> u64 {
        self.lock().events
    }

    pub fn recent(&self) -> String {
        self.lock().recent.iter().map(|line| format!("  {line}\n")).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // It is read after a panic, to tell what led to it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
