//! Messages that no host of ours sends: of a newer release, above the limits, or random. They get an answer
//! that says why, and change nothing that matters; none may stop a group.

use crate::cluster::{CLUSTER, Cluster, DEADLINE, PATIENT, TIMING, body, pipeline};
use bytes::{Buf, BufMut, Bytes};
use flotilla_raft::{COMMAND_BYTES_MAX, Command, Group, PROTOCOL_VERSION, Role, Timing};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use prost::Message;
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, Failure, MESSAGE_BYTES_MAX, raft as wire};
use std::time::Duration;
use tokio::time::Instant;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use types::{Clock, GroupId, Payload, SystemClock};

const SERVICE: &str = "/flotilla.raft.v1.RaftTransport/";

/// Bytes as they are, so that a message may be none.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

pub(crate) struct Attacker {
    channel: Channel,
}

impl Attacker {
    pub(crate) async fn new(cluster: &Cluster, n: usize) -> Attacker {
        let address = cluster.addresses.get(cluster.nodes[n].id).expect("a known address");
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect().await;
        Attacker { channel: channel.expect("connect") }
    }

    /// Sends messages to a method of any kind, and takes what comes until the end or a failure.
    pub(crate) async fn send(&self, method: &str, messages: Vec<Bytes>) -> Result<Vec<Bytes>, Failure> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.expect("the host is there");
        let path = PathAndQuery::try_from(format!("{SERVICE}{method}")).expect("a path");
        let request = Request::new(tokio_stream::iter(messages));
        let sent = async {
            let mut answers = grpc.streaming(request, path, Raw).await?.into_inner();
            let mut seen = Vec::new();
            while let Some(answer) = answers.message().await? {
                seen.push(answer);
            }
            Ok(seen)
        };
        // openraft answers when it can: what is below its log waits for nobody, so silence is a fault too.
        let answered = tokio::time::timeout(Duration::from_secs(20), sent).await.expect("an answer");
        answered.map_err(|status: Status| Failure::from(status))
    }
}

pub(crate) fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

pub(crate) fn address(group: GroupId, replica: u64, version: u32) -> Option<wire::Address> {
    Some(wire::Address { group: group.to_u64(), replica, cluster: CLUSTER.to_owned(), version })
}

/// A message for each method, as good as can be but for its address.
fn to_every_method(to: Option<wire::Address>) -> Vec<(&'static str, Bytes)> {
    let vote = Some(wire::Vote { term: 99, replica: 101, committed: true });
    let at = Some(wire::LogId { term: 99, index: 1000 });
    let append =
        wire::AppendRequest { to: to.clone(), vote, prev: None, committed: None, entries: Vec::new() };
    let ask =
        wire::VoteRequest { to: to.clone(), vote, last: at, pre_vote: false, leadership_transfer: true };
    let hand_over =
        wire::TransferLeaderRequest { to: to.clone(), from_leader: vote, to_replica: 101, last: at };
    let read_index = wire::ReadIndexRequest { to: to.clone(), lease: false, from: 101 };
    let dismiss = wire::DismissRequest {
        to: to.clone(),
        dismissal: Some(wire::Dismissal { at, members: vec![101] }),
        from: 101,
    };
    let lead = wire::LeadRequest { to: to.clone(), index: 1 };
    let offer = wire::SnapshotOffer { to, vote, manifest: Bytes::new() };
    let snapshot =
        wire::SnapshotToFollower { message: Some(wire::snapshot_to_follower::Message::Offer(offer)) };
    vec![
        ("Append", encode(&append)),
        ("Vote", encode(&ask)),
        ("TransferLeader", encode(&hand_over)),
        ("Dismiss", encode(&dismiss)),
        ("ReadIndex", encode(&read_index)),
        ("Lead", encode(&lead)),
        ("Snapshot", encode(&snapshot)),
    ]
}

/// The state that must stay as it is. An election changes it too, so the group is to be [`PATIENT`].
pub(crate) fn state(group: &Group) -> (raftlog::LogState, types::Term, bool) {
    let (state, status) = (group.log().state(), group.status());
    (raftlog::LogState { committed: None, ..state }, status.term, status.is_removed)
}

