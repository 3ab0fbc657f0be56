//! Members that the log can no longer serve.

use crate::cluster::{CLUSTER, Cluster, body, eventually, metadata};
use flotilla_raft::{HostOptions, SnapshotPolicy, SnapshotProgress};
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use raftlog::LogSpaceOptions;
use types::{GroupId, LogIndex, Payload};

const POLICY: SnapshotPolicy = SnapshotPolicy { log_bytes_max: 1 << 20, tail_bytes: 64 << 10 };

/// A command of which the state keeps some ten thousand bytes that do not compress.
fn kept(n: u64, bytes: usize) -> String {
    let data = body(n + 1, bytes);
    let text: String = data.bytes().iter().map(|byte| char::from(b'!' + byte % 90)).collect();
    format!("keep {n} {text}")
}

async fn cluster(host: HostOptions) -> Cluster {
    let mut cluster = Cluster::start_with(host, LogSpaceOptions::default()).await;
    cluster.snapshots = Some(POLICY);
    cluster
}

/// Applies commands until the log's purge has passed `index` on all running nodes but `away`.
async fn purge_past(cluster: &Cluster, group: GroupId, index: LogIndex, nodes: &[usize]) -> LogIndex {
    let mut n = 0;
    loop {
        let done = cluster.apply(group, kept(n, 60_000), Payload::default()).await;
        n += 1;
        let is_purged = |n: &usize| {
            cluster.group(*n, group).log().state().purged.is_some_and(|purged| purged.index > index)
        };
        if n >= 60 && nodes.iter().all(is_purged) {
            return done.id.index;
        }
        assert!(n < 3000, "the log is not purged: {:?}", progress(cluster, group, nodes));
    }
}

fn progress(cluster: &Cluster, group: GroupId, nodes: &[usize]) -> Vec<SnapshotProgress> {
    nodes.iter().map(|&n| cluster.group(n, group).snapshots()).collect()
}

/// A group of three with a member that is away and cannot be served from the log any more: the nodes that are here, the one
/// that is not, and the last index.
async fn left_behind(cluster: &mut Cluster, group: GroupId) -> (Vec<usize>, usize, LogIndex) {
    cluster.open(group).await;
    let first = cluster.apply(group, "first".into(), Payload::default()).await.id.index;
    cluster.assert_same(group, first).await;
    let away = (cluster.leader(group).await + 1) % 3;
    cluster.stop_node(away).await;
    let here: Vec<usize> = (0..3).filter(|&n| n != away).collect();
    let last = purge_past(cluster, group, first, &here).await;
    (here, away, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_past_the_purge_catches_up_by_snapshot() {
    let mut cluster = cluster(HostOptions::default()).await;
    let group = metadata(1);
    let (here, away, last) = left_behind(&mut cluster, group).await;
    for &n in &here {
        // The keeper looks again after the last command: less than a limit's worth since the snapshot, and the tail.
        let log = cluster.group(n, group).log().clone();
        eventually("the log is short", || {
            (log.bytes_after(None) < POLICY.log_bytes_max * 5 / 4).then_some(())
        })
        .await;
    }
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    cluster.assert_same(group, last).await;
    assert_eq!(cluster.group(away, group).snapshots().installed_count, 1);

    // It takes part again, and finds its way after restarts.
    let done = cluster.apply(group, "after".into(), Payload::default()).await;
    cluster.assert_same(group, done.id.index).await;
    for n in 0..3 {
        cluster.stop_node(n).await;
        cluster.start_node(n).await;
        cluster.open_on(n, group).await;
    }
    let done = cluster.apply(group, "again".into(), Payload::default()).await;
    cluster.assert_same(group, done.id.index).await;
    cluster.stop().await;
}

/// The leader counts the answer as a promise to elect nobody else for a while, so the follower must have heard it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_of_what_is_here_already_is_taken_as_word_from_the_leader() {
    let mut cluster = cluster(HostOptions::default()).await;
    let group = metadata(1);
    cluster.open(group).await;
    let last = purge_past(&cluster, group, LogIndex(0), &[0, 1, 2]).await;
    cluster.assert_same(group, last).await;
    let follower = (cluster.leader(group).await + 1) % 3;
    for n in (0..3).filter(|&n| n != follower) {
        cluster.stop_node(n).await;
    }
    let manifest = manifest_of(&cluster, follower, group);
    let here = cluster.group(follower, group);
    let other = cluster.members(group)[(follower + 1) % 3].replica.0;
    let term = here.status().term.0 + 50;
    let to = Some(wire::Address {
        group: group.to_u64(),
        replica: here.replica().0,
        cluster: CLUSTER.to_owned(),
        version: flotilla_raft::PROTOCOL_VERSION,
    });
    let vote = wire::Vote { term, replica: other, committed: true };
    let offer = wire::SnapshotOffer { to, vote: Some(vote), manifest: manifest.into() };
    let offer = wire::SnapshotToFollower { message: Some(wire::snapshot_to_follower::Message::Offer(offer)) };

    let address = cluster.addresses.get(cluster.nodes[follower].id).expect("a known address");
    let mut client = RaftTransportClient::connect(format!("http://{address}")).await.expect("connect");
    let mut answers = client.snapshot(tokio_stream::iter([offer])).await.expect("taken").into_inner();
    let answer = answers.message().await.expect("an answer").and_then(|answer| answer.message);
    assert_eq!(answer, Some(wire::snapshot_to_leader::Message::Done(vote)));
    assert!(here.status().term.0 >= term, "it promised nothing: {:?}", here.status());
    drop(here);
    cluster.stop().await;
}

fn manifest_of(cluster: &Cluster, n: usize, group: GroupId) -> Vec<u8> {
    let root = cluster.nodes[n].dir.join(format!("snapshots/{group}"));
    #[allow(clippy::disallowed_methods)] // a test's own directory
    let mut manifests = std::fs::read_dir(&root)
        .expect("the group has snapshots")
        .filter_map(|entry| std::fs::read(entry.expect("an entry").path().join("manifest")).ok());
    manifests.next().unwrap_or_else(|| panic!("no snapshot is complete in {root:?}"))
}
