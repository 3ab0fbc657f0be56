//! Datanodes are in the registry by their heartbeats: what they say there is all that is to be known.

use super::health::{differ, with_clock, with_connectivity};
use crate::leader::Leader;
use crate::nodes::Nodes;
use crate::tables::duty;
use crate::world::World;
use proto::registry::registry_command::Command;
use proto::registry::{
    Check, Health, Instance, InstanceName, PutInstanceCommand, RemoveInstanceCommand, SetChecksCommand,
};
use proto::scm::{DiskReport, DiskState, NodeRecord, NodeState};
use std::time::Duration;
use tokio::time::Instant;
use tracing::debug;
use types::NodeId;

/// The name of the service that datanodes are instances of.
pub(super) const DATANODE: &str = "datanode";

/// The name, in their metadata, under which all instances say which version they run.
const VERSION: &str = "version";

/// The interval at which the registry is compared with what is known of the nodes.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The most changes of one look, one after the other; the rest is for the next look.
const CHANGES_MAX: usize = 100;
/// The number of entries of its own log by which a replica is behind, if it has not applied them: seconds of
/// writing.
const LAG_ENTRIES_MAX: u64 = 10_000;

/// Keeps the instances of the service `datanode` at what heartbeats say, until the leadership ends.
pub(crate) async fn follow_datanodes(leader: &Leader) {
    let keep_free_percent = leader.options.keep_free_percent;
    loop {
        let wanted = leader.read(|world| {
            let changes =
                world.tables.nodes().values().filter_map(|record| change(record, world, keep_free_percent));
            changes.take(CHANGES_MAX).collect::<Vec<Command>>()
        });
        for command in wanted {
            if let Err(failure) = leader.propose_registry(command).await {
                debug!(%failure, "tell the registry of a datanode, again in a moment");
                break;
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The change that brings a node's instance to what is known of the node, if any is due.
fn change(record: &NodeRecord, world: &World<'_>, keep_free_percent: u64) -> Option<Command> {
    let World { tables, nodes, now, .. } = *world;
    let node = NodeId(record.node);
    let id = format!("dn{node}");
    let known = tables.directory().instance(DATANODE, &id);
    let state = nodes.state(node, now);
    let name = Some(InstanceName { service: DATANODE.to_owned(), id: id.clone() });
    if state == NodeState::NodeDead {
        let lease = known?.lease;
        return Some(Command::RemoveInstance(RemoveInstanceCommand { name, lease, expired: true }));
    }
    // A new leader has not heard of the node yet, and knows nothing against it.
    if nodes.seen(node).is_none() && nodes.is_young(now) {
        return None;
    }
    let version_known = known.and_then(|known| known.metadata.get(VERSION));
    let disks = disk_check(nodes.disks(node), keep_free_percent);
    let wanted = instance(record, id, version_known, nodes, now, disks);
    match known {
        // A node that has never spoken to this leader is news only once it does.
        None if nodes.seen(node).is_none() => None,
        Some(known) if known.addresses == wanted.addresses && known.metadata == wanted.metadata => {
            let lease = known.lease;
            let set = SetChecksCommand { name, lease, checks: wanted.checks };
            differ(&known.checks, &set.checks).then_some(Command::SetChecks(set))
        }
        _ => Some(Command::PutInstance(PutInstanceCommand {
            instance: Some(wanted),
            instances_max: super::limits::INSTANCES_MAX,
        })),
    }
}

/// The instance of a node; `version_known` is the version it had before, for a leader that has not heard the
/// node yet.
fn instance(
    record: &NodeRecord,
    id: String,
    version_known: Option<&String>,
    nodes: &Nodes,
    now: Instant,
    disks: Check,
) -> Instance {
    let node = NodeId(record.node);
    let uuid: String = record.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let duty = duty(record).as_str_name().trim_start_matches("NODE_").to_lowercase().replace('_', "-");
    let (health, output) = match nodes.state(node, now) {
        NodeState::NodeHealthy => (Health::Passing, "heartbeats arrive".to_owned()),
        _ => (Health::Critical, format!("silent for {} s", nodes.age(node, now).as_secs())),
    };
    let version = match nodes.version(node) {
        "" => version_known.cloned(),
        version => Some(version.to_owned()),
    };
    let metadata = [("uuid", Some(uuid)), ("duty", Some(duty)), (VERSION, version)].into_iter();
    let metadata = metadata.filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    let own = vec![disks, raft_check(node, nodes)];
    Instance {
        service: DATANODE.to_owned(),
        id,
        addresses: [("grpc".to_owned(), record.address.clone())].into(),
        metadata,
        checks: with_connectivity(with_clock(own, nodes.clock(node)), health, &output),
        ..Instance::default()
    }
}

fn check(name: &str, health: Health, output: String) -> Check {
    Check { name: name.to_owned(), health: health as i32, output }
}

/// The check of a node's disks. A disk that takes no new data, or has less than `keep_free_percent` of its
/// space free, is nearly full.
fn disk_check(disks: &[DiskReport], keep_free_percent: u64) -> Check {
    let are = |state: DiskState| disks.iter().filter(|disk| disk.state() == state).count();
    let (failed, hang) = (are(DiskState::Failed), are(DiskState::Hangs));
    let is_full = |disk: &&DiskReport| {
        let is_low = disk.free_bytes < disk.capacity_bytes / 100 * keep_free_percent;
        disk.state() == DiskState::Full || (disk.state() == DiskState::Works && is_low)
    };
    let full = disks.iter().filter(is_full).count();
    let all = disks.len();
    let health = match failed + hang + full {
        0 => Health::Passing,
        troubled if troubled == all => Health::Critical,
        _ => Health::Warning,
    };
    let output = match health {
        Health::Passing => format!("{all} disks work"),
        _ => {
            let whys = disks.iter().filter(|disk| !disk.why.is_empty()).map(|disk| format!("; {}", disk.why));
            let whys: String = whys.collect();
            format!("of {all} disks {failed} failed, {hang} hang and {full} are nearly full{whys}")
        }
    };
    check("disk", health, output)
}

fn raft_check(node: NodeId, nodes: &Nodes) -> Check {
    let reports = || nodes.pipeline_reports(node);
    let stopped = reports().filter(|report| !report.votes() && !report.has_ended()).count();
    let behind = reports().map(|report| report.last_index.saturating_sub(report.applied_index)).max();
    let behind = behind.unwrap_or(0);
    let is_well = stopped == 0 && behind <= LAG_ENTRIES_MAX;
    let health = if is_well { Health::Passing } else { Health::Warning };
    let output = format!(
        "{} pipelines, {stopped} of them stopped; at most {behind} entries to apply",
        reports().count()
    );
    check("raft", health, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(free_percent: u64, failed: bool) -> DiskReport {
        let state = if failed { DiskState::Failed } else { DiskState::Works } as i32;
        DiskReport { capacity_bytes: 1000, free_bytes: free_percent * 10, state, ..DiskReport::default() }
    }

    #[test]
    fn a_node_with_one_good_disk_is_of_use() {
        let health = |disks: &[DiskReport]| disk_check(disks, 5).health();
        assert_eq!(health(&[disk(50, false), disk(6, false)]), Health::Passing);
        assert_eq!(health(&[disk(50, false), disk(4, false)]), Health::Warning);
        assert_eq!(health(&[disk(50, false), disk(50, true)]), Health::Warning);
        assert_eq!(health(&[disk(4, false), disk(50, true)]), Health::Critical);
        let broken = DiskReport { why: "read the block index".into(), ..disk(0, true) };
        assert!(disk_check(&[broken], 5).output.ends_with("; read the block index"));
        let full = DiskReport { state: DiskState::Full as i32, ..disk(1, false) };
        assert_eq!(disk_check(&[full], 0).health(), Health::Critical, "it takes nothing");
        let hangs = DiskReport { state: DiskState::Hangs as i32, ..disk(50, false) };
        let said = disk_check(&[disk(50, false), hangs], 5);
        assert_eq!(said.health(), Health::Warning);
        assert_eq!(said.output, "of 2 disks 0 failed, 1 hang and 0 are nearly full");
    }
}
