//! `flotilla load`: many clients at once, and what they see.

pub(crate) mod args;
mod content;
mod mixed;
mod shared;
mod tally;
mod work;

use crate::output;
use anyhow::Context;
use args::{Kind, LoadArgs};
use client::{Client, ClientOptions, S3_VOLUME};
use content::Content;
use mixed::Mixed;
use proto::Code;
use rand::RngExt;
use shared::Run;
use std::sync::atomic::AtomicU64;
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

pub(crate) const FAILED: u8 = 1;
pub(crate) const WRONG: u8 = 3;

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
            directories: args.directories,
            metadata_bytes,
            object_bytes: args.object_bytes,
        },
        written: args.written,
        stays: args.stays,
        drawn: types::random::random().random(),
        next: AtomicU64::new(args.first),
        end: args.first.saturating_add(count),
        over: CancellationToken::new(),
        tally: Mutex::default(),
        told: AtomicU64::new(0),
    });
    let mut workers = JoinSet::new();
    for (number, client) in (0..u64::from(args.clients)).zip(sets.iter().cycle()) {
        let worker = Worker { run: run.clone(), client: client.clone(), number };
        match args.kind {
            Kind::Mixed => workers.spawn(Mixed::new(worker).work()),
            _ => workers.spawn(worker.work()),
        };
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

/// Prints a line now and then until all clients have ended, and then one of the whole run.
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
