use crate::cluster::{Cluster, DEADLINE, GROUPS, client_of};
use crate::history::History;
use bytes::Bytes;
use flotilla_kvnode::{CallError, Client, GroupFacts, NodeFacts};
use kv::Op;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::Process;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The number of writers of each group.
const WRITERS: u32 = 4;
/// The rest of a writer after each write: what befalls groups takes seconds, and other tests run beside it.
const REST: Duration = Duration::from_millis(10);
/// The most numbers under one key: each append writes all of them again.
const NUMBERS_PER_KEY: u64 = 256;

/// Writers that append one number after the other, each to keys of its own.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    writers: JoinSet<Written>,
}

pub(crate) struct Written {
    pub(crate) group: u32,
    writer: u32,
    pub(crate) history: History,
    /// The times when acknowledged writes were begun and acknowledged.
    pub(crate) acknowledged_at: Vec<(Instant, Instant)>,
    /// The times when the writer was told that an outcome is unknown.
    unknown_at: Vec<Instant>,
}

impl Load {
    /// Starts writers. `within`: how long a writer tries one write before it takes it for failed.
    pub(crate) fn start(cluster: &Cluster, within: Duration) -> Load {
        Load::start_after(cluster, within, 0)
    }

    /// Starts writers that are numbered from `first` on, so that their keys are not those of writers before
    /// them.
    pub(crate) fn start_after(cluster: &Cluster, within: Duration, first: u32) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let client = client_of(&cluster.addresses, within);
        let mut writers = JoinSet::new();
        for group in 1..=GROUPS {
            for writer in first..first + WRITERS {
                writers.spawn(write(client.clone(), group, writer, stop.clone()));
            }
        }
        Load { stop, writers }
    }

    pub(crate) async fn stop(self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let written = tokio::time::timeout(DEADLINE + DEADLINE, self.writers.join_all()).await;
        written.expect("writers end in time")
    }
}

fn key(writer: u32, number: u64) -> Bytes {
    format!("{writer}-{}", number / NUMBERS_PER_KEY).into()
}

async fn write(client: Client, group: u32, writer: u32, stop: Arc<AtomicBool>) -> Written {
    let (history, acknowledged_at, unknown_at) = Default::default();
    let mut written = Written { group, writer, history, acknowledged_at, unknown_at };
    for number in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        let value = Bytes::copy_from_slice(&number.to_le_bytes());
        match client.apply(group, &[Op::Append { key: key(writer, number), value }]).await {
            Ok(_) => {
                written.history.acknowledged.push(number);
                written.acknowledged_at.push((begun, Instant::now()));
            }
            Err(CallError::OutcomeUnknown) => {
                written.history.unknown.push(number);
                written.unknown_at.push(Instant::now());
            }
            Err(CallError::GaveUp { .. }) => written.history.refused.push(number),
            Err(CallError::Invalid(why)) => panic!("a write of a drill is refused: {why}"),
        }
        tokio::time::sleep(REST).await;
    }
    written
}

impl Written {
    pub(crate) fn next_writer(&self) -> u32 {
        self.writer + 1
    }

    /// Reads back what this writer wrote, and says what does not fit.
    pub(crate) async fn violations(&self, client: &Client) -> Vec<String> {
        let numbers =
            self.history.acknowledged.len() + self.history.unknown.len() + self.history.refused.len();
        let mut found = Vec::new();
        for first in (0..=numbers as u64).step_by(NUMBERS_PER_KEY as usize) {
            let value = client.read(self.group, &key(self.writer, first)).await.expect("read back");
            let value = value.unwrap_or_default();
            found.extend(value.chunks(8).map(|it| u64::from_le_bytes(it.try_into().expect("whole numbers"))));
        }
        let wrong = self.history.violations(&found);
        wrong.into_iter().map(|it| format!("group {} writer {}: {it}", self.group, self.writer)).collect()
    }
}

/// The longest time in which a group acknowledged nothing, from `begun` to `ended`; and when that time began.
pub(crate) fn longest_stall(
    written: &[Written],
    group: u32,
    begun: Instant,
    ended: Instant,
) -> (Duration, Instant) {
    let of_group = written.iter().filter(|writer| writer.group == group);
    let mut times: Vec<_> = of_group.flat_map(|writer| &writer.acknowledged_at).map(|(_, at)| *at).collect();
    times.retain(|at| (begun..ended).contains(at));
    times.extend([begun, ended]);
    times.sort_unstable();
    let stalls = times.windows(2).map(|pair| (pair[1] - pair[0], pair[0]));
    stalls.max().expect("there are a beginning and an end")
}

