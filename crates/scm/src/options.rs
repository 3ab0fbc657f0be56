use std::time::Duration;

/// Settings of an SCM.
#[derive(Clone, Debug)]
pub struct ScmOptions {
    /// "host:port" where other processes reach this one.
    pub address: String,
    /// Pipelines that SCM places on each healthy disk. Two keep a disk's writer busy while one of them changes
    /// leader; each costs a Raft group with its log cache.
    pub pipelines_per_disk: u32,
    /// A node that was silent for this long gets no new pipelines: five missed heartbeats.
    pub stale_after: Duration,
    /// A node that was silent for this long is given up: longer than a reboot.
    pub dead_after: Duration,
    /// How long a member's disk, group or replica may be missing while its node speaks, before its pipeline is closed. Longer than a
    /// restart of the process, shorter than people wait.
    pub member_fault_grace: Duration,
    /// How long a closing pipeline may be without a leader until its members are told to end by themselves, and an open one whose members
    /// are there until it is closed: twenty elections.
    pub quasi_close_after: Duration,
    /// How long SCM waits after the last new node or disk before it places pipelines, so that the pipelines of
    /// nodes that start together spread over all of them.
    pub placement_delay: Duration,
    /// Watches of the cluster view that may be open; more are refused as busy. A watcher costs about a kilobyte.
    pub watchers_max: usize,
    /// Election and heartbeat times of SCM's own group.
    pub timing: raft::Timing,
    /// When SCM's group writes a snapshot and purges its log.
    pub snapshots: raft::SnapshotPolicy,
    /// Memory of SCM's tables.
    pub db: raft::DbOptions,
}

impl Default for ScmOptions {
    fn default() -> Self {
        Self {
            address: String::new(),
            pipelines_per_disk: 2,
            stale_after: Duration::from_secs(5),
            dead_after: Duration::from_secs(600),
            member_fault_grace: Duration::from_secs(30),
            quasi_close_after: Duration::from_secs(60),
            placement_delay: Duration::from_millis(200),
            watchers_max: 10_000,
            timing: raft::Timing::METADATA,
            snapshots: raft::SnapshotPolicy::METADATA,
            db: raft::DbOptions::default(),
        }
    }
}
