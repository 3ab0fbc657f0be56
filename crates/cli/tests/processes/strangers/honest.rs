use crate::s3::S3;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const OBJECT_BYTES: usize = 4096;
const KEYS: usize = 64;

/// A client that puts and gets objects of 4 KiB, one after the other, on a thread that it shares with no
/// stranger.
pub(super) struct Honest {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// When a request began, and how long it took.
    took: Mutex<Vec<(Instant, Duration)>>,
    errors: Mutex<Vec<String>>,
}

impl Honest {
    pub(super) fn start(s3: S3) -> Honest {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(of_thread.work(&s3));
        };
        Honest { shared, thread: Some(std::thread::spawn(work)) }
    }

    /// How long each took that ended within `time`, shortest first.
    pub(super) fn took(&self, time: Range<Instant>) -> Vec<Duration> {
        let all = self.shared.took.lock().unwrap();
        let ended = |(begun, took): &&(Instant, Duration)| time.contains(&(*begun + *took));
        let mut took: Vec<Duration> = all.iter().filter(ended).map(|(_, took)| *took).collect();
        took.sort_unstable();
        took
    }

    /// Stops, and returns what failed, in words.
    pub(super) fn stop(&mut self) -> Vec<String> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
        self.shared.errors.lock().unwrap().clone()
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    async fn work(&self, s3: &S3) {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let (key, body) = (format!("honest-{}", number % KEYS), vec![number as u8; OBJECT_BYTES]);
            let begun = Instant::now();
            let put = s3.put(&key, body.clone()).await;
            self.note(begun, put.map_err(|why| format!("put {key}: {why}")));
            let begun = Instant::now();
            let got = match s3.get(&key).await {
                Ok(Some(got)) if got == body => Ok(()),
                Ok(got) => Err(format!("get {key}: {:?} bytes that were not put", got.map(|got| got.len()))),
                Err(why) => Err(format!("get {key}: {why}")),
            };
            self.note(begun, got);
        }
    }

    fn note(&self, begun: Instant, result: Result<(), String>) {
        self.took.lock().unwrap().push((begun, begun.elapsed()));
        self.errors.lock().unwrap().extend(result.err());
    }
}
