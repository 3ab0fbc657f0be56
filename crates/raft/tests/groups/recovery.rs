use crate::cluster::{CLUSTER, Cluster, DEADLINE, TIMING, body, eventually, pipeline};
use crate::metadata::{GROUP, apply_some, found, join, log_spec, member, reopen, set_members, until_removed};
use flotilla_raft::{Asked, Member, OfflineReplica, ResetAnswer, ResetError, Role, check_lost};
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use std::collections::BTreeSet;
use types::{LogIndex, ReplicaId};

const NOW_MS: u64 = 1_700_000_000_000;

fn ids(members: &[Member]) -> BTreeSet<ReplicaId> {
    members.iter().map(|member| member.replica).collect()
}

/// The replica of a node that is up without having opened it.
async fn offline(cluster: &Cluster, n: usize) -> Result<OfflineReplica, ResetError> {
    OfflineReplica::open(GROUP, &cluster.running(n).space, log_spec()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_majority_is_lost_the_survivor_goes_on_with_what_it_has_and_grows_again() {
    let mut cluster = Cluster::start_nodes(5).await;
    let first = found(&mut cluster, 3).await;
    let index = apply_some(&cluster, 60).await;
    cluster.assert_same(GROUP, index).await;
    let (count, digest) = (cluster.ledger(0, GROUP).count(), cluster.ledger(0, GROUP).digest());
    for n in 0..3 {
        cluster.stop_node(n).await;
    }

    cluster.start_node(0).await;
    let replica = offline(&cluster, 0).await.expect("the survivor's log opens");
    let plan = replica.plan(&ids(&first[1..]), NOW_MS).expect("it may be reset");
    // An election meanwhile makes an entry too.
    assert!(plan.survivor.replica == first[0].replica && plan.last.index >= index, "{plan:?}, {index}");
    let index = plan.last.index;
    replica.reset(&plan, NOW_MS, "two disks burnt").await.expect("it is reset");
    let again = offline(&cluster, 0).await.expect("the log opens again");
    match again.plan(&ids(&first[1..]), NOW_MS) {
        Err(ResetError::QuorumIsLeft { left, .. }) => assert_eq!(left, [first[0].replica]),
        other => panic!("it is done already, got {other:?}"),
    }
    again.close().await;

    reopen(&mut cluster, 0, &first).await;
    assert_eq!(cluster.leader(GROUP).await, 0);
    let survivor = cluster.group(0, GROUP);
    let deadline = tokio::time::Instant::now() + DEADLINE;
    survivor.read(flotilla_raft::ReadPolicy::Index, deadline).await.expect("it serves reads");
    let now = cluster.ledger(0, GROUP);
    assert_eq!((now.count(), now.digest()), (count, digest), "all it has is there, and nothing else");
    assert_reset_is_noted(&cluster, 0, index).await;

    assert_given_up_is_refused(&cluster, 0, &first).await;

    // New replicas on other nodes; the note is in their logs too.
    apply_some(&cluster, 5).await;
    for n in [3, 4] {
        join(&mut cluster, n, 2).await.expect("a new replica opens");
    }
    let grown = [first[0].clone(), member(&cluster, 3, 2), member(&cluster, 4, 2)];
    set_members(&cluster, &grown).await;
    let last = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, last).await;
    assert_reset_is_noted(&cluster, 3, index).await;

    // The old members come back after all.
    for n in [1, 2] {
        cluster.start_node(n).await;
        reopen(&mut cluster, n, &first).await;
        until_removed(&cluster, n).await;
    }
    for n in [1, 2] {
        assert_ne!(cluster.group(n, GROUP).status().role, Role::Leader);
        cluster.running(n).host.close(GROUP).await;
    }
    let last = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, last).await;
    drop(survivor);
    cluster.stop().await;
}

