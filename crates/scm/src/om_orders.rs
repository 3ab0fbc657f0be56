//! The orders to an OM: the groups in which it is to have a replica, and what it is to delete. A pure
//! function of one look at the world.

use crate::om_view::leader;
use crate::tables::OmReplica;
use crate::view::om_groups;
use crate::world::World;
use proto::scm::{
    NodeAddress, OmGroup, OmGroupRecord, OmHeartbeatResponse, OmMember, OmMemberRecord, OmReplicaName,
    OmReplicaReport,
};
use std::collections::BTreeSet;
use types::NodeId;

pub(crate) fn answer(world: &World<'_>, om: NodeId) -> OmHeartbeatResponse {
    let records = || world.tables.om_groups().values();
    let told: Vec<&OmGroupRecord> = records().filter(|record| is_told(world, record, om)).collect();
    let gone = records().filter_map(|record| gone(world, record, om));
    let successors = told.iter().filter_map(|record| successor(world, record, om));
    OmHeartbeatResponse {
        idle: crate::om_groups::idle(world, om).unwrap_or_default(),
        successors: successors.collect(),
        groups: told.iter().map(|record| group(world, record)).collect(),
        gone: gone.collect(),
        addresses: addresses(world, &told, om),
        register_again: false,
        om_groups: om_groups(world),
    }
}

/// A group as SCM wants it: all members of the record are to vote.
pub(crate) fn group(world: &World<'_>, record: &OmGroupRecord) -> OmGroup {
    let voter = |member| OmMember { is_voter: true, ..member_told(world, member) };
    OmGroup {
        group: record.group,
        members: record.members.iter().map(voter).collect(),
        is_founded: record.is_founded,
        backup: record.restore.as_ref().map(|restore| restore.backup.clone()).unwrap_or_default(),
    }
}

/// A member with its address, and whether it has voted yet.
pub(crate) fn member_told(world: &World<'_>, member: &OmMemberRecord) -> OmMember {
    let OmMemberRecord { replica, om, has_voted } = *member;
    let address = world.tables.om_address(NodeId(om)).to_owned();
    OmMember { replica, om, address, is_voter: has_voted }
}

/// Whether the OM hears of the group: as a member of the record, or as one that was taken out and still
/// leads, since leaders change the members. A replica that it has of another group of that number has nothing
/// to do with this one, and must not make these its members. A member that has voted and is gone from its
/// OM's directory does not begin again with nothing: it would forget to whom it gave its vote. And nobody
/// hears of a record that the group contradicts: it may name replicas that are gone for good.
fn is_told(world: &World<'_>, record: &OmGroupRecord, om: NodeId) -> bool {
    if record.is_uncertain || leader(world, record).is_some_and(|leader| leader.contradicts(record)) {
        return false;
    }
    match world.oms.replica(om, record.group) {
        Some(heard) => {
            let here = OmReplica { replica: heard.report.replica, om: om.0 };
            here.is_in(&record.members) || here.is_in(&record.removed) && heard.leads()
        }
        None => record.members.iter().any(|member| {
            member.om == om.0 && !member.has_voted && !votes(world, record.group, member.replica)
        }),
    }
}

/// Whether any replica that has told what it knows of the group has this one as a voter.
fn votes(world: &World<'_>, group: u64, replica: u64) -> bool {
    let mut members = world.oms.replicas_of(group).flat_map(|(_, heard)| &heard.report.members);
    members.any(|member| member.replica == replica && member.is_voter)
}

/// The OM's replica that the group has gone on without: it was in the record once, or was to begin the group,
/// and the leader has the record's members for good. The leader was told that it is to have these: it may be
/// about to take in, by an older word, a replica that is to go by a newer one.
fn gone(world: &World<'_>, record: &OmGroupRecord, om: NodeId) -> Option<OmReplicaName> {
    let OmReplicaReport { group, replica, .. } = world.oms.replica(om, record.group)?.report;
    let here = OmReplica { replica, om: om.0 };
    let is_known =
        here.is_in(&record.removed) || here.is_in(&record.abandoned) || record.given_up.contains(&replica);
    let leader = leader(world, record).filter(|leader| leader.is_settled())?;
    let (voters, members) = (leader.voters(), leader.members());
    // The replica stands in the way of the one that the OM is to have.
    let is_in_the_way = record.members.iter().any(|member| member.om == om.0);
    let has_gone_on = leader.has_heard_of(record)
        && (is_in_the_way || voters == OmReplica::all(&record.members))
        && voters.contains(&leader.replica());
    (is_known && has_gone_on && !members.contains(&here)).then_some(OmReplicaName { group, replica })
}

/// The voter that an operator wishes to lead a group that this OM leads.
fn successor(world: &World<'_>, record: &OmGroupRecord, om: NodeId) -> Option<OmReplicaName> {
    let leader = leader(world, record).filter(|leader| leader.om == om)?;
    let replica = world.oms.successor(record.group, world.now)?;
    let is_other_voter = |voter: &OmReplica| voter.replica == replica && *voter != leader.replica();
    leader.voters().iter().any(is_other_voter).then_some(OmReplicaName { group: record.group, replica })
}

/// The addresses of all OMs with which this one has to do.
fn addresses(world: &World<'_>, told: &[&OmGroupRecord], om: NodeId) -> Vec<NodeAddress> {
    let wanted = told.iter().flat_map(|record| &record.members).map(|member| member.om);
    let known = world.oms.replicas(om).flat_map(|heard| &heard.report.members).map(|member| member.om);
    let all: BTreeSet<u64> = wanted.chain(known).collect();
    let address = |node: u64| NodeAddress { node, address: world.tables.om_address(NodeId(node)).to_owned() };
    all.into_iter().map(address).filter(|known| !known.address.is_empty()).collect()
}
