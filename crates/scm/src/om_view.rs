//! Groups of names, as the reports of their replicas show them.

use crate::advance::Advance;
use crate::oms::ReplicaHeard;
use crate::tables::{OmReplica, om_duty};
use crate::world::World;
use proto::scm::{NodeDuty, NodeState, OmGroupRecord, OmMemberRecord, OmReplicaReport};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use types::NodeId;

/// A replica that leads a group, as its OM, which is healthy, said last.
#[derive(Clone, Copy)]
pub(crate) struct OmLeader<'a> {
    pub(crate) om: NodeId,
    heard: &'a ReplicaHeard,
}

impl<'a> OmLeader<'a> {
    pub(crate) fn report(&self) -> &'a OmReplicaReport {
        &self.heard.report
    }

    pub(crate) fn replica(&self) -> OmReplica {
        OmReplica { replica: self.report().replica, om: self.om.0 }
    }

    pub(crate) fn advance(&self) -> &'a Advance {
        &self.heard.advance
    }

    /// Whether the members that the leader has are the group's, for good and with no others on the way.
    pub(crate) fn is_settled(&self) -> bool {
        self.heard.is_settled()
    }

    pub(crate) fn voters(&self) -> BTreeSet<OmReplica> {
        members(self.om, self.report()).filter(|(_, is_voter)| *is_voter).map(|(member, _)| member).collect()
    }

    /// Whether the leader has heard of the record as it is, and has nothing older to carry out.
    pub(crate) fn has_heard_of(&self, record: &OmGroupRecord) -> bool {
        let wanted: BTreeSet<u64> = record.members.iter().map(|member| member.replica).collect();
        self.report().wanted.iter().copied().collect::<BTreeSet<u64>>() == wanted
    }

    /// Whether the group is, for good, otherwise than the record can account for: SCM has forgotten
    /// something, or the group has. A decided change that the group is yet to hear of, or to carry out, is no
    /// contradiction.
    pub(crate) fn contradicts(&self, record: &OmGroupRecord) -> bool {
        let voters = self.voters();
        let is_strange = |voter: &OmReplica| !voter.is_in(&record.members) && !voter.is_in(&record.removed);
        let is_missed =
            |member: &OmMemberRecord| member.has_voted && !voters.contains(&OmReplica::from(member));
        let lacks_a_voter = record.members.iter().any(is_missed) && !self.has_heard_of(record);
        self.is_settled()
            && (record.is_uncertain
                || self.was_reset_since(record)
                || voters.iter().any(is_strange)
                || lacks_a_voter)
    }

    /// Whether a person has reset the group, and the record does not know of that.
    fn was_reset_since(&self, record: &OmGroupRecord) -> bool {
        self.report().given_up.iter().any(|replica| !record.given_up.contains(replica))
    }

    /// Whether a person has given the leading replica up, and has not decided for it after all.
    pub(crate) fn is_given_up(&self, record: &OmGroupRecord) -> bool {
        let is_named = record.given_up.contains(&self.report().replica);
        is_named && !self.replica().is_in(&record.members) && !self.was_reset_since(record)
    }

    /// The members of the group: its voters, and those that get everything and do not vote.
    pub(crate) fn members(&self) -> BTreeSet<OmReplica> {
        members(self.om, self.report()).map(|(member, _)| member).collect()
    }
}

/// The members that a replica of `om` names, and whether they vote. A replica of names of before does not
/// know the number of its own OM.
fn members(om: NodeId, report: &OmReplicaReport) -> impl Iterator<Item = (OmReplica, bool)> {
    report.members.iter().map(move |member| {
        let on = if member.replica == report.replica { om.0 } else { member.om };
        (OmReplica { replica: member.replica, om: on }, member.is_voter)
    })
}

