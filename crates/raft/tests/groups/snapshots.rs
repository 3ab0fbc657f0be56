//! Members that the log can no longer serve.

use crate::cluster::{CLUSTER, Cluster, PATIENT, body, eventually, metadata};
use flotilla_raft::{HostOptions, SnapshotPolicy, SnapshotProgress};
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use raftlog::LogSpaceOptions;
use std::time::Duration;
use tokio::time::Instant;
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

/// A group of three with a member that is away and cannot be served from the log any more: the nodes that are
/// here, the one that is not, and the last index.
async fn left_behind(cluster: &mut Cluster, group: GroupId) -> (Vec<usize>, usize, LogIndex) {
    cluster.open(group).await;
    let first = cluster.apply(group, "first".into(), Payload::default()).await.id.index;
    cluster.assert_same(group, first).await;
    let away = (cluster.leader(group).await + 1) % 3;
    cluster.stop_node(away).await;
    let here: Vec<usize> = (0..3).filter(|&n| n != away).collect();
    let last = purge_past(cluster, group, first, &here).await;
    for &n in &here {
        // The keeper looks again after the last command: less than a limit's worth since the snapshot, and
        // the tail.
        let log = cluster.group(n, group).log().clone();
        eventually("the log is short", || {
            (log.bytes_after(None) < POLICY.log_bytes_max * 5 / 4).then_some(())
        })
        .await;
    }
    (here, away, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_past_the_purge_catches_up_by_snapshot() {
    let mut cluster = cluster(HostOptions::default()).await;
    let group = metadata(1);
    let (_, away, last) = left_behind(&mut cluster, group).await;
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

/// The leader counts the answer as a promise to elect nobody else for a while, so the follower must have
/// heard it.
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
    eventually("the leader's term is taken", || (here.status().term.0 >= term).then_some(())).await;
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

/// Waits until the node has received so much of a snapshot.
async fn received(cluster: &Cluster, n: usize, group: GroupId, bytes: u64) -> SnapshotProgress {
    eventually(&format!("node {n} receives {bytes} bytes"), || {
        Some(cluster.group(n, group).snapshots()).filter(|progress| progress.received_bytes >= bytes)
    })
    .await
}

/// Slow enough to come in between: of some 3 MB, two seconds after the first half MiB a part is still to be
/// sent.
const SLOW_BYTES_PER_SECOND: u64 = 1 << 20;

fn slow() -> HostOptions {
    HostOptions { snapshot_bytes_per_second: SLOW_BYTES_PER_SECOND, ..HostOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_transfer_goes_on_where_it_was_and_is_as_slow_as_it_should() {
    let (mut cluster, cables) = Cluster::start_on_cables().await;
    cluster.snapshots = Some(POLICY);
    cluster.timing = PATIENT;
    cluster.host_options = slow();
    for n in 0..3 {
        cluster.stop_node(n).await;
        cluster.start_node(n).await;
    }
    let group = metadata(1);
    let (_, away, last) = left_behind(&mut cluster, group).await;
    let begin = Instant::now();
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    let half = received(&cluster, away, group, 512 << 10).await;
    let whole_bytes = half.received_bytes + half.receiving_left_bytes;
    assert!(half.receiving_left_bytes > 512 << 10, "more is to come: {half:?}");
    cables.cut_off(away);
    eventually("the transfer breaks", || {
        (cluster.group(away, group).snapshots().receiving_left_bytes == 0).then_some(())
    })
    .await;
    cables.mend(away);
    cluster.assert_same(group, last).await;
    let took = begin.elapsed();
    let progress = cluster.group(away, group).snapshots();
    assert_eq!(progress.installed_count, 1);
    // Nothing was received twice.
    assert_eq!(progress.received_bytes, whole_bytes);
    let fastest = (whole_bytes as f64 - (1 << 20) as f64) / SLOW_BYTES_PER_SECOND as f64;
    assert!(took >= Duration::from_secs_f64(fastest), "{whole_bytes} bytes at 1 MiB/s came in {took:?}");
    cluster.stop().await;
}

/// The log grows by more than a snapshot's worth while the transfer is broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_transfer_of_a_busy_group_goes_on_where_it_was() {
    let (mut cluster, cables) = Cluster::start_on_cables().await;
    cluster.snapshots = Some(POLICY);
    cluster.timing = PATIENT;
    cluster.host_options = slow();
    for n in 0..3 {
        cluster.stop_node(n).await;
        cluster.start_node(n).await;
    }
    let group = metadata(1);
    let (here, away, _) = left_behind(&mut cluster, group).await;
    let leader = cluster.leader(group).await;
    assert!(here.contains(&leader));
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    let half = received(&cluster, away, group, 512 << 10).await;
    let whole_bytes = half.received_bytes + half.receiving_left_bytes;
    assert_eq!(half.receiving_bytes, whole_bytes);
    let sending = cluster.group(leader, group).snapshots().sending;
    assert!(sending.values().all(|sending| sending.bytes == whole_bytes), "{sending:?}");
    cables.cut_off(away);
    eventually("both ends notice", || {
        let (sent, got) = (progress(&cluster, group, &[leader]), progress(&cluster, group, &[away]));
        // More than once where the sender has tried again meanwhile.
        (sent[0].sends_failed >= 1 && got[0].receives_failed >= 1).then_some(())
    })
    .await;
    let written = progress(&cluster, group, &[leader])[0].written_count;
    let mut last = LogIndex(0);
    for n in 0..25 {
        last = cluster.apply(group, kept(n, 60_000), Payload::default()).await.id.index;
    }
    // Busy for as long as the keeper needs to look at all that, more than once.
    let until = Instant::now() + Duration::from_millis(600);
    while Instant::now() < until {
        last = cluster.apply(group, "busy".into(), Payload::default()).await.id.index;
    }
    cables.mend(away);
    cluster.assert_same(group, last).await;
    let got = &progress(&cluster, group, &[away])[0];
    assert_eq!((got.installed_count, got.receives_finished), (1, 1));
    assert_eq!(got.received_bytes, whole_bytes, "nothing was received twice");
    let sent = &progress(&cluster, group, &[leader])[0];
    assert!(sent.sends_finished == 1 && sent.sent_bytes >= whole_bytes, "{sent:?}");
    assert!(sent.written_count <= written + 1, "{sent:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_receiver_goes_on_where_it_was() {
    let mut cluster = cluster(slow()).await.with_timing(PATIENT);
    let group = metadata(1);
    let (_, away, last) = left_behind(&mut cluster, group).await;
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    let half = received(&cluster, away, group, 512 << 10).await;
    cluster.stop_node(away).await;
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    cluster.assert_same(group, last).await;
    let rest = cluster.group(away, group).snapshots();
    assert_eq!(rest.installed_count, 1);
    // More may have come between the look and the stop, never less.
    assert!(rest.received_bytes <= half.receiving_left_bytes, "{half:?}, then {rest:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_sender_dies_another_leaders_snapshot_does() {
    let mut cluster = cluster(slow()).await;
    let group = metadata(1);
    let (here, away, last) = left_behind(&mut cluster, group).await;
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    received(&cluster, away, group, 512 << 10).await;
    let sender = cluster.leader(group).await;
    assert!(here.contains(&sender));
    cluster.stop_node(sender).await;
    // The other one leads, with the vote of the member that is far behind.
    cluster.assert_same(group, last).await;
    let done = cluster.apply(group, "after".into(), Payload::default()).await;
    cluster.assert_same(group, done.id.index).await;
    assert_eq!(cluster.group(away, group).snapshots().installed_count, 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_whose_snapshot_rots_writes_another() {
    let mut cluster = cluster(HostOptions::default()).await;
    let group = metadata(1);
    let (here, away, last) = left_behind(&mut cluster, group).await;
    for &n in &here {
        damage_snapshots(&cluster, n, group);
    }
    cluster.start_node(away).await;
    cluster.open_on(away, group).await;
    cluster.assert_same(group, last).await;
    let progress = cluster.group(away, group).snapshots();
    assert_eq!(progress.installed_count, 1);
    cluster.stop().await;
}

/// Flips a bit in the middle of the largest file of each snapshot on a node.
#[allow(clippy::disallowed_methods)] // a test's own directory
fn damage_snapshots(cluster: &Cluster, n: usize, group: GroupId) {
    let root = cluster.nodes[n].dir.join(format!("snapshots/{group}"));
    for snapshot in std::fs::read_dir(root).expect("list snapshots") {
        // An older one may be deleted meanwhile.
        let Ok(files) = std::fs::read_dir(snapshot.expect("a snapshot").path().join("files")) else {
            continue;
        };
        let files = files.map(|file| file.expect("a file").path());
        let largest = files.max_by_key(|file| file.metadata().map_or(0, |metadata| metadata.len()));
        let Some(largest) = largest.filter(|largest| largest.exists()) else { continue };
        let mut bytes = std::fs::read(&largest).expect("read a file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        // A new file: the state shares the old one.
        std::fs::remove_file(&largest).expect("remove a file");
        std::fs::write(&largest, bytes).expect("write a file");
    }
}
