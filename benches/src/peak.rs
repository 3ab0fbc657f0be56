use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most that a number of bytes was while somebody looked again and again.
pub struct Peak {
    most: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    pub fn watch(interval: Duration, bytes: impl Fn() -> u64 + Send + 'static) -> Peak {
        let (most, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (most_here, over_here) = (most.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !over_here.load(Ordering::Relaxed) {
                most_here.fetch_max(bytes(), Ordering::Relaxed);
                std::thread::sleep(interval);
            }
        });
        Peak { most, over, thread: Some(thread) }
    }

    pub fn bytes(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
