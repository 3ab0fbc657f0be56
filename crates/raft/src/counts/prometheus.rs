//! A host's metrics in Prometheus's words. docs/metrics.md says what to do about them.
//!
//! A group has about 25 series, one with snapshots 15 more: 200 groups are 5 000, half a megabyte a scrape.
//! Histograms have 23 lines each, so groups show only sum and count of theirs, a rate and a mean; the buckets
//! are shown for the host, where the disks are.

use crate::{GroupMetrics, HostMetrics, Role, SendProgress, SnapshotProgress};
use metrics::{Exposition, Metric};
use types::LogIndex;

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

const GROUPS: Metric = metric("flotilla_raft_groups", "Raft groups open on this host, by role.");
const FAILED_GROUPS: Metric =
    metric("flotilla_raft_failed_groups", "Raft groups that stopped by themselves; the log says why.");
const APPEND: Metric =
    metric("flotilla_raft_append_seconds", "From an append to the log until it is durable.");
const APPLY: Metric = metric("flotilla_raft_apply_seconds", "One write of a state machine, of many entries.");
const APPLY_ENTRIES: Metric =
    metric("flotilla_raft_apply_entries", "Entries applied with one write of a state machine.");
const REFUSED: Metric =
    metric("flotilla_raft_messages_refused_total", "Messages of other hosts that were refused, by reason.");
const DOZING: Metric =
    metric("flotilla_raft_dozing_groups", "Raft groups that nobody uses, without a timer.");
const WOKEN: Metric = metric("flotilla_raft_dozes_ended_total", "Times that a dozing group woke.");
const WAITS: Metric =
    metric("flotilla_raft_waits", "Operations that wait for apply or for all members of a group.");
const WAITS_MAX: Metric = metric("flotilla_raft_waits_max", "Waiting operations at which more are refused.");
const WAITS_PARKED: Metric = metric("flotilla_raft_waits_total", "Operations that began to wait.");
const WAITS_EXPIRED: Metric =
    metric("flotilla_raft_waits_expired_total", "Operations that waited until their deadline.");
const WAITS_FULL: Metric =
    metric("flotilla_raft_waits_refused_total", "Operations for which there was no room.");
const PROPOSAL_BYTES_MAX: Metric =
    metric("flotilla_raft_proposal_bytes_max", "Bytes of proposals a group has in flight before it is busy.");

const ROLE: Metric = metric("flotilla_raft_group_role", "1 for the replica's role.");
const FAILED: Metric = metric("flotilla_raft_group_failed", "1 when the group stopped by itself.");
const TERM: Metric = metric("flotilla_raft_group_term", "Raft term.");
const LEADER: Metric =
    metric("flotilla_raft_group_leader_replica", "Replica of the leader this replica knows; 0: none.");
const LAST: Metric = metric("flotilla_raft_group_last_index", "Index of the log's last entry.");
const COMMITTED: Metric =
    metric("flotilla_raft_group_committed_index", "Index up to which entries are committed.");
const APPLIED: Metric = metric("flotilla_raft_group_applied_index", "Index up to which entries are applied.");
const FORGOTTEN: Metric =
    metric("flotilla_raft_group_forgotten_index", "Index up to which the log was forgotten.");
const IN_FLIGHT: Metric =
    metric("flotilla_raft_group_proposals_in_flight", "Proposals taken and not yet applied.");
const IN_FLIGHT_BYTES: Metric =
    metric("flotilla_raft_group_proposals_in_flight_bytes", "Bytes of proposals not yet applied.");
const QUEUED: Metric =
    metric("flotilla_raft_group_appends_queued", "Appends to the log that are not yet durable.");
const GROUP_APPEND: Metric =
    metric("flotilla_raft_group_append_seconds", "From an append to the log until it is durable.");
const GROUP_APPLY: Metric = metric("flotilla_raft_group_apply_seconds", "One write of the state machine.");
const GROUP_APPLIED: Metric =
    metric("flotilla_raft_group_apply_entries_total", "Entries applied to the state machine.");
const LAG: Metric = metric(
    "flotilla_raft_group_follower_lag_entries",
    "Entries a follower is behind its leader, which reports it.",
);

const UNSERVED: Metric = metric(
    "flotilla_raft_group_members_unserved",
    "Members that the leader's purged log cannot bring up to date, in a group without snapshots.",
);
const SNAPSHOT_LAST: Metric =
    metric("flotilla_raft_group_snapshot_index", "Index of the last entry in the newest snapshot here.");
const SNAPSHOTS: Metric =
    metric("flotilla_raft_group_snapshots_total", "Snapshots of this replica, by what was done with them.");
const SNAPSHOT_SENT: Metric =
    metric("flotilla_raft_group_snapshot_sent_bytes_total", "Bytes of snapshots sent to members.");
const SNAPSHOT_RECEIVED: Metric =
    metric("flotilla_raft_group_snapshot_received_bytes_total", "Bytes of snapshots received.");
const RECEIVING: Metric =
    metric("flotilla_raft_group_snapshot_receiving_bytes", "Size of the snapshot that is being received.");
const RECEIVING_LEFT: Metric =
    metric("flotilla_raft_group_snapshot_receiving_left_bytes", "What is missing of it.");
