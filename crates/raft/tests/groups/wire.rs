//! Tests of what a host answers to messages that are not for it, or damaged. None of them may change
//! anything.

use crate::cluster::{CLUSTER, Cluster, PATIENT, body, pipeline};
use flotilla_raft::Group;
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, Failure, raft as wire};
use tokio_stream::StreamExt;
use tonic::transport::Channel;
use types::LogIndex;

async fn client(cluster: &Cluster, n: usize) -> RaftTransportClient<Channel> {
    let address = cluster.addresses.get(cluster.nodes[n].id).expect("a known address");
    RaftTransportClient::connect(format!("http://{address}")).await.expect("connect")
}

fn vote(term: u64, replica: u64) -> Option<wire::Vote> {
    Some(wire::Vote { term, replica, committed: true })
}

fn request(to: (u64, u64), entries: Vec<wire::Entry>, prev: Option<wire::LogId>) -> wire::AppendRequest {
    let to = Some(wire::Address { group: to.0, replica: to.1, cluster: CLUSTER.to_owned(), version: 0 });
    wire::AppendRequest { to, vote: vote(99, 101), prev, committed: None, entries }
}

fn entry(index: u64) -> wire::Entry {
    let body = body(index, 100_000);
    wire::Entry {
        term: 99,
        index,
        kind: 2,
        meta: "from outside".into(),
        body: body.bytes().clone(),
        body_crcs: body.crcs().to_vec(),
        roll_to: None,
    }
}

/// Sends messages on one stream and returns the answers up to the end or the failure.
async fn append(
    client: &mut RaftTransportClient<Channel>,
    messages: Vec<wire::AppendRequest>,
) -> (Vec<wire::AppendResponse>, Option<Failure>) {
    let mut answers =
        client.append(tokio_stream::iter(messages)).await.expect("the stream opens").into_inner();
    let mut seen = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => seen.push(answer),
            Err(status) => return (seen, Some(status.into())),
        }
    }
    (seen, None)
}

