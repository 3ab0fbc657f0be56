//! `flotilla debug unsafe-reset-membership` on a data directory that a Raft host wrote.

use crate::binary;
use crate::commands::flotilla;
use bytes::Bytes;
use raft::{
    AddressBook, Applied, Committed, Group, GroupSpec, GroupStart, HostOptions, Member, RaftHost, Role,
    StateMachine, Timing,
};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::Process;
use types::{GroupId, NodeId, OwnerId, ReplicaId};

/// Nobody listens at this port of any machine that runs tests.
const NOBODY: &str = "127.0.0.1:1";

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

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

/// `others`: where the other two members are.
async fn open(root: &Path, others: &str) -> (RaftHost, Group) {
    let disk = Arc::new(disk::RealDisk::open(root, 1).unwrap());
    let options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() };
    let group = GroupId::om(0);
    let member = |n: u64| Member { replica: ReplicaId(100 + n), node: NodeId(n), address: others.to_owned() };
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

/// Runs the command on om-0: its exit status and all these words are expected of it, or it is told what came
/// instead.
fn run(root: &Path, args: &[&str], status: i32, says: &[&str]) -> Result<(), String> {
    let command = ["debug", "unsafe-reset-membership", root.to_str().unwrap(), "--reason", "a test"];
    let output = flotilla(&[&command, args].concat(), None);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let missing: Vec<_> = says.iter().filter(|word| !said.contains(**word)).collect();
    match output.status.code() == Some(status) && missing.is_empty() {
        true => Ok(()),
        false => Err(format!("{args:?}: {}, {missing:?} is missing in: {said}", output.status)),
    }
}

fn check(root: &Path, args: &[&str], status: i32, says: &[&str]) {
    run(root, args, status, says).unwrap_or_else(|why| panic!("{why}"));
}

/// Runs a command that changes nothing, until it does as expected: a disk that was closed may take a moment
/// to be let go of, and a member to answer in the three seconds that it is given.
fn check_at_last(root: &Path, args: &[&str], status: i32, says: &[&str]) {
    let give_up = Instant::now() + DEADLINE;
    while let Err(why) = run(root, args, status, says) {
        assert!(Instant::now() < give_up, "{why}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_replica_that_is_left_becomes_the_only_member_and_leads() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("meta");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let others = ["--group", "om-0", "--lost", "102", "--lost", "103"];
    let (host, group) = runtime.block_on(open(&root, NOBODY));
    check(&root, &others, 1, &["in use"]);
    runtime.block_on(host.close(group.id()));
    drop((host, group));

    let left = "[101, 102] would be left, a majority of the voters [101, 102, 103]";
    check_at_last(&root, &["--group", "om-0", "--lost", "103"], 1, &[left]);
    check(&root, &["--group", "om-0"], 1, &["[101, 102, 103] would be left", "--lost"]);
    check(&root, &[&others[..], &["--lost", "104"]].concat(), 1, &["with --lost 102 --lost 103"]);
    check(&root, &["--group", "om-1", "--lost", "102"], 1, &["no log of om-1"]);
    check(&root, &["--group", "pipeline-3", "--lost", "102"], 1, &["no metadata group"]);
    check(&dir.path().join("elsewhere"), &others, 1, &["no data directory"]);
    let plan = ["survivor   replica 101 on node 1", "lost       replica 103 on node 3", "last entry 0"];
    check(&root, &others, 0, &[&plan[..], &["nobody was given up"]].concat());
    check(&root, &[&others[..], &["--yes"]].concat(), 0, &["om-0 has one member: replica 101"]);
    check(&root, &[&others[..], &["--yes"]].concat(), 1, &["need no reset"]);

    let leads = runtime.block_on(async {
        let (host, group) = open(&root, NOBODY).await;
        let mut statuses = group.watch();
        let elected = statuses.wait_for(|status| status.role == Role::Leader);
        let leads = tokio::time::timeout(DEADLINE, elected).await.is_ok();
        host.shutdown().await;
        leads
    });
    assert!(leads, "the survivor was not elected");
}

/// A member that answers, hangs or starts is not taken for lost because somebody says so: the group would
/// split in two.
#[test]
fn only_members_whose_connections_are_refused_go_with_one_flag() {
    let dir = tempfile::tempdir().unwrap();
    let args = format!(
        "server --roles scm --rpc 127.0.0.1:0 --http 127.0.0.1:0 --meta {}/scm",
        dir.path().display()
    );
    let args = args.split_whitespace().map(str::to_owned).collect();
    let (mut process, ready) = Process::start(binary(), dir.path(), "member", args);
    let root = dir.path().join("meta");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (host, group) = runtime.block_on(open(&root, &ready["RPC"]));
    runtime.block_on(host.close(group.id()));
    drop((host, group));

    let lost = ["--group", "om-0", "--lost", "102", "--lost", "103"];
    let done = [&lost[..], &["--yes"]].concat();
    let refused = |says| check_at_last(&root, &done, 1, &["may live", says, "--even-if-alive"]);
    refused("a process answered that it does not have it");
    process.pause();
    refused("did not answer within 3 s");
    check(&root, &[&lost[..], &["--even-if-alive"]].concat(), 0, &["did not answer", "nobody was given up"]);
    process.kill9();
    // A server that has its port, and is not so far that it answers.
    let starting = std::net::TcpListener::bind(&ready["RPC"]).unwrap();
    refused("did not answer within 3 s");
    drop(starting);
    let elsewhere = [&done[..], &["--ask", "nobody.invalid:1"]].concat();
    check_at_last(&root, &elsewhere, 1, &["may live", "not reached (nobody.invalid:1: ", "--even-if-alive"]);
    check(&root, &done, 0, &["nobody listens there", "om-0 has one member: replica 101"]);
}
