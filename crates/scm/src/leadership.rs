use crate::full_disk;
use crate::leader::Leader;
use crate::options::ScmOptions;
use crate::planners::decide;
use crate::registry::{confirm_leadership, expire_leases, follow_datanodes};
use crate::seat::{Seat, Seats};
use crate::state_machine::SharedTables;
use crate::watch::publish_views;
use anyhow::Context;
use proto::scm::{BootstrapCommand, scm_command::Command};
use proto::{Code, Failure};
use raft::{AddressBook, Group, GroupStatus, ReadIndexError, Role};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use types::{Clock, Term};

/// A leader that failed to get ready tries again after this.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Follows the group's role: while this replica leads, there is a [`Leader`] to serve with.
pub(crate) struct Leadership {
    pub(crate) options: ScmOptions,
    seats: Arc<Seats>,
    pub(crate) addresses: AddressBook,
    pub(crate) tables: SharedTables,
    clock: Arc<dyn Clock>,
    current: watch::Sender<Option<Arc<Leader>>>,
}

impl Leadership {
    pub(crate) fn new(
        options: ScmOptions,
        seats: Arc<Seats>,
        addresses: AddressBook,
        tables: SharedTables,
        clock: Arc<dyn Clock>,
    ) -> Leadership {
        Leadership { options, seats, addresses, tables, clock, current: watch::Sender::new(None) }
    }

    /// The leader to serve with, or a failure that says where to go instead.
    pub(crate) fn leader(&self) -> Result<Arc<Leader>, Failure> {
        let group = self.seats.group()?;
        // Whether a majority answers is asked at each call: `lead` looks now and then, and a call in between
        // would be served by a leader that says of itself that it serves nobody.
        if let Some(leader) = self.current.borrow().clone().filter(|_| group.hears_majority()) {
            return Ok(leader);
        }
        let status = group.status();
        if status.is_removed {
            // The leader that this process followed last may be gone long since.
            return Err(Failure::new(Code::Unavailable, "this process is no member of SCM any more"));
        }
        match status.role {
            Role::Leader if !group.hears_majority() => {
                Err(Failure::new(Code::Unavailable, "a majority of SCM's members is silent"))
            }
            Role::Leader => Err(Failure::new(Code::Unavailable, "SCM's leader is not ready yet")),
            Role::Stopped => {
                let why = status.failure.unwrap_or_else(|| "stopping".to_owned());
                Err(Failure::new(Code::Unavailable, format!("SCM's group stopped: {why}")))
            }
            Role::Follower | Role::Candidate | Role::Learner => {
                Err(ReadIndexError::NotLeader { leader: status.leader }.into_failure(&self.addresses))
            }
        }
    }

    /// SCM's own group.
    pub(crate) fn group(&self) -> Result<Group, Failure> {
        self.seats.group()
    }

    /// Resolves when this replica leads and serves.
    pub(crate) async fn ready(&self) {
        let mut current = self.current.subscribe();
        let _ = current.wait_for(Option::is_some).await;
    }

    /// The cluster's id, once the group has named it.
    pub(crate) async fn cluster_named(&self) -> String {
        let mut changes = self.tables.changes();
        loop {
            let cluster = self.tables.read(|tables| tables.cluster().to_owned());
            if !cluster.is_empty() {
                return cluster;
            }
            // The sender is ours.
            let _ = changes.changed().await;
        }
    }

    /// Runs until `stop`; on return nothing of a leader runs any more.
    pub(crate) async fn follow(&self, stop: CancellationToken) {
        let Some(seat) = stop.run_until_cancelled(self.seats.until_taken()).await else { return };
        let mut status = seat.group.watch();
        while let Some(term) = follow_until_leader(&mut status, &stop).await {
            let leading = stop.child_token();
            let led = self.lead(&seat, term, leading.clone());
            // Cancelling `lead` anywhere is safe: it owns no state but the leader's memory.
            tokio::select! {
                () = led => {}
                () = follow_while_leader(&mut status, term) => info!(%term, "scm lost leadership"),
                () = stop.cancelled() => {}
            }
            self.current.send_replace(None);
            leading.cancel();
        }
    }

    /// Gets ready, serves and runs the leader's tasks, until no majority answers any more: others may have
    /// another leader, and who asks here must go and look for it.
    async fn lead(&self, seat: &Seat, term: Term, stop: CancellationToken) {
        while !seat.group.hears_majority() {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        let prepared = async {
            while let Err(error) = self.lead_prepare(seat).await {
                warn!(error = format!("{error:#}"), "scm's leader is not ready");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        };
        // Without room it does not get ready: not even the first entry of its term is applied here.
        tokio::select! {
            () = prepared => {}
            never = full_disk::hand_over(seat, self.seats.connector()) => match never {},
        }
        let (options, group) = (self.options.clone(), seat.group.clone());
        let (addresses, tables, clock) = (self.addresses.clone(), self.tables.clone(), self.clock.clone());
        let leader = Arc::new(Leader::new(options, group, term, addresses, tables, clock, stop));
        info!(cluster = self.tables.read(|tables| tables.cluster().to_owned()), "scm leads");
        self.current.send_replace(Some(leader.clone()));
        tokio::select! {
            never = full_disk::hand_over(seat, self.seats.connector()) => match never {},
            () = seat.hears_no_majority() => warn!("a majority of SCM's members is silent: this leader serves nobody until it answers"),
            _ = lead_tasks(&leader) => {}
        }
    }

    /// Catches up with what earlier leaders decided, and names the cluster if it has no name yet.
    async fn lead_prepare(&self, seat: &Seat) -> anyhow::Result<()> {
        seat.group.read_index().await.context("catch up")?;
        if self.tables.read(|tables| tables.cluster().is_empty()) {
            let cluster = seat.cluster.clone();
            let command = Command::Bootstrap(BootstrapCommand { cluster });
            let command = proto::scm::ScmCommand { command: Some(command) };
            let meta = prost::Message::encode_to_vec(&command).into();
            seat.group
                .apply(raft::Command { meta, ..raft::Command::default() })
                .await
                .context("name the cluster")?;
        }
        self.tables.read(|tables| {
            for (&node, record) in tables.nodes() {
                self.addresses.set(node, record.address.clone());
            }
        });
        Ok(())
    }
}

/// The tasks of a leader only end by being dropped.
async fn lead_tasks(leader: &Leader) {
    tokio::join!(
        publish_views(leader),
        decide(leader),
        // Boxed: what is joined here is one future.
        Box::pin(expire_leases(leader)),
        Box::pin(confirm_leadership(leader)),
        Box::pin(follow_datanodes(leader)),
    );
}

/// Waits until this replica leads, and returns the term; `None` when told to stop first.
async fn follow_until_leader(
    status: &mut watch::Receiver<GroupStatus>,
    stop: &CancellationToken,
) -> Option<Term> {
    tokio::select! {
        found = status.wait_for(|status| status.role == Role::Leader) => found.ok().map(|status| status.term),
        () = stop.cancelled() => None,
    }
}

async fn follow_while_leader(status: &mut watch::Receiver<GroupStatus>, term: Term) {
    let _ = status.wait_for(|status| status.role != Role::Leader || status.term != term).await;
}
