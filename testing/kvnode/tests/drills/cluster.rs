use crate::proxy::{Link, Network};
use flotilla_kvnode::{Client, ClientOptions, GroupFacts, NodeFacts};
use raft::{AddressBook, Timing};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use testkit::{Process, Ready};
use tokio::time::Instant;
use types::NodeId;

pub(crate) const NODES: usize = 3;
pub(crate) const GROUPS: u32 = 3;
/// The times of the groups that Flotilla's own metadata lives in.
pub(crate) const TIMING: Timing = Timing::METADATA;
/// The times for a machine that also compiles, or that others use: now and then it stands still for longer
/// than the lease of [`TIMING`].
const PATIENT: Timing = Timing {
    heartbeat: Duration::from_millis(300),
    election_min: Duration::from_secs(3),
    election_max: Duration::from_secs(4),
};
/// Longer than anything takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Whether this is `./dev drill raft`, which has the machine for itself: only there do durations prove
/// anything.
pub(crate) fn is_campaign() -> bool {
    std::env::var_os("FLOTILLA_DRILL_REPEAT").is_some()
}

/// The times for drills in which leaders must stay: among tests they must not lose their lease to a busy
/// machine.
pub(crate) fn steady_timing() -> Timing {
    if is_campaign() { TIMING } else { PATIENT }
}

/// Three `kvnode` processes that reach each other through [`Network`], and a client that reaches them
/// directly.
pub(crate) struct Cluster {
    pub(crate) processes: Vec<Process>,
    pub(crate) network: Network,
    pub(crate) addresses: AddressBook,
    pub(crate) client: Client,
    // After the processes, so that they end before their directories go.
    dir: TempDir,
}

pub(crate) fn node_id(n: usize) -> NodeId {
    NodeId(n as u64 + 1)
}

