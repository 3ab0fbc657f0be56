//! Tests of what a host says of itself, compared with what was done to it.

use crate::cluster::{Cluster, PATIENT, body, eventually, pipeline};
use flotilla_raft::{Command, FollowerMetrics, GroupMetrics, HostMetrics, HostOptions, ProposeError, Role};
use metrics::Exposition;
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, raft as wire};
use raftlog::LogSpaceOptions;
use testkit::prometheus::Scrape;
use types::GroupId;

fn of(cluster: &Cluster, n: usize, group: GroupId) -> GroupMetrics {
    let HostMetrics { groups, .. } = cluster.running(n).host.metrics();
    groups.into_iter().find(|metrics| metrics.group == group).expect("an open group")
}

fn scrape(metrics: &HostMetrics) -> Scrape {
    let mut exposition = Exposition::default();
    exposition.scope(&[("cluster", "a \"test\"".to_owned()), ("node", "1".to_owned())]);
    metrics.expose(&mut exposition);
    let text = exposition.finish();
    Scrape::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_counts_what_it_does() {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    for n in 0..20 {
        let done = cluster.apply(group, format!("{n}"), body(n, 1000)).await;
        cluster.assert_same(group, done.id.index).await;
    }
    let leader = cluster.leader(group).await;
    // The leader's own disk too: the followers' are enough to apply a command.
    let led = eventually("all have it all", || {
        let led = of(&cluster, leader, group);
        let is_everywhere = led.followers.len() == 2 && led.followers.iter().all(|it| it.lag == 0);
        // The last commit has no entries to ride with.
        let is_told = led.tally.commits_sent >= 2;
        (is_everywhere && is_told && led.appends_queued == 0).then_some(led)
    })
    .await;
    assert_eq!((led.status.role, led.proposals_in_flight), (Role::Leader, 0));
    let proposals: u64 = (0..3).map(|n| of(&cluster, n, group).tally.proposals).sum();
    assert!(proposals >= 20, "{proposals}");
    assert_eq!((led.proposal_bytes_in_flight, led.appends_queued), (0, 0));
    // To two followers, each before the next was proposed.
    let sent: u64 = (0..3).map(|n| of(&cluster, n, group).tally.appends_sent).sum();
    assert!(sent >= 40, "{sent}");
    assert_eq!(led.status.committed, led.status.last);
    assert_eq!((led.status.applied, led.purged), (led.status.last, None));
    assert!(led.tally.elections_won >= 1 && led.tally.leader_changes >= led.tally.elections_won, "{led:?}");

    let mut won = 0;
    for n in 0..3 {
        let seen = eventually("everything is applied once", || {
            let seen = of(&cluster, n, group);
            (Some(seen.apply_entries.sum) == seen.status.last.map(|last| last.0 + 1)).then_some(seen)
        })
        .await;
        won += seen.tally.elections_won;
        // The members, the first entry of a term for each leader, 20 commands; the first was there before
        // openraft.
        let entries = seen.status.last.expect("a log").0;
        assert!(seen.tally.append_entries >= entries, "{seen:?}");
        assert!(seen.tally.append_bytes >= 20_000, "{seen:?}");
        assert!((1..=seen.tally.append_entries).contains(&seen.append_nanos.count()), "{seen:?}");
        assert!(seen.append_nanos.sum > 0 && seen.apply_nanos.sum > 0, "{seen:?}");
        assert_eq!(seen.apply_entries.count(), seen.apply_nanos.count());
        assert!(n == leader || seen.followers.is_empty());
    }
    let started: u64 = (0..3).map(|n| of(&cluster, n, group).tally.elections_started).sum();
    assert!(won >= 1 && started >= won && won <= led.status.term.0, "{won} of {started} elections won");

    let host = cluster.running(leader).host.clone();
    // Where the leader's disk is slower than the others, it writes several commands at once.
    let disk = eventually("the leader's disk has it all", || {
        let disk = cluster.running(leader).space.metrics();
        (disk.unflushed_bytes == 0).then_some(disk)
    })
    .await;
    assert!(disk.write_and_sync_nanos.count() >= 1 && disk.hard_state_nanos.count() >= 1, "{disk:?}");
    assert!(disk.logs == 1 && disk.cached_bytes > 20_000, "{disk:?}");
    let open = host.metrics();
    assert_eq!(open.append_nanos, open.groups[0].append_nanos);
    host.close(group).await;
    let closed = host.metrics();
    assert!(closed.groups.is_empty());
    assert!(closed.append_nanos.count() >= open.append_nanos.count(), "what only grows does not shrink");
    assert!(closed.apply_entries.sum >= open.apply_entries.sum);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_is_counted_where_it_is() {
    let options = HostOptions { proposal_bytes_per_group_max: 50_000, ..HostOptions::default() };
    let mut cluster = Cluster::start_with(options, LogSpaceOptions::default()).await.with_timing(PATIENT);
    let group = pipeline(1);
    cluster.open(group).await;
    cluster.apply(group, "ready".into(), body(0, 10)).await;
    let leader = cluster.leader(group).await;
    let leading = cluster.group(leader, group);
    assert_eq!(of(&cluster, leader, group).tally.busy, 0);
    for n in (0..3).filter(|&n| n != leader) {
        cluster.stop_node(n).await;
    }
    let command = |n| Command { meta: format!("{n}").into(), body: body(n, 30_000), roll_to: None };
    let under_way = leading.propose(command(1)).await.expect("below the limit");
    assert!(matches!(leading.propose(command(2)).await, Err(ProposeError::Busy { .. })));
    let seen = eventually("the leader notices that its followers are gone", || {
        let seen = of(&cluster, leader, group);
        let is_behind = seen.followers.iter().all(|FollowerMetrics { lag, .. }| *lag >= 1);
        (seen.tally.streams_broken >= 2 && seen.followers.len() == 2 && is_behind).then_some(seen)
    })
    .await;
    assert_eq!((seen.proposals_in_flight, seen.tally.busy), (1, 1));
    assert!(seen.proposal_bytes_in_flight > 30_000, "{seen:?}");

    // Somebody who is not of this group.
    let address = cluster.addresses.get(cluster.nodes[leader].id).expect("a known address");
    let mut client = RaftTransportClient::connect(format!("http://{address}")).await.expect("connect");
    let to = wire::Address { group: group.to_u64(), replica: 1, cluster: "another".to_owned(), version: 0 };
    let ask = wire::VoteRequest { to: Some(to), ..wire::VoteRequest::default() };
    client.vote(ask.clone()).await.expect_err("refused");
    let append = wire::AppendRequest { to: ask.to, ..wire::AppendRequest::default() };
    let mut answers = client.append(tokio_stream::iter([append])).await.expect("a stream").into_inner();
    answers.message().await.expect_err("refused");
    let host = cluster.running(leader).host.metrics();
    assert_eq!(host.messages_refused, [(Code::WrongCluster, 2)]);

    let page = scrape(&host);
    let name = group.to_string();
    let labels = [("group", name.as_str()), ("cluster", "a \"test\""), ("node", "1")];
    let value = |name: &str| page.value(name, &labels).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(value("flotilla_raft_group_proposals_in_flight"), 1.0);
    assert_eq!(value("flotilla_raft_group_failed"), 0.0);
    assert_eq!(value("flotilla_raft_group_append_seconds_count"), host.groups[0].append_nanos.count() as f64);
    assert_eq!(value("flotilla_raft_group_role"), 1.0);
    assert_eq!(page.value("flotilla_raft_group_proposals_refused_total", &[("reason", "busy")]), Some(1.0));
    assert_eq!(page.value("flotilla_raft_messages_refused_total", &[("reason", "wrong_cluster")]), Some(2.0));
    assert_eq!(page.with("flotilla_raft_group_follower_lag_entries", &labels).count(), 2);
    drop(under_way);
    cluster.stop().await;
}
