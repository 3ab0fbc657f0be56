//! One replica of one pipeline on this node, and the order to carry it.

use crate::datanode_disk::DatanodeDisk;
use crate::index::machine::OpenContainer;
use crate::index::records::ends_with;
use crate::layout::{GROUPS_DIR, OWNERS_DIR};
use crate::service::BodiesOfOne;
use crate::under_way::UnderWay;
use bytes::Bytes;
use proto::datanode::{PipelineSpec, PipelineSpecMember};
use proto::scm::{MemberState, PipelineDescription, PipelineMember, PipelineReport};
use proto::{Code, Failure};
use raft::{Group, GroupSpec, GroupStart, GroupStatus, Member, OpenGroupError, Role, Timing};
use raftlog::LogSpec;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::{ContainerId, DiskId, GroupId, LogId, LogIndex, NodeId, OwnerId, PipelineId, ReplicaId};

/// An order of SCM to carry a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOrder {
    pub pipeline: PipelineId,
    pub first_container: ContainerId,
    /// This node's replica, and its disk.
    pub replica: ReplicaId,
    pub disk: DiskId,
    /// All members; the first one starts the first election.
    pub members: Vec<Member>,
    /// The disks of the members, in their order, as SCM names them.
    pub member_disks: Vec<Bytes>,
}

#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    #[error("disk {disk} of pipeline {pipeline} is not on this node, or failed")]
    NoDisk { pipeline: PipelineId, disk: DiskId },
    #[error(
        "the log of pipeline {pipeline} is missing from {root}; its votes are lost, so this replica must not come back"
    )]
    LogLost { pipeline: PipelineId, root: String },
    #[error("the replica of pipeline {pipeline} on {root} has ended; it must not come back")]
    Over { pipeline: PipelineId, root: String },
    #[error(transparent)]
    Group(#[from] OpenGroupError),
    #[error("the block index: {0:#}")]
    Index(anyhow::Error),
}

pub(crate) fn members_of(spec: &PipelineSpec) -> Vec<Member> {
    let member = |member: &PipelineSpecMember| Member {
        replica: member.replica.into(),
        node: member.node.into(),
        address: member.address.clone(),
    };
    spec.members.iter().map(member).collect()
}

impl PipelineOrder {
    /// This node's part in a pipeline of SCM's list; `None` when it has none.
    pub(crate) fn for_node(
        pipeline: &proto::scm::Pipeline,
        node: NodeId,
    ) -> Result<Option<PipelineOrder>, Failure> {
        let Some(own) = pipeline.members.iter().find(|member| member.node == node.0) else { return Ok(None) };
        let member = |member: &proto::scm::PipelineMember| Member {
            replica: member.replica.into(),
            node: member.node.into(),
            address: member.address.clone(),
        };
        Ok(Some(PipelineOrder {
            pipeline: pipeline.pipeline.into(),
            first_container: pipeline.first_container.into(),
            replica: own.replica.into(),
            disk: proto::disk_id(&own.disk)?,
            members: pipeline.members.iter().map(member).collect(),
            member_disks: pipeline.members.iter().map(|member| member.disk.clone()).collect(),
        }))
    }

    pub(crate) fn from_spec(spec: &PipelineSpec, disk: DiskId) -> PipelineOrder {
        PipelineOrder {
            pipeline: spec.pipeline.into(),
            first_container: spec.first_container.into(),
            replica: spec.replica.into(),
            disk,
            members: members_of(spec),
            member_disks: spec.members.iter().map(|member| member.disk.clone()).collect(),
        }
    }

    pub(crate) fn to_spec(&self) -> PipelineSpec {
        let member = |(member, disk): (&Member, &Bytes)| PipelineSpecMember {
            replica: member.replica.0,
            node: member.node.0,
            address: member.address.clone(),
            disk: disk.clone(),
        };
        PipelineSpec {
            pipeline: self.pipeline.0,
            replica: self.replica.0,
            first_container: self.first_container.0,
            members: self.members.iter().zip(&self.member_disks).map(member).collect(),
        }
    }

    /// The description that SCM needs of a pipeline that it has lost.
    pub(crate) fn describe(&self) -> PipelineDescription {
        let member = |(member, disk): (&Member, &Bytes)| PipelineMember {
            node: member.node.0,
            replica: member.replica.0,
            disk: disk.clone(),
            address: String::new(),
        };
        PipelineDescription {
            pipeline: self.pipeline.0,
            first_container: self.first_container.0,
            members: self.members.iter().zip(&self.member_disks).map(member).collect(),
        }
    }

    pub(crate) fn group_spec(&self, cluster: String, timing: Timing) -> GroupSpec {
        GroupSpec {
            cluster,
            group: GroupId::pipeline(self.pipeline),
            replica: self.replica,
            timing,
            start: GroupStart::First(self.members.clone()),
            campaign: self.members.first().is_some_and(|first| first.replica == self.replica),
            snapshots: None,
            lease_reads: false,
        }
    }

    /// The pipeline's log. The group's name, not the replica's, stands in the records: containers are
    /// identical on all replicas.
    pub(crate) fn log_spec(&self) -> LogSpec {
        let group = GroupId::pipeline(self.pipeline);
        LogSpec {
            log: group.to_u64(),
            dir: format!("{GROUPS_DIR}/{group}"),
            owners_dir: OWNERS_DIR.to_owned(),
            first_owner: OwnerId::from(self.first_container),
        }
    }
}

