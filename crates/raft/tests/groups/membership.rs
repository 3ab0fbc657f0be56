use crate::cluster::{Cluster, DEADLINE, PATIENT, STEADY, eventually, pipeline};
use crate::metadata::{
    GROUP, apply_some, found, group_spec, join, log_spec, member, reopen, set_members, until_removed,
};
use flotilla_raft::{GroupStart, HostOptions, OpenGroupError, Role, SetMembersError, TransferError};
use raftlog::LogSpaceOptions;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use types::ReplicaId;

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

fn ids(members: &[flotilla_raft::Member]) -> BTreeSet<ReplicaId> {
    members.iter().map(|member| member.replica).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_replaced_with_one_call_and_repeating_it_changes_nothing() {
    let mut cluster = Cluster::start_nodes(5).await.with_timing(STEADY);
    found(&mut cluster, 3).await;
    apply_some(&cluster, 200).await;
    let leader = cluster.leader(GROUP).await;
    for n in [3, 4] {
        let joined = join(&mut cluster, n, 1).await.expect("a new replica opens");
        assert_eq!((joined.status().role, joined.status().last), (Role::Learner, None));
    }
    let wanted = [leader, 3, 4].map(|n| member(&cluster, n, 1));
    set_members(&cluster, &wanted).await;
    let leading = cluster.group(leader, GROUP);
    assert_eq!(leading.members().voter_sets, [ids(&wanted)]);
    assert_eq!(ids(&leading.members().all), ids(&wanted));
    let last = leading.status().last;
    leading.set_members(&wanted, soon()).await.expect("it is reached already");
    assert_eq!(leading.status().last, last, "a reached target changes nothing");

    let term = leading.status().term;
    for n in (0..3).filter(|&n| n != leader) {
        until_removed(&cluster, n).await;
        let (space, host) = (cluster.running(n).space.clone(), cluster.running(n).host.clone());
        host.remove(GROUP, &space, &log_spec()).await.expect("a removed replica is deleted");
    }
    let index = apply_some(&cluster, 20).await;
    cluster.assert_same(GROUP, index).await;
    assert_eq!(leading.status().term, term, "removed members disturb nobody");

    // The new members carry the group alone, also after a restart.
    cluster.stop_node(leader).await;
    apply_some(&cluster, 5).await;
    cluster.stop_node(3).await;
    cluster.start_node(3).await;
    join(&mut cluster, 3, 1).await.expect("a joined replica opens again");
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_removes_itself_is_followed_by_another() {
    let mut cluster = Cluster::start_nodes(4).await.with_timing(STEADY);
    found(&mut cluster, 3).await;
    apply_some(&cluster, 10).await;
    let old = cluster.leader(GROUP).await;
    join(&mut cluster, 3, 1).await.expect("a new replica opens");
    let kept: Vec<usize> = (0..4).filter(|&n| n != old).collect();
    let wanted: Vec<_> = kept.iter().map(|&n| member(&cluster, n, 1)).collect();
    let leaving = cluster.group(old, GROUP);
    leaving.set_members(&wanted, soon()).await.expect("it removes itself");
    // It may take itself for the leader for a moment more; openraft panics when such a one is asked to change
    // members.
    let again = leaving.add_learner(member(&cluster, old, 0), soon()).await;
    assert!(matches!(again, Err(SetMembersError::NotLeader { .. })), "{again:?}");
    until_removed(&cluster, old).await;
    let (space, host) = (cluster.running(old).space.clone(), cluster.running(old).host.clone());
    host.remove(GROUP, &space, &log_spec()).await.expect("a removed replica is deleted");
    let index = apply_some(&cluster, 10).await;
    cluster.assert_same(GROUP, index).await;
    let new = cluster.leader(GROUP).await;
    assert_eq!(cluster.group(new, GROUP).members().voter_sets, [ids(&wanted)]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lags_is_named_and_the_repeated_call_finishes() {
    let mut cluster = Cluster::start_nodes(4).await.with_timing(PATIENT);
    found(&mut cluster, 3).await;
    apply_some(&cluster, 100).await;
    let leader = cluster.leader(GROUP).await;
    let leading = cluster.group(leader, GROUP);
    let wanted: Vec<_> = (0..4).map(|n| member(&cluster, n, 1)).collect();
    // Time for the learner to be added, and then a moment in which it does not catch up.
    let mut within = Duration::from_millis(300);
    let lagging = loop {
        match leading.set_members(&wanted, Instant::now() + within).await {
            Err(SetMembersError::Lagging { members }) => break members,
            // On a disk that is slow for a while it is not even added by then.
            Err(SetMembersError::Expired { .. }) if within < DEADLINE => within *= 4,
            other => panic!("nobody is there to catch up, got {other:?}"),
        }
    };
    assert_eq!(lagging.len(), 1);
    assert_eq!(lagging[0].replica, wanted[3].replica);
    assert!(lagging[0].entries >= 100, "{lagging:?}");
    assert!(!leading.members().is_voter(wanted[3].replica), "it votes before it has caught up");
    match leading.transfer_leader(wanted[3].replica).await {
        Err(TransferError::Learner { replica }) => assert_eq!(replica, wanted[3].replica),
        other => panic!("a learner cannot lead, got {other:?}"),
    }
    match leading.transfer_leader(ReplicaId(4711)).await {
        Err(TransferError::NotMember { replica }) => assert_eq!(replica, ReplicaId(4711)),
        other => panic!("a stranger cannot lead, got {other:?}"),
    }
    let follower = (leader + 1) % 3;
    match cluster.group(follower, GROUP).transfer_leader(wanted[leader].replica).await {
        Err(TransferError::NotLeader { leader: Some(named) }) => {
            assert_eq!(named.replica, wanted[leader].replica)
        }
        other => panic!("a follower hands nothing over, got {other:?}"),
    }
    join(&mut cluster, 3, 1).await.expect("a new replica opens");
    set_members(&cluster, &wanted).await;
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    cluster.stop().await;
}

/// The new members have everything, and are gone: a change to them could be neither committed nor undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_whom_a_majority_does_not_answer_are_refused_and_nothing_changes() {
    // What was answered counts for a lease: then it is over.
    let lease_over = STEADY.election_max + Duration::from_millis(100);
    let mut cluster = Cluster::start_nodes(5).await.with_timing(STEADY);
    found(&mut cluster, 3).await;
    apply_some(&cluster, 10).await;
    let leader = cluster.leader(GROUP).await;
    let leading = cluster.group(leader, GROUP);
    let wanted = [leader, 3, 4].map(|n| member(&cluster, n, 1));
    for n in [3, 4] {
        join(&mut cluster, n, 1).await.expect("a new replica opens");
        leading.add_learner(member(&cluster, n, 1), soon()).await.expect("a learner is added");
        let index = leading.status().committed.expect("something is committed");
        assert!(cluster.group(n, GROUP).wait_applied(index, DEADLINE).await.is_ok(), "node {n} catches up");
    }
    let id = |n: usize| types::NodeId(n as u64 + 1);
    for n in [3, 4] {
        cluster.links.isolate(id(n));
    }
    tokio::time::sleep(lease_over).await;
    let (before, last) = (leading.members(), leading.status().last);
    let mut within = Duration::from_millis(300);
    let silent = loop {
        match leading.set_members(&wanted, Instant::now() + within).await {
            Err(SetMembersError::Silent { members }) => break members,
            // On a busy machine it does not come to that by then.
            Err(SetMembersError::Expired { .. }) if within < DEADLINE => within *= 4,
            other => panic!("a majority of the new members is gone, got {other:?}"),
        }
    };
    assert_eq!(silent, [wanted[1].replica, wanted[2].replica]);
    assert_eq!((leading.members(), leading.status().last), (before, last), "nothing was changed");
    apply_some(&cluster, 5).await;
    // A follower of today that has everything and does not answer is not handed the group either.
    let follower = (leader + 1) % 3;
    cluster.links.isolate(id(follower));
    tokio::time::sleep(lease_over).await;
    match leading.transfer_leader(member(&cluster, follower, 1).replica).await {
        Err(TransferError::Silent { replica }) => assert_eq!(replica, member(&cluster, follower, 1).replica),
        other => panic!("it does not answer, got {other:?}"),
    }
    // The same call finishes when they are back.
    cluster.links.mend();
    drop(leading);
    set_members(&cluster, &wanted).await;
    let index = apply_some(&cluster, 5).await;
    for n in [leader, 3, 4] {
        let applied = cluster.group(n, GROUP).wait_applied(index, DEADLINE).await;
        assert!(applied.is_ok(), "node {n} applies {index}");
    }
    cluster.stop().await;
}

/// The call is broken off in the joint state, and its leader goes; the next one finishes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_left_half_done_is_finished_by_the_next_leader() {
    let mut cluster = Cluster::start_nodes(5).await.with_timing(STEADY);
    let first = found(&mut cluster, 3).await;
    apply_some(&cluster, 100).await;
    let leader = cluster.leader(GROUP).await;
    let leading = cluster.group(leader, GROUP);
    let wanted = [leader, 3, 4].map(|n| member(&cluster, n, 1));
    for n in [3, 4] {
        join(&mut cluster, n, 1).await.expect("a new replica opens");
        leading.add_learner(member(&cluster, n, 1), soon()).await.expect("a learner is added");
        let index = leading.status().committed.expect("something is committed");
        assert!(cluster.group(n, GROUP).wait_applied(index, DEADLINE).await.is_ok(), "node {n} catches up");
    }
    // Without the new members the joint state cannot be committed, nor left. Until a lease is over nobody
    // knows that they are gone.
    let give_up = soon();
    loop {
        for n in [3, 4] {
            cluster.links.isolate(types::NodeId(n as u64 + 1));
        }
        match leading.set_members(&wanted, Instant::now() + Duration::from_millis(500)).await {
            Err(SetMembersError::Expired { .. }) => break,
            // The machine stood still until the lease was over.
            Err(SetMembersError::Silent { .. }) if Instant::now() < give_up => cluster.links.mend(),
            other => panic!("no quorum of the new members is there, got {other:?}"),
        }
        for n in [3, 4] {
            let index = apply_some(&cluster, 1).await;
            let applied = cluster.group(n, GROUP).wait_applied(index, DEADLINE).await;
            assert!(applied.is_ok(), "node {n} applies {index}");
        }
    }
    // It was asked for, and may come a moment later.
    eventually("the joint state is in the log", || leading.members().is_joint().then_some(())).await;
    drop(leading);
    cluster.stop_node(leader).await;
    for n in [3, 4] {
        cluster.stop_node(n).await;
    }
    cluster.links.mend();
    for n in [3, 4] {
        cluster.start_node(n).await;
        join(&mut cluster, n, 1).await.expect("it opens again");
    }
    cluster.start_node(leader).await;
    reopen(&mut cluster, leader, &first).await;
    set_members(&cluster, &wanted).await;
    let now = cluster.leader(GROUP).await;
    assert_eq!(cluster.group(now, GROUP).members().voter_sets, [ids(&wanted)]);
    for n in (0..3).filter(|&n| n != leader) {
        until_removed(&cluster, n).await;
        cluster.running(n).host.close(GROUP).await;
    }
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_opens_under_its_own_name_only_and_a_removed_one_never_again() {
    let mut cluster = Cluster::start_nodes(2).await;
    let first = found(&mut cluster, 1).await;
    apply_some(&cluster, 5).await;
    join(&mut cluster, 1, 1).await.expect("a new replica opens");
    let both = [first[0].clone(), member(&cluster, 1, 1)];
    set_members(&cluster, &both).await;
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;

    cluster.running(1).host.close(GROUP).await;
    refused(join(&mut cluster, 1, 2).await, "another group or replica");
    // Also not as a first member: it must not invent members for the log it joined with.
    let spec = group_spec(both[1].replica, GroupStart::First(both.to_vec()));
    cluster.open_spec(1, spec, log_spec()).await.expect("its log is there, so its start does not matter");

    set_members(&cluster, &first).await;
    until_removed(&cluster, 1).await;
    let (space, host) = (cluster.running(1).space.clone(), cluster.running(1).host.clone());
    for _ in 0..2 {
        host.remove(GROUP, &space, &log_spec()).await.expect("removal may be repeated");
    }
    assert!(host.group(GROUP).is_none());
    refused(join(&mut cluster, 1, 1).await, "the log was lost");
    #[allow(clippy::disallowed_methods)] // a test's own directory
    std::fs::remove_dir_all(cluster.nodes[1].db_dir(GROUP)).expect("remove the state");
    refused(join(&mut cluster, 1, 1).await, "never used again");
    join(&mut cluster, 1, 2).await.expect("a new replica, a new id");
    set_members(&cluster, &[first[0].clone(), member(&cluster, 1, 2)]).await;
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    cluster.stop().await;
}

fn refused(opened: Result<flotilla_raft::Group, OpenGroupError>, because: &str) {
    match opened {
        Err(OpenGroupError::Failed { why, .. }) => assert!(why.contains(because), "{why}"),
        Ok(_) => panic!("opened, though: {because}"),
        Err(other) => panic!("expected Failed, got {other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_pipeline_never_change_and_bad_targets_are_refused() {
    let mut cluster = Cluster::start_nodes(3).await;
    let group = pipeline(1);
    let replicas = cluster.open(group).await;
    let members = cluster.members(group);
    cluster.leader(group).await;
    for replica in replicas {
        match replica.set_members(&members, soon()).await {
            Err(SetMembersError::FixedMembers) => {}
            other => panic!("a pipeline keeps its members, got {other:?}"),
        }
    }
    let first = found(&mut cluster, 2).await;
    let leader = cluster.leader(GROUP).await;
    let leading = cluster.group(leader, GROUP);
    let mut moved = first.clone();
    moved[0].node = cluster.nodes[2].id;
    for bad in [Vec::new(), vec![first[0].clone(), first[0].clone()], moved] {
        match leading.set_members(&bad, soon()).await {
            Err(SetMembersError::Invalid { .. }) => {}
            other => panic!("{bad:?} cannot be members, got {other:?}"),
        }
    }
    cluster.stop().await;
}

/// One member is away while another is replaced. The one that is away asks the replaced one for its vote,
/// which knows of a newer membership: without itself, and with the one that asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_replaced_while_another_is_away_which_nobody_takes_for_removed() {
    let mut cluster = Cluster::start_nodes(4).await;
    found(&mut cluster, 3).await;
    let index = apply_some(&cluster, 5).await;
    cluster.assert_same(GROUP, index).await;
    let leader = cluster.leader(GROUP).await;
    let (away, replaced) = ((leader + 1) % 3, (leader + 2) % 3);
    let id = |n: usize| types::NodeId(n as u64 + 1);
    cluster.links.isolate(id(away));
    apply_some(&cluster, 100).await;
    join(&mut cluster, 3, 1).await.expect("a new replica opens");
    let wanted = [leader, away, 3].map(|n| member(&cluster, n, 1));
    set_members(&cluster, &wanted).await;
    until_removed(&cluster, replaced).await;
    cluster.stop_node(leader).await;

    // Nobody but the replaced one is there to be asked.
    cluster.links.mend_between(id(away), id(replaced));
    let asks = cluster.group(away, GROUP);
    let asked_enough = Instant::now() + Duration::from_secs(6);
    while Instant::now() < asked_enough {
        assert!(!asks.status().is_removed, "it is a member: {:?}", asks.status());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.links.mend();
    let index = apply_some(&cluster, 5).await;
    assert!([away, 3].contains(&cluster.leader(GROUP).await));
    asks.wait_applied(index, DEADLINE).await.expect("it catches up");
    assert!(!asks.status().is_removed);
    assert!(cluster.group(replaced, GROUP).status().is_removed);
    drop(asks);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_joins_is_never_taken_for_removed() {
    // Many messages before the one that adds it.
    let options = HostOptions { append_bytes_max: 5_000, ..HostOptions::default() };
    let mut cluster = Cluster::start_with(options, LogSpaceOptions::default()).await;
    let first = found(&mut cluster, 2).await;
    apply_some(&cluster, 300).await;
    let joining = join(&mut cluster, 2, 1).await.expect("a new replica opens");
    let watched = joining.clone();
    let watching = tokio::spawn(async move {
        while !watched.members().is_voter(watched.replica()) {
            assert!(!watched.status().is_removed, "it joins: {:?}", watched.status());
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    });
    set_members(&cluster, &[first.clone(), vec![member(&cluster, 2, 1)]].concat()).await;
    tokio::time::timeout(DEADLINE, watching).await.expect("it votes").expect("it was never removed");
    set_members(&cluster, &first).await;
    until_removed(&cluster, 2).await;
    drop(joining);
    cluster.stop().await;
}
