//! Writers, overwriters, readers and deleters, and uploads that end nowhere, while gateways, OM, SCMs and
//! datanodes are killed: nothing that was acknowledged is taken for garbage, and all garbage goes.
//!
//! A short form is a test. `./dev drill space [--minutes N] [--seed S]` goes on for longer.

mod faults;
mod names;

use crate::binary;
use crate::commands::admin_json;
use crate::om_space::waiting;
use crate::s3::S3;
use faults::{Faults, Kills};
use futures::future::join_all;
use names::{Client, Done, Name};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY, disk_bytes};

const BUCKET: &str = "space";
const CLIENTS: u32 = 8;
const DATANODES: usize = 4;
const CONTAINER_BYTES_MAX: u64 = 8 << 20;
/// One in so many of the names that are there at the end stays.
const STAYS: usize = 10;
/// The time within which everything has gone that is to, on a machine that does other things too.
const GONE_WITHIN: Duration = Duration::from_secs(300);
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

struct Plan {
    harmed_for: Duration,
    seed: u64,
}

/// What a drill found.
struct Found {
    done: Done,
    kills: Kills,
    names: usize,
    live_bytes: u64,
    left_bytes: u64,
    gone_after: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_garbage_and_all_garbage_goes() {
    run(Plan { harmed_for: Duration::from_secs(15), seed: 1 }).await;
}

/// `./dev drill space`: for as long as `FLOTILLA_DRILL_MINUTES` says, with one line of JSON at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "many minutes: ./dev drill space"]
async fn drill() {
    let setting = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (minutes, seed) = (setting("FLOTILLA_DRILL_MINUTES", 5), setting("FLOTILLA_DRILL_SEED", 1));
    let found = run(Plan { harmed_for: Duration::from_secs(60 * minutes), seed }).await;
    println!("{}", told(&found, minutes, seed));
}

fn told(found: &Found, minutes: u64, seed: u64) -> Value {
    json!({
        "space_drill": minutes, "seed": seed, "acknowledged": found.done.acknowledged, "reads": found.done.reads,
        "failed": found.done.failed, "kills": found.kills, "names": found.names, "live_bytes": found.live_bytes,
        "left_bytes": found.left_bytes, "of_live": found.left_bytes as f64 / found.live_bytes as f64,
        "gone_after_s": found.gone_after.as_secs_f64(),
    })
}

async fn run(plan: Plan) -> Found {
    println!(
        "again: ./dev drill space --minutes {} --seed {}",
        plan.harmed_for.as_secs().div_ceil(60),
        plan.seed
    );
    let options = ClusterOptions {
        scms: 3,
        datanodes: DATANODES,
        disks_per_datanode: 1,
        pipelines_per_disk: 2,
        container_bytes_max: CONTAINER_BYTES_MAX,
        om_args: "--reclaim-after 2s --any-reclaim-after --sweep-after 5s --sweep-every 20s".to_owned(),
        scm_args: "--roll-dead-after 3s".to_owned(),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(binary(), &options);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, BUCKET);
    s3.create_bucket().await.unwrap();
    let over = Arc::<AtomicBool>::default();
    let clients = (0..CLIENTS).map(|number| {
        let (mut client, over) = (Client::new(s3.clone(), number, plan.seed), over.clone());
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                client.operate().await.unwrap();
            }
            client
        })
    });
    let clients: Vec<_> = clients.collect();
    let faults = Faults::start(cluster, plan.seed);
    tokio::time::sleep(plan.harmed_for).await;
    let (cluster, kills) = faults.stop().await;
    over.store(true, Ordering::Relaxed);
    let clients: Vec<Client> = join_all(clients).await.into_iter().map(Result::unwrap).collect();
    let done = clients.iter().map(|client| client.done).fold(Done::default(), |all, one| Done {
        acknowledged: all.acknowledged + one.acknowledged,
        failed: all.failed + one.failed,
        reads: all.reads + one.reads,
    });
    let names: Vec<Name> = clients.into_iter().flat_map(Client::names).collect();
    println!("{done:?}, {} names, {kills:?}", names.len());
    let (live_bytes, left_bytes, gone_after) = all_goes_but_what_stays(&cluster, &s3, &names).await;
    Found { done, kills, names: names.len(), live_bytes, left_bytes, gone_after }
}

/// Reads all, deletes nearly all, and waits until that is gone.
async fn all_goes_but_what_stays(cluster: &Cluster, s3: &S3, names: &[Name]) -> (u64, u64, Duration) {
    for name in names {
        let found = read(s3, &name.key).await;
        name.check(found.as_deref()).unwrap_or_else(|wrong| panic!("after quiet: {wrong}"));
    }
    let (mut staying, mut live_bytes) = (Vec::new(), 0);
    for (at, name) in names.iter().enumerate() {
        if at % STAYS == 0 && name.version().is_some() {
            live_bytes += read(s3, &name.key).await.map_or(0, |body| body.len() as u64);
            staying.push(name);
        } else {
            delete(s3, &name.key).await;
        }
    }
    let begun = Instant::now();
    while !is_gone(cluster) {
        assert!(begun.elapsed() < GONE_WITHIN, "{:?} wait", waiting(cluster));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let gone_after = begun.elapsed();
    for name in staying {
        let found = read(s3, &name.key).await;
        name.check(found.as_deref()).unwrap_or_else(|wrong| panic!("after the rest has gone: {wrong}"));
    }
    let disks = (0..DATANODES).map(|node| cluster.disk(node, 0).join("containers"));
    (3 * live_bytes, disks.map(|disk| disk_bytes(&disk)).sum(), gone_after)
}

/// Whether no group of names waits for anything, and no upload is left.
fn is_gone(cluster: &Cluster) -> bool {
    let ended = admin_json(&cluster.scm_address, &["om", "uploads", "--older-than", "1s", "--abort"]);
    ended["uploads"].as_array().unwrap().is_empty() && waiting(cluster) == (0, 0, 0)
}

async fn read(s3: &S3, key: &str) -> Option<Vec<u8>> {
    let give_up = Instant::now() + ANSWERED_WITHIN;
    loop {
        match s3.get(key).await {
            Ok(found) => return found,
            Err(why) => assert!(Instant::now() < give_up, "{key} cannot be read: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn delete(s3: &S3, key: &str) {
    let give_up = Instant::now() + ANSWERED_WITHIN;
    while let Err(why) = s3.delete(key).await {
        assert!(Instant::now() < give_up, "{key} cannot be deleted: {why}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
