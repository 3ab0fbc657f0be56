//! Containers of real datanodes: a lost index is rebuilt, replicas are compared, damage is found and never served.

use crate::binary;
use crate::commands::flotilla;
use crate::s3::S3;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY};

const SIZES: [usize; 6] = [0, 1, 4096, 65_537, 300_000, 1_500_000];
const OBJECTS: usize = 48;

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

/// One disk a node and small containers, so that many are closed.
fn start() -> (Cluster, S3) {
    let options =
        ClusterOptions { disks_per_datanode: 1, pipelines_per_disk: 1, container_bytes_max: 4 << 20 };
    let cluster = Cluster::start(binary(), &options);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "containers");
    (cluster, s3)
}

async fn write_all(s3: &S3) {
    s3.create_bucket().await.unwrap();
    for n in 0..OBJECTS {
        s3.put(&format!("o/{n}"), body(n)).await.unwrap();
    }
}

async fn assert_all_there(s3: &S3) {
    for n in 0..OBJECTS {
        let found = s3.get(&format!("o/{n}")).await.unwrap();
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

    // One is stopped, the others are killed.
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
    for datanode in &mut cluster.datanodes {
        datanode.spawn_again();
    }
    for datanode in &mut cluster.datanodes {
        datanode.wait_ready();
    }
    assert_all_there(&s3).await;
    s3.put("after", body(5)).await.unwrap();
    assert!(s3.get("after").await.unwrap() == Some(body(5)));
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