/// The one that comes back first is to lead when it is opened, and hears from the survivor that it may not.
/// The other one cannot hear the survivor: it would make the first one leader, as a majority of the members
/// they know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_were_given_up_do_not_go_on_together() {
    const SURVIVOR: usize = 2;
    let (mut cluster, cables) = Cluster::start_on_cables().await;
    let first = found(&mut cluster, 3).await;
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    for n in 0..3 {
        cluster.stop_node(n).await;
    }
    cluster.start_node(SURVIVOR).await;
    let replica = offline(&cluster, SURVIVOR).await.expect("the survivor's log opens");
    let plan = replica.plan(&ids(&first[..SURVIVOR]), NOW_MS).expect("it may be reset");
    replica.reset(&plan, NOW_MS, "two disks burnt").await.expect("it is reset");
    reopen(&mut cluster, SURVIVOR, &first).await;
    assert_eq!(cluster.leader(GROUP).await, SURVIVOR);

    // The second time it knows of no leader any more: it heard of a newer term. So it campaigns.
    for time in 0..2 {
        if time > 0 {
            cluster.stop_node(0).await;
        }
        cluster.start_node(0).await;
        reopen(&mut cluster, 0, &first).await;
        until_removed(&cluster, 0).await;
    }
    cables.cut_off(SURVIVOR);
    cluster.start_node(1).await;
    reopen(&mut cluster, 1, &first).await;
    until_removed(&cluster, 1).await;
    tokio::time::sleep(3 * TIMING.election_max).await;
    for n in 0..SURVIVOR {
        let status = cluster.group(n, GROUP).status();
        assert!(status.is_removed && status.role != Role::Leader, "node {n}: {status:?}");
    }
    cluster.stop().await;
}

/// Checks what a leader that was given up would say to the survivor, if it still took itself for one.
async fn assert_given_up_is_refused(cluster: &Cluster, n: usize, first: &[Member]) {
    let address = cluster.addresses.get(cluster.nodes[n].id).expect("a known address");
    let mut client = RaftTransportClient::connect(format!("http://{address}")).await.expect("connect");
    let to = Some(wire::Address {
        group: GROUP.to_u64(),
        replica: first[n].replica.0,
        cluster: CLUSTER.to_owned(),
        version: flotilla_raft::PROTOCOL_VERSION,
    });
    let lost = first[1].replica.0;
    let at = Some(wire::LogId { term: 99, index: 1_000_000 });
    let dismissal = Some(wire::Dismissal { at, members: vec![lost] });
    let refused = client.dismiss(wire::DismissRequest { to: to.clone(), dismissal, from: lost }).await;
    let refused = refused.expect_err("it was given up");
    assert!(refused.message().contains("given up"), "{refused}");

    let vote = Some(wire::Vote { term: 99, replica: lost, committed: true });
    let offer = wire::SnapshotOffer { to, vote, manifest: Default::default() };
    let offer = wire::SnapshotToFollower { message: Some(wire::snapshot_to_follower::Message::Offer(offer)) };
    let answers = client.snapshot(tokio_stream::iter([offer])).await;
    let refused = match answers {
        Ok(answers) => answers.into_inner().message().await.expect_err("it was given up"),
        Err(refused) => refused,
    };
    assert!(refused.message().contains("given up"), "{refused}");
    let status = cluster.group(n, GROUP).status();
    assert!(!status.is_removed && status.role == Role::Leader, "{status:?}");
}

