//! Containers of real datanodes: a lost index is rebuilt, replicas are compared, damage is found and never
//! served.

use crate::binary;
use crate::commands::{admin_once, flotilla};
use crate::s3::S3;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, Process, SECRET_KEY};

const SIZES: [usize; 6] = [0, 1, 4096, 65_537, 300_000, 1_500_000];
const OBJECTS: usize = 48;
/// The time within which what is there can be read again, also where a whole cluster has started.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// The time within which what is deleted has gone from all disks, on a machine that does other things too.
const GONE_WITHIN: Duration = Duration::from_secs(240);

/// The bytes of object `n`, the same whenever they are asked for.
fn body(n: usize) -> Vec<u8> {
    let mut state = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(&mut next).take(SIZES[n % SIZES.len()]).collect()
}

/// Starts a cluster with one disk a node and small containers, so that many are closed.
fn start() -> (Cluster, S3) {
    start_with("")
}

fn start_with(om_args: &str) -> (Cluster, S3) {
    let options = ClusterOptions {
        disks_per_datanode: 1,
        pipelines_per_disk: 1,
        container_bytes_max: 2 << 20,
        om_args: om_args.to_owned(),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start(binary(), &options);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "containers");
    (cluster, s3)
}

async fn write_all(s3: &S3) {
    s3.create_bucket().await.unwrap();
    write_objects(s3).await;
}

async fn write_objects(s3: &S3) {
    for n in 0..OBJECTS {
        s3.put(&format!("o/{n}"), body(n)).await.unwrap();
    }
}