/// The replicas on healthy OMs that say that they lead a group of this number, be it the cluster's or not.
pub(crate) fn all_leaders<'a>(world: &'a World<'_>, group: u64) -> impl Iterator<Item = OmLeader<'a>> {
    let leaders = world.oms.replicas_of(group).filter(|(_, heard)| heard.leads());
    leaders.filter(|(om, _)| is_healthy(world, *om)).map(|(om, heard)| OmLeader { om, heard })
}

/// The leader of a founded group: a replica of its record, or one that has a voter of its record. A replica
/// that was taken out leads until another one does; one that a person's reset gave up never leads again,
/// though its old history may still have a majority.
pub(crate) fn leader<'a>(world: &'a World<'_>, record: &OmGroupRecord) -> Option<OmLeader<'a>> {
    let is_member = |leader: &OmLeader<'_>| leader.replica().is_in(&record.members);
    let is_of_group = |leader: &OmLeader<'_>| {
        is_member(leader)
            || leader.replica().is_in(&record.removed)
            || leader.voters().iter().any(|voter| voter.is_in(&record.members))
            || record.given_up.contains(&leader.report().replica)
    };
    let is_of_group = |leader: &OmLeader<'_>| is_of_group(leader) && !leader.is_given_up(record);
    let found = all_leaders(world, record.group).filter(|leader| record.is_founded && is_of_group(leader));
    // A leader that other replicas name too does not rest on the word of one message.
    let is_confirmed = |leader: &OmLeader<'_>| {
        let replica = leader.report().replica;
        let others = world.oms.replicas_of(record.group).filter(|(om, _)| *om != leader.om);
        let mut others = others.filter(|(om, _)| !world.oms.is_silent(*om, world.now));
        others.any(|(_, heard)| heard.report.leader_replica == replica)
    };
    found.max_by_key(|leader| {
        (is_confirmed(leader), is_member(leader), leader.report().term, Reverse(leader.om))
    })
}

/// The state of an OM. One that a forced reset has lost, and that has not registered again, is judged by its
/// silence like others.
pub(crate) fn om_state(world: &World<'_>, om: NodeId) -> NodeState {
    match world.tables.om(om) {
        Some(record) => world.oms.state(record, world.now),
        None => world.oms.heard_state(om, world.now),
    }
}

pub(crate) fn is_healthy(world: &World<'_>, om: NodeId) -> bool {
    om_state(world, om) == NodeState::NodeHealthy
}

pub(crate) fn is_dead(world: &World<'_>, om: NodeId) -> bool {
    om_state(world, om) == NodeState::NodeDead
}

pub(crate) fn is_in_service(world: &World<'_>, om: NodeId) -> bool {
    world.tables.om(om).is_none_or(|record| om_duty(record) == NodeDuty::NodeInService)
}

/// Whether the OM is registered and healthy, and is to stay.
pub(crate) fn is_well(world: &World<'_>, om: NodeId) -> bool {
    world.tables.om(om).is_some() && is_healthy(world, om) && is_in_service(world, om)
}

/// Whether no change can be committed because disks are full: members with full disks leave no majority. A
/// leader that has room leads on, and answers all questions.
pub(crate) fn lacks_room(world: &World<'_>, record: &OmGroupRecord) -> bool {
    leave_no_majority(record, |om| world.oms.is_full(om))
}

/// Whether no change may be committed, as far as SCM knows: as [`lacks_room`], or by members that are silent
/// beside them. A member that is silent here may answer its leader all the same.
pub(crate) fn may_lack_room(world: &World<'_>, record: &OmGroupRecord) -> bool {
    let is_full = |om| world.oms.is_full(om);
    let has_full = record.members.iter().any(|member| is_full(NodeId(member.om)));
    has_full && leave_no_majority(record, |om| is_full(om) || world.oms.is_silent(om, world.now))
}

fn leave_no_majority(record: &OmGroupRecord, is_out: impl Fn(NodeId) -> bool) -> bool {
    let count = record.members.len();
    let out = record.members.iter().filter(|member| is_out(NodeId(member.om))).count();
    count - out <= count / 2
}