/// The state that must stay as it is.
fn state(group: &Group) -> (raftlog::LogState, types::Term) {
    let state = group.log().state();
    (raftlog::LogState { committed: None, ..state }, group.status().term)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_for_an_unknown_group_or_a_stale_replica_get_a_typed_error_and_change_nothing() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    let done = cluster.apply(group, "one".into(), body(1, 10)).await;
    cluster.assert_same(group, done.id.index).await;
    let replica = cluster.members(group)[2].replica.0;
    let before = state(&cluster.group(2, group));
    let mut client = client(&cluster, 2).await;

    let unknown = (pipeline(9).to_u64(), replica);
    let stale = (group.to_u64(), replica + 50);
    for to in [unknown, stale] {
        let (answers, failure) = append(&mut client, vec![request(to, vec![], None)]).await;
        assert!(answers.is_empty(), "{answers:?}");
        assert_eq!(failure.expect("a failure").code, Code::NotFound);

        let ask = wire::VoteRequest {
            to: Some(wire::Address { group: to.0, replica: to.1, cluster: CLUSTER.to_owned(), version: 0 }),
            vote: Some(wire::Vote { term: 99, replica: 101, committed: false }),
            last: Some(wire::LogId { term: 99, index: 1000 }),
            pre_vote: false,
            leadership_transfer: true,
        };
        let failure = Failure::from(client.vote(ask).await.expect_err("refused"));
        assert_eq!(failure.code, Code::NotFound);
    }
    // Another cluster has the same numbers; a node of it may have taken over a port.
    let other = wire::Address { group: group.to_u64(), replica, cluster: "another".to_owned(), version: 0 };
    let foreign = wire::AppendRequest { to: Some(other), ..request((group.to_u64(), replica), vec![], None) };
    let (answers, failure) = append(&mut client, vec![foreign]).await;
    assert!(answers.is_empty(), "{answers:?}");
    assert_eq!(failure.expect("a failure").code, Code::WrongCluster);
    // Not from a leader; numbers that would overflow.
    let to = (group.to_u64(), replica);
    let candidate = Some(wire::Vote { term: 99, replica: 101, committed: false });
    let overflow = Some(wire::Vote { term: u64::MAX, replica: 101, committed: true });
    for vote in [candidate, overflow] {
        let message = wire::AppendRequest { vote, ..request(to, vec![], None) };
        let (_, failure) = append(&mut client, vec![message]).await;
        assert_eq!(failure.expect("a failure").code, Code::Invalid);
    }
    // Numbers that would overflow, where openraft reckons with them at once.
    let to_here = request(to, vec![], None).to;
    let huge = Some(wire::LogId { term: 99, index: u64::MAX });
    let ask = wire::VoteRequest {
        to: to_here.clone(),
        vote: vote(99, 101),
        last: huge,
        pre_vote: false,
        leadership_transfer: true,
    };
    let hand_over = wire::TransferLeaderRequest {
        to: to_here.clone(),
        from_leader: vote(99, 101),
        to_replica: replica,
        last: huge,
    };
    let dismissal = Some(wire::Dismissal { at: huge, members: vec![101] });
    let dismiss = wire::DismissRequest { to: to_here, dismissal, from: 101 };
    for refused in [
        client.vote(ask).await.expect_err("too large a number"),
        client.transfer_leader(hand_over).await.expect_err("too large a number"),
        client.dismiss(dismiss).await.expect_err("too large a number"),
    ] {
        assert_eq!(Failure::from(refused).code, Code::Invalid);
    }
    let nonsense = (0, replica);
    let (_, failure) = append(&mut client, vec![request(nonsense, vec![], None)]).await;
    assert_eq!(failure.expect("a failure").code, Code::Invalid);
    assert_eq!(state(&cluster.group(2, group)), before);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_entries_are_refused_after_good_ones_were_answered() {
    let mut cluster = Cluster::start().await;
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "one".into(), body(1, 10)).await;
    // The other two are gone, so nobody else writes to this one.
    let leader = cluster.leader(group).await;
    let target = (leader + 1) % 3;
    for n in (0..3).filter(|&n| n != target) {
        cluster.stop_node(n).await;
    }
    let here = cluster.group(target, group);
    let to = (group.to_u64(), here.replica().0);
    let mut client = client(&cluster, target).await;
    let last = here.log().state().last.expect("a log");
    let prev = wire::LogId { term: last.term.0, index: last.index.0 };
    let next = last.index.0 + 1;

    let good = request(to, vec![entry(next)], Some(prev));
    let mut flipped = entry(next + 1);
    flipped.body = {
        let mut bytes = flipped.body.to_vec();
        bytes[70_000] ^= 1;
        bytes.into()
    };
    let bad = request(to, vec![flipped], Some(wire::LogId { term: 99, index: next }));
    let (answers, failure) = append(&mut client, vec![good, bad.clone(), bad]).await;
    let matched = wire::append_response::Result::Matched(wire::LogId { term: 99, index: next });
    assert_eq!(answers, vec![wire::AppendResponse { result: Some(matched) }]);
    assert_eq!(failure.expect("a failure").code, Code::Corrupt);
    assert_eq!(here.log().state().last.expect("a log").index, LogIndex(next));

    let prev = Some(wire::LogId { term: 99, index: next });
    let gap = request(to, vec![entry(next + 2)], prev);
    let mut unknown_kind = entry(next + 1);
    unknown_kind.kind = 77;
    let unknown = request(to, vec![unknown_kind], prev);
    let mut no_vote = request(to, vec![], prev);
    no_vote.vote = None;
    for bad in [gap, unknown, no_vote] {
        let (answers, failure) = append(&mut client, vec![bad]).await;
        assert!(answers.is_empty(), "{answers:?}");
        assert_eq!(failure.expect("a failure").code, Code::Invalid);
    }
    assert_eq!(here.log().state().last.expect("a log").index, LogIndex(next));
    cluster.stop().await;
}
