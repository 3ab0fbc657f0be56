//! `flotilla debug unsafe-reset-membership` on a data directory that a Raft host wrote.

use crate::commands::flotilla;
use bytes::Bytes;
use raft::{
    AddressBook, Applied, Committed, Group, GroupSpec, GroupStart, HostOptions, Member, RaftHost, Role,
    StateMachine, Timing,
};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use types::{GroupId, NodeId, OwnerId, ReplicaId};

/// Has no state, and applies everything anew at each start.
struct Nothing;

impl StateMachine for Nothing {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        Ok(None)
    }

    fn apply(&mut self, batch: Vec<Committed>, _: Applied) -> anyhow::Result<Vec<Bytes>> {
        Ok(vec![Bytes::new(); batch.len()])
    }
}

async fn open(root: &Path) -> (RaftHost, Group) {
    let disk = Arc::new(disk::RealDisk::open(root, 1).unwrap());
    let options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() };
    let group = GroupId::om(0);
    let member =
        |n: u64| Member { replica: ReplicaId(100 + n), node: NodeId(n), address: "127.0.0.1:1".to_owned() };
    let spec = GroupSpec {
        cluster: String::new(),
        group,
        replica: ReplicaId(101),
        timing: Timing::METADATA,
        start: GroupStart::First((1..=3).map(member).collect()),
        campaign: true,
        lease_reads: false,
        snapshots: None,
    };
    let log = LogSpec {
        log: group.to_u64(),
        dir: format!("groups/{group}"),
        owners_dir: format!("meta/{group}"),
        first_owner: OwnerId(0),
    };
    let host = RaftHost::new(HostOptions::default(), AddressBook::default());
    let opened = host.open(spec, &LogSpace::new(disk, options), log, Nothing).await.unwrap();
    (host, opened)
}

/// Runs the command on om-0, checks the exit status, and that all words are in what it says.
fn check(root: &Path, args: &[&str], status: i32, says: &[&str]) {
    let command = ["debug", "unsafe-reset-membership", root.to_str().unwrap(), "--reason", "a test"];
    let output = flotilla(&[&command, args].concat(), None);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    for word in says {
        assert!(said.contains(word), "{args:?}: `{word}` is missing in: {said}");
    }
}

/// What a program reads: of a reset that is possible, and of one that is refused.
fn check_json(root: &Path, others: &[&str]) {
    let command =
        ["debug", "--json", "unsafe-reset-membership", root.to_str().unwrap(), "--reason", "a test"];
    let run = |args: &[&str]| {
        let output = flotilla(&[&command, args].concat(), None);
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.lines().count(), 1, "one object on one line: {said}");
        let value: serde_json::Value =
            serde_json::from_str(&said).unwrap_or_else(|why| panic!("{why}: {said}"));
        (output.status.code(), value)
    };
    let (status, value) = run(others);
    assert_eq!(status, Some(0), "{value}");
    assert_eq!((&value["possible"], &value["done"]), (&true.into(), &false.into()), "{value}");
    assert_eq!(value["plan"]["survivor"]["replica"], 101);
    assert_eq!(value["plan"]["lost"][1]["replica"], 103);
    assert_eq!(value["asked"][0]["answer"], "not_reached");
    let (status, value) = run(&["--group", "om-0", "--lost", "103"]);
    assert_eq!(status, Some(1), "{value}");
    assert_eq!((&value["possible"], &value["plan"]), (&false.into(), &serde_json::Value::Null), "{value}");
    assert_eq!(value["refused"]["code"], "quorum_is_left");
    assert!(value["refused"]["next"].as_str().unwrap().contains("--lost"), "{value}");
}

#[test]
fn the_replica_that_is_left_becomes_the_only_member_and_leads() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("meta");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let others = ["--group", "om-0", "--lost", "102", "--lost", "103"];
    let (host, group) = runtime.block_on(open(&root));
    check(&root, &others, 1, &["in use"]);
    runtime.block_on(host.close(group.id()));
    drop((host, group));

    let left = "[101, 102] would be left, a majority of the voters [101, 102, 103]";
    check(&root, &["--group", "om-0", "--lost", "103"], 1, &[left]);
    check(&root, &["--group", "om-0"], 1, &["[101, 102, 103] would be left", "--lost"]);
    check(
        &root,
        &[&others[..], &["--lost", "104"]].concat(),
        1,
        &["Next: repeat with --lost 102 --lost 103."],
    );
    check(&root, &["--group", "om-1", "--lost", "102"], 1, &["no log of om-1"]);
    check(&root, &["--group", "pipeline-3", "--lost", "102"], 1, &["no metadata group"]);
    check(&dir.path().join("elsewhere"), &others, 1, &["no data directory"]);
    let plan = ["survivor   replica 101 on node 1", "lost       replica 103 on node 3", "last entry 0"];
    check(&root, &others, 0, &[&plan[..], &["not reset", "repeat with --yes"]].concat());
    check_json(&root, &others);
    check(&root, &[&others[..], &["--yes"]].concat(), 0, &["om-0 has one member: replica 101"]);
    check(&root, &[&others[..], &["--yes"]].concat(), 1, &["need no reset"]);

    let leads = runtime.block_on(async {
        let (host, group) = open(&root).await;
        let mut statuses = group.watch();
        let elected = statuses.wait_for(|status| status.role == Role::Leader);
        let leads = tokio::time::timeout(Duration::from_secs(30), elected).await.is_ok();
        host.shutdown().await;
        leads
    });
    assert!(leads, "the survivor was not elected");
}
