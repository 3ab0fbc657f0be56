use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, GROUPS, NODES, is_campaign, steady_timing};
use crate::load::{Load, assert_kept};
use crate::proxy::Link;
use std::time::Duration;

/// A time in which a node that hears nothing stands for election: the lease of the leader it heard last is
/// `election_max`, its first attempt comes at most `election_max` after that, and so does each further one.
/// Two of them in the campaign; one among tests, where all of this takes longer.
fn long_silence() -> Duration {
    let election_max = steady_timing().election_max;
    if is_campaign() { 3 * election_max } else { 2 * election_max + Duration::from_secs(1) }
}

/// A time in which a node that is back would do harm, if it ever did.
fn watch_time() -> Duration {
    let election_max = steady_timing().election_max;
    if is_campaign() { 2 * election_max } else { election_max }
}

/// A node that was cut off comes back and does not depose anybody.
pub(crate) async fn symmetric(link: Link) -> Report {
    let cluster = Cluster::start_with(steady_timing(), &[]).await;
    let load = Load::start(&cluster, DEADLINE);
    // The node must not be the leader of the group that is watched; it may lead others, which elect another
    // leader meanwhile.
    let (leader, term) = cluster.leader(1).await;
    let cut_off = (leader + 1) % NODES;
    let applied_before = cluster.group_facts_of_running(cut_off, 1).await.applied;

    cluster.network.set_all(cut_off, link);
    cluster.assert_undisturbed(1, leader, term, long_silence()).await;
    let cut = cluster.group_facts_of_running(cut_off, 1).await;
    let led = cluster.group_facts_of_running(leader, 1).await;
    assert!(led.committed > cut.last + 10, "the others went on without it: {led:?}, {cut:?}");
    assert_eq!(cut.leader, led.leader, "it knows of no other leader");
    assert!(applied_before > 0, "it was a member before");
    // Groups that the node led get a new leader, which must stay.
    let others: Vec<usize> = (0..NODES).filter(|&n| n != cut_off).collect();
    let mut leaders = Vec::new();
    for group in 1..=GROUPS {
        leaders.push(cluster.leader_on(&others, group, 0).await);
    }

    cluster.heal();
    cluster.wait_caught_up(cut_off).await;
    cluster.assert_undisturbed(1, leader, term, watch_time()).await;
    for (group, (leader, term)) in (1..=GROUPS).zip(leaders) {
        let facts = cluster.group_facts_of_running(leader, group).await;
        assert!(facts.is_leader && facts.term == term, "group {group} keeps its leader: {facts:?}");
    }
    let written = load.stop().await;
    let acknowledged = assert_kept(&cluster, &written).await;
    Report { drill: "symmetric partition", failovers: Vec::new(), acknowledged }
}

/// A node that no longer hears the leader, but hears the other follower, does not depose the leader.
pub(crate) async fn asymmetric() -> Report {
    let cluster = Cluster::start_with(steady_timing(), &[]).await;
    let load = Load::start(&cluster, DEADLINE);
    let (leader, term) = cluster.leader(1).await;
    let deaf = (leader + 1) % NODES;

    cluster.network.set(leader, deaf, Link::Held);
    cluster.assert_undisturbed(1, leader, term, long_silence()).await;
    let cut = cluster.group_facts_of_running(deaf, 1).await;
    let led = cluster.group_facts_of_running(leader, 1).await;
    assert!(led.committed > cut.last + 10, "it hears nothing of the leader: {led:?}, {cut:?}");

    cluster.heal();
    cluster.wait_caught_up(deaf).await;
    cluster.assert_undisturbed(1, leader, term, watch_time()).await;
    let written = load.stop().await;
    let acknowledged = assert_kept(&cluster, &written).await;
    Report { drill: "asymmetric partition", failovers: Vec::new(), acknowledged }
}
