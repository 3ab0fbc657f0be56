//! What writers that died have left behind comes back, and a name whose block is nowhere is told of.

use crate::commands::{admin_json, flotilla};
use crate::om_members::Names;
use crate::s3::S3;
use crate::{binary, commands};
use client::{Client, ClientOptions, S3_VOLUME};
use proto::om::{ListKeysRequest, listed_key};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY};

const KILLS: usize = 12;
const WRITERS: usize = 6;
const OBJECT_BYTES: usize = 1_500_000;
/// The time within which all has gone, on a machine that does other things too; alone it takes some seconds.
const WITHIN: Duration = Duration::from_secs(180);
const BUCKET: &str = "swept";

/// Starts a cluster with one disk a node and small containers, in which all that is no use goes soon.
fn start(om_args: &str) -> (Cluster, S3) {
    let options = ClusterOptions {
        disks_per_datanode: 1,
        pipelines_per_disk: 1,
        container_bytes_max: 8 << 20,
        om_args: format!("--reclaim-after 2s --any-reclaim-after {om_args}"),
        scm_args: "--roll-dead-after 3s".to_owned(),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(binary(), &options);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, BUCKET);
    (cluster, s3)
}

fn body(n: usize) -> Vec<u8> {
    let mut state = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(&mut next).take(OBJECT_BYTES).collect()
}

fn key(n: usize) -> String {
    format!("o/{n:04}")
}

/// Waits until it holds; meanwhile it says why not.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(why) = holds().await {
        assert!(begun.elapsed() < WITHIN, "{what}: {why}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("{what} after {:?}", begun.elapsed());
}

/// Keys, with the sizes of their objects.
async fn listed(client: &Client) -> BTreeMap<String, u64> {
    let request = ListKeysRequest {
        volume: S3_VOLUME.to_owned(),
        bucket: BUCKET.to_owned(),
        limit: 1000,
        ..ListKeysRequest::default()
    };
    let page = client.list_keys(request).await.unwrap();
    assert!(!page.truncated);
    let key = |entry: listed_key::Entry| match entry {
        listed_key::Entry::Key(key) => (String::from_utf8(key.key.to_vec()).unwrap(), key.size),
        listed_key::Entry::CommonPrefix(prefix) => panic!("{prefix:?}"),
    };
    page.entries.into_iter().filter_map(|entry| entry.entry).map(key).collect()
}

/// Live bytes of all replicas.
pub(crate) fn live_bytes(scm: &str) -> u64 {
    let space = admin_json(scm, &["space"]);
    let of = |state: &Value| state["space"]["live_bytes"].as_u64().unwrap();
    space["containers"].as_array().unwrap().iter().map(of).sum()
}

fn containers(scm: &str, state: &str) -> Vec<u64> {
    let listed = admin_json(scm, &["container", "list", "--state", state]);
    let number = |container: &Value| container["container"].as_u64().unwrap();
    listed["containers"].as_array().or(listed.as_array()).unwrap().iter().map(number).collect()
}

/// Has the bucket in another group, which has fences to take before, while sweeps go on.
async fn move_to(cluster: &Cluster, group: u64) {
    let (scm, group) = (cluster.scm_address.clone(), group.to_string());
    until("the bucket has moved", async || {
        let moved = flotilla(&["admin", "--scm", &scm, "bucket", "move", BUCKET, "--to", &group], None);
        match moved.status.success() {
            true => Ok(()),
            false => Err(format!("{moved:?}")),
        }
    })
    .await;
}

/// Has what is open closed.
pub(crate) fn close_all(scm: &str) {
    for container in containers(scm, "open") {
        let container = container.to_string();
        let _ = flotilla(&["admin", "--scm", scm, "container", "close", &container], None);
    }
}

pub(crate) fn sweep_now(scm: &str) {
    // While the root has no leader it is asked again.
    let _ = flotilla(&["admin", "--scm", scm, "sweep", "run"], None);
}