async fn assert_reset_is_noted(cluster: &Cluster, n: usize, after: LogIndex) {
    const RESET: u8 = 4;
    let at = after.next();
    let group = cluster.group(n, GROUP);
    let entries = group.log().read(at..at.next(), 1).await.expect("read the entry after the last one");
    assert_eq!(entries[0].kind, RESET);
    let text = String::from_utf8_lossy(&entries[0].meta).into_owned();
    assert!(text.contains("two disks burnt"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_refused_where_it_is_not_needed_or_not_meant() {
    let mut cluster = Cluster::start_nodes(3).await;
    let first = found(&mut cluster, 3).await;
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    for n in 0..3 {
        cluster.running(n).host.close(GROUP).await;
    }
    let replica = offline(&cluster, 0).await.expect("the survivor's log opens");
    let all = ids(&first);
    for named in [BTreeSet::new(), ids(&first[2..])] {
        match replica.plan(&named, NOW_MS) {
            Err(ResetError::QuorumIsLeft { .. }) => {}
            other => panic!("a majority is left, got {other:?}"),
        }
    }
    let stranger: BTreeSet<_> = ids(&first[1..]).into_iter().chain([ReplicaId(4711)]).collect();
    for named in [all, stranger] {
        match replica.plan(&named, NOW_MS) {
            Err(ResetError::OthersDiffer { others, .. }) => assert_eq!(others.len(), 2),
            other => panic!("{named:?} are not the others, got {other:?}"),
        }
    }
    let plan = replica.plan(&ids(&first[1..]), NOW_MS).expect("it may be reset");
    let asked = plan.ask(CLUSTER, &[]).await;
    let nobody = |asked: &Asked| asked.answer == ResetAnswer::NobodyListens;
    assert!(asked.len() == 2 && asked.iter().all(nobody), "nobody is at the address of old: {asked:?}");
    check_lost(&asked).expect("that is how the lost look");
    let unknown = "nobody.invalid:1".to_owned();
    let asked = plan.ask(CLUSTER, &[unknown]).await;
    assert!(matches!(&asked[0].answer, ResetAnswer::NotReached { .. }), "{asked:?}");
    assert_in_doubt(&asked, 2);
    // The process that accepts and never says a word may be one that hangs.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind a free port");
    let silent = (silent.local_addr().expect("a bound address").to_string(), silent);
    let asked = plan.ask(CLUSTER, std::slice::from_ref(&silent.0)).await;
    assert_in_doubt(&asked, 2);
    let answers: Vec<_> = asked.into_iter().map(|asked| asked.answer).collect();
    assert_eq!(answers, [ResetAnswer::DidNotAnswer, ResetAnswer::DidNotAnswer]);
    reopen(&mut cluster, 1, &first).await;
    let address = cluster.addresses.get(cluster.nodes[1].id).expect("a known address");
    let answers = |asked: &[Asked]| asked.iter().map(|it| it.answer.clone()).collect::<Vec<_>>();
    let (there, not) = (ResetAnswer::IsThere, ResetAnswer::NotThere);
    for cluster in [CLUSTER, ""] {
        let asked = ask(&plan, cluster, std::slice::from_ref(&address)).await;
        assert_eq!(answers(&asked), [there.clone(), not.clone()], "asked for cluster `{cluster}`");
        assert_in_doubt(&asked, 2);
    }
    let asked = ask(&plan, "another", &[address]).await;
    assert_eq!(answers(&asked), [not.clone(), not], "another cluster's process took the port over");
    assert_in_doubt(&asked, 2);
    replica.close().await;
    check_log_in_use(&mut cluster, &first).await;

    let space = cluster.running(2).space.clone();
    match OfflineReplica::open(pipeline(1), &space, log_spec()).await {
        Err(ResetError::FixedMembers(_)) => {}
        Err(other) => panic!("expected FixedMembers, got {other}"),
        Ok(_) => panic!("a pipeline is reset"),
    }
    drop(space);
    cluster.stop().await;
}

/// Asks again while a process is too busy to answer.
async fn ask(plan: &flotilla_raft::ResetPlan, cluster: &str, addresses: &[String]) -> Vec<Asked> {
    let mut asked = Vec::new();
    for _ in 0..5 {
        asked = plan.ask(cluster, addresses).await;
        if asked.iter().all(|asked| asked.answer != ResetAnswer::DidNotAnswer) {
            break;
        }
    }
    asked
}

fn assert_in_doubt(asked: &[Asked], count: usize) {
    match check_lost(asked) {
        Err(ResetError::MayLive { in_doubt }) => assert_eq!(in_doubt.len(), count, "{in_doubt:?}"),
        other => panic!("expected MayLive, got {other:?}: {asked:?}"),
    }
}

/// A log that its node has open cannot be reset.
async fn check_log_in_use(cluster: &mut Cluster, first: &[Member]) {
    reopen(cluster, 0, first).await;
    match offline(cluster, 0).await {
        Err(ResetError::Log { why }) => assert!(why.contains("open already"), "{why}"),
        Err(other) => panic!("expected Log, got {other}"),
        Ok(_) => panic!("a log in use is reset"),
    }
    let done = cluster.apply(GROUP, "not reset".into(), body(1, 100)).await;
    let group = cluster.group(0, GROUP);
    group.wait_applied(done.id.index, DEADLINE).await.expect("it goes on");
    eventually("it has a leader", || group.status().leader).await;
}
