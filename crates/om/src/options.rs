/// Settings of an OM.
#[derive(Clone, Debug)]
pub struct OmOptions {
    /// "host:port" where other processes reach this one.
    pub address: String,
    /// "host:port" of SCM; several, separated by commas, are its members. Asked once: which cluster this is.
    pub scm: String,
    /// Listings that run at the same time; more are refused as busy. Each holds a thread for about a
    /// millisecond per thousand entries and at most one page (10 MiB at the very worst) in memory.
    pub scans_max: usize,
    /// Election and heartbeat times of the OM's group.
    pub timing: raft::Timing,
    /// The policy by which the OM's group writes a snapshot and purges its log.
    pub snapshots: raft::SnapshotPolicy,
    /// Memory of the OM's tables.
    pub db: statedb::DbOptions,
}

impl Default for OmOptions {
    fn default() -> Self {
        Self {
            address: String::new(),
            scm: String::new(),
            scans_max: 256,
            timing: raft::Timing::METADATA,
            snapshots: raft::SnapshotPolicy::METADATA,
            db: statedb::DbOptions {
                block_cache_bytes: 64 << 20,
                write_buffer_bytes: 32 << 20,
                ..statedb::DbOptions::default()
            },
        }
    }
}