/// Puts object after object until the gateway dies, and answers which were acknowledged.
async fn write(s3: S3, numbers: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut acknowledged = Vec::new();
    for n in numbers {
        match s3.put(&key(n), body(n)).await {
            Ok(()) => acknowledged.push(n),
            Err(_) => break,
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gateways_that_died_have_left_comes_back_and_nothing_else() {
    let (mut cluster, s3) = start("--sweep-after 1s --sweep-every 3s");
    s3.create_bucket().await.unwrap();
    let mut acknowledged = Vec::new();
    for round in 0..KILLS {
        // One at least, also on a machine that stands still while the others write.
        let whole = KILLS * WRITERS * 8 + round;
        until("an object is put", async || s3.put(&key(whole), body(whole)).await).await;
        acknowledged.push(whole);
        let first = |writer: usize| (round * WRITERS + writer) * 8;
        let writers = (0..WRITERS).map(|writer| {
            let numbers = first(writer)..first(writer) + 8;
            tokio::spawn(write(s3.clone(), numbers))
        });
        let writers: Vec<_> = writers.collect();
        // In the middle of something, whatever that is.
        tokio::time::sleep(Duration::from_millis(150 + 37 * round as u64)).await;
        cluster.gateway.kill9();
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        cluster.gateway.start_again();
        if round % 4 == 3 {
            move_to(&cluster, [0, 2, 3][round / 4]).await;
        }
    }
    let client =
        Client::connect(ClientOptions { scm: cluster.scm_address.clone(), ..ClientOptions::default() });
    let before = live_bytes(&cluster.scm_address);
    let begun = Instant::now();
    until("all that nobody names is gone", async || {
        if begun.elapsed() > Duration::from_secs(2) {
            close_all(&cluster.scm_address);
        }
        let (named, live) = (listed(&client).await.values().sum::<u64>(), live_bytes(&cluster.scm_address));
        let sweep = admin_json(&cluster.scm_address, &["sweep", "status"]);
        // What is in an open container is told of late: nothing may be there yet of what is to go.
        match live == 3 * named && sweep["orphans"].as_u64() > Some(0) {
            true => Ok(()),
            false => Err(format!("3 x {named} bytes are named, and {live} there; {sweep}")),
        }
    })
    .await;
    let sweep = admin_json(&cluster.scm_address, &["sweep", "status"]);
    println!("{} acknowledged; {before} bytes before; {sweep}", acknowledged.len());
    assert_eq!(sweep["lost"], 0, "{sweep}");
    for n in acknowledged {
        let found = s3.get(&key(n)).await.unwrap();
        assert!(found == Some(body(n)), "object {n} has other bytes");
    }
    // What is named besides was committed, and its writer died before it heard so.
    for (key, size) in listed(&client).await {
        assert_eq!(s3.get(&key).await.unwrap().map(|body| body.len() as u64), Some(size), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_container_is_nowhere_is_told_of_by_name() {
    let (mut cluster, s3) = start("--sweep-after 1s");
    s3.create_bucket().await.unwrap();
    for n in 0..12 {
        s3.put(&key(n), body(n)).await.unwrap();
    }
    close_all(&cluster.scm_address);
    let explained = admin_json(&cluster.scm_address, &["key", "explain", &format!("{BUCKET}/{}", key(0))]);
    let lost = explained["pieces"][0]["container"].as_u64().unwrap();
    until("no log reads its container any more", async || {
        let info = admin_json(&cluster.scm_address, &["container", "info", &lost.to_string()]);
        let released = info.to_string().matches("\"released\":true").count();
        match released == 3 {
            true => Ok(()),
            false => Err(info.to_string()),
        }
    })
    .await;
    for datanode in &mut cluster.datanodes {
        assert!(datanode.terminate().success());
    }
    for disk in (0..3).map(|datanode| cluster.disk(datanode, 0)) {
        remove_container(&disk, lost);
    }
    for datanode in &mut cluster.datanodes {
        datanode.spawn_again();
    }
    for datanode in &mut cluster.datanodes {
        datanode.wait_ready();
    }
    let scm = cluster.scm_address.clone();
    until("it is told of", async || {
        sweep_now(&cluster.scm_address);
        let told = admin_json(&scm, &["om", "lost"]);
        let named = |key: &str| {
            let is_it = |lost: &Value| lost["key"] == key && lost["bucket"] == BUCKET;
            told["lost"].as_array().unwrap().iter().any(is_it)
        };
        match named(&key(0)) {
            true => Ok(()),
            false => Err(format!("{told}; {}", admin_json(&scm, &["sweep", "status"]))),
        }
    })
    .await;
    let told = admin_json(&scm, &["om", "lost"]);
    let is_of_it = |found: &Value| found["container"] == lost;
    assert!(told["lost"].as_array().unwrap().iter().all(is_of_it), "{told}");
    let status = commands::flotilla(&["admin", "--scm", &scm, "--json", "status"], None);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("names-lost"), "{status}");
    // What is in other containers is there.
    let explained = |n| admin_json(&scm, &["key", "explain", &format!("{BUCKET}/{}", key(n))]);
    let is_lost =
        |n| explained(n)["pieces"].as_array().unwrap().iter().any(|piece| piece["container"] == lost);
    for n in (0..12).filter(|n| !is_lost(*n)) {
        assert!(s3.get(&key(n)).await.unwrap() == Some(body(n)), "object {n}");
    }
}

/// Waits until the sweep is stopped, and answers why.
async fn until_stopped(scm: &str) -> String {
    let mut why = String::new();
    until("the sweep is stopped", async || {
        let sweep = admin_json(scm, &["sweep", "status"]);
        why = sweep["stopped"].as_str().unwrap_or_default().to_owned();
        if why.is_empty() { Err(sweep.to_string()) } else { Ok(()) }
    })
    .await;
    let status = flotilla(&["admin", "--scm", scm, "--json", "status"], None);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("sweep-stopped"), "{status}");
    why
}

/// Waits until the root's leader has looked since this moment.
async fn until_looked(scm: &str) {
    let looked = || admin_json(scm, &["sweep", "status"])["looked_ms"].as_u64().unwrap_or_default();
    let before = looked();
    until("the sweep has looked", async || match looked() > before {
        true => Ok(()),
        false => Err("not yet".to_owned()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_copy_of_the_only_oms_directory_costs_no_byte_of_what_the_right_one_names() {
    let (mut cluster, s3) = start("--sweep-after 1s --sweep-every 3s");
    let scm = cluster.scm_address.clone();
    s3.create_bucket().await.unwrap();
    for n in 0..4 {
        s3.put(&key(n), body(n)).await.unwrap();
    }
    let [meta, old, right] = ["om1", "om-old", "om-right"].map(|name| cluster.path().join(name));
    assert!(cluster.oms[0].terminate().success());
    copy(&meta, &old);
    cluster.oms[0].start_again();
    for n in 4..12 {
        s3.put(&key(n), body(n)).await.unwrap();
    }
    close_all(&cluster.scm_address);
    until_looked(&scm).await;
    // Nodes tell of what they have a while later.
    let live = 3 * (0..12).map(|n| body(n).len() as u64).sum::<u64>();
    until("SCM knows what there is", async || match live_bytes(&cluster.scm_address) {
        told if told == live => Ok(()),
        told => Err(format!("{told} bytes, and not {live}")),
    })
    .await;

    assert!(cluster.oms[0].terminate().success());
    std::fs::rename(&meta, &right).unwrap();
    copy(&old, &meta);
    cluster.oms[0].start_again();
    assert_eq!(s3.get(&key(4)).await.unwrap(), None, "its names are those of before");
    let why = until_stopped(&scm).await;
    assert!(why.contains("put back to an older copy"), "{why}");
    // A sweep would fence and ask, and SCM have blocks discarded.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(live_bytes(&cluster.scm_address), live);

    assert!(cluster.oms[0].terminate().success());
    std::fs::remove_dir_all(&meta).unwrap();
    std::fs::rename(&right, &meta).unwrap();
    cluster.oms[0].start_again();
    for n in 0..12 {
        assert!(s3.get(&key(n)).await.unwrap() == Some(body(n)), "object {n}");
    }
    until_looked(&scm).await;
    let sweep = admin_json(&scm, &["sweep", "status"]);
    assert!(sweep["stopped"].is_null() && sweep["orphans"] == 0, "the right names are there again: {sweep}");
}

/// A cluster of so many OMs whose sweep looks every few seconds, and a gateway to it.
fn with_data(oms: usize) -> (Names, S3) {
    let times = "--reclaim-after 2s --any-reclaim-after --sweep-after 1s --sweep-every 3s";
    let mut names = Names::start_with(oms, times);
    names.until_whole(oms);
    let s3 = S3::new(&names.add_data(), ACCESS_KEY, SECRET_KEY, BUCKET);
    (names, s3)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_forced_reset_nothing_is_swept_before_an_operator_says_so_and_what_is_written_is_taken() {
    let (mut names, s3) = with_data(3);
    s3.create_bucket().await.unwrap();
    s3.put(&key(0), body(0)).await.unwrap();
    let scm = names.scm.clone();
    until_looked(&scm).await;
    names.reset_to_third();
    names.until_whole(1);
    let why = until_stopped(&scm).await;
    assert!(why.contains("reset by force"), "{why}");
    until("what is written is taken", async || {
        s3.put(&key(1), body(1)).await.map_err(|why| format!("{why:?}"))
    })
    .await;
    for n in 0..2 {
        assert!(s3.get(&key(n)).await.unwrap() == Some(body(n)), "object {n}");
    }
    let started = flotilla(&["admin", "--scm", &scm, "sweep", "start"], None);
    assert!(started.status.success(), "{started:?}");
    until_looked(&scm).await;
    let sweep = admin_json(&scm, &["sweep", "status"]);
    assert!(sweep["stopped"].is_null(), "{sweep}");
    let stopped = flotilla(&["admin", "--scm", &scm, "sweep", "stop"], None);
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(until_stopped(&scm).await.contains("an operator"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_after_a_backup_goes_once_that_is_restored_and_an_operator_says_so() {
    let (mut names, s3) = with_data(1);
    let (scm, dir) = (names.scm.clone(), names.dir().join("backup").display().to_string());
    let admin = |words: &[&str]| {
        let done = flotilla(&[&["admin", "--scm", &scm], words].concat(), None);
        assert!(done.status.success(), "{words:?}: {done:?}");
    };
    s3.create_bucket().await.unwrap();
    for n in 0..3 {
        s3.put(&key(n), body(n)).await.unwrap();
    }
    admin(&["om", "backup", &dir]);
    for n in 3..8 {
        s3.put(&key(n), body(n)).await.unwrap();
    }
    names.lose_all();
    until("the names are restored, once SCM has heard that they are lost", async || {
        let words = ["admin", "--scm", &scm, "om", "restore", &dir, "--yes-i-lose-what-was-written-since"];
        let restored = flotilla(&words, None);
        if restored.status.success() { Ok(()) } else { Err(format!("{restored:?}")) }
    })
    .await;
    names.until_whole(1);
    until_stopped(&scm).await;
    admin(&["sweep", "start"]);
    let named = 3 * (0..3).map(|n| body(n).len() as u64).sum::<u64>();
    until("what the backup does not name is gone", async || {
        close_all(&scm);
        sweep_now(&scm);
        match live_bytes(&scm) {
            live if live == named => Ok(()),
            live => Err(format!("{named} bytes are named, and {live} there")),
        }
    })
    .await;
    let space = admin_json(&scm, &["space"]);
    assert!(space["names"]["orphans"].as_u64() > Some(0), "{space:#}");
    for n in 0..8 {
        let expected = (n < 3).then(|| body(n));
        assert!(s3.get(&key(n)).await.unwrap() == expected, "object {n}");
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// Removes a container from a disk, as if it had never been there.
fn remove_container(disk: &Path, container: u64) {
    std::fs::remove_dir_all(disk.join("containers").join(format!("{container:016x}"))).unwrap();
    std::fs::remove_dir_all(disk.join("db")).unwrap();
    let rebuilt = flotilla(&["debug", "container", "rebuild", disk.to_str().unwrap()], None);
    assert!(rebuilt.status.success(), "{rebuilt:?}");
}