const SENDING: Metric =
    metric("flotilla_raft_group_snapshot_sending_bytes", "Size of the snapshot that a follower is sent.");
const SENDING_LEFT: Metric =
    metric("flotilla_raft_group_snapshot_sending_left_bytes", "What the follower lacks of it.");

const ROLES: [Role; 5] = [Role::Leader, Role::Follower, Role::Candidate, Role::Learner, Role::Stopped];

impl HostMetrics {
    /// Writes the metrics, with the labels that `exposition` has in force in front of their own.
    pub fn expose(&self, exposition: &mut Exposition) {
        for role in ROLES {
            let count = self.groups.iter().filter(|group| group.status.role == role).count();
            exposition.gauge(GROUPS, &[("role", role.name())], count as u64);
        }
        let failed = self.groups.iter().filter(|group| group.status.failure.is_some()).count();
        exposition.gauge(FAILED_GROUPS, &[], failed as u64);
        let dozing = self.groups.iter().filter(|group| group.status.is_dozing).count();
        exposition.gauge(DOZING, &[], dozing as u64);
        exposition.counter(WOKEN, &[], self.dozes_ended);
        exposition.gauge(WAITS, &[], self.waits.pending as u64);
        exposition.gauge(WAITS_MAX, &[], self.waits_max as u64);
        exposition.counter(WAITS_PARKED, &[], self.waits.parked);
        exposition.counter(WAITS_EXPIRED, &[], self.waits.expired);
        exposition.counter(WAITS_FULL, &[], self.waits.full);
        exposition.histogram(APPEND, &[], &self.append_nanos);
        exposition.histogram(APPLY, &[], &self.apply_nanos);
        exposition.histogram(APPLY_ENTRIES, &[], &self.apply_entries);
        for (code, count) in &self.messages_refused {
            exposition.counter(REFUSED, &[("reason", &code.as_str_name().to_lowercase())], *count);
        }
        exposition.gauge(PROPOSAL_BYTES_MAX, &[], self.proposal_bytes_max as u64);
        for group in &self.groups {
            group.expose(exposition);
        }
    }
}

impl GroupMetrics {
    fn expose(&self, exposition: &mut Exposition) {
        let group = self.group.to_string();
        let labels = [("group", group.as_str())];
        let index = |index: Option<LogIndex>| index.map_or(0, |index| index.0);
        let status = &self.status;
        exposition.gauge(ROLE, &[labels[0], ("role", status.role.name())], 1);
        let gauges = [
            (FAILED, u64::from(status.failure.is_some())),
            (TERM, status.term.0),
            (LEADER, status.leader.as_ref().map_or(0, |leader| leader.replica.0)),
            (LAST, index(status.last)),
            (COMMITTED, index(status.committed)),
            (APPLIED, index(status.applied)),
            (FORGOTTEN, index(self.purged)),
            (IN_FLIGHT, self.proposals_in_flight),
            (IN_FLIGHT_BYTES, self.proposal_bytes_in_flight as u64),
            (QUEUED, self.appends_queued),
            (UNSERVED, status.unserved.len() as u64),
        ];
        for (metric, value) in gauges {
            exposition.gauge(metric, &labels, value);
        }
        exposition.counter(GROUP_APPLIED, &labels, self.apply_entries.sum);
        self.tally.expose(&group, exposition);
        exposition.summary(GROUP_APPEND, &labels, &self.append_nanos);
        exposition.summary(GROUP_APPLY, &labels, &self.apply_nanos);
        for follower in &self.followers {
            exposition.gauge(LAG, &[labels[0], ("follower", &follower.replica.to_string())], follower.lag);
        }
        if let Some(snapshots) = &self.snapshots {
            snapshots.expose(exposition, &group);
        }
    }
}

impl SnapshotProgress {
    fn expose(&self, exposition: &mut Exposition, group: &str) {
        let labels = [("group", group)];
        exposition.gauge(SNAPSHOT_LAST, &labels, self.last.map_or(0, |last| last.0));
        let done = [
            ("written", self.written_count),
            ("write_failed", self.write_failed_count),
            ("send_begun", self.sends_begun),
            ("send_finished", self.sends_finished),
            ("send_failed", self.sends_failed),
            ("receive_begun", self.receives_begun),
            ("receive_finished", self.receives_finished),
            ("receive_failed", self.receives_failed),
            ("installed", self.installed_count),
        ];
        for (what, count) in done {
            exposition.counter(SNAPSHOTS, &[labels[0], ("what", what)], count);
        }
        exposition.counter(SNAPSHOT_SENT, &labels, self.sent_bytes);
        exposition.counter(SNAPSHOT_RECEIVED, &labels, self.received_bytes);
        exposition.gauge(RECEIVING, &labels, self.receiving_bytes);
        exposition.gauge(RECEIVING_LEFT, &labels, self.receiving_left_bytes);
        for (follower, SendProgress { bytes, left_bytes }) in &self.sending {
            let labels = [labels[0], ("follower", &*follower.to_string())];
            exposition.gauge(SENDING, &labels, *bytes);
            exposition.gauge(SENDING_LEFT, &labels, *left_bytes);
        }
    }
}