fn node_ids() -> Vec<NodeId> {
    (0..NODES).map(node_id).collect()
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Cluster::start_with(TIMING, &[]).await
    }

    /// `more`: further arguments of all nodes.
    pub(crate) async fn start_with(timing: Timing, more: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let network = Network::start(NODES).await;
        let addresses = AddressBook::default();
        let mut processes = Vec::new();
        for n in 0..NODES {
            let name = format!("node{}", n + 1);
            let peers: Vec<_> = (0..NODES).map(|to| format!("{}={}", to + 1, network.port(n, to))).collect();
            let data = dir.path().join(&name);
            let millis = |duration: Duration| duration.as_millis();
            let (heartbeat, election_min, election_max) =
                (millis(timing.heartbeat), millis(timing.election_min), millis(timing.election_max));
            let line = format!(
                "--node {} --groups {GROUPS} --peers {} --data {} --timing {heartbeat},{election_min},{election_max}",
                n + 1,
                peers.join(","),
                data.display()
            );
            let args = line.split_whitespace().map(str::to_owned).chain(more.iter().map(|it| it.to_string()));
            let binary = std::path::Path::new(env!("CARGO_BIN_EXE_kvnode"));
            let args = args.collect();
            let root = dir.path().to_owned();
            let (process, ready) = blocking(move || Process::start(binary, &root, &name, args)).await;
            introduce(&network, &addresses, n, &ready);
            processes.push(process);
        }
        let client = client_of(&addresses, DEADLINE);
        let cluster = Cluster { processes, network, addresses, client, dir };
        for group in 1..=GROUPS {
            cluster.settled(group).await;
        }
        cluster
    }

    /// Waits until a group has a leader that all members follow.
    async fn settled(&self, group: u32) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (leader, term) = self.leader(group).await;
            let mut following = 0;
            for n in 0..NODES {
                let facts = self.group_facts(n, group).await;
                let follows = |facts: GroupFacts| {
                    facts.term == term && facts.leader == node_id(leader).0 && facts.applied > 0
                };
                following += usize::from(facts.is_some_and(follows));
            }
            if following == NODES {
                return;
            }
            assert!(Instant::now() < deadline, "all members of group {group} follow its leader");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn data_dir(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("node{}", n + 1))
    }

    pub(crate) async fn start_node(&mut self, n: usize) {
        let ready = tokio::task::block_in_place(|| self.processes[n].start_again());
        introduce(&self.network, &self.addresses, n, &ready);
    }

    /// Sends SIGTERM to a node, and waits for its end.
    pub(crate) async fn stop_node(&mut self, n: usize) {
        let status = tokio::task::block_in_place(|| self.processes[n].terminate());
        assert!(status.success(), "node {} ended with {status}", n + 1);
    }

    pub(crate) fn kill_node(&mut self, n: usize) {
        tokio::task::block_in_place(|| self.processes[n].kill9());
    }

    /// The facts that a node tells now; `None` when it does not.
    pub(crate) async fn facts(&self, n: usize) -> Option<NodeFacts> {
        self.client.facts(node_id(n)).await.ok()
    }

    /// The facts of the nodes that run.
    pub(crate) async fn all_facts(&self) -> Vec<NodeFacts> {
        let mut all = Vec::new();
        for n in 0..NODES {
            all.extend(self.facts(n).await);
        }
        all
    }

    pub(crate) async fn group_facts(&self, n: usize, group: u32) -> Option<GroupFacts> {
        self.facts(n).await?.groups.into_iter().find(|facts| facts.group == group)
    }

    /// [`Cluster::group_facts`] of a node that runs: a busy one may leave a question unanswered.
    pub(crate) async fn group_facts_of_running(&self, n: usize, group: u32) -> GroupFacts {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(facts) = self.group_facts(n, group).await {
                return facts;
            }
            assert!(Instant::now() < deadline, "node {} says how group {group} is", n + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a node leads the group, and answers it with its term.
    pub(crate) async fn leader(&self, group: u32) -> (usize, u64) {
        self.leader_after(group, 0).await
    }

    /// [`Cluster::leader`] in a term above `term`.
    pub(crate) async fn leader_after(&self, group: u32, term: u64) -> (usize, u64) {
        self.leader_on(&[0, 1, 2], group, term).await
    }

    /// [`Cluster::leader_after`], on one of these nodes.
    pub(crate) async fn leader_on(&self, nodes: &[usize], group: u32, term: u64) -> (usize, u64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            for &n in nodes {
                if let Some(facts) = self.group_facts(n, group).await
                    && facts.is_leader
                    && facts.term > term
                {
                    return (n, facts.term);
                }
            }
            assert!(
                Instant::now() < deadline,
                "one of {nodes:?} (from 0) leads group {group} in a term above {term}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a node has applied what is committed on some node when this is called.
    pub(crate) async fn wait_caught_up(&self, n: usize) {
        let mut goals = vec![0; GROUPS as usize];
        for other in 0..NODES {
            for facts in self.facts(other).await.into_iter().flat_map(|facts| facts.groups) {
                let goal = &mut goals[facts.group as usize - 1];
                *goal = facts.committed.max(facts.applied).max(*goal);
            }
        }
        let deadline = Instant::now() + DEADLINE;
        loop {
            let facts = self.facts(n).await.unwrap_or_default();
            if !facts.groups.is_empty()
                && facts.groups.iter().zip(&goals).all(|(it, goal)| it.applied >= *goal)
            {
                return;
            }
            assert!(Instant::now() < deadline, "node {} applies {goals:?}: {facts:?}", n + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a node knows that it is no member of a group any more.
    pub(crate) async fn wait_removed(&self, n: usize, group: u32) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let facts = self.group_facts(n, group).await;
            if facts.as_ref().is_some_and(|facts| facts.is_removed) {
                return;
            }
            assert!(Instant::now() < deadline, "node {} is dismissed from group {group}: {facts:?}", n + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until a node has applied its log up to `index`.
    pub(crate) async fn wait_applied(&self, n: usize, group: u32, index: u64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let facts = self.group_facts(n, group).await;
            if facts.as_ref().is_some_and(|facts| facts.applied >= index) {
                return;
            }
            assert!(Instant::now() < deadline, "node {} applies {index} of group {group}: {facts:?}", n + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until every group has committed `more` entries from now on.
    pub(crate) async fn wait_progress(&self, more: u64) {
        for group in 1..=GROUPS {
            let (leader, _) = self.leader(group).await;
            let from = self.group_facts_of_running(leader, group).await.committed;
            let deadline = Instant::now() + DEADLINE;
            while !self
                .all_facts()
                .await
                .iter()
                .flat_map(|node| &node.groups)
                .any(|facts| facts.group == group && facts.committed >= from + more)
            {
                assert!(Instant::now() < deadline, "group {group} commits {more} entries after {from}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// Watches a group for `time`: nothing but its leader and the term may be seen, on any node that answers.
    pub(crate) async fn assert_undisturbed(&self, group: u32, leader: usize, term: u64, time: Duration) {
        self.assert_undisturbed_on(&[0, 1, 2], group, leader, term, time).await;
    }

    /// [`Cluster::assert_undisturbed`], on these nodes.
    pub(crate) async fn assert_undisturbed_on(
        &self,
        nodes: &[usize],
        group: u32,
        leader: usize,
        term: u64,
        time: Duration,
    ) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for &n in nodes {
                if let Some(facts) = self.group_facts(n, group).await {
                    assert_eq!(facts.term, term, "the term of group {group} on node {}: {facts:?}", n + 1);
                    assert_eq!(
                        facts.is_leader,
                        n == leader,
                        "who leads group {group}: {facts:?} on {}",
                        n + 1
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes everything that the nodes say to each other take this much longer.
    pub(crate) fn slow_down(&self, by: Duration) {
        (0..NODES).for_each(|n| self.network.set_all(n, Link::Slow(by)));
    }

    /// Opens all links again.
    pub(crate) fn heal(&self) {
        (0..NODES).for_each(|n| self.network.set_all(n, Link::Open));
    }
}

pub(crate) fn client_of(addresses: &AddressBook, within: Duration) -> Client {
    let options = ClientOptions { batching: false, within };
    Client::new(addresses.clone(), &node_ids(), GROUPS, options)
}

fn introduce(network: &Network, addresses: &AddressBook, n: usize, ready: &Ready) {
    network.place(n, ready["RAFT"].parse().expect("an address"));
    addresses.set(node_id(n), ready["CLIENT"].clone());
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("it does not panic")
}
