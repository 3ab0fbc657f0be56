use crate::datanodes::{Datanode, per_disk, register};
use crate::server::{DEADLINE, Server};
use flotilla_scm::ScmOptions;
use proto::scm::*;
use proto::{Code, Failure};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_hear_of_their_pipelines_at_their_first_heartbeat() {
    // That heartbeat waits half a second, in which a disk that stands still writes no pipelines: then it is
    // another cluster's turn.
    const CLUSTERS_MAX: usize = 5;
    let mut heard = Vec::new();
    let answer = loop {
        assert!(heard.len() < CLUSTERS_MAX, "two disks with two pipelines each, and heard of: {heard:?}");
        let answer = first_heartbeat_of_three().await;
        if answer.pipelines.len() == 4 {
            break answer;
        }
        heard.push(answer.pipelines.len());
    };
    assert!(!answer.register_again);
    assert!(per_disk(&answer.pipelines).values().all(|&count| count == 2));
    for pipeline in &answer.pipelines {
        assert_eq!(pipeline.state(), PipelineState::PipelineAllocated);
        for member in &pipeline.members {
            assert_eq!(member.address, format!("node{}:7400", member.node));
        }
    }
    let addresses: Vec<_> = answer.addresses.iter().map(|peer| (peer.node, peer.address.as_str())).collect();
    assert_eq!(addresses, [(1, "node1:7400"), (2, "node2:7400"), (3, "node3:7400")]);
    let first: BTreeSet<u64> = answer.pipelines.iter().map(|pipeline| pipeline.members[0].node).collect();
    assert_eq!(first.len(), 3, "leaders are spread");
}

/// SCM's answer to one of three nodes that it has never seen before.
async fn first_heartbeat_of_three() -> HeartbeatResponse {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let datanodes = register(&mut server, 3).await;
    let answer = datanodes[0].heartbeat(&mut server).await;
    server.stop().await;
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_opens_when_its_leader_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let datanodes = register(&mut server, 3).await;
    let pipelines = server.pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    // A majority has begun.
    for datanode in &datanodes[..2] {
        datanode.report(&mut server, datanode.reports(&pipelines[..1])).await.unwrap();
    }
    let opened = server
        .pipelines_become("open pipeline", |pipelines| {
            pipelines.iter().any(|pipeline| pipeline.state() == PipelineState::PipelineOpen)
        })
        .await;
    for pipeline in &opened {
        let expected = pipeline.pipeline == pipelines[0].pipeline;
        assert_eq!(pipeline.state() == PipelineState::PipelineOpen, expected);
        assert_eq!(pipeline.leader_node, if expected { pipeline.members[0].node } else { 0 });
    }
    let led: u32 = server.datanodes().await.iter().map(|datanode| datanode.leaders).sum();
    assert_eq!(led, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_disks_and_full_ones_get_no_pipelines() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let mut datanodes: Vec<Datanode> = (1..=3).map(|uuid| Datanode::new(uuid, 2)).collect();
    for datanode in &mut datanodes {
        datanode.disks[1].set_state(DiskState::Failed);
        datanode.register(&mut server).await.unwrap();
    }
    let pipelines = server.pipelines_become("pipelines", |pipelines| pipelines.len() >= 2).await;
    let used: BTreeSet<_> = per_disk(&pipelines).into_iter().collect();
    let expected: BTreeSet<_> =
        datanodes.iter().map(|datanode| (datanode.disks[0].disk.clone(), 2)).collect();
    assert_eq!(used, expected);
    // Repaired disks get theirs, and that is all.
    for datanode in &mut datanodes {
        datanode.disks[1].set_state(DiskState::Works);
        datanode.heartbeat(&mut server).await;
    }
    let pipelines = server.pipelines_become("more pipelines", |pipelines| pipelines.len() >= 4).await;
    assert!(per_disk(&pipelines).values().all(|&count| count == 2), "{pipelines:#?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_nodes_turn_stale_and_dead() {
    let dir = tempfile::tempdir().unwrap();
    let options = ScmOptions {
        stale_after: Duration::from_millis(200),
        dead_after: Duration::from_millis(600),
        ..ScmOptions::default()
    };
    let mut server = Server::start_with(dir.path(), options).await;
    let datanodes = register(&mut server, 1).await;
    let mut states = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while states.last() != Some(&NodeState::NodeDead) {
        let state = server.datanodes().await[0].state();
        if states.last() != Some(&state) {
            states.push(state);
        }
        assert!(Instant::now() < deadline, "{states:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A machine that was busy for a while may have missed the first ones.
    assert!(
        [NodeState::NodeHealthy, NodeState::NodeStale, NodeState::NodeDead].ends_with(&states),
        "{states:?}"
    );
    datanodes[0].heartbeat(&mut server).await;
    let info = &server.datanodes().await[0];
    assert!(info.last_heartbeat_age_ms < 30_000);
    assert_eq!((info.node, info.address.as_str()), (1, "node1:7400"));
    server.stop().await;
}

/// Both were let in in turn, each second, and all was called well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_nodes_directories_waits_and_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let options = ScmOptions { stale_after: DEADLINE, ..ScmOptions::default() };
    let mut server = Server::start_with(dir.path(), options).await;
    let datanodes = register(&mut server, 1).await;
    let mut copy = Datanode { address: "copy:7400".into(), ..datanodes[0].clone() };
    let refused = copy.register(&mut server).await.expect_err("the first one spoke a moment ago");
    assert_eq!(refused.code, Code::PreconditionFailed);
    assert!(!datanodes[0].heartbeat(&mut server).await.register_again);
    let listed = server.datanodes().await.remove(0);
    assert_eq!(listed.address, "node1:7400");
    assert!(listed.problem.contains("another process has its directories, at copy:7400"), "{listed:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_or_asked_to_register() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let ours = server.scm.cluster();
    let mut datanodes = register(&mut server, 2).await;

    let mut foreign = Datanode { cluster: "other-cluster".into(), ..Datanode::new(9, 1) };
    for failure in [
        foreign.register(&mut server).await.unwrap_err(),
        foreign.report(&mut server, Vec::new()).await.unwrap_err(),
    ] {
        assert_eq!(failure.code, Code::WrongCluster);
        assert!(failure.message.contains("other-cluster") && failure.message.contains(&ours), "{failure}");
    }
    let unknown = Datanode { node: 99, cluster: ours, ..Datanode::new(8, 1) };
    assert!(unknown.heartbeat(&mut server).await.register_again);

    let there = datanodes[0].clone();
    datanodes[0].address = "moved:7400".into();
    assert!(datanodes[0].heartbeat(&mut server).await.register_again, "a new address goes through the log");
    datanodes[0].move_to("moved:7400", &mut server).await;
    assert_eq!(datanodes[0].node, 1);
    assert!(there.heartbeat(&mut server).await.register_again, "it is there no more");
    assert!(!datanodes[0].heartbeat(&mut server).await.register_again);
    assert_eq!(server.datanodes().await[0].address, "moved:7400");

    let mut nameless = Datanode { address: "no port".into(), ..Datanode::new(7, 1) };
    assert_eq!(nameless.register(&mut server).await.unwrap_err().code, Code::Invalid);
    let request = RegisterRequest { uuid: bytes::Bytes::from("short"), ..RegisterRequest::default() };
    let failure = Failure::from(server.client.register(request).await.unwrap_err());
    assert_eq!(failure.code, Code::Invalid);
    server.stop().await;
}
