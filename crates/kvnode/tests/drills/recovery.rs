use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, GROUPS, NODES, TIMING, client_of};
use crate::load::{Load, Written, assert_kept};
use disk::{OpenDiskError, RealDisk};
use flotilla_kvnode::{CallError, log_spec, replica_id};
use raft::{OfflineReplica, ResetError};
use raftlog::{LogSpace, LogSpaceOptions};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{GroupId, ReplicaId};

/// The node that is left.
const SURVIVOR: usize = 0;

/// Two of three nodes are lost for good. The third serves nothing until it is made the only member by force, offline; then it
/// has everything it ever had, and takes writes.
pub(crate) async fn forced() -> Report {
    let mut cluster = Cluster::start().await;
    let load = Load::start(&cluster, DEADLINE);
    cluster.wait_applied(SURVIVOR, 1, 200).await;
    let written = load.stop().await;
    // What the survivor does not have is lost with the others, by the nature of it: let it have all.
    cluster.wait_caught_up(SURVIVOR).await;
    for n in (0..NODES).filter(|&n| n != SURVIVOR) {
        cluster.kill_node(n);
    }
    let short = client_of(&cluster.addresses, 2 * TIMING.election_max);
    match short.read(1, b"anything").await {
        Err(CallError::GaveUp { .. }) => {}
        other => panic!("one of three serves: {other:?}"),
    }

    cluster.stop_node(SURVIVOR).await;
    for group in 1..=GROUPS {
        reset(&cluster.data_dir(SURVIVOR), group).await;
    }
    drop(free_disk(&cluster.data_dir(SURVIVOR)).await);
    cluster.start_node(SURVIVOR).await;
    for group in 1..=GROUPS {
        let (leader, _) = cluster.leader(group).await;
        assert_eq!(leader, SURVIVOR);
    }
    let kept = assert_kept(&cluster, &written).await;
    let load =
        Load::start_after(&cluster, DEADLINE, written.iter().map(Written::next_writer).max().unwrap_or(0));
    let begun = cluster.group_facts(SURVIVOR, 1).await.expect("it runs").applied;
    cluster.wait_applied(SURVIVOR, 1, begun + 50).await;
    let written_after = load.stop().await;
    let acknowledged = kept + assert_kept(&cluster, &written_after).await;
    Report { drill: "majority loss and forced recovery", failovers: Vec::new(), acknowledged }
}

/// What `flotilla debug unsafe-reset-membership` does, on a node that does not run.
async fn reset(data: &Path, group: u32) {
    let space = LogSpace::new(
        Arc::new(free_disk(data).await),
        LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() },
    );
    let open = || OfflineReplica::open(GroupId::om(u64::from(group)), &space, log_spec(group));
    let replica = open().await.expect("the survivor's log opens");
    let lost: BTreeSet<ReplicaId> =
        (0..NODES as u64).filter(|&n| n != SURVIVOR as u64).map(|n| replica_id(group, n + 1)).collect();
    let plan = replica.plan(&lost).expect("it may be reset");
    // As with --even-if-alive: the proxies accept connections for the dead, so asking there says that they may live.
    replica.reset(&plan, 0, "a drill").await.expect("it is reset");
    // Once more: there is nothing to do any more.
    let again = open().await.expect("the log opens again");
    assert!(matches!(again.plan(&lost), Err(ResetError::QuorumIsLeft { .. })));
    again.close().await;
}

/// A disk that was in use before is let go when its last operation has ended.
async fn free_disk(data: &Path) -> RealDisk {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match RealDisk::open(&data.join("disk"), SURVIVOR as u128 + 1) {
            Err(OpenDiskError::InUse { .. }) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            opened => return opened.expect("the disk is free"),
        }
    }
}
