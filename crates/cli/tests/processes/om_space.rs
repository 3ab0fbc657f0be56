//! What is deleted goes from all disks, whoever dies meanwhile; what is left stays, to the byte.

use crate::binary;
use crate::commands::{admin_json, flotilla};
use crate::s3::S3;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY, disk_bytes};

const OBJECTS: usize = 72;
/// One of so many objects stays.
const STAYS: usize = 6;
const OBJECT_BYTES: usize = 700_000;
/// The time within which all has gone, on a machine that does other things too; alone it takes some seconds.
const GONE_WITHIN: Duration = Duration::from_secs(180);
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// Starts a cluster with one disk a node and small containers, in which what is deleted goes soon.
fn start() -> (Cluster, S3) {
    let options = ClusterOptions {
        disks_per_datanode: 1,
        pipelines_per_disk: 1,
        container_bytes_max: 4 << 20,
        om_args: "--reclaim-after 2s --any-reclaim-after".to_owned(),
        scm_args: "--roll-dead-after 3s".to_owned(),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(binary(), &options);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "space");
    (cluster, s3)
}

/// The bytes of object `n` as it is written for the `version`-th time.
fn body(n: usize, version: usize) -> Vec<u8> {
    let mut state = ((n * 1000 + version) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(&mut next).take(OBJECT_BYTES).collect()
}

fn key(n: usize) -> String {
    format!("o/{n:03}")
}

async fn put(s3: &S3, objects: impl Iterator<Item = usize>, version: usize) {
    for n in objects {
        let give_up = Instant::now() + BACK_WITHIN;
        while let Err(why) = s3.put(&key(n), body(n, version)).await {
            assert!(Instant::now() < give_up, "object {n} cannot be written: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn delete(s3: &S3, objects: impl Iterator<Item = usize>) {
    for n in objects {
        let give_up = Instant::now() + BACK_WITHIN;
        while let Err(why) = s3.delete(&key(n)).await {
            assert!(Instant::now() < give_up, "object {n} cannot be deleted: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Checks that each object is as it is to be: this version of it, or none.
async fn check(s3: &S3, wanted: impl Fn(usize) -> Option<usize>) {
    for n in 0..OBJECTS {
        let give_up = Instant::now() + BACK_WITHIN;
        let found = loop {
            match s3.get(&key(n)).await {
                Ok(found) => break found,
                Err(why) => assert!(Instant::now() < give_up, "object {n} cannot be read: {why}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let wanted = wanted(n).map(|version| body(n, version));
        assert!(found == wanted, "object {n} has other bytes: {:?}", found.map(|found| found.len()));
    }
}

/// The room that the containers of all datanodes take.
pub(crate) fn containers_bytes(cluster: &Cluster) -> u64 {
    (0..3).map(|datanode| disk_bytes(&cluster.disk(datanode, 0).join("containers"))).sum()
}

/// The counts of what waits to go: pieces, blocks, and blocks that should not.
pub(crate) fn waiting(cluster: &Cluster) -> (u64, u64, u64) {
    let groups = admin_json(&cluster.scm_address, &["om", "unused"]);
    let sum = |name: &str| {
        groups.as_array().unwrap().iter().map(|group| group[name].as_u64().unwrap_or(u64::MAX / 64)).sum()
    };
    (sum("deleted_pieces"), sum("unused_blocks"), sum("still_named"))
}

/// Waits until nothing waits, and so much or less is on the disks.
fn until_gone(cluster: &Cluster, bytes_max: u64) {
    let begun = Instant::now();
    loop {
        let (waiting, bytes) = (waiting(cluster), containers_bytes(cluster));
        if waiting == (0, 0, 0) && bytes <= bytes_max {
            println!("gone after {:?}: {bytes} bytes are left", begun.elapsed());
            return;
        }
        if begun.elapsed() > GONE_WITHIN {
            let unused = flotilla(&["admin", "--scm", &cluster.scm_address, "om", "unused"], None).stdout;
            let unused = String::from_utf8_lossy(&unused).into_owned();
            panic!("{waiting:?} wait, and {bytes} bytes are there, not {bytes_max}:\n{unused}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn stays(n: &usize) -> bool {
    n.is_multiple_of(STAYS)
}

fn goes(n: &usize) -> bool {
    !stays(n)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_bytes_come_back_and_what_is_left_stays() {
    let (cluster, s3) = start();
    s3.create_bucket().await.unwrap();
    put(&s3, 0..OBJECTS, 0).await;
    let full = containers_bytes(&cluster);
    delete(&s3, (0..OBJECTS).filter(goes)).await;
    let deleted = 3 * (OBJECT_BYTES * (0..OBJECTS).filter(goes).count()) as u64;
    // All but what is left of the first and last block of each chunk.
    until_gone(&cluster, full - deleted * 9 / 10);
    check(&s3, |n| stays(&n).then_some(0)).await;

    // Whose data is left, and where.
    let path = format!("space/{}", key(0));
    let explained = admin_json(&cluster.scm_address, &["key", "explain", &path]);
    let piece = &explained["pieces"][0];
    assert_eq!(piece["nodes"].as_array().unwrap().len(), 3, "{explained}");
    let container = piece["container"].as_u64().unwrap().to_string();
    let keys = admin_json(&cluster.scm_address, &["container", "keys", &container]);
    let keys = keys["keys"].as_array().unwrap().clone();
    assert!(keys.iter().any(|found| found["key"] == key(0) && found["bucket"] == "space"), "{keys:?}");
    let is_left = |name: &str| (0..OBJECTS).filter(stays).any(|n| key(n) == name);
    assert!(keys.iter().all(|found| is_left(found["key"].as_str().unwrap())), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_come_back_whoever_dies_meanwhile() {
    let (mut cluster, s3) = start();
    s3.create_bucket().await.unwrap();
    put(&s3, 0..OBJECTS, 0).await;
    let full = containers_bytes(&cluster);
    put(&s3, (0..OBJECTS).filter(stays), 1).await;
    delete(&s3, (0..OBJECTS).filter(goes)).await;
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        cluster.oms[0].kill9();
        cluster.oms[0].start_again();
        tokio::time::sleep(Duration::from_millis(1000)).await;
        cluster.scms[0].kill9();
        cluster.scms[0].start_again();
        tokio::time::sleep(Duration::from_millis(1000)).await;
        cluster.datanodes[round].kill9();
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.datanodes[round].start_again();
    }
    let left = 3 * (OBJECT_BYTES * (0..OBJECTS).filter(stays).count()) as u64;
    until_gone(&cluster, full / 10 + 2 * left);
    check(&s3, |n| stays(&n).then_some(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_uploads_that_nobody_goes_on_with_are_ended_by_age() {
    let (cluster, s3) = start();
    s3.create_bucket().await.unwrap();
    let client = client::Client::connect(client::ClientOptions {
        scm: cluster.scm_address.clone(),
        ..client::ClientOptions::default()
    });
    for key in ["a", "b"] {
        let request = proto::om::CreateUploadRequest {
            volume: client::S3_VOLUME.to_owned(),
            bucket: "space".to_owned(),
            key: key.into(),
            attributes: None,
        };
        client.create_upload(request).await.unwrap();
    }
    let uploads = |more: &[&str]| {
        let told = admin_json(&cluster.scm_address, &[&["om", "uploads"], more].concat());
        told["uploads"].as_array().unwrap().len()
    };
    assert_eq!((uploads(&[]), uploads(&["--older-than", "1h"])), (2, 0));
    assert_eq!(uploads(&["--older-than", "1h", "--abort"]), 0);
    let give_up = Instant::now() + BACK_WITHIN;
    while uploads(&["--bucket", "space", "--older-than", "1s", "--abort"]) + uploads(&[]) != 0 {
        assert!(Instant::now() < give_up, "they are never old");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
