//! This process's replica of SCM's group, once it has one.

use crate::full_disk;
use crate::options::ScmOptions;
use crate::state_machine::{ScmStateMachine, SharedTables};
use crate::tables::FOUNDER;
use anyhow::{Context, bail};
use disk::{DataDirectory, Stamp};
use proto::scm::{IntroduceResponse, ScmMember, ScmReplica};
use proto::{Code, Failure};
use raft::{Group, GroupSpec, GroupStart, Member, RaftHost, ReplicaRecord, Role};
use raftlog::{LogSpace, LogSpec};
use rpc::Connector;
use statedb::GroupDb;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use types::{GroupId, NodeId, OwnerId, ReplicaId};

/// The time between two looks at what the group knows of its members.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) group: Group,
    pub(crate) cluster: String,
    /// Whether the replica was known to be a member when it was opened; otherwise the leader is still to take
    /// it in.
    pub(crate) was_member: bool,
}

impl Seat {
    /// Resolves when this process, as leader, hears no majority any more.
    pub(crate) async fn hears_no_majority(&self) {
        while self.group.hears_majority() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The reason why nothing can be written here.
    pub(crate) fn full_disk(&self) -> Option<String> {
        full_disk::of(&self.group)
    }

    fn told(&self) -> ScmReplica {
        let (status, members) = (self.group.status(), self.group.members());
        let log = self.group.log().state();
        let last = log.last.max(log.purged).unwrap_or_default();
        let member = |member: &Member| ScmMember {
            replica: member.replica.0,
            address: member.address.clone(),
            is_voter: members.is_voter(member.replica),
            ..ScmMember::default()
        };
        let role = match status.role {
            _ if status.is_removed => "removed",
            Role::Leader if !self.group.hears_majority() => "leader of a minority",
            role => role.name(),
        };
        ScmReplica {
            replica: self.group.replica().0,
            role: role.to_owned(),
            term: status.term.0,
            leader_address: status.leader.map_or(String::new(), |leader| leader.address),
            last_term: last.term.0,
            last_index: last.index.0,
            members: members.all.iter().map(member).collect(),
            full_disk: self.full_disk().unwrap_or_default(),
        }
    }

    /// The addresses of other members; never resolves while there are none.
    pub(crate) async fn others(&self) -> Vec<String> {
        loop {
            let members = self.group.members().all;
            let others = members.into_iter().filter(|member| member.replica != self.group.replica());
            let others: Vec<String> = others.map(|member| member.address).collect();
            if !others.is_empty() {
                return others;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// The stage that this process has reached on its way into the group.
#[derive(Clone, Debug)]
enum Arrival {
    WaitsFor(String),
    Member,
    /// The process never will be a member, as it was started.
    Failed(String),
}

/// The place where the seat is taken, and where others wait for that.
pub(crate) struct Seats {
    options: ScmOptions,
    disk: Arc<dyn DataDirectory>,
    space: Arc<LogSpace>,
    host: RaftHost,
    dbs: Arc<dyn GroupDb>,
    shared: SharedTables,
    seat: watch::Sender<Option<Seat>>,
    arrival: watch::Sender<Arrival>,
    /// The turn to change who the members are: one caller at a time has it.
    pub(crate) member_changes: Semaphore,
}

impl Seats {
    pub(crate) fn new(
        options: ScmOptions,
        disk: Arc<dyn DataDirectory>,
        space: Arc<LogSpace>,
        host: RaftHost,
        dbs: Arc<dyn GroupDb>,
        shared: SharedTables,
    ) -> Seats {
        let arrival = watch::Sender::new(Arrival::WaitsFor("it is starting".to_owned()));
        let (seat, member_changes) = (watch::Sender::new(None), Semaphore::new(1));
        Seats { options, disk, space, host, dbs, shared, seat, arrival, member_changes }
    }

    pub(crate) fn connector(&self) -> Arc<dyn Connector> {
        self.host.connector().clone()
    }

    pub(crate) fn options(&self) -> &ScmOptions {
        &self.options
    }

    /// The word of this process on itself: to others that look for their place, and to people when nobody
    /// leads.
    pub(crate) fn introduction(&self) -> IntroduceResponse {
        let ScmOptions { address, members, .. } = &self.options;
        let seat = self.taken();
        // The stamp's cluster counts, also where SCM's files are gone from the directory, or are not opened
        // yet: nobody founds a cluster besides that one. Only a founder has none until its group has named
        // the cluster.
        let cluster = match (self.disk.stamp().cluster, &seat) {
            (stamped, Some(seat)) if stamped.is_empty() => seat.cluster.clone(),
            (stamped, _) => stamped,
        };
        IntroduceResponse {
            cluster,
            members: members.clone(),
            address: address.clone(),
            data_dir: self.disk.root().display().to_string(),
            waits_for: self.waiting().unwrap_or_default(),
            replica: seat.map(|seat| seat.told()),
        }
    }

    pub(crate) fn taken(&self) -> Option<Seat> {
        self.seat.borrow().clone()
    }

    /// Resolves when the seat is taken; never, if that does not happen.
    pub(crate) async fn until_taken(&self) -> Seat {
        let mut seat = self.seat.subscribe();
        let taken = seat.wait_for(Option::is_some).await.map(|seat| seat.clone());
        match taken {
            Ok(Some(seat)) => seat,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// The group, or a failure that says why there is none.
    pub(crate) fn group(&self) -> Result<Group, Failure> {
        match self.taken() {
            Some(seat) => Ok(seat.group),
            None => {
                let why = self.waiting().unwrap_or_default();
                Err(Failure::new(Code::Unavailable, format!("this SCM is no member of a cluster yet: {why}")))
            }
        }
    }

    pub(crate) fn waits_for(&self, why: String) {
        self.arrival.send_replace(Arrival::WaitsFor(why));
    }

    pub(crate) fn is_member(&self) {
        self.arrival.send_replace(Arrival::Member);
    }

    pub(crate) fn failed(&self, why: String) {
        self.arrival.send_replace(Arrival::Failed(why));
    }

    /// Resolves when this process is a member; fails when it cannot be one.
    pub(crate) async fn until_member(&self) -> anyhow::Result<()> {
        let mut arrival = self.arrival.subscribe();
        let settled = arrival.wait_for(|arrival| !matches!(arrival, Arrival::WaitsFor(_))).await;
        match &*settled.context("SCM is gone")? {
            Arrival::Failed(why) => bail!("{why}"),
            Arrival::Member | Arrival::WaitsFor(_) => Ok(()),
        }
    }

    /// The reason why this process is no member yet.
    pub(crate) fn waiting(&self) -> Option<String> {
        match &*self.arrival.borrow() {
            Arrival::WaitsFor(why) | Arrival::Failed(why) => Some(why.clone()),
            Arrival::Member => None,
        }
    }

    /// Goes on as the replica that is on the disk, if there is one.
    pub(crate) async fn reopen(&self) -> anyhow::Result<Option<Seat>> {
        let disk: Arc<dyn disk::Disk> = self.disk.clone();
        let here = ReplicaRecord::read(GroupId::SCM, &disk).await.context("read which replica is here")?;
        // A founder stamps the directory once the group has named the cluster, others before they open their
        // replica.
        let stamped = self.disk.stamp().cluster;
        let seat = match here.filter(|here| !here.stage.is_being_removed()) {
            None => return Ok(None),
            Some(ReplicaRecord { replica: FOUNDER, .. }) => {
                let cluster = if stamped.is_empty() { self.own_cluster() } else { stamped };
                self.open(cluster, FOUNDER, self.alone(), true).await?
            }
            Some(ReplicaRecord { replica, was_member, .. }) => {
                self.open(stamped, replica, GroupStart::Join, was_member).await?
            }
        };
        Ok(Some(seat))
    }

    /// Becomes the only member of a cluster that begins with it.
    pub(crate) async fn found(&self) -> anyhow::Result<Seat> {
        let Stamp { cluster, .. } = self.disk.stamp();
        if !cluster.is_empty() {
            bail!(
                "{} belongs to cluster {cluster}, and SCM's files are gone from it: restore them, or start with an empty directory",
                self.disk.root().display()
            );
        }
        self.open(self.own_cluster(), FOUNDER, self.alone(), true).await
    }

    /// Opens the replica that the leader has given an id to. It becomes a member later.
    pub(crate) async fn join(&self, cluster: String, replica: ReplicaId) -> anyhow::Result<Seat> {
        self.open(cluster, replica, GroupStart::Join, false).await
    }

    async fn open(
        &self,
        cluster: String,
        replica: ReplicaId,
        start: GroupStart,
        was_member: bool,
    ) -> anyhow::Result<Seat> {
        let machine = ScmStateMachine { dbs: self.dbs.clone(), shared: self.shared.clone() };
        let spec = GroupSpec {
            cluster: cluster.clone(),
            group: GroupId::SCM,
            replica,
            timing: self.options.timing,
            start,
            campaign: true,
            snapshots: Some(self.options.snapshots),
            lease_reads: false,
        };
        let group =
            self.host.open(spec, &self.space, log_spec(), machine).await.context("open SCM's group")?;
        let seat = Seat { group, cluster, was_member };
        self.seat.send_replace(Some(seat.clone()));
        Ok(seat)
    }

    /// The id of the cluster that this process founds: that of its disk, which nobody else has, and which is
    /// the same after a crash in between.
    fn own_cluster(&self) -> String {
        uuid::Uuid::from_u128(self.disk.stamp().disk.0).to_string()
    }

    fn alone(&self) -> GroupStart {
        let address = self.options.address.clone();
        GroupStart::First(vec![Member { replica: FOUNDER, node: NodeId(0), address }])
    }
}

fn log_spec() -> LogSpec {
    let group = GroupId::SCM;
    LogSpec {
        log: group.to_u64(),
        dir: format!("groups/{group}"),
        owners_dir: format!("meta/{group}"),
        first_owner: OwnerId(0),
    }
}