/// Three hosts with one group, whose replica on the third host has applied a few entries.
async fn prepared(timing: Timing) -> (Cluster, GroupId, u64) {
    let mut cluster = Cluster::start().await.with_timing(timing);
    let group = pipeline(1);
    cluster.open(group).await;
    for n in 0..5 {
        let done = cluster.apply(group, format!("{n}"), body(n, 10)).await;
        cluster.assert_same(group, done.id.index).await;
    }
    let replica = cluster.members(group)[2].replica.0;
    (cluster, group, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_protocol_is_refused_by_every_method_and_changes_nothing() {
    let (cluster, group, replica) = prepared(PATIENT).await;
    let attacker = Attacker::new(&cluster, 2).await;
    let before = state(&cluster.group(2, group));
    let newer = address(group, replica, PROTOCOL_VERSION + 1);
    let methods = to_every_method(newer);
    for (method, message) in &methods {
        let failure = attacker.send(method, vec![message.clone()]).await.expect_err(method);
        assert_eq!(failure.code, Code::NewerVersion, "{method}: {failure}");
        assert!(failure.message.contains("install the newer release here"), "{failure}");
    }
    assert_eq!(state(&cluster.group(2, group)), before);
    let refused = cluster.running(2).host.metrics().messages_refused;
    assert!(refused.contains(&(Code::NewerVersion, methods.len() as u64)), "{refused:?}");
    elects_and_commits(&cluster, group).await.expect("the group goes on");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_gets_a_typed_error_and_leaves_the_connection_whole() {
    let (cluster, group, replica) = prepared(PATIENT).await;
    let attacker = Attacker::new(&cluster, 2).await;
    let here = cluster.group(2, group);
    let before = state(&here);
    let last = before.0.last.expect("a log");
    let entry = |index, bytes| {
        let body = Payload::checksummed(vec![7u8; bytes].into());
        let (body, crcs) = body.into_parts();
        wire::Entry { term: 99, index, kind: 2, body, body_crcs: crcs.to_vec(), ..wire::Entry::default() }
    };
    let append = |entries| {
        let prev = Some(wire::LogId { term: last.term.0, index: last.index.0 });
        let vote = Some(wire::Vote { term: 99, replica: 101, committed: true });
        let to = address(group, replica, PROTOCOL_VERSION);
        encode(&wire::AppendRequest { to, vote, prev, committed: None, entries })
    };
    let next = last.index.0 + 1;
    let large_entry = append(vec![entry(next, COMMAND_BYTES_MAX + 1)]);
    let half = MESSAGE_BYTES_MAX / 2;
    let large_message = append(vec![entry(next, half), entry(next + 1, half)]);
    assert!(large_entry.len() < MESSAGE_BYTES_MAX && large_message.len() > MESSAGE_BYTES_MAX);
    for message in [&large_entry, &large_message] {
        let failure = attacker.send("Append", vec![message.clone()]).await.expect_err("too large");
        assert_eq!(failure.code, Code::TooLarge, "{failure}");
    }
    let ask = wire::VoteRequest {
        to: Some(wire::Address { cluster: "x".repeat(MESSAGE_BYTES_MAX), ..wire::Address::default() }),
        ..wire::VoteRequest::default()
    };
    let failure = attacker.send("Vote", vec![encode(&ask)]).await.expect_err("too large");
    assert_eq!(failure.code, Code::TooLarge, "{failure}");
    assert_eq!(state(&here), before);

    // The same connection, with a message in order: an older vote, which is answered and refused.
    let vote = Some(wire::Vote { term: 0, replica: 101, committed: false });
    let ask = wire::VoteRequest {
        to: address(group, replica, PROTOCOL_VERSION),
        vote,
        ..wire::VoteRequest::default()
    };
    let answers = RaftTransportClient::new(attacker.channel.clone()).vote(ask).await;
    assert!(!answers.is_ok_and(|answer| answer.into_inner().granted));
    elects_and_commits(&cluster, group).await.expect("the group goes on");
    cluster.stop().await;
}

/// Numbers near those of the group, and at the edges.
fn number() -> impl Strategy<Value = u64> {
    let edges = proptest::sample::select(vec![(1 << 62) - 1, 1 << 62, (1 << 62) + 1, u64::MAX - 1, u64::MAX]);
    prop_oneof![8 => 0..12u64, 2 => edges, 1 => any::<u64>()]
}

fn log_id() -> impl Strategy<Value = wire::LogId> {
    (number(), number()).prop_map(|(term, index)| wire::LogId { term, index })
}

fn vote() -> impl Strategy<Value = wire::Vote> {
    let replica = prop_oneof![4 => 101..104u64, 1 => number()];
    (number(), replica, any::<bool>()).prop_map(|(term, replica, committed)| wire::Vote {
        term,
        replica,
        committed,
    })
}

fn to(group: GroupId, replica: u64) -> impl Strategy<Value = Option<wire::Address>> {
    prop_oneof![
        9 => Just(address(group, replica, PROTOCOL_VERSION)),
        1 => (any::<u64>(), number(), any::<u32>()).prop_map(|(group, replica, version)| {
            Some(wire::Address { group, replica, cluster: CLUSTER.to_owned(), version })
        }),
        1 => Just(None),
    ]
}

fn entry() -> impl Strategy<Value = wire::Entry> {
    let membership = || {
        let members = proptest::collection::vec((number(), number()), 0..4);
        (members, proptest::collection::vec(proptest::collection::vec(number(), 0..4), 0..3)).prop_map(
            |(members, sets)| {
                let member =
                    |(replica, node)| wire::Member { replica, node, address: "127.0.0.1:1".to_owned() };
                let membership = wire::Membership {
                    voter_sets: sets.into_iter().map(|replicas| wire::VoterSet { replicas }).collect(),
                    members: members.into_iter().map(member).collect(),
                };
                encode(&membership)
            },
        )
    };
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    let meta = prop_oneof![bytes(), membership()];
    (log_id(), 0..5u32, meta, bytes(), any::<bool>(), proptest::option::of(number())).prop_map(
        |(id, kind, meta, body, is_sealed, roll_to)| {
            let (body, crcs) = Payload::checksummed(body).into_parts();
            let body_crcs = if is_sealed { crcs.to_vec() } else { vec![1, 2] };
            wire::Entry { term: id.term, index: id.index, kind, meta, body, body_crcs, roll_to }
        },
    )
}

/// Random, but mostly for the group, and mostly in order.
fn append(group: GroupId, replica: u64) -> impl Strategy<Value = Bytes> {
    let entries = proptest::collection::vec(entry(), 0..3);
    let ids = (proptest::option::of(log_id()), proptest::option::of(log_id()));
    (to(group, replica), proptest::option::of(vote()), ids, entries, any::<bool>()).prop_map(
        |(to, vote, (prev, committed), mut entries, is_in_order)| {
            if is_in_order {
                let mut next = prev.map_or(0, |prev| prev.index.wrapping_add(1));
                for entry in &mut entries {
                    entry.index = next;
                    next = next.wrapping_add(1);
                }
            }
            let vote = vote.map(|vote| wire::Vote { committed: is_in_order || vote.committed, ..vote });
            encode(&wire::AppendRequest { to, vote, prev, committed, entries })
        },
    )
}

fn message(group: GroupId, replica: u64) -> impl Strategy<Value = (&'static str, Vec<Bytes>)> {
    let ask = (to(group, replica), proptest::option::of(vote()), proptest::option::of(log_id()));
    let ask = (ask, any::<[bool; 2]>()).prop_map(|((to, vote, last), [pre_vote, leadership_transfer])| {
        encode(&wire::VoteRequest { to, vote, last, pre_vote, leadership_transfer })
    });
    let hand_over = (to(group, replica), vote(), 100..105u64, proptest::option::of(log_id())).prop_map(
        |(to, from, to_replica, last)| {
            encode(&wire::TransferLeaderRequest { to, from_leader: Some(from), to_replica, last })
        },
    );
    let one = |method, message: BoxedStrategy<Bytes>| message.prop_map(move |it| (method, vec![it]));
    let noise = proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
    let method = proptest::sample::select(vec![
        "Append",
        "Vote",
        "TransferLeader",
        "Dismiss",
        "ReadIndex",
        "Snapshot",
        "Hello",
        "Lead",
    ]);
    prop_oneof![
        6 => proptest::collection::vec(append(group, replica), 1..4).prop_map(|it| ("Append", it)),
        2 => one("Vote", ask.boxed()),
        1 => one("TransferLeader", hand_over.boxed()),
        2 => (method, noise).prop_map(|(method, noise)| (method, vec![noise])),
    ]
}

/// The number of cases: each ends with an election, and many of them with one that waits for its time.
const CASES: u32 = 200;

/// Waits for another term than the one that is, with a leader that commits.
pub(crate) async fn elects_and_commits(cluster: &Cluster, group: GroupId) -> Result<(), String> {
    let deadline = Instant::now() + DEADLINE;
    let from = (0..3).map(|n| cluster.group(n, group).status().term).max().expect("three of them");
    loop {
        let leads = |n: &usize| cluster.group(*n, group).status().role == Role::Leader;
        let Some(leader) = (0..3).find(leads) else {
            if Instant::now() > deadline {
                let seen = [0, 1, 2].map(|n| cluster.group(n, group).status());
                return Err(format!("nobody is elected: {seen:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let here = cluster.group(leader, group);
        if here.status().term > from {
            let command = Command { meta: Bytes::from_static(b"after"), body: body(1, 10), roll_to: None };
            if here.apply(command).await.is_ok() {
                return Ok(());
            }
        } else {
            // The attacked member may be too far apart by now to be handed anything.
            let other = cluster.members(group)[if leader == 0 { 1 } else { 0 }].replica;
            let _ = here.transfer_leader(other).await;
        }
        if Instant::now() > deadline {
            let seen = [0, 1, 2].map(|n| cluster.group(n, group).status());
            return Err(format!("nobody commits: {seen:?}"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A word that ended SCM for good: nobody is elected after the last term there is. To all members at once, in
/// each kind of message that carries a term, and then once more after they were started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_that_elections_cannot_have_led_to_is_refused_everywhere() {
    let (mut cluster, group, _) = prepared(TIMING).await;
    for _ in 0..2 {
        for term in [1 << 45, 1 << 62, (1 << 62) + 1, u64::MAX] {
            for n in 0..3 {
                let attacker = Attacker::new(&cluster, n).await;
                let replica = cluster.members(group)[n].replica.0;
                let from = cluster.members(group)[(n + 1) % 3].replica.0;
                for (method, message) in with_term(address(group, replica, PROTOCOL_VERSION), from, term) {
                    let failure = attacker.send(method, vec![message]).await.expect_err(method);
                    assert_eq!(failure.code, Code::Invalid, "{method}: {failure}");
                    assert!(failure.message.contains("cannot have come about"), "{method}: {failure}");
                }
                assert!(cluster.group(n, group).status().term.0 < 1 << 32);
            }
        }
        elects_and_commits(&cluster, group).await.expect("the group goes on");
        for n in 0..3 {
            cluster.stop_node(n).await;
            cluster.start_node(n).await;
            cluster.open_on(n, group).await;
        }
    }
    elects_and_commits(&cluster, group).await.expect("the group goes on");
    cluster.stop().await;
}

/// The highest term that is believed leaves the next ones free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_highest_term_that_passes_there_is_another_election() {
    let (mut cluster, group, _) = prepared(TIMING).await;
    for _ in 0..3 {
        for n in 0..3 {
            let attacker = Attacker::new(&cluster, n).await;
            let replica = cluster.members(group)[n].replica.0;
            let from = cluster.members(group)[(n + 1) % 3].replica.0;
            let to = address(group, replica, PROTOCOL_VERSION);
            let vote = Some(wire::Vote { term: SystemClock.now_ms(), replica: from, committed: true });
            let append = wire::AppendRequest { to, vote, prev: None, committed: None, entries: Vec::new() };
            attacker.send("Append", vec![encode(&append)]).await.expect("it passes for a leader's");
        }
        elects_and_commits(&cluster, group).await.expect("the group goes on");
    }
    for n in 0..3 {
        cluster.stop_node(n).await;
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    elects_and_commits(&cluster, group).await.expect("the group goes on");
    cluster.stop().await;
}

/// A member of a pipeline stops for a leader of another history, which a stranger can only claim: whom he
/// names is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_messages_of_another_history_are_refused_and_stop_nobody() {
    let (cluster, group, _) = prepared(PATIENT).await;
    let leader = (0..3).find(|n| cluster.group(*n, group).status().role == Role::Leader).expect("a leader");
    let attacked = if leader == 2 { 1 } else { 2 };
    let replica = cluster.members(group)[attacked].replica.0;
    let attacker = Attacker::new(&cluster, attacked).await;
    let status = cluster.group(attacked, group).status();
    let (term, committed) = (status.term.0, status.committed.expect("something is").0);
    let forged = |from: usize, term, prev| {
        let vote = wire::Vote { term, replica: cluster.members(group)[from].replica.0, committed: true };
        encode(&wire::AppendRequest {
            to: address(group, replica, PROTOCOL_VERSION),
            vote: Some(vote),
            prev,
            ..wire::AppendRequest::default()
        })
    };
    let third = 3 - leader - attacked;
    let of_another_term = Some(wire::LogId { term: term + 1, index: committed });
    for message in [
        forged(third, term, None),
        forged(leader, term + 1, of_another_term),
        forged(third, term + 1, of_another_term),
    ] {
        for _ in 0..3 {
            let failure = attacker.send("Append", vec![message.clone()]).await.expect_err("forged");
            assert_eq!(failure.code, Code::Invalid, "{failure}");
        }
    }
    // Nor does he choose who is asked.
    let status = cluster.group(attacked, group).status();
    let last = cluster.group(attacked, group).log().state().last.expect("something is there");
    let peer = |member: &flotilla_raft::Member, address: &str| wire::Member {
        replica: member.replica.0,
        node: member.node.0,
        address: address.to_owned(),
    };
    let mut members: Vec<_> =
        cluster.members(group).iter().map(|member| peer(member, "127.0.0.1:1")).collect();
    members.push(wire::Member { replica: 999, node: 999, address: "127.0.0.1:1".to_owned() });
    let voters = members.iter().map(|member| member.replica).collect();
    let membership = wire::Membership { voter_sets: vec![wire::VoterSet { replicas: voters }], members };
    let entry = wire::Entry {
        term: status.term.0,
        index: last.index.0 + 1,
        kind: 3,
        meta: encode(&membership),
        ..wire::Entry::default()
    };
    let message = wire::AppendRequest {
        to: address(group, replica, PROTOCOL_VERSION),
        vote: Some(wire::Vote {
            term: status.term.0,
            replica: cluster.members(group)[leader].replica.0,
            committed: true,
        }),
        prev: Some(wire::LogId { term: last.term.0, index: last.index.0 }),
        entries: vec![entry],
        ..wire::AppendRequest::default()
    };
    let failure = attacker.send("Append", vec![encode(&message)]).await.expect_err("forged");
    assert!(failure.message.contains("names other members"), "{failure}");

    for n in 0..3 {
        let to = address(group, cluster.members(group)[n].replica.0, PROTOCOL_VERSION);
        let asked = encode(&wire::LeadRequest { to, index: committed });
        let answer = Attacker::new(&cluster, n).await.send("Lead", vec![asked]).await.expect("an answer");
        let answer = wire::LeadResponse::decode(answer[0].clone()).expect("what was encoded");
        assert_eq!(answer.leads.is_some(), n == leader, "{answer:?}");
    }
    elects_and_commits(&cluster, group).await.expect("the group goes on");
    for n in 0..3 {
        let status = cluster.group(n, group).status();
        assert_eq!((status.role == Role::Stopped, &status.failure), (false, &None), "node {n}");
    }
    cluster.stop().await;
}

/// A message for each method that carries a term.
fn with_term(to: Option<wire::Address>, from: u64, term: u64) -> Vec<(&'static str, Bytes)> {
    let vote = |committed| Some(wire::Vote { term, replica: from, committed });
    let at = Some(wire::LogId { term, index: 1000 });
    let append = wire::AppendRequest { to: to.clone(), vote: vote(true), ..wire::AppendRequest::default() };
    let ask = |pre_vote| wire::VoteRequest {
        to: to.clone(),
        vote: vote(false),
        last: at,
        pre_vote,
        leadership_transfer: true,
    };
    let hand_over = wire::TransferLeaderRequest {
        to: to.clone(),
        from_leader: vote(true),
        to_replica: to.as_ref().map_or(0, |to| to.replica),
        last: at,
    };
    let dismissal = Some(wire::Dismissal { at, members: vec![from] });
    let dismiss = wire::DismissRequest { to: to.clone(), dismissal, from };
    let offer = wire::SnapshotOffer { to: to.clone(), vote: vote(true), manifest: Bytes::new() };
    let offer = wire::SnapshotToFollower { message: Some(wire::snapshot_to_follower::Message::Offer(offer)) };
    vec![
        ("Append", encode(&append)),
        ("Vote", encode(&ask(true))),
        ("Vote", encode(&ask(false))),
        ("TransferLeader", encode(&hand_over)),
        ("Dismiss", encode(&dismiss)),
        ("Snapshot", encode(&offer)),
    ]
}

#[test]
fn random_messages_stop_no_group() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (cluster, group, replica) = runtime.block_on(prepared(TIMING));
    let attacker = runtime.block_on(Attacker::new(&cluster, 2));
    // Each case meets what those before it left behind: the seed replays all of them, and there is nothing to
    // shrink.
    let seed =
        std::env::var("FLOTILLA_SEED").map_or(4, |seed| seed.parse().expect("FLOTILLA_SEED is a number"));
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        max_shrink_iters: 0,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&message(group, replica), |(method, messages)| {
        let answer = runtime.block_on(attacker.send(method, messages));
        for n in 0..3 {
            let status = cluster.group(n, group).status();
            let is_well = status.failure.is_none() && status.role != Role::Stopped;
            prop_assert!(is_well, "node {n}: {status:?} after {method}: {answer:?}");
        }
        let elected = runtime.block_on(elects_and_commits(&cluster, group));
        prop_assert!(elected.is_ok(), "{elected:?} after {method}: {answer:?}");
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("FLOTILLA_SEED={seed}: {failure}"));
    runtime.block_on(cluster.stop());
}
