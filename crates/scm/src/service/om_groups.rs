//! Calls by which operators see OMs and their groups of names, empty an OM, and give up names that are lost.

use crate::leader::Leader;
use crate::om_groups;
use crate::om_orders::{self, member_told};
use crate::om_view::{is_dead, is_healthy, is_in_service, leader, om_state};
use crate::planners::OM_SUCCESSION_MAX;
use crate::tables::{OmReplica, ROOT_OF_NAMES, Tables, om_duty};
use crate::world::World;
use proto::scm::{
    BeginOmRestoreCommand, BeginOmRestoreRequest, BeginOmRestoreResponse, CreateOmGroupCommand,
    CreateOmGroupResponse, EndOmRestoreCommand, EndOmRestoreRequest, GiveUpOmGroupCommand,
    GiveUpOmGroupRequest, ListOmsResponse, NodeDuty, NoteFencesCommand, NoteFencesRequest,
    NoteFencesResponse, OmGroup, OmGroupInfo, OmGroupRecord, OmInfo, OmMemberRecord, OmRecord, OmReplicaInfo,
    OmReplicaReport, OmRestore, SetOmDutyCommand, SetOmDutyRequest, TransferOmLeaderRequest,
    TransferOmLeaderResponse, scm_command::Command,
};
use proto::{Code, Failure, bytes16};
use tokio::time::Instant;
use tracing::{info, warn};
use types::NodeId;

/// The time by which the clocks of two leaders may be apart, thirty days: numbers of fences are times.
const FENCES_AHEAD_MAX_MS: u64 = 30 * 24 * 3600 * 1000;

pub(super) fn list(leader: &Leader) -> ListOmsResponse {
    leader.read(|world| {
        let groups = om_groups::all(world).into_iter();
        ListOmsResponse {
            oms: world.tables.oms().values().map(|record| om_info(world, record)).collect(),
            groups: groups.map(|group| group_info(world, group)).collect(),
        }
    })
}

fn om_info(world: &World<'_>, record: &OmRecord) -> OmInfo {
    let (om, oms) = (NodeId(record.om), world.oms);
    let records = || world.tables.om_groups().values();
    let is_here = |record: &&OmGroupRecord| record.members.iter().any(|member| member.om == om.0);
    let leads = |record: &&OmGroupRecord| leader(world, record).is_some_and(|leader| leader.om == om);
    let clock = oms.clock(om).problem();
    OmInfo {
        om: om.0,
        uuid: record.uuid.clone(),
        address: record.address.clone(),
        state: om_state(world, om) as i32,
        duty: om_duty(record) as i32,
        last_heartbeat_age_ms: oms.age(om, world.now).as_millis() as u64,
        replicas: records().filter(is_here).count() as u32,
        leaders: records().filter(leads).count() as u32,
        version: oms.version(om).to_owned(),
        clock_apart: clock.is_some(),
        problem: om_problem(world, record).or(clock).unwrap_or_default(),
    }
}

fn om_problem(world: &World<'_>, record: &OmRecord) -> Option<String> {
    if record.address.is_empty() {
        return Some("another directory is at its address: it was wiped, or comes back elsewhere".to_owned());
    }
    if let Some(twin) = world.oms.twin(NodeId(record.om), world.now) {
        return Some(format!("a copy of its directory was started at {twin}: stop that one, and delete it"));
    }
    let is_strange = |report: &&OmReplicaReport| {
        let here = OmReplica { replica: report.replica, om: record.om };
        !world.tables.om_group(report.group).is_some_and(|group| {
            let known = [&group.members, &group.removed, &group.abandoned];
            known.into_iter().any(|records| here.is_in(records))
        })
    };
    let reports = world.oms.replicas(NodeId(record.om)).map(|heard| &heard.report);
    let strange = reports.into_iter().find(is_strange)?;
    let (group, replica) = (strange.group, strange.replica);
    Some(format!("its replica {replica} of group {group} is not of the cluster's group: it stays as it is"))
}

