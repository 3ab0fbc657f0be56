//! Tests of what the executor holds to, whatever an order is.

use super::*;
use anyhow::bail;
use tokio::sync::mpsc;
use tokio::time::advance;
use types::PipelineId;

/// Orders for one pipeline, each of which says when it begins, and ends when its test lets it.
struct Played {
    executor: Executor,
    begun: mpsc::UnboundedReceiver<(&'static str, Run, Ending)>,
    begins: mpsc::UnboundedSender<(&'static str, Run, Ending)>,
}

/// The way in which a run ends; dropped: with a panic.
type Ending = tokio::sync::oneshot::Sender<anyhow::Result<()>>;

const KEY: Key = Key { kind: TaskKind::TaskPipeline, pipeline: PipelineId(7), container: ContainerId(0) };

impl Played {
    fn new() -> Played {
        let executor = Executor::new(Inventory::default(), Workers::default());
        let (begins, begun) = mpsc::unbounded_channel();
        Played { executor, begun, begins }
    }

    fn order(&self, what: &'static str) -> Order {
        let begins = self.begins.clone();
        Order::new(KEY, what, move |run| async move {
            let (end, ended) = tokio::sync::oneshot::channel();
            begins.send((what, run, end)).unwrap();
            ended.await.expect("a planted panic")
        })
    }

    fn told(&self, whats: &[&'static str]) {
        let orders = whats.iter().map(|what| self.order(what)).collect();
        self.executor.told(orders, Instant::now());
    }

    async fn begun(&mut self, expect: &str) -> (Run, Ending) {
        let (what, run, end) = self.begun.recv().await.unwrap();
        assert_eq!(what, expect);
        (run, end)
    }

    /// Ends the run; on return it has said that it ended.
    async fn end(&self, ending: Ending, how: anyhow::Result<()>) {
        let wake = self.executor.inventory.wake();
        ending.send(how).unwrap();
        wake.notified().await;
    }

    async fn nothing_begins(&mut self) {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(self.begun.try_recv().is_err());
    }

    fn failed(&self) -> Vec<String> {
        self.executor.reports().into_iter().map(|report| report.failed).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_runs_once_at_a_time_and_is_done_again_only_if_it_is_still_told_later() {
    let mut played = Played::new();
    played.told(&["end"]);
    let (run, ending) = played.begun("end").await;
    played.told(&["end"]);
    played.nothing_begins().await;
    assert!(!run.stop.is_cancelled());
    played.end(ending, Ok(())).await;
    played.told(&["end"]);
    played.nothing_begins().await;
    advance(DONE_WAIT).await;
    played.nothing_begins().await;
    played.told(&["end"]);
    played.begun("end").await;
}

#[tokio::test(start_paused = true)]
async fn an_order_that_says_something_else_is_another_one() {
    let mut played = Played::new();
    let told = |said: u8| vec![played.order("copy").saying(vec![said])];
    let (first, again, other) = (told(1), told(1), told(2));
    played.executor.told(first, Instant::now());
    let (run, _ending) = played.begun("copy").await;
    played.executor.told(again, Instant::now());
    assert!(!run.stop.is_cancelled());
    played.executor.told(other, Instant::now());
    assert!(run.stop.is_cancelled());
    assert!(played.executor.reports().is_empty(), "nothing is heard of what was replaced");
}

#[tokio::test(start_paused = true)]
async fn what_is_withdrawn_or_replaced_is_asked_to_stop_and_nothing_takes_its_place_before_it_has_ended() {
    for between in [&[][..], &["let go"]] {
        let mut played = Played::new();
        played.told(&["end"]);
        let (run, ending) = played.begun("end").await;
        played.told(between);
        assert!(run.stop.is_cancelled());
        assert_eq!(played.failed(), [""; 0], "SCM hears nothing of it any more");
        played.told(&["end"]);
        played.told(&["let go"]);
        played.nothing_begins().await;
        played.end(ending, Err(anyhow::anyhow!("it was withdrawn"))).await;
        played.nothing_begins().await;
        played.told(&["let go"]);
        let (run, _ending) = played.begun("let go").await;
        assert!(!run.stop.is_cancelled());
        assert_eq!(played.failed(), [""]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_failed_waits_longer_each_time_and_another_order_of_its_key_waits_for_nothing() {
    let mut played = Played::new();
    for pause in [1, 2, 4] {
        played.told(&["let go"]);
        let (_, ending) = played.begun("let go").await;
        played.end(ending, Err(anyhow::anyhow!("no room"))).await;
        assert_eq!(played.failed(), ["no room"]);
        advance(Duration::from_millis(pause * 1000 - 1)).await;
        played.told(&["let go"]);
        played.nothing_begins().await;
        advance(Duration::from_millis(1)).await;
    }
    played.told(&["let go"]);
    let (_, ending) = played.begun("let go").await;
    drop(ending);
    played.executor.inventory.wake().notified().await;
    assert_eq!(played.failed(), ["it panicked"]);
    played.told(&["quasi-close"]);
    played.begun("quasi-close").await;
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_is_spoken_of_while_it_is_made() {
    let mut played = Played::new();
    let report = PipelineReport { pipeline: 7, replica: 3, ..PipelineReport::default() };
    let order = Order { making: Some(report.clone()), ..played.order("create") };
    assert_eq!(played.executor.making(), []);
    played.executor.told(vec![order], Instant::now());
    let (_, ending) = played.begun("create").await;
    assert_eq!(played.executor.making(), std::slice::from_ref(&report));
    // SCM says otherwise: it is here as long as it is being made.
    played.told(&["end"]);
    assert_eq!(played.executor.making(), [report]);
    played.end(ending, Ok(())).await;
    assert_eq!(played.executor.making(), []);
    played.told(&["end"]);
    played.begun("end").await;
    assert_eq!(played.executor.making(), []);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_node_asks_orders_to_stop_and_waits_for_them() {
    let executor = Executor::new(Inventory::default(), Workers::default());
    let order = Order::new(KEY, "end", |run| async move {
        run.until_stop(std::future::pending::<anyhow::Result<()>>()).await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(3)).await;
        bail!("after its last step")
    });
    let before = Instant::now();
    executor.told(vec![order], before);
    executor.workers.end().await;
    assert_eq!(before.elapsed(), Duration::from_secs(3));
    assert_eq!(executor.counts(), [("waiting", 0), ("running", 0), ("failed", 0)]);
}
