//! Heartbeats that no host of ours sends. They come many in a message, and each has an answer of its own.

use crate::cluster::{CLUSTER, Cluster, PATIENT, body, pipeline};
use crate::hostile::{Attacker, address, elects_and_commits, encode, state};
use flotilla_raft::PROTOCOL_VERSION;
use prost::Message;
use proto::{Code, raft as wire};
use types::GroupId;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_that_are_not_for_a_group_here_are_refused_one_by_one_and_change_nothing() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    let done = cluster.apply(group, "one".into(), body(1, 10)).await;
    cluster.assert_same(group, done.id.index).await;
    let replica = cluster.members(group)[2].replica.0;
    let attacker = Attacker::new(&cluster, 2).await;
    let before = state(&cluster.group(2, group));

    let to = |group: GroupId, replica| address(group, replica, PROTOCOL_VERSION);
    let vote = Some(wire::Vote { term: 99, replica: 101, committed: true });
    let good = wire::AppendRequest { to: to(group, replica), vote, ..wire::AppendRequest::default() };
    let other_cluster = good.to.clone().map(|to| wire::Address { cluster: format!("{CLUSTER} 2"), ..to });
    let candidate = Some(wire::Vote { term: 99, replica: 101, committed: false });
    let itself = Some(wire::Vote { term: 99, replica, committed: true });
    let huge = Some(wire::LogId { term: 99, index: u64::MAX });
    let bad = [
        (wire::AppendRequest { to: to(pipeline(9), replica), ..good.clone() }, Code::NotFound),
        (wire::AppendRequest { to: to(group, replica + 50), ..good.clone() }, Code::NotFound),
        (wire::AppendRequest { to: other_cluster, ..good.clone() }, Code::WrongCluster),
        (
            wire::AppendRequest { to: address(group, replica, PROTOCOL_VERSION + 1), ..good.clone() },
            Code::NewerVersion,
        ),
        (wire::AppendRequest { to: None, ..good.clone() }, Code::Invalid),
        (wire::AppendRequest { vote: None, ..good.clone() }, Code::Invalid),
        (wire::AppendRequest { vote: candidate, ..good.clone() }, Code::Invalid),
        (wire::AppendRequest { vote: itself, ..good.clone() }, Code::Invalid),
        (wire::AppendRequest { prev: huge, ..good.clone() }, Code::Invalid),
        (wire::AppendRequest { committed: huge, ..good.clone() }, Code::Invalid),
        (wire::AppendRequest { entries: vec![wire::Entry::default()], ..good.clone() }, Code::Invalid),
    ];
    let heartbeats = bad.iter().map(|(heartbeat, _)| heartbeat.clone()).collect();
    let message = encode(&wire::HeartbeatsRequest { heartbeats });
    let answers = attacker.send("Heartbeats", vec![message]).await.expect("an answer for each");
    let answers = wire::HeartbeatsResponse::decode(answers[0].clone()).expect("answers").answers;
    assert_eq!(answers.len(), bad.len());
    for (answer, (heartbeat, code)) in answers.iter().zip(&bad) {
        assert_eq!(answer.answer, None, "{heartbeat:?}");
        assert_eq!(answer.code, *code as i32, "{heartbeat:?}: {}", answer.refusal);
        assert!(!answer.refusal.is_empty());
    }

    let many = wire::HeartbeatsRequest { heartbeats: vec![wire::AppendRequest::default(); 2000] };
    let long = wire::Address { cluster: "x".repeat(proto::MESSAGE_BYTES_MAX), ..wire::Address::default() };
    let long = wire::AppendRequest { to: Some(long), ..wire::AppendRequest::default() };
    for message in [many, wire::HeartbeatsRequest { heartbeats: vec![long] }] {
        let failure = attacker.send("Heartbeats", vec![encode(&message)]).await.expect_err("too large");
        assert_eq!(failure.code, Code::TooLarge, "{failure}");
    }
    assert_eq!(state(&cluster.group(2, group)), before);
    elects_and_commits(&cluster, group).await.expect("the group goes on");
    let done = cluster.apply(group, "two".into(), body(2, 10)).await;
    cluster.assert_same(group, done.id.index).await;
    cluster.stop().await;
}
