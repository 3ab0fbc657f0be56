use anyhow::bail;
use std::time::Duration;

/// Settings of an SCM.
#[derive(Clone, Debug)]
pub struct ScmOptions {
    /// "host:port" where other processes reach this one.
    pub address: String,
    /// Addresses of all members that SCM is to have, this one among them, the same for all; fewer than two:
    /// SCM is this process alone.
    pub members: Vec<String>,
    /// The number of pipelines that SCM places on each healthy disk. Two keep a disk's writer busy while one
    /// of them changes leader; each costs a Raft group with its log cache.
    pub pipelines_per_disk: u32,
    /// The number of groups of names that there are to be at least; more are made at an operator's word. Each
    /// costs every OM that has it a Raft group with a database.
    pub om_groups: usize,
    /// A node that was silent for this long gets no new pipelines: five missed heartbeats.
    pub stale_after: Duration,
    /// A node that was silent for this long is given up: longer than a reboot.
    pub dead_after: Duration,
    /// The time for which a member's disk, group or replica may be missing while its node speaks, before its
    /// pipeline is closed. Longer than a restart of the process, shorter than people wait.
    pub member_fault_grace: Duration,
    /// The time for which a closing pipeline may be without a leader until its members are told to end by
    /// themselves, and an open one whose members are there until it is closed: twenty elections.
    pub quasi_close_after: Duration,
    /// The most copies of containers to one node, and from it, at a time. Two keep a disk and a gigabit of
    /// network busy and leave room for writers.
    pub copies_per_node_max: usize,
    /// The share of a node's capacity that copies leave free: a disk must not run full of copies. A disk with
    /// less is nearly full.
    pub keep_free_percent: u64,
    /// The most tasks of a node at a time, which bounds the answer to its heartbeat: a hundred bytes each.
    pub tasks_per_node_max: usize,
    /// The time after which a task that has not come on is given to another node: longer than the longest
    /// pause of a busy disk, and than the way of a heartbeat and back.
    pub task_within: Duration,
    /// A replica that goes on past its container with more than the others have is told of as trouble for
    /// this long before it is deleted: if the container was cut short by mistake, it is the only one that has
    /// the rest.
    pub ahead_kept: Duration,
    /// An open container is closed once blocks of it have waited to be discarded for this long, however few:
    /// a container that is never full must not keep what is dead in it.
    pub roll_dead_after: Duration,
    /// An open container is closed once it has had blocks for this long: those of them that no name ever had
    /// are found in closed containers alone.
    pub roll_open_after: Duration,
    /// The balancer moves containers while the fullest node is this many percent of its capacity above the
    /// mean, or the emptiest below.
    pub balancer_threshold_percent: u64,
    /// The most containers that the balancer moves at a time.
    pub balancer_moves_max: usize,
    /// A pipeline's leader is moved for balance at most once in this time: a new leader has work to do before
    /// it earns its keep.
    pub leader_move_interval: Duration,
    /// The time that SCM waits after the last new node or disk before it places pipelines, so that the
    /// pipelines of nodes that start together spread over all of them.
    pub placement_delay: Duration,
    /// Watches of the cluster view that may be open; more are refused as busy. A watcher costs about a
    /// kilobyte.
    pub watchers_max: usize,
    /// Election and heartbeat times of SCM's own group.
    pub timing: raft::Timing,
    /// The policy by which SCM's group writes a snapshot and purges its log.
    pub snapshots: raft::SnapshotPolicy,
    /// Memory of SCM's tables.
    pub db: statedb::DbOptions,
}

impl Default for ScmOptions {
    fn default() -> Self {
        Self {
            address: String::new(),
            members: Vec::new(),
            pipelines_per_disk: 2,
            om_groups: 4,
            stale_after: Duration::from_secs(5),
            dead_after: Duration::from_secs(600),
            member_fault_grace: Duration::from_secs(30),
            quasi_close_after: Duration::from_secs(60),
            copies_per_node_max: 2,
            keep_free_percent: 5,
            tasks_per_node_max: 100,
            task_within: Duration::from_secs(120),
            ahead_kept: Duration::from_secs(3600),
            roll_dead_after: Duration::from_secs(24 * 3600),
            roll_open_after: Duration::from_secs(24 * 3600),
            balancer_threshold_percent: 10,
            balancer_moves_max: 4,
            leader_move_interval: Duration::from_secs(60),
            placement_delay: Duration::from_millis(200),
            watchers_max: 10_000,
            timing: raft::Timing::METADATA,
            snapshots: raft::SnapshotPolicy::METADATA,
            db: statedb::DbOptions::default(),
        }
    }
}

impl ScmOptions {
    pub(crate) fn is_alone(&self) -> bool {
        self.members.len() < 2
    }

    /// The options with the members in the order that all of them agree on.
    pub(crate) fn in_order(mut self) -> anyhow::Result<ScmOptions> {
        self.members.sort();
        self.members.dedup();
        if !self.members.is_empty() && self.members.len().is_multiple_of(2) {
            bail!(
                "the list of SCMs has {} addresses, {}: an even number bears the loss of no more members than one less; give one or three",
                self.members.len(),
                self.members.join(",")
            );
        }
        if !self.members.is_empty() && !self.members.contains(&self.address) {
            bail!(
                "the list of SCMs is {}, and this one, which is at {}, is not in it",
                self.members.join(","),
                self.address
            );
        }
        Ok(self)
    }
}
