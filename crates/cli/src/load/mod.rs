//! `flotilla load`: many clients at once, and what they see.

pub(crate) mod args;
mod content;
mod mixed;
mod tally;
mod work;

use crate::output;
use anyhow::Context;
use args::{Kind, LoadArgs};
use client::{Client, ClientError, ClientOptions, S3_VOLUME};
use content::Content;
use proto::Code;
use rand::RngExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tally::Tally;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use work::Worker;

const COUNT_DEFAULT: u64 = 10_000;
/// The metadata by which a client of mixed load tells versions of a name apart.
const MIXED_METADATA_BYTES: usize = 32;
/// Problems that are told in words; the others are counted.
const TOLD_MAX: u64 = 20;

pub(crate) const FAILED: u8 = 1;
pub(crate) const WRONG: u8 = 3;

/// Why an operation counts as none.
enum Problem {
    /// It was refused, or nobody answered.
    Failed(ClientError),
    /// The cluster answered what cannot be.
    Wrong(String),
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Problem {
        Problem::Failed(error)
    }
}

/// The state that all clients of a run share.
struct Run {
    kind: Kind,
    bucket: String,
    content: Content,
    written: u64,
    /// Drawn for this run.
    drawn: u32,
    /// Numbers of operations; the next one, and the first that is too many.
    next: AtomicU64,
    end: u64,
    over: CancellationToken,
    tally: Mutex<Tally>,
    told: AtomicU64,
}

impl Run {
    fn next(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.end && !self.over.is_cancelled()).then_some(number)
    }

    fn note(&self, took: Duration, done: Result<u64, Problem>) {
        let mut tally = self.tally.lock().expect("no holder panics");
        let told = match done {
            Ok(bytes) => return tally.done(took, bytes),
            Err(Problem::Failed(error)) => {
                tally.failed += 1;
                format!("failed: {error}")
            }
            Err(Problem::Wrong(what)) => {
                tally.wrong += 1;
                format!("WRONG: {what}")
            }
        };
        drop(tally);
        if self.told.fetch_add(1, Ordering::Relaxed) < TOLD_MAX {
            output::complain(&format!("load: {}", output::printable(&told)));
        }
    }
}

pub(crate) async fn run(args: LoadArgs) -> anyhow::Result<u8> {
    let count = args.count.unwrap_or(if args.during.is_some() { u64::MAX } else { COUNT_DEFAULT });
    let options = ClientOptions { scm: args.cluster.scm.clone(), ..ClientOptions::default() };
    let sets: Vec<Client> = (0..args.connections).map(|_| Client::connect(options.clone())).collect();
    make_bucket(&sets[0], &args.bucket).await?;
    let metadata_bytes = match args.kind {
        Kind::Mixed => usize::from(args.metadata_bytes).max(MIXED_METADATA_BYTES),
        _ => args.metadata_bytes.into(),
    };
    let run = Arc::new(Run {
        kind: args.kind,
        bucket: args.bucket.clone(),
        content: Content {
            seed: args.seed,
            name_bytes: args.name_bytes.into(),
            metadata_bytes,
            object_bytes: args.object_bytes,
        },
        written: args.written,
        drawn: types::random::random().random(),
        next: AtomicU64::new(args.first),
        end: args.first.saturating_add(count),
        over: CancellationToken::new(),
        tally: Mutex::default(),
        told: AtomicU64::new(0),
    });
    let mut workers = JoinSet::new();
    for (number, client) in (0..u64::from(args.clients)).zip(sets.iter().cycle()) {
        workers.spawn(Worker { run: run.clone(), client: client.clone(), number }.work());
    }
    let total = report(&args, &run, workers).await?;
    Ok(match (total.wrong, total.failed) {
        (0, 0) => 0,
        (0, _) => FAILED,
        _ => WRONG,
    })
}

async fn make_bucket(client: &Client, bucket: &str) -> anyhow::Result<()> {
    match client.create_bucket(S3_VOLUME, bucket).await {
        Err(error) if error.code() != Some(Code::BucketExists) => {
            Err(error).with_context(|| format!("make the bucket {bucket}"))
        }
        _ => Ok(()),
    }
}

/// Prints a line now and then until all have ended, and one of all at the end.
async fn report(args: &LoadArgs, run: &Run, mut workers: JoinSet<()>) -> anyhow::Result<Tally> {
    let begun = Instant::now();
    let mut lines = tokio::time::interval_at(begun + args.every, args.every);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut at_end = std::pin::pin!(tokio::time::sleep(args.during.unwrap_or(Duration::MAX)));
    let (mut total, mut last) = (Tally::default(), begun);
    if !args.json {
        output::print(Tally::HEADING)?;
    }
    loop {
        tokio::select! {
            ended = workers.join_next() => match ended {
                None => break,
                Some(ended) => ended.context("a client")?,
            },
            _ = lines.tick() => {
                let tally = std::mem::take(&mut *run.tally.lock().expect("no holder panics"));
                total.add(&tally);
                print(args, &tally, begun.elapsed(), last.elapsed(), false)?;
                last = Instant::now();
            }
            () = &mut at_end, if !run.over.is_cancelled() => run.over.cancel(),
            _ = tokio::signal::ctrl_c(), if !run.over.is_cancelled() => run.over.cancel(),
        }
    }
    total.add(&run.tally.lock().expect("no holder panics"));
    print(args, &total, begun.elapsed(), begun.elapsed(), true)?;
    Ok(total)
}

fn print(args: &LoadArgs, tally: &Tally, at: Duration, over: Duration, is_total: bool) -> anyhow::Result<()> {
    let line = match (args.json, is_total) {
        (true, _) => format!("{}\n", tally.json(at, over, is_total)),
        (false, false) => tally.line(at, over),
        (false, true) => format!("in all\n{}", tally.line(at, over)),
    };
    Ok(output::print(&line)?)
}