fn group_info(world: &World<'_>, group: u64) -> OmGroupInfo {
    let record = world.tables.om_group(group);
    let found = record.and_then(|record| leader(world, record));
    let wanted = record.map(|record| om_orders::group(world, record));
    OmGroupInfo {
        group: Some(wanted.unwrap_or(OmGroup { group, ..OmGroup::default() })),
        term: found.map_or(0, |leader| leader.report().term),
        leader_om: found.map_or(0, |leader| leader.om.0),
        replicas: replica_infos(world, group, record.map_or(&[], |record| &record.members)),
        problem: om_groups::problem(world, group, record).unwrap_or_default(),
        is_down: om_groups::is_down(world, record),
    }
}

/// The members of the record, and whatever else OMs have of that group. A replica in a directory that was
/// replaced is gone.
fn replica_infos(world: &World<'_>, group: u64, members: &[OmMemberRecord]) -> Vec<OmReplicaInfo> {
    let info = |member: &OmMemberRecord| {
        let om = NodeId(member.om);
        let heard = world.oms.replica(om, group).map(|heard| &heard.report);
        OmReplicaInfo {
            member: Some(member_told(world, member)),
            report: heard.filter(|report| report.replica == member.replica).cloned(),
            om_state: om_state(world, om) as i32,
        }
    };
    let there = world.oms.replicas_of(group).filter(|(om, _)| !world.tables.om_address(*om).is_empty());
    let others = there.map(|(om, heard)| {
        let replica = heard.report.replica;
        OmMemberRecord { replica, om: om.0, has_voted: false }
    });
    let others: Vec<OmMemberRecord> = others.filter(|other| !OmReplica::from(other).is_in(members)).collect();
    members.iter().chain(&others).map(info).collect()
}

pub(super) async fn set_duty(leader: &Leader, request: SetOmDutyRequest) -> Result<(), Failure> {
    let (om, wanted) = (NodeId(request.om), request.duty());
    leader
        .tables
        .read(|tables| tables.named_om(om.0).map(drop).map_err(|why| Failure::new(Code::NotFound, why)))?;
    match wanted {
        NodeDuty::NodeInService => {}
        NodeDuty::NodeDecommissioning => leader.read(|world| check_another_is_left(world, om))?,
        _ => return Err(Failure::invalid("an OM is put in service or decommissioned")),
    }
    let command = SetOmDutyCommand { om: om.0, duty: wanted as i32 };
    let reply = leader.propose(Command::SetOmDuty(command)).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::invalid(reply.refused));
    }
    info!(%om, duty = wanted.as_str_name(), "an operator sets the OM's duty");
    leader.oms_changed.notify_one();
    Ok(())
}

/// Refuses to empty the last OM: its names would have no place to go to.
fn check_another_is_left(world: &World<'_>, om: NodeId) -> Result<(), Failure> {
    let mut others = world.tables.oms().keys().filter(|other| **other != om);
    match others.any(|other| is_in_service(world, *other) && !is_dead(world, *other)) {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "OM {om} is the last one in service that is not dead: its names would have no place to go to; start another one first"
        ))),
    }
}

pub(super) fn transfer_leader(
    leader: &Leader,
    request: TransferOmLeaderRequest,
) -> Result<TransferOmLeaderResponse, Failure> {
    let to = leader.read(|world| successor(world, &request))?;
    let until = Instant::now() + OM_SUCCESSION_MAX;
    leader.change_oms(|oms| oms.wish(request.group, to.replica, until));
    info!(group = request.group, om = to.om, "an operator moves the leader of names");
    Ok(TransferOmLeaderResponse { om: to.om })
}

