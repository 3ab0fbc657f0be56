//! A datanode registers at each start, and again when SCM asks for it.

use crate::leader::Leader;
use crate::twins;
use proto::scm::{DiskReport, RegisterNodeCommand, RegisterRequest, RegisterResponse, scm_command::Command};
use proto::{Failure, bytes16, disk_id};
use std::collections::BTreeSet;
use tokio::time::Instant;
use tracing::{info, warn};
use types::NodeId;

/// A node with more disks than this is a mistake, not a machine.
const DISKS_MAX: usize = 1000;
/// As much as a replica's text may have.
const WHY_BYTES_MAX: usize = 1024;
const ADDRESS_BYTES_MAX: usize = 255;

pub(crate) async fn register(leader: &Leader, request: RegisterRequest) -> Result<RegisterResponse, Failure> {
    leader.check_cluster(&request.cluster)?;
    bytes16(&request.uuid, "uuid")?;
    check_address(&request.address)?;
    check_disks(&request.disks)?;
    check_is_alone(leader, &request)?;
    let command = RegisterNodeCommand {
        uuid: request.uuid,
        address: request.address,
        disks: request.disks.iter().map(|disk| disk.disk.clone()).collect(),
        node: request.node,
    };
    let node = register_node(leader, command).await?;
    let places_changed = leader.change_nodes(|_, nodes| {
        nodes.replicas_mut().expect_full_report(node);
        nodes.twins_mut().forget(node);
        nodes.begin_heartbeats(node, request.process);
        nodes.see(node, request.disks, Instant::now())
    });
    leader.plan(|_, replication| replication.tasks.forget_node(node));
    if places_changed {
        leader.note_places_changed();
    }
    Ok(RegisterResponse { node: node.0, cluster: leader.tables.read(|tables| tables.cluster().to_owned()) })
}

/// Refuses a node whose directories are at another address as well: each would be told what the other did. A
/// leader of SCM that has just begun has heard nobody, and gives who is registered the time to speak first.
fn check_is_alone(leader: &Leader, request: &RegisterRequest) -> Result<(), Failure> {
    let there = leader.read(|world| {
        let record = world.tables.node_by_uuid(&request.uuid)?;
        let node = NodeId(record.node);
        let is_well = world.nodes.age(node, world.now) < leader.options.stale_after;
        (record.address != request.address && is_well).then(|| (node, record.address.clone()))
    });
    let Some((node, address)) = there else { return Ok(()) };
    leader.change_nodes(|_, nodes| nodes.twins_mut().note(node, &request.address, Instant::now()));
    Err(twins::refuse(&format!("node {node}"), &address, &request.address))
}

/// Writes the node to the log, unless the tables say the same already.
async fn register_node(leader: &Leader, command: RegisterNodeCommand) -> Result<NodeId, Failure> {
    let known = leader.tables.read(|tables| {
        let record = tables.node_by_uuid(&command.uuid)?;
        (record.address == command.address && record.disks == command.disks).then_some(NodeId(record.node))
    });
    if let Some(node) = known {
        return Ok(node);
    }
    let address = command.address.clone();
    let is_lost = leader.tables.read(|tables| {
        tables.node_by_uuid(&command.uuid).is_none() && tables.is_lost_node(NodeId(command.node))
    });
    let node = NodeId(leader.propose(Command::RegisterNode(command)).await?.node);
    match is_lost {
        true => warn!(%node, %address, "adopt a datanode that the forced reset had lost"),
        false => info!(%node, %address, "registered datanode"),
    }
    leader.addresses.set(node, address);
    Ok(node)
}

pub(super) fn check_address(address: &str) -> Result<(), Failure> {
    // Operators look at addresses, and a terminal obeys control characters.
    let is_host = |host: &str| !host.is_empty() && !host.contains(char::is_control);
    let port =
        address.rsplit_once(':').filter(|(host, _)| is_host(host)).map(|(_, port)| port.parse::<u16>());
    if address.len() > ADDRESS_BYTES_MAX || !matches!(port, Some(Ok(1..))) {
        return Err(Failure::invalid(format!("address {address:?} must be \"host:port\"")));
    }
    Ok(())
}

pub(super) fn check_disks(disks: &[DiskReport]) -> Result<(), Failure> {
    if disks.len() > DISKS_MAX {
        return Err(Failure::invalid(format!("{} disks on one node, at most {DISKS_MAX}", disks.len())));
    }
    let mut ids = BTreeSet::new();
    for disk in disks {
        let id = disk_id(&disk.disk)?;
        if !ids.insert(id) {
            return Err(Failure::invalid(format!("disk {id} is reported twice")));
        }
        // It becomes part of what operators read, in a line, and of why a pipeline is closed, in SCM's log.
        if disk.why.len() > WHY_BYTES_MAX || disk.why.contains(char::is_control) {
            return Err(Failure::invalid(format!("why disk {id} failed is a line of {WHY_BYTES_MAX} bytes")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["a:1", "10.0.0.1:7400", "[::1]:65535"] {
            assert_eq!(check_address(good), Ok(()));
        }
        for bad in ["", "a", ":1", "a:", "a:0", "a:70000", "a:b", "\x1b[2Ja:1", "a\n:1", "\u{9b}2J:1"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn disk_ids_are_whole_and_different() {
        let disk =
            |number: u8, len: usize| DiskReport { disk: vec![number; len].into(), ..DiskReport::default() };
        assert_eq!(check_disks(&[disk(1, 16), disk(2, 16)]), Ok(()));
        assert!(check_disks(&[disk(1, 16), disk(1, 16)]).is_err());
        assert!(check_disks(&[disk(1, 15)]).is_err());
        let why = |why: String| check_disks(&[DiskReport { why, ..disk(1, 16) }]);
        assert_eq!(why("x".repeat(WHY_BYTES_MAX)), Ok(()));
        assert!(why("x".repeat(WHY_BYTES_MAX + 1)).is_err() && why("a\nb".into()).is_err());
    }
}
