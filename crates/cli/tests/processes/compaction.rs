//! Small objects come back too: the containers that they were in are written anew, also where a node is
//! killed in the middle of that.

use crate::binary;
use crate::commands::admin_json;
use crate::s3::S3;
use futures::StreamExt;
use futures::stream::iter;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY, disk_bytes};

const OBJECTS: usize = 1600;
const OBJECT_BYTES: usize = 4096;
/// Requests under way at a time.
const AT_A_TIME: usize = 32;
/// The time for what is waited for, on a machine that does other things too; alone it takes half a minute.
const WITHIN: Duration = Duration::from_secs(240);

fn key(n: usize) -> String {
    format!("small/{n:05}")
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

/// Does something with all of some objects, again where it fails.
async fn with_all(objects: impl Iterator<Item = usize>, work: impl AsyncFn(usize) -> Result<(), String>) {
    let give_up = Instant::now() + WITHIN;
    let one = async |n: usize| {
        while let Err(why) = work(n).await {
            assert!(Instant::now() < give_up, "object {n}: {why}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    iter(objects).for_each_concurrent(AT_A_TIME, one).await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WITHIN, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{what} after {:?}", begun.elapsed());
}

/// The room that the containers of all datanodes take but for the open ones, which have room for what may
/// come.
fn closed_bytes(cluster: &Cluster) -> u64 {
    let disks = (0..3).map(|datanode| cluster.disk(datanode, 0).join("containers"));
    disks
        .map(|containers| containers_of(&containers).rev().skip(1).map(|path| disk_bytes(&path)).sum::<u64>())
        .sum()
}

/// The oldest first.
fn containers_of(containers: &Path) -> impl DoubleEndedIterator<Item = PathBuf> {
    let found = std::fs::read_dir(containers).into_iter().flatten().flatten();
    found.map(|container| container.path()).collect::<BTreeSet<_>>().into_iter()
}

/// Whether a container of a disk is being written anew, or was.
fn has_begun(disk: &Path) -> bool {
    containers_of(&disk.join("containers")).any(|container| container.join("compacted").exists())
}

fn dead_bytes(cluster: &Cluster) -> u64 {
    let space = admin_json(&cluster.scm_address, &["space"]);
    let disks = space["disks"].as_array().unwrap();
    disks.iter().map(|disk| disk["space"]["dead_bytes"].as_u64().unwrap()).sum()
}

fn stays(n: &usize) -> bool {
    n.is_multiple_of(4)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_objects_that_are_deleted_come_back_and_what_is_left_stays() {
    let options = ClusterOptions {
        disks_per_datanode: 1,
        pipelines_per_disk: 1,
        container_bytes_max: 2 << 20,
        om_args: "--reclaim-after 1s --any-reclaim-after".to_owned(),
        scm_args: "--roll-dead-after 3s".to_owned(),
        // Slow enough that a node dies in the middle.
        datanode_args: "--compact-bytes-per-second 400000".to_owned(),
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::start(binary(), &options);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "small");
    s3.create_bucket().await.unwrap();
    with_all(0..OBJECTS, async |n| s3.put(&key(n), body(n)).await).await;
    let goes: Vec<usize> = (0..OBJECTS).filter(|n| !stays(n)).collect();
    let deleted = (3 * OBJECT_BYTES * goes.len()) as u64;
    let left = (3 * OBJECT_BYTES * (OBJECTS - goes.len())) as u64;
    with_all(goes.into_iter(), async |n| s3.delete(&key(n)).await).await;

    let disk = cluster.disk(0, 0);
    until("a compaction", || has_begun(&disk)).await;
    cluster.datanodes[0].kill9();
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.datanodes[0].start_again();
    until("nine tenths of them", || closed_bytes(&cluster) <= left + deleted / 10).await;
    cluster.datanodes[0].kill9();
    cluster.datanodes[0].start_again();
    with_all(0..OBJECTS, async |n| {
        let found = s3.get(&key(n)).await?;
        assert!(found == stays(&n).then(|| body(n)), "object {n} has other bytes");
        Ok(())
    })
    .await;
    until("the word on it", || dead_bytes(&cluster) < deleted / 10).await;
}
