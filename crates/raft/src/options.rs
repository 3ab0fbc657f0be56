use crate::{Member, SnapshotPolicy};
use std::sync::Arc;
use std::time::Duration;
use types::{Clock, GroupId, ReplicaId, SystemClock};

/// The most bytes of a command, meta and body: one of them and the entries read with it must fit into a
/// message (`proto::MESSAGE_BYTES_MAX`, 24 MiB = 16 MiB + 4 MiB of other entries + headers).
pub const COMMAND_BYTES_MAX: usize = 16 << 20;

/// Heartbeats that fit into the shortest election timeout, at least.
const HEARTBEATS_PER_ELECTION_MIN: u32 = 3;

/// Election and heartbeat times of a group. The lease equals `election_max`, which must be the same on all
/// members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub heartbeat: Duration,
    pub election_min: Duration,
    pub election_max: Duration,
}

impl Timing {
    pub const PIPELINE: Timing = Timing {
        heartbeat: Duration::from_millis(500),
        election_min: Duration::from_millis(2000),
        election_max: Duration::from_millis(3000),
    };
    /// The times of metadata groups. Followers wait for the lease and an election timeout: names stand still
    /// for two seconds when their leader dies, and a machine that stalls for less than 1.8 s loses nothing.
    pub const METADATA: Timing = Timing {
        heartbeat: Duration::from_millis(200),
        election_min: Duration::from_millis(700),
        election_max: Duration::from_millis(1100),
    };
}

/// Times with which a group would lose its leader for no reason, or never have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    #[error("a heartbeat each 0 ms would never end")]
    NoHeartbeat,
    /// Heartbeats so far apart that one that is late, or two that are lost, would cost the leader.
    #[error(
        "three heartbeats, {heartbeat:?} apart, do not fit into the shortest election timeout, {election_min:?}"
    )]
    HeartbeatTooLong { heartbeat: Duration, election_min: Duration },
    /// Shortest and longest election timeout with nothing between them: timeouts are drawn from there, and
    /// members would stand for election together.
    #[error(
        "the longest election timeout, {election_max:?}, is not longer than the shortest, {election_min:?}"
    )]
    NothingBetween { election_min: Duration, election_max: Duration },
}

impl Timing {
    /// # Errors
    /// The first thing that is wrong; its message names both values that do not fit together.
    pub fn validate(&self) -> Result<(), TimingError> {
        let Timing { heartbeat, election_min, election_max } = *self;
        if heartbeat < Duration::from_millis(1) {
            return Err(TimingError::NoHeartbeat);
        }
        if heartbeat > election_min / HEARTBEATS_PER_ELECTION_MIN {
            return Err(TimingError::HeartbeatTooLong { heartbeat, election_min });
        }
        if election_max <= election_min {
            return Err(TimingError::NothingBetween { election_min, election_max });
        }
        Ok(())
    }
}

