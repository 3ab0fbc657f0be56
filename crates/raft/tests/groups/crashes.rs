//! A machine that loses power in the middle of a reset or a removal, at every step of its disk.

use crate::cluster::{CLUSTER, TIMING};
use crate::metadata::{GROUP, log_spec};
use bytes::Bytes;
use disk::sim::{CrashPoint, Loss, SimDisk, SimOptions};
use flotilla_raft::{
    AddressBook, Applied, Committed, Group, GroupSpec, GroupStart, HostOptions, Member, OfflineReplica,
    OpenGroupError, RaftHost, ResetError, StateMachine,
};
use raftlog::{LogSpace, LogSpaceOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{LogIndex, NodeId, ReplicaId};

/// Applies everything anew at each start.
struct Nothing;

impl StateMachine for Nothing {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        Ok(None)
    }

    fn apply(&mut self, batch: Vec<Committed>, _: Applied) -> anyhow::Result<Vec<Bytes>> {
        Ok(vec![Bytes::new(); batch.len()])
    }
}

const NOW_MS: u64 = 1_700_000_000_000;
const LOST: [ReplicaId; 2] = [ReplicaId(2), ReplicaId(3)];

fn first_members() -> GroupStart {
    let member =
        |n: u64| Member { replica: ReplicaId(n), node: NodeId(n), address: "127.0.0.1:1".to_owned() };
    GroupStart::First((1..=3).map(member).collect())
}

fn space(disk: &SimDisk) -> Arc<LogSpace> {
    let options =
        LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 1 << 20, ..LogSpaceOptions::default() };
    LogSpace::new(Arc::new(disk.clone()), options)
}

async fn open(
    host: &RaftHost,
    space: &Arc<LogSpace>,
    replica: u64,
    start: GroupStart,
) -> Result<Group, OpenGroupError> {
    let spec = GroupSpec {
        cluster: CLUSTER.to_owned(),
        group: GROUP,
        replica: ReplicaId(replica),
        timing: TIMING,
        start,
        campaign: false,
        lease_reads: false,
        snapshots: None,
    };
    host.open(spec, space, log_spec(), Nothing).await
}

fn new_host() -> RaftHost {
    RaftHost::new(HostOptions::default(), AddressBook::default())
}

/// A disk with a replica of a group of three, closed.
async fn founded(seed: u64) -> SimDisk {
    let disk = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
    let host = new_host();
    open(&host, &space(&disk), 1, first_members()).await.expect("a first member opens");
    host.close(GROUP).await;
    disk
}

/// The crashes to try: every step, stopped before it or after it, with each kind of loss, until one run is
/// through.
struct Crashes {
    step: u64,
    kind: u64,
}

impl Crashes {
    const KINDS: u64 = 6;

    fn new() -> Crashes {
        Crashes { step: 0, kind: 0 }
    }

    fn plan(&self, disk: &SimDisk) {
        let at = disk.steps() + self.step;
        disk.crash_at(if self.kind.is_multiple_of(2) {
            CrashPoint::Before(at)
        } else {
            CrashPoint::After(at)
        });
    }

    fn loss(&self) -> Loss {
        match self.kind / 2 {
            0 => Loss::AllUnsynced,
            1 => Loss::Nothing,
            _ => Loss::Random(self.step),
        }
    }

    fn next(self) -> Crashes {
        match self.kind + 1 {
            Crashes::KINDS => Crashes { step: self.step + 1, kind: 0 },
            kind => Crashes { kind, ..self },
        }
    }
}

async fn reset(disk: &SimDisk) -> Result<(), ResetError> {
    let replica = OfflineReplica::open(GROUP, &space(disk), log_spec()).await?;
    let plan = replica.plan(&BTreeSet::from(LOST), NOW_MS)?;
    replica.reset(&plan, 1, "crash test").await
}

#[tokio::test]
async fn a_reset_that_is_cut_short_leaves_the_old_members_or_the_new_one_and_may_be_repeated() {
    let mut crashes = Crashes::new();
    loop {
        let replay = format!("step {}, kind {}", crashes.step, crashes.kind);
        let disk = founded(crashes.step).await;
        crashes.plan(&disk);
        let done = reset(&disk).await;
        if !disk.is_down() {
            done.expect("nothing stopped it");
            break;
        }
        let disk = disk.lose_power(crashes.loss(), SimOptions::default());
        match (reset(&disk).await, done) {
            (Ok(()), Err(_)) | (Err(ResetError::QuorumIsLeft { .. }), _) => {}
            (again, done) => panic!("{replay}: first {done:?}, then {again:?}"),
        }
        match reset(&disk).await {
            Err(ResetError::QuorumIsLeft { left, .. }) => assert_eq!(left, [ReplicaId(1)], "{replay}"),
            other => panic!("{replay}: it is done, got {other:?}"),
        }
        crashes = crashes.next();
    }
    assert!(crashes.step > 5, "only {} steps were tried", crashes.step);
}

#[tokio::test]
async fn a_removal_that_is_cut_short_leaves_nothing_that_opens_and_may_be_repeated() {
    let mut crashes = Crashes::new();
    loop {
        let replay = format!("step {}, kind {}", crashes.step, crashes.kind);
        let disk = founded(crashes.step).await;
        crashes.plan(&disk);
        let done = new_host().remove(GROUP, &space(&disk), &log_spec()).await;
        if !disk.is_down() {
            done.expect("nothing stopped it");
            break;
        }
        let disk = disk.lose_power(crashes.loss(), SimOptions::default());
        let (host, space) = (new_host(), space(&disk));
        if let Ok(group) = open(&host, &space, 1, first_members()).await {
            assert!(done.is_err(), "{replay}: it was removed, and opens");
            assert_eq!(group.log().state().last.map(|last| last.index), Some(LogIndex(0)), "{replay}");
        }
        host.remove(GROUP, &space, &log_spec()).await.unwrap_or_else(|error| panic!("{replay}: {error}"));
        assert!(open(&host, &space, 1, first_members()).await.is_err(), "{replay}: the same id again");
        let joined = open(&host, &space, 4, GroupStart::Join).await;
        let joined = joined.unwrap_or_else(|error| panic!("{replay}: {error}"));
        assert_eq!(joined.log().state().last, None, "{replay}");
        drop(joined);
        host.close(GROUP).await;
        crashes = crashes.next();
    }
    assert!(crashes.step > 5, "only {} steps were tried", crashes.step);
}