/// The wishes of SCM for a pipeline's leader, beside what the size of the container demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The container after which the leader goes on to the next, if it is still open.
    pub roll_of: Option<ContainerId>,
    /// The container that the pipeline is to end with.
    pub end: Option<ContainerId>,
}

/// A pipeline that is open here.
pub(crate) struct Pipeline {
    pub id: PipelineId,
    pub order: PipelineOrder,
    pub group: Group,
    pub disk: Arc<DatanodeDisk>,
    pub open: watch::Receiver<OpenContainer>,
    pub wanted: watch::Sender<Wanted>,
    /// The container after the last roll that this process has proposed, whatever became of that.
    pub rolls_to: AtomicU64,
    /// The last entry of the log that all members have.
    pub forget_to: watch::Receiver<Option<LogId>>,
    pub under_way: UnderWay,
    pub bodies: BodiesOfOne,
    pub progress: Progress,
}

/// The position that is applied, and since when.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<(Option<LogIndex>, Instant)>);

impl Default for Progress {
    fn default() -> Progress {
        Progress(Mutex::new((None, Instant::now())))
    }
}

impl Progress {
    /// The time after which a log whose entries are not applied is one that hangs: its leader takes nothing
    /// that it could acknowledge.
    const HANGS_AFTER: Duration = Duration::from_secs(5);

    /// Whether entries have waited to be applied for long; looked at with every heartbeat.
    fn hangs(&self, last: Option<LogIndex>, applied: Option<LogIndex>) -> bool {
        let mut seen = self.0.lock().expect("no holder panics");
        if applied >= last || applied != seen.0 {
            *seen = (applied, Instant::now());
        }
        seen.1.elapsed() > Progress::HANGS_AFTER
    }
}

impl Pipeline {
    /// Makes the leader end the pipeline with this container. SCM says so again and again.
    pub(crate) fn end_with(&self, end: ContainerId) {
        self.wanted.send_if_modified(|wanted| wanted.end.replace(end) != Some(end));
    }

    /// Makes the leader go on to the next container, if this one is still open.
    pub(crate) fn roll_after(&self, container: ContainerId) {
        self.wanted.send_if_modified(|wanted| wanted.roll_of.replace(container) != Some(container));
    }

    pub(crate) fn open_container(&self) -> OpenContainer {
        *self.open.borrow()
    }

    /// The container that records of new proposals may stand in: one that is yet to be opened, after a roll
    /// is proposed.
    pub(crate) fn newest_container(&self) -> ContainerId {
        self.open_container().container.max(ContainerId(self.rolls_to.load(Ordering::Relaxed)))
    }

    /// Refuses chunks where there is no room for them.
    pub(crate) fn takes_chunks(&self, container_refuse_bytes: u64) -> Result<(), Failure> {
        self.disk.takes_chunks()?;
        let open = self.open_container();
        if open.ended.is_some() {
            return Err(Failure::new(Code::Closed, format!("pipeline {} has ended", self.id)));
        }
        if open.used_bytes >= container_refuse_bytes {
            let message = format!("container {} is full and no next one was to be had yet", open.container);
            return Err(Failure::new(Code::Closed, message));
        }
        Ok(())
    }

    /// Whether this replica leads, as far as it knows.
    pub(crate) fn is_leader(&self) -> bool {
        self.group.status().role == Role::Leader
    }

    /// Whether this replica leads, and commits what it is given.
    pub(crate) fn leads(&self) -> bool {
        let GroupStatus { role, last, applied, .. } = self.group.status();
        role == Role::Leader && self.group.hears_majority() && !self.progress.hangs(last, applied)
    }

    pub(crate) fn report(&self) -> PipelineReport {
        let GroupStatus { role, term, leader, last, applied, failure, .. } = self.group.status();
        let OpenContainer { container, used_bytes, ended } = self.open_container();
        let state = match role {
            _ if ended.is_some() => MemberState::Ended,
            Role::Stopped => MemberState::Stopped,
            Role::Leader | Role::Follower | Role::Candidate | Role::Learner => MemberState::Runs,
        };
        let why = match role {
            Role::Stopped => failure.unwrap_or_else(|| "its Raft core ended without a word".to_owned()),
            Role::Leader | Role::Follower | Role::Candidate | Role::Learner => String::new(),
        };
        // Whoever is left alone, or stopped, leads nothing: SCM is to hear that nobody does, and end the
        // pipeline otherwise.
        let leader = leader.filter(|_| match role {
            Role::Stopped => false,
            Role::Leader => self.group.hears_majority(),
            Role::Follower | Role::Candidate | Role::Learner => true,
        });
        self.progress.hangs(last, applied);
        let number = |index: Option<LogIndex>| index.map_or(0, |index| index.0);
        PipelineReport {
            pipeline: self.id.0,
            replica: self.group.replica().0,
            term: term.0,
            leader_replica: leader.map_or(0, |leader| leader.replica.0),
            last_index: number(last),
            applied_index: number(applied),
            container: container.0,
            container_bytes: used_bytes,
            state: state as i32,
            why,
            forgotten_index: number(self.group.log().state().purged.map(|purged| purged.index)),
            end: ended.map(|end| ends_with(end, self.group.log().state().last.unwrap_or_default())),
        }
    }
}