/// The voter that is to lead: the one that is asked for, or whichever other healthy one has most of the log.
fn successor(world: &World<'_>, request: &TransferOmLeaderRequest) -> Result<OmReplica, Failure> {
    let TransferOmLeaderRequest { group, om } = *request;
    let record = world.tables.om_group(group);
    let record = record.ok_or_else(|| Failure::new(Code::NotFound, format!("no group {group}")))?;
    let found = leader(world, record)
        .ok_or_else(|| Failure::new(Code::PreconditionFailed, format!("group {group} has no leader")))?;
    let here = found.replica();
    let mut voters = found.voters();
    if om != 0 {
        voters.retain(|voter| voter.om == om);
        if voters.is_empty() {
            return Err(Failure::invalid(format!("OM {om} has no member of group {group} that votes")));
        }
    } else {
        voters.remove(&here);
    }
    let applied = |voter: &OmReplica| {
        world.oms.replica(NodeId(voter.om), group).map_or(0, |heard| heard.report.applied_index)
    };
    let healthy = voters.into_iter().filter(|voter| is_healthy(world, NodeId(voter.om)));
    healthy.max_by_key(applied).ok_or_else(|| {
        let why = format!("group {group} has no other member that votes and is healthy");
        Failure::new(Code::PreconditionFailed, why)
    })
}

pub(super) async fn give_up(leader: &Leader, request: GiveUpOmGroupRequest) -> Result<(), Failure> {
    let group = request.group;
    leader.read(|world| check_nobody_has_it(world, group))?;
    let reply = leader.propose(Command::GiveUpOmGroup(GiveUpOmGroupCommand { group })).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::new(Code::NotFound, reply.refused));
    }
    warn!(group, "an operator gives up the names of a group: it is founded anew");
    leader.oms_changed.notify_one();
    Ok(())
}

/// Makes one more group, which is founded as soon as an OM is there for it.
pub(super) async fn create(leader: &Leader) -> Result<CreateOmGroupResponse, Failure> {
    let reply = leader.propose(Command::CreateOmGroup(CreateOmGroupCommand { up_to: 0 })).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::new(Code::LimitReached, reply.refused));
    }
    info!(group = reply.om_group, "an operator makes a group of names");
    leader.oms_changed.notify_one();
    Ok(CreateOmGroupResponse { group: reply.om_group })
}

/// Begins to restore all groups from a backup; answers which groups wait for its rows.
pub(super) async fn begin_restore(
    leader: &Leader,
    request: BeginOmRestoreRequest,
) -> Result<BeginOmRestoreResponse, Failure> {
    let BeginOmRestoreRequest { backup, taken_ms, groups } = request;
    bytes16(&backup, "the id of a backup")?;
    let waiting = || leader.read(|world| groups_restored(world, &backup));
    let (count, is_decided) = (groups.len(), leader.read(|world| is_decided(world, &backup)));
    if !is_decided {
        leader.read(|world| check_all_are_lost(world, &backup))?;
        let restore = Some(OmRestore { backup: backup.clone(), taken_ms, is_complete: false });
        let reply =
            leader.propose(Command::BeginOmRestore(BeginOmRestoreCommand { restore, groups })).await?;
        if !reply.refused.is_empty() {
            return Err(Failure::new(Code::PreconditionFailed, reply.refused));
        }
        // Blocks that groups called unused before they were lost may be named by what comes back.
        leader.plan(|_, replication| replication.discards.forget_asked());
        warn!(
            groups = count,
            taken_ms, "an operator restores all names from a backup: all groups are begun anew"
        );
        leader.oms_changed.notify_one();
    }
    Ok(BeginOmRestoreResponse { groups: waiting() })
}

/// The groups that wait for the rows of a backup.
fn groups_restored(world: &World<'_>, backup: &[u8]) -> Vec<u64> {
    let is_of = |record: &&OmGroupRecord| record.restore.as_ref().is_some_and(|it| it.backup == backup);
    world.tables.om_groups().values().filter(is_of).map(|record| record.group).collect()
}

fn is_decided(world: &World<'_>, backup: &[u8]) -> bool {
    let is_decided = |restore: &OmRestore| restore.is_complete && restore.backup == backup;
    world.tables.om_groups().values().any(|record| record.restore.as_ref().is_some_and(is_decided))
}

