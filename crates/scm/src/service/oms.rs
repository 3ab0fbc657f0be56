//! An OM registers at each start, and says each second what it has; it learns which groups it is to be in,
//! and where the others are.

use super::register::check_address;
use crate::clock_apart::ClockApart;
use crate::leader::Leader;
use crate::om_orders;
use crate::oms::check_replicas;
use crate::twins;
use crate::world::World;
use proto::scm::{
    OmGroupRecord, OmHeartbeatRequest, OmHeartbeatResponse, RegisterOmCommand, RegisterOmRequest,
    RegisterOmResponse, scm_command::Command,
};
use proto::{Failure, bytes16};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};
use types::NodeId;

/// The time that an answer waits for a decision that is about to come, so that an OM begins and serves its
/// names as soon as it may, not at its next heartbeat. Far below the silence that makes it stale.
const DECISION_WAIT: Duration = Duration::from_millis(500);
const PART_OF_STALE_AFTER: u32 = 4;

pub(super) async fn register(
    leader: &Leader,
    request: RegisterOmRequest,
) -> Result<RegisterOmResponse, Failure> {
    leader.check_cluster(&request.cluster)?;
    bytes16(&request.uuid, "uuid")?;
    check_address(&request.address)?;
    check_is_alone(leader, &request)?;
    let RegisterOmRequest { uuid, address, om, .. } = request;
    let om = register_om(leader, RegisterOmCommand { uuid, address, om }).await?;
    Ok(RegisterOmResponse { om: om.0, cluster: leader.tables.read(|tables| tables.cluster().to_owned()) })
}

/// Refuses a directory that is at another address as well: a copy that was started would vote as the same
/// replica. A directory that moved is let in as soon as nothing is heard from where it was.
fn check_is_alone(leader: &Leader, request: &RegisterOmRequest) -> Result<(), Failure> {
    let there = leader.read(|world| {
        let record = world.tables.om_by_uuid(&request.uuid)?;
        let om = NodeId(record.om);
        let is_well = world.oms.has_told(om) && !world.oms.is_silent(om, world.now);
        let is_elsewhere = !record.address.is_empty() && record.address != request.address;
        (is_elsewhere && is_well).then(|| (om, record.address.clone()))
    });
    let Some((om, address)) = there else { return Ok(()) };
    leader.change_oms(|oms| oms.note_twin(om, &request.address, Instant::now()));
    Err(twins::refuse(&format!("OM {om}"), &address, &request.address))
}

/// Writes the OM to the log, unless the tables say the same already. An address is one OM's at a time.
async fn register_om(leader: &Leader, command: RegisterOmCommand) -> Result<NodeId, Failure> {
    let known = leader.tables.read(|tables| {
        let record = tables.om_by_uuid(&command.uuid)?;
        (record.address == command.address).then_some(NodeId(record.om))
    });
    if let Some(om) = known {
        return Ok(om);
    }
    let address = command.address.clone();
    let (is_lost, replaced) = leader.tables.read(|tables| {
        let is_new = tables.om_by_uuid(&command.uuid).is_none();
        let there = tables.oms().values().find(|other| other.address == address);
        let replaced = there.filter(|other| other.uuid != command.uuid).map(|other| other.om);
        (is_new && tables.is_lost_om(NodeId(command.om)), replaced)
    });
    let om = NodeId(leader.propose(Command::RegisterOm(command)).await?.om);
    match is_lost {
        true => warn!(%om, %address, "adopt an OM that the forced reset had lost"),
        false => info!(%om, %address, "registered OM"),
    }
    if let Some(replaced) = replaced {
        warn!(om = replaced, by = %om, %address, "another directory is at the address of an OM, which counts as dead: it was wiped, or the two have one address");
    }
    leader.oms_changed.notify_one();
    Ok(om)
}

pub(super) async fn heartbeat(
    leader: &Leader,
    request: OmHeartbeatRequest,
) -> Result<OmHeartbeatResponse, Failure> {
    leader.check_cluster(&request.cluster)?;
    check_replicas(&request.replicas).map_err(Failure::invalid)?;
    let om = NodeId(request.om);
    let is_as_registered = leader.tables.read(|tables| {
        let record = tables.om(om);
        record.is_some_and(|record| record.address == request.address && !record.address.is_empty())
    });
    if !is_as_registered {
        return Ok(OmHeartbeatResponse { register_again: true, ..OmHeartbeatResponse::default() });
    }
    let mut tables_changes = leader.tables.changes();
    let clock = ClockApart::of(request.clock_ms, leader.clock.now_ms());
    let changed = leader.change_oms(|oms| {
        let changed = oms.hear(om, request.replicas, Instant::now());
        // An OM that does not tell its clock says 0.
        if request.clock_ms != 0 && oms.hear_clock(om, clock) {
            warn!(%om, problem = clock.problem(), "clocks are apart");
        }
        oms.hear_version(om, &request.version);
        oms.hear_full(om, request.is_full);
        changed
    });
    if changed {
        leader.oms_changed.notify_one();
        leader.reports_changed.send_modify(|changes| *changes += 1);
    }
    let waits = || leader.read(|world| waits_for_decision(world, om));
    let decision = async { while waits() && tables_changes.changed().await.is_ok() {} };
    let wait = DECISION_WAIT.min(leader.options.stale_after / PART_OF_STALE_AFTER);
    let _ = timeout(wait, decision).await;
    Ok(leader.read(|world| om_orders::answer(world, om)))
}

/// Whether the OM has nothing to do yet, or has begun a group, and that is not noted yet.
fn waits_for_decision(world: &World<'_>, om: NodeId) -> bool {
    let records = || world.tables.om_groups().values();
    let is_member = |record: &&OmGroupRecord| record.members.iter().any(|on| on.om == om.0);
    let has_begun =
        |record: &OmGroupRecord| world.oms.replica(om, record.group).is_some_and(|heard| heard.leads());
    let is_idle = world.oms.replicas(om).next().is_none() && !records().any(|record| is_member(&record));
    is_idle || records().filter(is_member).any(|record| !record.is_founded && has_begun(record))
}
