//! Writers, overwriters, readers and deleters, and uploads that end nowhere, while gateways, OMs, SCMs and
//! datanodes are killed, all at once too, a disk fills or loses power, and their bucket moves from group to
//! group: nothing that was acknowledged is taken for garbage, all garbage goes, and `admin space` says what
//! `du` does.
//!
//! A short form is a test. `./dev drill space [--minutes N] [--seed S]` goes on for longer.

mod faults;
mod names;

use crate::binary;
use crate::commands::{admin_json, flotilla};
use crate::om_members::{GROUPS, whole_groups};
use crate::om_space::waiting;
use crate::om_sweep::{close_all, live_bytes, sweep_now};
use crate::s3::S3;
use crate::small_disk::SmallDisk;
use faults::{Faults, Harm, Store};
use futures::future::join_all;
use names::{Client, Done, Name};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY, disk_bytes};

const BUCKET: &str = "space";
const CLIENTS: u32 = 8;
const OMS: usize = 3;
const DATANODES: usize = 4;
/// The time between two moves of the bucket.
const MOVES_EVERY: Duration = Duration::from_secs(3);
/// The size of the disk that fills.
const DISK_BYTES: u64 = 2 << 30;
const CONTAINER_BYTES_MAX: u64 = 8 << 20;
/// One in so many of the names that are there at the end stays.
const STAYS: usize = 10;
/// The time within which everything has gone that is to, on a machine that does other things too.
const GONE_WITHIN: Duration = Duration::from_secs(300);
/// The most that a replica takes beside the lengths of its files: its directory, and what two of them are
/// rounded up to.
const ROUNDED_BYTES: u64 = 3 * 4096;
const AGREED_WITHIN: Duration = Duration::from_secs(60);
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

/// Every kind of harm comes in so many minutes, on a machine that does other things too.
const ALL_KINDS_WITHIN_MINUTES: u64 = 5;

struct Plan {
    harmed_for: Duration,
    seed: u64,
}

/// What a drill found.
struct Found {
    done: Done,
    harm: Harm,
    moves: u64,
    names: usize,
    left: Left,
}

