use super::appenders::Budget;
use super::contender::{Appended, Case, Contender, Limits, payload};
use bytes::Bytes;
use disk::{DiskIo, RealDisk};
use diskhooks::Syncs;
use futures::future::join_all;
use raftlog::{Entry, Log, LogSpace, LogSpaceOptions, LogSpec};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use types::{LogId, LogIndex, OwnerId, Payload, Term};

/// `crates/raftlog` with its default limits, all logs on one disk. A task for each log keeps `window` appends
/// under way; each has a buffer of its own, copied and checksummed as what arrives from a network would be.
pub(super) struct Flotilla {
    case: Case,
    // The logs come before the runtime: they close on it.
    logs: Vec<Log>,
    syncs: Syncs,
    payload: Arc<[u8]>,
    runtime: Runtime,
}

impl Flotilla {
    pub(super) fn open(case: Case, io: DiskIo, root: &Path) -> Flotilla {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("start tokio");
        let (disk, syncs) =
            (RealDisk::open_with(root, 0, io).expect("open a data directory"), Syncs::default());
        let space = LogSpace::new(Arc::new(syncs.of(Arc::new(disk))), LogSpaceOptions::default());
        let specs = (1..=case.logs as u64).map(|log| LogSpec {
            log,
            dir: format!("groups/{log}"),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(log),
        });
        let opened = runtime.block_on(join_all(specs.map(|spec| space.open(spec))));
        let logs = opened.into_iter().map(|log| log.expect("open a log")).collect();
        Flotilla { case, logs, syncs, payload: payload(case.payload_bytes).into(), runtime }
    }
}

impl Contender for Flotilla {
    fn append(&mut self, limits: Limits) -> Appended {
        let started = Instant::now();
        let budget = Arc::new(Budget::new(self.case, limits));
        let tasks: Vec<_> = self
            .logs
            .iter()
            .map(|log| {
                let appending =
                    append_until(log.clone(), self.payload.clone(), self.case.window, budget.clone());
                self.runtime.spawn(appending)
            })
            .collect();
        let mut appended = Appended::default();
        for task in tasks {
            appended.latencies.extend(self.runtime.block_on(task).expect("an appender panicked"));
        }
        appended.elapsed = started.elapsed();
        appended.appends = appended.latencies.len() as u64;
        appended
    }

    fn syncs(&self) -> u64 {
        self.syncs.count()
    }

    fn reclaim(&mut self) {
        let reclaims = self.logs.iter().map(async |log| {
            if let Some(last) = log.state().last {
                log.purge(last).await.expect("purge");
                log.delete_purged_segments().await.expect("delete purged segments");
            }
        });
        self.runtime.block_on(join_all(reclaims));
    }
}

async fn append_until(log: Log, payload: Arc<[u8]>, window: usize, budget: Arc<Budget>) -> Vec<Duration> {
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    let mut next = log.state().last.map_or(LogIndex(1), |last| last.index.next());
    let (mut latencies, mut under_way) = (Vec::new(), 0);
    let mut arrived = Vec::with_capacity(window);
    loop {
        while under_way < window && budget.take(1) {
            let started = Instant::now();
            let sender = sender.clone();
            let token = log.append(vec![entry(next, &payload)]).expect("append");
            token.on_durable(move |outcome| {
                // The receiver waits for everything it sent.
                let _ = sender.send(outcome.map(|()| started.elapsed()));
            });
            next = next.next();
            under_way += 1;
        }
        if under_way == 0 {
            return latencies;
        }
        under_way -= outcomes.recv_many(&mut arrived, window).await;
        latencies.extend(arrived.drain(..).map(|outcome| outcome.expect("an append failed")));
    }
}

fn entry(index: LogIndex, payload: &[u8]) -> Entry {
    Entry {
        id: LogId { term: Term(1), index },
        kind: 0,
        meta: Bytes::new(),
        body: Payload::checksummed(Bytes::copy_from_slice(payload)),
        roll_to: None,
    }
}
