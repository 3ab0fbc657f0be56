//! A forced reset of SCM from a member that had fallen behind: what it has lost is on datanodes, and is SCM's
//! again.

use crate::s3::S3;
use crate::scm_members::Cluster;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, SECRET_KEY};

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);
const OBJECT_BYTES: usize = 1 << 20;
const OBJECTS: u8 = 60;

fn body(number: u8) -> Vec<u8> {
    vec![number; OBJECT_BYTES]
}

async fn put(s3: &S3, numbers: std::ops::Range<u8>) {
    for number in numbers {
        s3.put(&number.to_string(), body(number)).await.unwrap();
    }
}

/// The containers that are not deleted.
fn containers(told: &Value) -> BTreeSet<u64> {
    let listed = told["containers"].as_array().unwrap().iter();
    let there = listed.filter(|container| container["state"] != "deleted");
    there.map(|container| container["container"].as_u64().unwrap()).collect()
}

const LIST: &str = "container list --limit 10000";
const LIST_ADOPTED: &str = "container list --limit 10000 --adopted";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_after_the_survivors_end_is_read_after_the_reset() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
    s3.create_bucket().await.unwrap();
    put(&s3, 0..4).await;
    cluster.all_follow();

    // From here on one member hears of nothing: containers are drawn for pipelines that it knows, pipelines
    // close, a node comes, and pipelines with it.
    let survivor = (cluster.leader() + 1) % 3;
    cluster.scms[survivor].kill9();
    let known = containers(&cluster.admin(LIST));
    for container in &known {
        let close = ["container", "close", &container.to_string()];
        crate::commands::admin_once(&cluster.list(), &close).unwrap();
    }
    let closed = |told: &Value| {
        let listed = told["containers"].as_array().unwrap();
        listed.iter().filter(|container| container["state"] == "closed").count() >= known.len()
    };
    cluster.until("next containers", LIST, closed);
    put(&s3, 4..30).await;
    let (list, root) = (cluster.list(), cluster.dir.path().display().to_string());
    let line = format!(
        "--roles datanode --rpc 127.0.0.1:0 --disk {root}/dn4 --scm {list} --container-bytes-max {}",
        16 << 20
    );
    let datanode = cluster.process("dn4", &line).0;
    cluster.datanodes.push(datanode);
    let with_four = |told: &Value| {
        told.as_array().unwrap().iter().any(|pipeline| {
            pipeline["state"] == "open"
                && pipeline["members"].as_array().unwrap().iter().any(|member| member["node"] == 4)
        })
    };
    let closed = cluster.admin("pipeline list")[0]["pipeline"].as_u64().unwrap().to_string();
    crate::commands::admin_once(&list, &["pipeline", "close", &closed]).unwrap();
    cluster.until("pipeline of the new node", "pipeline list", with_four);
    put(&s3, 30..OBJECTS).await;
    let before = cluster.admin(LIST);
    let lost: BTreeSet<u64> = containers(&before).difference(&known).copied().collect();
    assert!(lost.len() >= 3, "the survivor knows nearly all: {before:#}");

    (0..3).filter(|at| *at != survivor).for_each(|at| cluster.scms[at].kill9());
    cluster.scms[survivor].spawn_again();
    let advised = cluster.advised();
    assert_eq!(advised["survivor"], *cluster.addresses[survivor]);
    cluster.reset_to(survivor, &advised);
    cluster.all_follow();

    let give_up = Instant::now() + DEADLINE;
    for number in 0..OBJECTS {
        loop {
            match s3.get(&number.to_string()).await {
                Ok(Some(read)) => break assert!(read == body(number), "object {number} is another"),
                Ok(None) => panic!("object {number} is not there"),
                Err(error) => {
                    let told = || format!("{:#}\n{:#}", cluster.admin(LIST), cluster.admin("pipeline list"));
                    assert!(Instant::now() < give_up, "object {number}: {error}\n{}", told());
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    let healthy = |told: &Value| {
        let nodes = told.as_array().unwrap();
        let numbers: Vec<_> = nodes.iter().map(|node| node["node"].as_u64().unwrap()).collect();
        numbers == [1, 2, 3, 4] && nodes.iter().all(|node| node["state"] == "healthy")
    };
    cluster.until("nodes under their numbers", "datanode list", healthy);
    let adopted =
        cluster.until("adopted containers", LIST_ADOPTED, |told| {
            told["containers"].as_array().unwrap().iter().all(|container| {
                matches!(container["state"].as_str().unwrap(), "open" | "closed" | "deleted")
            })
        });
    // No container that has a block is missing. A pipeline that was drawn just then may have had no member
    // yet.
    let has_blocks = |number: &u64| {
        let mut listed = before["containers"].as_array().unwrap().iter();
        listed.any(|it| it["container"] == *number && it["blocks"] != 0)
    };
    let adopted = containers(&adopted);
    let missing: Vec<_> =
        lost.iter().filter(|number| has_blocks(number) && !adopted.contains(number)).collect();
    assert!(missing.is_empty(), "{missing:?} of {lost:?}; adopted {adopted:?}");
    let report = cluster.admin("container report");
    assert!(report["adopted"].as_u64().unwrap() >= 3, "{report:#}");
    cluster.until("no replica that nobody knows", "container report", |told| told["unknown_replicas"] == 0);
    let said = "adopted a container that the forced reset had lost";
    assert!(cluster.scms.iter().flat_map(|scm| scm.logs()).any(|log| log.contains(said)), "nobody said so");

    // Numbers that are drawn now were not drawn before.
    put(&s3, OBJECTS..OBJECTS + 10).await;
    for number in 0..OBJECTS + 10 {
        assert!(s3.get(&number.to_string()).await.unwrap().unwrap() == body(number), "object {number}");
    }
}
