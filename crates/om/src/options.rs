use std::time::Duration;

/// Settings of an OM.
#[derive(Clone, Debug)]
pub struct OmOptions {
    /// "host:port" where other processes reach this one.
    pub address: String,
    /// "host:port" of SCM; several, separated by commas, are its members. Empty: nobody is asked, and only
    /// what is on the disk runs.
    pub scm: String,
    /// The version of this process's software, which SCM is told.
    pub version: String,
    /// The interval at which SCM is told what is here; it is told at once when that changes.
    pub heartbeat: Duration,
    /// The time for which what was overwritten or deleted may still be read. Then it is given up.
    pub reclaim_after: Duration,
    /// The time for which a container has been closed before it is compared with what all groups know of it.
    pub sweep_after: Duration,
    /// The time after which a container is compared again. `None`: none is compared, unless an operator asks
    /// for it.
    pub sweep_every: Option<Duration>,
    /// Listings that run at the same time; more are refused as busy. Each holds a thread for about a
    /// millisecond per thousand entries and at most one page (10 MiB at the very worst) in memory.
    pub scans_max: usize,
    /// Election and heartbeat times of the OM's groups; the same at all OMs.
    pub timing: raft::Timing,
    /// The policy by which the OM's groups write a snapshot and purge their log.
    pub snapshots: raft::SnapshotPolicy,
    /// Memory of the tables of all groups.
    pub memory_bytes: usize,
    /// Other settings of each group's tables.
    pub db: statedb::DbOptions,
}

impl Default for OmOptions {
    fn default() -> Self {
        Self {
            address: String::new(),
            scm: String::new(),
            version: String::new(),
            heartbeat: Duration::from_secs(1),
            reclaim_after: Duration::from_secs(600),
            sweep_after: Duration::from_secs(3600),
            sweep_every: None,
            scans_max: 256,
            timing: raft::Timing::METADATA,
            snapshots: raft::SnapshotPolicy::METADATA,
            memory_bytes: 256 << 20,
            db: statedb::DbOptions { write_buffer_bytes: 32 << 20, ..statedb::DbOptions::default() },
        }
    }
}
