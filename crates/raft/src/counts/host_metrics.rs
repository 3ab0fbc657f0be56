use crate::adapter::type_config::TypeConfig;
use crate::counts::tally::Tally;
use crate::counts::{Counts, HostCounts, Totals};
use crate::{GroupStatus, Role, SnapshotProgress};
use metrics::Distribution;
use openraft::RaftMetrics;
use parking::LotCounts;
use proto::Code;
use types::{GroupId, LogIndex, ReplicaId};

/// A host and its groups at some moment, as plain values. Numbers that only grow start at 0 with the process.
#[derive(Clone, Debug, PartialEq)]
pub struct HostMetrics {
    /// The groups by their ids.
    pub groups: Vec<GroupMetrics>,
    /// The times from append to durable in all groups together, those that were closed included.
    pub append_nanos: Distribution,
    /// The times of the writes of state machines, in the same groups; `apply_entries`: how many entries each
    /// applied.
    pub apply_nanos: Distribution,
    pub apply_entries: Distribution,
    /// The number of times that a doze ended, in the same groups; how many doze is in their status.
    pub dozes_ended: u64,
    /// Operations that wait for apply or for all members, and their limit.
    pub waits: LotCounts,
    pub waits_max: usize,
    /// Messages of other hosts that were refused and changed nothing, by reason.
    pub messages_refused: Vec<(Code, u64)>,
    /// The limit of [`GroupMetrics::proposal_bytes_in_flight`].
    pub proposal_bytes_max: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GroupMetrics {
    pub group: GroupId,
    pub replica: ReplicaId,
    pub status: GroupStatus,
    /// The last entry that the log has forgotten.
    pub purged: Option<LogIndex>,
    /// Proposals that were taken and are not yet applied or dropped.
    pub proposals_in_flight: u64,
    pub proposal_bytes_in_flight: usize,
    pub tally: Tally<u64>,
    /// Appends that are not yet durable.
    pub appends_queued: u64,
    pub append_nanos: Distribution,
    pub apply_nanos: Distribution,
    pub apply_entries: Distribution,
    pub dozes_ended: u64,
    /// The group's snapshots; `None` where it has none.
    pub snapshots: Option<SnapshotProgress>,
    /// The other members by their replicas; on the leader.
    pub followers: Vec<FollowerMetrics>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerMetrics {
    pub replica: ReplicaId,
    /// Entries of the leader that the follower is not known to have durably.
    pub lag: u64,
}

impl HostMetrics {
    pub(crate) fn new(
        mut groups: Vec<GroupMetrics>,
        counts: &HostCounts,
        proposal_bytes_max: usize,
    ) -> HostMetrics {
        groups.sort_unstable_by_key(|group| group.group);
        let Totals { append, apply, apply_entries, woken } = counts.totals();
        HostMetrics {
            groups,
            append_nanos: append,
            apply_nanos: apply,
            apply_entries,
            dozes_ended: woken,
            waits: LotCounts::default(),
            waits_max: 0,
            messages_refused: counts.refusals(),
            proposal_bytes_max,
        }
    }
}

impl GroupMetrics {
    pub(crate) fn new(
        group: GroupId,
        replica: ReplicaId,
        status: GroupStatus,
        metrics: &RaftMetrics<TypeConfig>,
        counts: &Counts,
    ) -> GroupMetrics {
        GroupMetrics {
            group,
            replica,
            followers: if status.role == Role::Leader { followers(metrics, replica) } else { Vec::new() },
            status,
            purged: metrics.purged.as_ref().map(|id| LogIndex(id.index)),
            proposals_in_flight: counts.proposals_in_flight(),
            proposal_bytes_in_flight: 0,
            tally: counts.tally.read(),
            appends_queued: counts.appends_queued(),
            append_nanos: counts.append.take(),
            apply_nanos: counts.apply.take(),
            apply_entries: counts.apply_entries.take(),
            dozes_ended: counts.woken.get(),
            snapshots: None,
        }
    }
}

fn followers(metrics: &RaftMetrics<TypeConfig>, own: ReplicaId) -> Vec<FollowerMetrics> {
    let next = |index: Option<u64>| index.map_or(0, |index| index + 1);
    let end = next(metrics.last_log_index);
    let members = metrics.replication.iter().flatten().filter(|(replica, _)| **replica != own.0);
    let follower =
        |(replica, matched): (&u64, &Option<crate::adapter::type_config::RaftLogId>)| FollowerMetrics {
            replica: ReplicaId(*replica),
            lag: end.saturating_sub(next(matched.as_ref().map(|id| id.index))),
        };
    members.map(follower).collect()
}