/// The limits of a host, or of each of its groups where a field says so.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Bytes of proposals of one group that are not yet applied; more get [`crate::ProposeError::Busy`].
    pub proposal_bytes_per_group_max: usize,
    /// Bytes of entries in flight to one follower of one group. One message may go past it.
    pub window_bytes: usize,
    /// Bytes of entries read from the log for one append message.
    pub append_bytes_max: usize,
    /// The time after which a group that nobody uses dozes: it has no timer of its own then, and fewer
    /// heartbeats. `None`: never. Hosts may differ in it.
    pub doze_after: Option<Duration>,
    /// Bytes of snapshots that all groups together send in a second, and that they receive. Below 1 MiB
    /// members may take the pause between two pieces for a hanging sender.
    pub snapshot_bytes_per_second: u64,
    /// Snapshots written at a time: each reads and checksums a whole state.
    pub snapshot_writers_max: usize,
    /// Snapshots received at a time; 2 MiB of memory each. More are refused, and offered again.
    pub snapshot_receptions_max: usize,
    /// Operations that wait for a group at a time, all groups together: for apply, or for all members. Some
    /// 200 bytes each, so 20 MB at the default; more get `Busy` at once.
    pub waits_max: usize,
    /// Linearizable reads, of all groups together, whose leader is being confirmed: our own and those that
    /// followers ask of us. Some 500 bytes each, so 50 MB at the default; more get `Busy` at once.
    pub reads_max: usize,
    /// Whether leaders on this host rely on leases, for their own reads and those that followers ask of them,
    /// in groups that have them. Promises are kept in any case. To be false on a machine whose monotonic
    /// clock stands still while it is paused.
    pub leases: bool,
    /// The clock by which terms are refused that cannot have come about. Nothing else depends on it, and no
    /// term below 2^32 does.
    pub clock: Arc<dyn Clock>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            proposal_bytes_per_group_max: 64 << 20,
            window_bytes: 16 << 20,
            append_bytes_max: 4 << 20,
            doze_after: Some(Duration::from_secs(5)),
            // Half of a network of 1 Gbit/s: the groups go on beside it. A state of 10 GB takes three
            // minutes.
            snapshot_bytes_per_second: 64 << 20,
            snapshot_writers_max: 2,
            snapshot_receptions_max: 4,
            waits_max: 100_000,
            reads_max: 100_000,
            leases: true,
            clock: Arc::new(SystemClock),
        }
    }
}

/// One replica of one group on this host.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// The cluster the group belongs to. Groups, replicas and ports have the same numbers in every cluster,
    /// so only this keeps a node that took over another cluster's port from being taken for a member. May be
    /// empty for a group of one, which nobody talks to.
    pub cluster: String,
    pub group: GroupId,
    pub replica: ReplicaId,
    pub timing: Timing,
    /// The way in which a replica begins that is not on the disk yet.
    pub start: GroupStart,
    /// Whether the replica stands for election as soon as it is open instead of waiting for the timeout: one
    /// of each group should. Harmless while there is a leader.
    pub campaign: bool,
    /// The policy by which snapshots are written and the log is purged; `None`: never. Of no effect for a
    /// state machine without [`crate::StateMachine::snapshots`].
    pub snapshots: Option<SnapshotPolicy>,
    /// Whether [`crate::ReadPolicy::Lease`] may answer without asking a quorum. A restarted replica has
    /// forgotten what it promised, so a replica of such a group gives no vote and does not stand for election
    /// for `election_max` after it was opened again (docs/adr/0005). It must be the same on all replicas.
    /// OM's groups have it, SCM and pipelines do not.
    pub lease_reads: bool,
}

/// The beginning of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupStart {
    /// The replica comes with the group, as one of these members; all of them must be given the same list.
    First(Vec<Member>),
    /// The replica joins later: it has no members, and is quiet until a leader that was told of it
    /// ([`crate::Group::set_members`]) finds it. Its id must never have been used in the group.
    Join,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_cost_a_group_its_leader_are_refused() {
        let check = |heartbeat, min, max, expect: fn(&TimingError) -> bool| {
            let [heartbeat, election_min, election_max] = [heartbeat, min, max].map(Duration::from_millis);
            let refused = Timing { heartbeat, election_min, election_max }.validate().unwrap_err();
            assert!(expect(&refused), "{heartbeat:?}, {election_min:?}, {election_max:?}: {refused}");
        };
        check(0, 300, 450, |error| matches!(error, TimingError::NoHeartbeat));
        check(101, 300, 450, |error| matches!(error, TimingError::HeartbeatTooLong { .. }));
        check(100, 300, 300, |error| matches!(error, TimingError::NothingBetween { .. }));
        for timing in [Timing::PIPELINE, Timing::METADATA] {
            assert_eq!(timing.validate(), Ok(()));
        }
        let [heartbeat, election_min, election_max] = [100, 300, 301].map(Duration::from_millis);
        assert_eq!(
            Timing { heartbeat, election_min, election_max }.validate(),
            Ok(()),
            "the closest there is"
        );
    }
}
