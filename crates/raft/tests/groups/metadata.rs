//! A metadata group on a cluster's nodes: its members come and go.

use crate::cluster::{CLUSTER, Cluster, DEADLINE, TIMING, body, eventually};
use flotilla_raft::{Group, GroupSpec, GroupStart, Member, OpenGroupError, Role, SetMembersError};
use raftlog::LogSpec;
use tokio::time::Instant;
use types::{GroupId, OwnerId, ReplicaId};

pub(crate) const GROUP: GroupId = GroupId { kind: types::GroupKind::Om, number: 4 };

/// Replica ids of a node's first, second, ... replica of the group.
pub(crate) fn member(cluster: &Cluster, n: usize, generation: u64) -> Member {
    let node = cluster.nodes[n].id;
    let replica = ReplicaId(100 * generation + node.0);
    Member { replica, node, address: "127.0.0.1:1".to_owned() }
}

pub(crate) fn log_spec() -> LogSpec {
    LogSpec {
        log: GROUP.to_u64(),
        dir: format!("groups/{GROUP}"),
        owners_dir: format!("meta/{GROUP}"),
        first_owner: OwnerId(0),
    }
}

pub(crate) fn group_spec(replica: ReplicaId, start: GroupStart) -> GroupSpec {
    GroupSpec {
        cluster: CLUSTER.to_owned(),
        group: GROUP,
        replica,
        timing: TIMING,
        start,
        campaign: false,
        lease_reads: false,
        snapshots: None,
    }
}

/// Opens the group on the first `count` nodes, as its first members.
pub(crate) async fn found(cluster: &mut Cluster, count: usize) -> Vec<Member> {
    let members: Vec<_> = (0..count).map(|n| member(cluster, n, 1)).collect();
    for n in 0..count {
        reopen(cluster, n, &members).await;
    }
    members
}

pub(crate) async fn reopen(cluster: &mut Cluster, n: usize, members: &[Member]) -> Group {
    let start = GroupStart::First(members.to_vec());
    let (timing, campaign) = (cluster.timing, n == 0);
    let spec = GroupSpec { timing, campaign, ..group_spec(members[n].replica, start) };
    cluster.open_spec(n, spec, log_spec()).await.expect("open a first member")
}

pub(crate) async fn join(cluster: &mut Cluster, n: usize, generation: u64) -> Result<Group, OpenGroupError> {
    let replica = member(cluster, n, generation).replica;
    let spec = GroupSpec { timing: cluster.timing, ..group_spec(replica, GroupStart::Join) };
    cluster.open_spec(n, spec, log_spec()).await
}

/// Repeats the change at whoever leads until it is done.
pub(crate) async fn set_members(cluster: &Cluster, members: &[Member]) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let leader = cluster.leader(GROUP).await;
        match cluster.group(leader, GROUP).set_members(members, deadline).await {
            Ok(()) => return,
            Err(SetMembersError::NotLeader { .. } | SetMembersError::OutcomeUnknown) => {}
            Err(error) => panic!("{members:?} do not become the members: {error}"),
        }
        assert!(Instant::now() < deadline, "no leader changes the members");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

pub(crate) async fn apply_some(cluster: &Cluster, count: u64) -> types::LogIndex {
    let mut last = None;
    for n in 0..count {
        last = Some(cluster.apply(GROUP, format!("command {n}"), body(n, 500)).await);
    }
    last.expect("applied some").id.index
}

/// Waits until the node's replica knows that it was removed.
pub(crate) async fn until_removed(cluster: &Cluster, n: usize) {
    let group = cluster.group(n, GROUP);
    let removed = || {
        let status = group.status();
        (status.is_removed && status.role != Role::Leader).then_some(())
    };
    eventually(&format!("node {n} notices its removal"), removed).await;
}