/// Datanodes have just started: a pipeline may have no leader yet.
async fn assert_all_there(s3: &S3) {
    let give_up = Instant::now() + READ_WITHIN;
    for n in 0..OBJECTS {
        let found = loop {
            match s3.get(&format!("o/{n}")).await {
                Ok(found) => break found,
                Err(why) => assert!(Instant::now() < give_up, "object {n} cannot be read: {why}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert!(found.as_deref() == Some(&body(n)[..]), "object {n} is not what was written");
    }
}

/// Runs `flotilla debug --json container`, checks its exit status, and gives its lines.
fn container(words: &[&str], disk: &Path, status: i32) -> Vec<Value> {
    let args = [&["debug", "--json", "container"], words, &[disk.to_str().unwrap()]].concat();
    let output = flotilla(&args, None);
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(status), "{args:?}: {out}{said}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The hash of each closed container.
fn hashes(verified: &[Value]) -> BTreeMap<u64, String> {
    let hash = |line: &Value| Some((line["container"].as_u64()?, line["hash"].as_str()?.to_owned()));
    verified.iter().filter_map(hash).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_indexes_are_rebuilt_from_segments_and_everything_is_read_back() {
    let (mut cluster, s3) = start();
    write_all(&s3).await;
    let refused = flotilla(&["debug", "container", "list", cluster.disk(0, 0).to_str().unwrap()], None);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is in use by another process"));

    // One datanode is stopped, the others are killed.
    assert!(cluster.datanodes[0].terminate().success());
    cluster.datanodes[1].kill9();
    cluster.datanodes[2].kill9();
    let disks: Vec<PathBuf> = (0..3).map(|datanode| cluster.disk(datanode, 0)).collect();
    let whole: Vec<_> = disks.iter().map(|disk| hashes(&container(&["verify"], disk, 0))).collect();
    assert!(whole[0].len() >= 3, "few containers were closed: {:?}", whole[0]);
    // A killed replica may not have heard of the last roll; what is closed on two is the same.
    for (other, here) in [(1, 0), (2, 0), (2, 1)] {
        for (container, hash) in &whole[other] {
            assert!(whole[here].get(container).is_none_or(|there| there == hash), "container {container}");
        }
    }
    let listed = container(&["list"], &disks[0], 0);
    assert!(listed.iter().filter(|line| line["state"] == "CLOSED").count() >= 3, "{listed:?}");

    for (n, disk) in disks.iter().enumerate() {
        std::fs::remove_dir_all(disk.join("db")).unwrap();
        let lost = container(&["verify"], disk, 1);
        assert!(lost.last().unwrap().to_string().contains("the index is missing"), "{lost:?}");
        assert!(cluster.datanodes[n].log().contains("registered"), "it ran");
        let rebuilt = container(&["rebuild"], disk, 0);
        assert!(rebuilt.iter().any(|line| line["log"] == "opens"), "{rebuilt:?}");
        assert_eq!(hashes(&container(&["verify"], disk, 0)), whole[n]);
    }
    start_again_with_all_there(&mut cluster, &s3).await;
}

/// Starts all datanodes, reads what was written, and writes.
async fn start_again_with_all_there(cluster: &mut Cluster, s3: &S3) {
    for datanode in &mut cluster.datanodes {
        datanode.spawn_again();
    }
    for datanode in &mut cluster.datanodes {
        datanode.wait_ready();
    }
    assert_all_there(s3).await;
    s3.put("after", body(5)).await.unwrap();
    assert!(s3.get("after").await.unwrap() == Some(body(5)));
}

/// A disk's containers, the oldest first.
fn containers_of(disk: &Path) -> Vec<PathBuf> {
    let containers = std::fs::read_dir(disk.join("containers")).unwrap();
    let mut containers: Vec<_> = containers.map(|container| container.unwrap().path()).collect();
    containers.sort();
    containers
}

/// The entries that said who the members are, and which container follows which, went with the first
/// containers. The pipeline still has its members, and its open container, on all three.
#[tokio::test(flavor = "multi_thread")]
async fn lost_indexes_are_rebuilt_where_the_first_containers_were_deleted() {
    let (mut cluster, s3) = start_with("--reclaim-after 1s --any-reclaim-after");
    s3.create_bucket().await.unwrap();
    let filling = || (0..12).map(|n| format!("filling/{n}"));
    for key in filling() {
        s3.put(&key, body(5)).await.unwrap();
    }
    write_objects(&s3).await;
    let disks: Vec<PathBuf> = (0..3).map(|datanode| cluster.disk(datanode, 0)).collect();
    let first = containers_of(&disks[0])[0].clone();
    for key in filling() {
        s3.delete(&key).await.unwrap();
    }
    let begun = Instant::now();
    let name = first.file_name().unwrap();
    while disks.iter().any(|disk| disk.join("containers").join(name).exists()) {
        assert!(begun.elapsed() < GONE_WITHIN, "{} is still there", first.display());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    cluster.datanodes.iter_mut().for_each(Process::kill9);
    for disk in &disks {
        std::fs::remove_dir_all(disk.join("db")).unwrap();
        container(&["rebuild"], disk, 0);
        container(&["verify"], disk, 0);
    }
    start_again_with_all_there(&mut cluster, &s3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_datanode_does_not_start_on_a_disk_that_lost_its_index() {
    let (mut cluster, s3) = start();
    s3.create_bucket().await.unwrap();
    s3.put("o", body(3)).await.unwrap();
    assert!(cluster.datanodes[0].terminate().success());
    let disk = cluster.disk(0, 0);
    std::fs::remove_dir_all(disk.join("db")).unwrap();
    let address = cluster.scm_address.clone();
    let args = ["server", "--roles", "datanode", "--rpc", "127.0.0.1:0", "--scm", &address, "--disk"];
    let refused = flotilla(&[&args[..], &[disk.to_str().unwrap()]].concat(), None);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("is missing") && said.contains("flotilla debug container rebuild"), "{said}");
    container(&["rebuild"], &disk, 0);
    cluster.datanodes[0].start_again();
}

/// Flips a byte in each large body of the closed containers of a stopped datanode; answers how many.
fn damage_closed(disk: &Path) -> usize {
    let mut flipped = 0;
    for line in container(&["list"], disk, 0).iter().filter(|line| line["state"] == "CLOSED") {
        let dir = disk.join(format!("containers/{:016x}", line["container"].as_u64().unwrap()));
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "seg") {
                continue;
            }
            let dump = flotilla(&["debug", "--json", "segment", "dump", path.to_str().unwrap()], None);
            assert!(dump.status.success());
            let mut bytes = std::fs::read(&path).unwrap();
            for record in String::from_utf8(dump.stdout).unwrap().lines() {
                let record: Value = serde_json::from_str(record).unwrap();
                if record["body_bytes"].as_u64().is_some_and(|body| body > 1000) {
                    let end = record["offset"].as_u64().unwrap() + record["bytes"].as_u64().unwrap();
                    bytes[end as usize - 100] ^= 0x20;
                    flipped += 1;
                }
            }
            std::fs::write(&path, bytes).unwrap();
        }
    }
    flipped
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_replicas_are_never_served_and_are_marked() {
    let (mut cluster, s3) = start();
    write_all(&s3).await;
    // What is marked is soon replaced, and would be gone before it is looked at.
    admin_once(&cluster.scm_address, &["replication", "stop"]).unwrap();
    // Two of the three are bad, so that hardly a read begins with the good one; what is in memory would be
    // served from there.
    for datanode in 0..2 {
        assert!(cluster.datanodes[datanode].terminate().success());
        let disk = cluster.disk(datanode, 0);
        let flipped = damage_closed(&disk);
        assert!(flipped > 5, "only {flipped} bodies are in closed containers");
        let found = container(&["verify"], &disk, 1);
        let findings = found.iter().filter_map(|line| line["findings"].as_array()).flatten();
        assert_eq!(findings.filter(|finding| finding["kind"] == "damage").count(), flipped, "{found:?}");
    }
    for datanode in &mut cluster.datanodes[..2] {
        datanode.start_again();
    }
    // Until they have joined again, all reads go to the good one.
    let give_up = Instant::now() + READ_WITHIN;
    let logs = loop {
        assert_all_there(&s3).await;
        let logs: Vec<_> = cluster.datanodes.iter().map(|datanode| datanode.log()).collect();
        if logs[..2].iter().any(|log| log.contains("a block is damaged")) {
            break logs;
        }
        assert!(Instant::now() < give_up, "no read met the damage");
    };
    assert!(!logs[2].contains("UNHEALTHY"), "{}", logs[2]);
    for (datanode, log) in logs[..2].iter().enumerate().filter(|(_, log)| log.contains("UNHEALTHY")) {
        assert!(cluster.datanodes[datanode].terminate().success());
        let listed = container(&["list"], &cluster.disk(datanode, 0), 1);
        let marked = |line: &&Value| line["unhealthy"].as_str().is_some_and(|why| why.contains("mismatch"));
        assert!(listed.iter().any(|line| marked(&line)), "{listed:?}\n{log}");
        cluster.datanodes[datanode].start_again();
    }
}