/// What is left when all has gone that is to.
struct Left {
    live_bytes: u64,
    /// What `admin space` says that containers take on all disks, and what `du` says.
    told_bytes: u64,
    disk_bytes: u64,
    gone_after: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_garbage_and_all_garbage_goes() {
    run(Plan { harmed_for: Duration::from_secs(8), seed: 1 }).await;
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
    assert!(found.moves > 0, "the bucket has never moved");
    if minutes >= ALL_KINDS_WITHIN_MINUTES {
        let missed = faults::missed(&found.harm);
        assert!(missed.is_empty(), "there was no {missed:?}: {:?}", found.harm);
    }
    println!("{}", told(&found, minutes, seed));
}

fn told(found: &Found, minutes: u64, seed: u64) -> Value {
    let Left { live_bytes, told_bytes, disk_bytes, gone_after } = found.left;
    json!({
        "space_drill": minutes, "seed": seed, "acknowledged": found.done.acknowledged, "reads": found.done.reads,
        "failed": found.done.failed, "harm": found.harm, "moves": found.moves, "names": found.names,
        "live_bytes": live_bytes, "told_bytes": told_bytes, "disk_bytes": disk_bytes,
        "of_live": disk_bytes as f64 / live_bytes as f64, "gone_after_s": gone_after.as_secs_f64(),
    })
}

/// Starts a cluster in which all that is no use goes soon, and of which the first disk can be filled where
/// this machine allows it.
fn start() -> Store {
    let first_disk = SmallDisk::mount(DISK_BYTES);
    let options = ClusterOptions {
        scms: 3,
        oms: OMS,
        datanodes: DATANODES,
        disks_per_datanode: 1,
        pipelines_per_disk: 2,
        container_bytes_max: CONTAINER_BYTES_MAX,
        om_args: "--reclaim-after 2s --any-reclaim-after --sweep-after 2s --sweep-every 5s".to_owned(),
        scm_args: "--roll-dead-after 3s".to_owned(),
        first_disk: first_disk.as_ref().map(SmallDisk::root),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(binary(), &options);
    let begun = Instant::now();
    while let Err(groups) = whole_groups(&cluster.scm_address, GROUPS, OMS) {
        assert!(begun.elapsed() < GONE_WITHIN, "groups of names do not grow: {groups:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Store { cluster, first_disk }
}

async fn run(plan: Plan) -> Found {
    println!(
        "again: ./dev drill space --minutes {} --seed {}",
        plan.harmed_for.as_secs().div_ceil(60),
        plan.seed
    );
    let store = tokio::task::spawn_blocking(start).await.unwrap();
    let s3 = S3::new(&store.cluster.endpoint, ACCESS_KEY, SECRET_KEY, BUCKET);
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
    let mover = {
        let (scm, over) = (store.cluster.scm_address.clone(), over.clone());
        tokio::task::spawn_blocking(move || move_about(&scm, &over))
    };
    let faults = Faults::start(store, plan.seed);
    tokio::time::sleep(plan.harmed_for).await;
    let (store, harm) = faults.stop().await;
    over.store(true, Ordering::Relaxed);
    let clients: Vec<Client> = join_all(clients).await.into_iter().map(Result::unwrap).collect();
    let moves = mover.await.unwrap();
    let done = clients.iter().map(|client| client.done).fold(Done::default(), |all, one| Done {
        acknowledged: all.acknowledged + one.acknowledged,
        failed: all.failed + one.failed,
        reads: all.reads + one.reads,
    });
    let names: Vec<Name> = clients.into_iter().flat_map(Client::names).collect();
    println!("{done:?}, {} names, {harm:?}, {moves} moves", names.len());
    let left = all_goes_but_what_stays(&store.cluster, &s3, &names).await;
    Found { done, harm, moves, names: names.len(), left }
}

/// Moves the bucket from group to group until it is over: how often it has moved.
fn move_about(scm: &str, over: &AtomicBool) -> u64 {
    let mut moves = 0;
    while !over.load(Ordering::Relaxed) {
        let to = (moves % GROUPS as u64).to_string();
        let moved = flotilla(&["admin", "--scm", scm, "bucket", "move", BUCKET, "--to", &to], None);
        moves += u64::from(moved.status.success());
        std::thread::sleep(MOVES_EVERY);
    }
    moves
}

/// Reads all, deletes nearly all, and waits until that is gone.
async fn all_goes_but_what_stays(cluster: &Cluster, s3: &S3, names: &[Name]) -> Left {
    for name in names {
        let found = read(s3, &name.key).await;
        name.check(found.as_deref()).unwrap_or_else(|wrong| panic!("after quiet: {wrong}"));
    }
    let (mut staying, mut live_bytes) = (Vec::new(), 0);
    for (at, name) in names.iter().enumerate() {
        if at % STAYS == 0 && name.version().is_some() {
            live_bytes += 3 * read(s3, &name.key).await.map_or(0, |body| body.len() as u64);
            staying.push(name);
        } else {
            delete(s3, &name.key).await;
        }
    }
    let begun = Instant::now();
    while let Err(why) = is_gone(cluster, live_bytes) {
        assert!(begun.elapsed() < GONE_WITHIN, "not all has gone: {why}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let gone_after = begun.elapsed();
    for name in staying {
        let found = read(s3, &name.key).await;
        name.check(found.as_deref()).unwrap_or_else(|wrong| panic!("after the rest has gone: {wrong}"));
    }
    let (told_bytes, disk_bytes) = until_agreed(cluster).await;
    Left { live_bytes, told_bytes, disk_bytes, gone_after }
}

/// An error says what is not as it is to be: no group of names waits for anything, no upload is left,
/// datanodes have what names name and nothing else, and all containers are closed, with three equal replicas.
fn is_gone(cluster: &Cluster, live_bytes_wanted: u64) -> Result<(), String> {
    let scm = &cluster.scm_address;
    let ended = admin_json(scm, &["om", "uploads", "--older-than", "1s", "--abort"]);
    if !ended["uploads"].as_array().unwrap().is_empty() {
        return Err(format!("uploads: {ended}"));
    }
    // Nobody looks into an open container for what no name has.
    close_all(scm);
    sweep_now(scm);
    let (waiting, live) = (waiting(cluster), live_bytes(scm));
    let unlike: Vec<Value> = containers(scm, "closed").into_iter().filter(|info| !is_whole(info)).collect();
    match waiting == (0, 0, 0) && live == live_bytes_wanted && unlike.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{waiting:?} wait, {live} bytes are live and not {live_bytes_wanted}, these are not whole: {unlike:?}"
        )),
    }
}

fn containers(scm: &str, state: &str) -> Vec<Value> {
    admin_json(scm, &["container", "list", "--state", state])["containers"].as_array().unwrap().clone()
}

/// Whether it has three good replicas, all of the same bytes.
fn is_whole(info: &Value) -> bool {
    let replicas = info["replicas"].as_array().unwrap();
    let hash = &replicas[0]["hash"];
    let is_equal = |replica: &Value| replica["hash"] == *hash && replica["unhealthy"].is_null();
    replicas.len() == 3 && hash.is_string() && replicas.iter().all(is_equal)
}

/// Waits until `admin space` says of each disk what `du` does: both sums.
async fn until_agreed(cluster: &Cluster) -> (u64, u64) {
    let begun = Instant::now();
    loop {
        let space = admin_json(&cluster.scm_address, &["space"]);
        let told = |what: &str| -> u64 {
            let of = |disk: &Value| disk["space"][what].as_u64().unwrap();
            space["disks"].as_array().unwrap().iter().map(of).sum()
        };
        let (told, rounded) = (told("disk_bytes"), told("replicas") * ROUNDED_BYTES);
        let disks = (0..DATANODES).map(|node| cluster.disk(node, 0).join("containers"));
        let found: u64 = disks.map(|disk| disk_bytes(&disk)).sum();
        if found.abs_diff(told) <= rounded {
            return (told, found);
        }
        assert!(begun.elapsed() < AGREED_WITHIN, "{told} bytes are told of, {found} found: {space}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
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