/// Refuses to restore anything while some names are there: groups would be of different moments.
fn check_all_are_lost(world: &World<'_>, backup: &[u8]) -> Result<(), Failure> {
    let waiting = groups_restored(world, backup);
    for group in om_groups::all(world).into_iter().filter(|group| !waiting.contains(group)) {
        if group == ROOT_OF_NAMES || world.tables.om_group(group).is_some() {
            check_nobody_has_it(world, group)?;
        }
    }
    let living = world.tables.oms().keys().copied().filter(|om| !is_dead(world, *om));
    let has_others = |om: &NodeId| {
        let mut reports = world.oms.replicas(*om).map(|heard| &heard.report);
        reports.any(|report| !report.backup.is_empty() && report.backup != backup)
    };
    match living.into_iter().find(has_others) {
        None => Ok(()),
        Some(om) => {
            let why =
                format!("OM {om} has rows of another backup: stop it, empty its directory, and start it");
            Err(Failure::new(Code::PreconditionFailed, why))
        }
    }
}

/// Ends the restore of a backup: all groups have their rows, and are founded with them.
pub(super) async fn end_restore(leader: &Leader, request: EndOmRestoreRequest) -> Result<(), Failure> {
    let EndOmRestoreRequest { backup } = request;
    leader.read(|world| {
        let lacks = |group: &u64| {
            world
                .tables
                .om_group(*group)
                .is_some_and(|record| !om_groups::is_restored(world, record, &backup))
        };
        match groups_restored(world, &backup).into_iter().find(lacks) {
            Some(group) => {
                let why = format!("no OM has said yet that it has all rows of group {group}");
                Err(Failure::new(Code::Unavailable, why))
            }
            None => Ok(()),
        }
    })?;
    let reply = leader.propose(Command::EndOmRestore(EndOmRestoreCommand { backup })).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::new(Code::PreconditionFailed, reply.refused));
    }
    warn!("all names are restored from a backup");
    leader.oms_changed.notify_one();
    Ok(())
}

/// Keeps how far the root of names is, so that a root that was put back to what it was hears of it.
pub(super) async fn note_fences(
    leader: &Leader,
    request: NoteFencesRequest,
) -> Result<NoteFencesResponse, Failure> {
    let NoteFencesRequest { number, before } = request;
    if number > leader.clock.now_ms().saturating_add(FENCES_AHEAD_MAX_MS) {
        return Err(Failure::invalid(format!("fences with number {number} are of a time that is to come")));
    }
    if number == 0 {
        return Ok(NoteFencesResponse { known: leader.tables.read(Tables::fences) });
    }
    let reply = leader.propose(Command::NoteFences(NoteFencesCommand { number, before })).await?;
    Ok(NoteFencesResponse { known: reply.fences })
}

/// Refuses to give up a group that an OM which is not dead has, or may have, as long as it has not told this
/// leader what it has.
fn check_nobody_has_it(world: &World<'_>, group: u64) -> Result<(), Failure> {
    if group != ROOT_OF_NAMES && world.tables.om_group(group).is_none() {
        return Err(Failure::new(Code::NotFound, format!("no group {group}")));
    }
    let living = || world.tables.oms().keys().copied().filter(|om| !is_dead(world, *om));
    if let Some(om) = living().find(|om| !world.oms.has_told(*om)) {
        let why = format!("OM {om} has not told yet what it has: it may have names of group {group}");
        return Err(Failure::new(Code::Unavailable, why));
    }
    let is_founded = world.tables.om_group(group).is_some_and(|record| record.is_founded);
    let has_it = |om: NodeId| Some((om, world.oms.replica(om, group)?.report.replica));
    // A group that was begun, and never served anybody, is no loss.
    let found = if is_founded { living().find_map(has_it) } else { om_groups::names_are_on(world, group) };
    match found {
        None => Ok(()),
        Some((om, replica)) if is_healthy(world, om) => {
            let why = format!("OM {om} has replica {replica} of group {group}: its names are not lost");
            Err(Failure::new(Code::PreconditionFailed, why))
        }
        Some((om, replica)) => {
            let why = format!(
                "OM {om} had replica {replica} of group {group} when it was heard last, and does not count as dead yet"
            );
            Err(Failure::new(Code::Unavailable, why))
        }
    }
}
