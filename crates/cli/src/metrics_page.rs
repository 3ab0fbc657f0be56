use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The rest after a page, in times of what making it took.
const REST: u32 = 4;

/// The page of metrics. One is made at a time, off the threads that serve, and whoever asked before it was
/// begun is answered with it: making pages takes a fifth of one core, however many ask, and whether they wait
/// for it or leave.
#[derive(Clone, Default)]
pub(crate) struct MetricsPage(Arc<Mutex<Option<Made>>>);

struct Made {
    begun: Instant,
    rested: Instant,
    page: Bytes,
}

impl MetricsPage {
    /// Returns a page that was begun after this was called; `None`: it cannot be made.
    pub(crate) async fn get(&self, make: impl FnOnce() -> String + Send + 'static) -> Option<Bytes> {
        let asked = Instant::now();
        let mut newest = self.0.clone().lock_owned().await;
        if let Some(made) = &*newest {
            if made.begun >= asked {
                return Some(made.page.clone());
            }
            tokio::time::sleep_until(made.rested).await;
        }
        // The making takes the lock with it: a caller who leaves meanwhile makes room for nobody.
        let making = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let page = Bytes::from(make());
            let rested = Instant::now() + REST * begun.elapsed();
            *newest = Some(Made { begun, rested, page: page.clone() });
            page
        });
        making.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use tokio::sync::oneshot;

    const MADE_IN: Duration = Duration::from_millis(20);

    /// Two hundred and fifty-six callers that asked at once kept a process from everything else for a quarter
    /// of a minute.
    #[tokio::test]
    async fn those_who_ask_together_are_answered_with_one_page_that_none_of_them_is_too_new_for() {
        let (page, made) = (MetricsPage::default(), Arc::new(AtomicU32::new(0)));
        let get = || {
            let made = made.clone();
            page.get(move || {
                std::thread::sleep(MADE_IN);
                made.fetch_add(1, Ordering::SeqCst).to_string()
            })
        };
        let begun = Instant::now();
        assert_eq!(get().await.unwrap(), "0");
        let pages = join_all((0..256).map(|_| get())).await;
        assert!(pages.iter().all(|page| page.as_ref().is_some_and(|page| page == "1")), "{pages:?}");
        assert_eq!(get().await.unwrap(), "2", "it asked after that was made");
        assert!(begun.elapsed() >= MADE_IN * (1 + REST + 1 + REST + 1), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn who_leaves_while_his_page_is_made_makes_no_room_for_another() {
        let page = MetricsPage::default();
        let (begins, begun) = oneshot::channel();
        let leaving = page.get(move || {
            let _ = begins.send(Instant::now());
            std::thread::sleep(MADE_IN);
            String::new()
        });
        let begun = tokio::select! {
            _ = leaving => panic!("it was made at once"),
            begun = begun => begun.unwrap(),
        };
        page.get(String::new).await.unwrap();
        assert!(begun.elapsed() >= MADE_IN * (1 + REST), "{:?}", begun.elapsed());
    }
}
