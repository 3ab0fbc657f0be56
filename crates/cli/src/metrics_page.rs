use bytes::Bytes;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The rest after a page, in times of what making it took.
const REST: u32 = 4;

/// The page of metrics. One is made at a time, off the threads that serve, and whoever asked before it was begun is
/// answered with it: making pages takes a fifth of one core, however many ask.
#[derive(Default)]
pub(crate) struct MetricsPage(Mutex<Option<Made>>);

struct Made {
    begun: Instant,
    rested: Instant,
    page: Bytes,
}

impl MetricsPage {
    /// A page that was begun after this was called.
    pub(crate) async fn get(&self, make: impl FnOnce() -> String + Send + 'static) -> Bytes {
        let asked = Instant::now();
        let mut made = self.0.lock().await;
        if let Some(made) = &*made {
            if made.begun >= asked {
                return made.page.clone();
            }
            tokio::time::sleep_until(made.rested).await;
        }
        let begun = Instant::now();
        let page = tokio::task::spawn_blocking(make).await.map_or_else(|_| Bytes::new(), Bytes::from);
        let rested = Instant::now() + REST * begun.elapsed();
        *made = Some(Made { begun, rested, page: page.clone() });
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Two hundred and fifty-six that asked at once kept a process from everything else for a quarter of a minute.
    #[tokio::test]
    async fn those_who_ask_together_are_answered_with_one_page_that_none_of_them_is_too_new_for() {
        let (page, made) = (MetricsPage::default(), Arc::new(AtomicU32::new(0)));
        let get = || {
            let made = made.clone();
            page.get(move || {
                std::thread::sleep(Duration::from_millis(20));
                made.fetch_add(1, Ordering::SeqCst).to_string()
            })
        };
        let begun = Instant::now();
        assert_eq!(get().await, "0");
        let pages = join_all((0..256).map(|_| get())).await;
        assert!(pages.iter().all(|page| page == "1"), "{pages:?}");
        assert_eq!(get().await, "2", "it asked after that was made");
        assert!(begun.elapsed() >= Duration::from_millis(20 * (1 + 4 + 1 + 4 + 1)), "{:?}", begun.elapsed());
    }
}