/// How many writes a group acknowledged from `begun` to `ended`.
pub(crate) fn acknowledged_between(written: &[Written], group: u32, begun: Instant, ended: Instant) -> usize {
    let of_group = written.iter().filter(|writer| writer.group == group);
    let times = of_group.flat_map(|writer| &writer.acknowledged_at);
    times.filter(|(_, at)| (begun..ended).contains(at)).count()
}

/// How many writes of all groups ended with an unknown outcome from `begun` to `ended`.
pub(crate) fn unknown_between(written: &[Written], begun: Instant, ended: Instant) -> usize {
    let times = written.iter().flat_map(|writer| &writer.unknown_at);
    times.filter(|at| (begun..ended).contains(*at)).count()
}

/// Checks that everything that was written is as its writers were told, and that no group and no process
/// failed. Answers how many writes were acknowledged.
pub(crate) async fn assert_kept(cluster: &Cluster, written: &[Written]) -> u64 {
    let mut wrong = failed_groups(&cluster.all_facts().await);
    wrong.extend(cluster.processes.iter().flat_map(Process::logs).filter_map(|log| first_panic(&log)));
    for writer in written {
        wrong.extend(writer.violations(&cluster.client).await);
    }
    assert!(wrong.is_empty(), "{} violations, the first: {:#?}", wrong.len(), &wrong[..wrong.len().min(10)]);
    written.iter().map(|writer| writer.history.acknowledged.len() as u64).sum()
}

fn failed_groups(nodes: &[NodeFacts]) -> Vec<String> {
    let failed = nodes.iter().flat_map(|node| &node.groups).filter(|group| group.has_failed);
    failed.map(|group| format!("group {} has failed: {group:?}", group.group)).collect()
}

/// The first panic in a process's log: one that ends a task and not its process shows nowhere else.
fn first_panic(log: &str) -> Option<String> {
    log.lines().find(|line| line.contains("panicked")).map(|line| format!("a process said: {line}"))
}

#[test]
fn planted_failures_and_panics_are_found() {
    let group = |group, has_failed| GroupFacts { group, has_failed, ..GroupFacts::default() };
    let node = |groups| NodeFacts { syncs: 0, groups };
    let nodes = [node(vec![group(1, false), group(2, false)]), node(vec![group(1, false), group(2, true)])];
    assert_eq!(failed_groups(&nodes[..1]), Vec::<String>::new());
    assert!(failed_groups(&nodes)[0].contains("group 2 has failed"));
    assert_eq!(first_panic("ready\nstopping\n"), None);
    let log = "ready\nthread 'main' panicked at src/x.rs:1:2:\nwhy\n";
    assert!(first_panic(log).unwrap().contains("src/x.rs"));
}

#[test]
fn stalls_and_progress_are_seen() {
    let zero = Instant::now();
    let at = |millis| zero + Duration::from_millis(millis);
    let writer = |group, writer, times: &[u64]| Written {
        group,
        writer,
        history: History::default(),
        acknowledged_at: times.iter().map(|millis| (zero, at(*millis))).collect(),
        unknown_at: vec![at(700)],
    };
    let written = [writer(1, 0, &[10, 900]), writer(1, 1, &[400]), writer(2, 0, &[500])];
    let stall = |group, begun, ended| longest_stall(&written, group, at(begun), at(ended)).0.as_millis();
    assert_eq!((stall(1, 0, 1000), stall(1, 0, 3000), stall(2, 0, 1000)), (500, 2100, 500));
    assert_eq!(stall(3, 0, 1000), 1000, "a group that acknowledges nothing stalls all the time");
    assert_eq!(acknowledged_between(&written, 1, at(10), at(900)), 2);
    assert_eq!(acknowledged_between(&written, 3, at(0), at(1000)), 0);
    assert_eq!(unknown_between(&written, at(700), at(701)), 3, "of all writers");
    assert_eq!(unknown_between(&written, at(0), at(700)), 0);
}
