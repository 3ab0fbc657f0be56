use crate::Timing;
use openraft::{Config, SnapshotPolicy};
use planted::Bug;
use std::sync::Arc;
use std::time::Duration;

/// openraft's settings for a group; `stands`: whether the replica stands for election when it hears no
/// leader.
pub(crate) fn config(name: String, timing: Timing, stands: bool) -> Result<Arc<Config>, String> {
    let heartbeat = millis(timing.heartbeat);
    let election_max = millis(timing.election_max);
    let config = Config {
        cluster_name: name,
        heartbeat_interval: heartbeat,
        // Entries that are acknowledged prove as much as a heartbeat.
        heartbeat_min_interval: Some(heartbeat),
        election_timeout_min: millis(timing.election_min),
        election_timeout_max: election_max,
        enable_elect: stands,
        // A replica that cannot win (cut off, restarted, behind) must not depose a healthy leader.
        enable_pre_vote: Some(true),
        // A leader that hears from no quorum stops its heartbeats, so that followers that still hear it elect
        // another.
        quorum_loss_probe_interval: Some(2 * election_max),
        // A follower that lost a torn tail is sent it again: what a majority had stays committed, and every
        // moment without it is one copy less. openraft's own way with it, refusing, is a leader that panics,
        // or that goes on in a release build with progress that makes no sense. A disk that was wiped never
        // comes so far: its replica is a new one.
        allow_log_reversion: Some(true),
        // A leader commits by its followers' disks, so a crash may take entries from its log that are
        // acknowledged. A leader that went on in its old term would give their indexes, and their log ids, to
        // other commands, and no follower could tell. It must be elected again, which only those can win that
        // have everything.
        enable_leader_restore: Some(planted::has(Bug::LeadersRestored)),
        // These limits are counts; bytes are bounded by `HostOptions`.
        max_payload_entries: 256,
        max_append_entries: Some(256),
        api_batch_capacity: 256,
        api_channel_size: Some(1024),
        // Six rings of so many entries for statistics that openraft only keeps with a feature we do not have.
        log_stage_capacity: Some(16),
        // Nobody but a leader may know of an entry before the round of its core in which it took it is over:
        // reads by lease rely on that (docs/adr/0005).
        broadcast_submitted_on_append: Some(false),
        // `snapshot::keeper` decides, by bytes, when a snapshot is written and what of the log is kept.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        install_snapshot_timeout: 60_000,
        ..Config::default()
    };
    config.validate().map(Arc::new).map_err(|error| error.to_string())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a timeout below 584 million years")
}
