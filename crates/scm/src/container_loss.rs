//! The remains of a container without a good replica, which an operator is shown and may accept.

use crate::ops::accept_container_loss::as_decided;
use crate::replicas::{LastRecord, last_record};
use crate::replication::{self, ContainerView, NodeView, NodeViews};
use crate::resolution::{RESTART_OR_GIVE_UP_DISK, is_empty};
use crate::tables::container_state;
use crate::world::World;
use proto::scm::{ContainerReplica, ContainerState, NodeState, ReplicaState, SettledContainer};
use std::cmp::Reverse;
use types::{ContainerId, NodeId};

/// The decision on a container, and what is left of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) before: SettledContainer,
    /// The node with the best replica; `None` where nobody has any.
    pub(crate) node: Option<NodeId>,
    pub(crate) after: SettledContainer,
}

/// Finds what is left of a container. Refused as long as a good replica may come by itself: nobody has to
/// give up anything then.
pub(crate) fn left(container: ContainerId, world: &World<'_>) -> Result<Left, String> {
    let known = replication::known(container, world).ok_or_else(|| format!("no container {container}"))?;
    let views = world.node_views();
    check_nothing_may_come(&known, views)?;
    let is_left = |node: &NodeId| views.get(node).is_some_and(may_return);
    let there = known.replicas.iter().filter(|(node, replica)| is_left(node) && !is_empty(replica));
    let there: Vec<(NodeId, &ContainerReplica)> = there.copied().collect();
    let before = as_decided(known.record);
    if there.is_empty() {
        let after = SettledContainer { state: ContainerState::ContainerDeleted as i32, ..before };
        return Ok(Left { before, node: None, after });
    }
    if container_state(known.record) == ContainerState::ContainerQuasiClosed {
        let pipeline = known.record.pipeline;
        return Err(format!("members have some of it: flotilla admin pipeline accept-loss {pipeline}"));
    }
    let sound = there.iter().filter(|(_, replica)| replica.unhealthy.is_empty());
    // A log that was cut off has a later term, or more entries, than the one that was decided: it is no part
    // of that, and most likely a tail that nobody acknowledged.
    let end = LastRecord { term: before.last_term, index: before.last_index };
    let is_part = |replica: &ContainerReplica| {
        let last = last_record(replica);
        last.term <= end.term && last.index <= end.index
    };
    let worth = |(node, replica): &&(NodeId, &ContainerReplica)| {
        (is_part(replica), last_record(replica), Reverse(*node))
    };
    let Some((node, best)) = sound.max_by_key(worth) else {
        let (node, replica) = there[0];
        return Err(format!(
            "what is left, on node {node}, is damaged ({}): what can be read of it, and was known there to be committed, is \
             read as long as that node lives, and flotilla debug container rebuild finds what more there is",
            replica.unhealthy
        ));
    };
    let (state, last) = (ContainerState::ContainerClosed as i32, last_record(best));
    let after = SettledContainer { state, last_term: last.term, last_index: last.index, ..before };
    Ok(Left { before, node: Some(*node), after })
}

/// Whether what the node has may be there again: of one in maintenance it is expected, however long it is
/// silent.
fn may_return(view: &NodeView) -> bool {
    view.counts() || view.state != NodeState::NodeDead
}

fn check_nothing_may_come(known: &ContainerView<'_>, views: &NodeViews) -> Result<(), String> {
    let state = container_state(known.record);
    if !matches!(state, ContainerState::ContainerClosed | ContainerState::ContainerQuasiClosed) {
        return Err(format!("it is {}: nothing is known to be lost of it", state.as_str_name()));
    }
    if !known.pipeline_over {
        let pipeline = known.record.pipeline;
        return Err(format!("its pipeline {pipeline} is not over: flotilla admin pipeline close {pipeline}"));
    }
    let silent = views.iter().find(|(_, view)| !view.complete && may_return(view));
    if let Some((node, _)) = silent {
        return Err(format!(
            "node {node} is not dead and has not said all that it has: wait for it, or stop it for good"
        ));
    }
    let broken = known.on_lost_disks.iter().find(|node| views.get(node).is_some_and(may_return));
    if let Some(node) = broken {
        return Err(format!(
            "node {node} has it on a disk that does not work now: {RESTART_OR_GIVE_UP_DISK}"
        ));
    }
    let good = known
        .replicas
        .iter()
        .find(|(node, replica)| known.quality(replica).is_good() && views.get(node).is_some_and(may_return));
    // A good replica that cannot be read at the moment shows no end, as one whose member has not ended yet.
    let unfinished = known.replicas.iter().find(|(node, replica)| {
        replica.state() == ReplicaState::ReplicaOpen && views.get(node).is_some_and(may_return)
    });
    if let Some((node, _)) = unfinished {
        return Err(format!(
            "node {node} cannot say yet where its replica ends: wait until it does, or stop it for good"
        ));
    }
    match good {
        Some((node, _)) => Err(format!("node {node} has a good replica of it: nothing is lost")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::ops::testing::{close, create, disk, end, run, set_duty, three_nodes};
    use crate::replicas::ContainersReport;
    use crate::tables::Tables;
    use proto::scm::{DiskReport, DiskState, NodeDuty, SettleContainersCommand, scm_command::Command};
    use std::time::Duration;
    use tokio::time::Instant;

    const SECOND: Duration = Duration::from_secs(1);

    /// Container 1, which is this, of a pipeline that is over.
    fn decided(state: ContainerState, last_index: u64) -> Tables {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, "test"));
        run(&mut tables, end(1));
        let closed = SettledContainer { container: 1, state: state as i32, last_term: 2, last_index };
        run(&mut tables, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }));
        tables
    }

    fn replica(last_index: u64, unhealthy: &str) -> ContainerReplica {
        ContainerReplica {
            container: 1,
            pipeline: 1,
            state: ReplicaState::ReplicaQuasiClosed as i32,
            last_term: 2,
            last_index,
            blocks: 1,
            unhealthy: unhealthy.to_owned(),
            ..ContainerReplica::default()
        }
    }

    /// Nodes that told what they have: those in the first list long ago, and nothing since, the others now.
    fn told(
        silent: &[(u64, Option<ContainerReplica>)],
        speak: &[(u64, Option<ContainerReplica>)],
    ) -> (Nodes, Instant) {
        let start = Instant::now();
        let silence = Silence { stale_after: SECOND, dead_after: 9 * SECOND, disk_lost_after: 30 * SECOND };
        let mut nodes = Nodes::new(silence, start);
        let now = start + 10 * SECOND;
        for (at, tell) in [(start, silent), (now, speak)] {
            for (node, replica) in tell {
                nodes.see(NodeId(*node), vec![], at);
                let replicas = replica.iter().cloned().collect();
                let report = ContainersReport { replicas, gone: vec![], begins: true, ends: true };
                nodes.report_containers(NodeId(*node), report);
            }
        }
        (nodes, now)
    }

    /// The rest of a container, once the nodes that `speak` have told what they have and all others are dead.
    fn left_of(tables: &Tables, speak: &[(u64, Option<ContainerReplica>)]) -> Result<Left, String> {
        let (nodes, now) = told(&[], speak);
        left(ContainerId(1), &World::at(tables, &nodes, now))
    }

    fn becomes(
        node: Option<u64>,
        state: ContainerState,
        last_index: u64,
    ) -> (Option<NodeId>, SettledContainer) {
        let after = SettledContainer { container: 1, state: state as i32, last_term: 2, last_index };
        (node.map(NodeId), after)
    }

    #[test]
    fn the_best_sound_replica_that_is_left_is_what_the_container_becomes() {
        use ContainerState::{ContainerClosed, ContainerDeleted};
        let tables = decided(ContainerClosed, 70);
        let check = |speak: &[(u64, Option<ContainerReplica>)], expect| {
            let left = left_of(&tables, speak).unwrap();
            assert_eq!(left.before, becomes(None, ContainerClosed, 70).1);
            assert_eq!((left.node, left.after), expect);
        };
        check(&[(3, Some(replica(60, "")))], becomes(Some(3), ContainerClosed, 60));
        let two = [(2, Some(replica(50, ""))), (3, Some(replica(60, "")))];
        check(&two, becomes(Some(3), ContainerClosed, 60));
        let damaged = [(2, Some(replica(70, "block 7"))), (3, Some(replica(60, "")))];
        check(&damaged, becomes(Some(3), ContainerClosed, 60));
        // A tail of a later leader that nobody acknowledged is no part of what was decided.
        let tail = ContainerReplica { last_term: 3, ..replica(51, "") };
        check(&[(2, Some(tail)), (3, Some(replica(58, "")))], becomes(Some(3), ContainerClosed, 58));
        check(
            &[(2, Some(replica(90, ""))), (3, Some(replica(58, "")))],
            becomes(Some(3), ContainerClosed, 58),
        );
        check(&[(1, None), (2, None)], becomes(None, ContainerDeleted, 70));
        let begun = ContainerReplica { last_term: 0, blocks: 0, ..replica(0, "") };
        check(&[(1, Some(begun)), (2, None)], becomes(None, ContainerDeleted, 70));
    }

    #[test]
    fn what_a_node_in_maintenance_has_is_left_however_long_it_is_silent() {
        let mut tables = decided(ContainerState::ContainerClosed, 70);
        let (nodes, now) = told(&[(2, Some(replica(60, "")))], &[(3, None)]);
        let left = |tables: &Tables| left(ContainerId(1), &World::at(tables, &nodes, now)).unwrap();
        assert_eq!(left(&tables).node, None, "a dead node's replica is gone");
        assert_eq!(run(&mut tables, set_duty(2, NodeDuty::NodeEnteringMaintenance)).refused, "");
        assert_eq!(left(&tables).node, Some(NodeId(2)));
    }

    /// One sync that failed makes a disk broken until its process starts again.
    #[test]
    fn nothing_is_given_up_that_is_on_a_broken_disk() {
        let tables = decided(ContainerState::ContainerClosed, 70);
        let start = Instant::now();
        let silence = Silence { stale_after: SECOND, dead_after: 9 * SECOND, disk_lost_after: 3 * SECOND };
        let mut nodes = Nodes::new(silence, start);
        let on_broken = ContainerReplica { disk: disk(3, 0), ..replica(70, "") };
        let broken =
            || DiskReport { disk: disk(3, 0), state: DiskState::Failed as i32, ..Default::default() };
        let mut tell = |at: Instant| {
            nodes.see(NodeId(3), vec![broken()], at);
            let (replicas, gone) = (vec![on_broken.clone()], vec![]);
            nodes.report_containers(NodeId(3), ContainersReport { replicas, gone, begins: true, ends: true });
        };
        (0..=10).for_each(|second| tell(start + second * SECOND));
        let refused = left(ContainerId(1), &World::at(&tables, &nodes, start + 10 * SECOND)).unwrap_err();
        assert!(refused.contains("node 3 has it on a disk that does not work now"), "{refused}");
    }

    #[test]
    fn nothing_is_given_up_that_may_come_by_itself() {
        use ContainerState::{ContainerClosed, ContainerQuasiClosed};
        let check = |tables: &Tables, speak: &[(u64, Option<ContainerReplica>)], why: &str| {
            let refused = left_of(tables, speak).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        };
        let mut tables = decided(ContainerClosed, 70);
        check(
            &tables,
            &[(2, Some(replica(70, ""))), (3, Some(replica(60, "")))],
            "node 2 has a good replica",
        );
        check(&tables, &[(3, Some(replica(70, "block 7")))], "damaged (block 7)");
        let unread = ContainerReplica { state: ReplicaState::ReplicaOpen as i32, ..replica(0, "") };
        let one_is_unread = [(2, Some(replica(60, ""))), (3, Some(unread))];
        check(&tables, &one_is_unread, "node 3 cannot say yet");
        let undecided = decided(ContainerQuasiClosed, 0);
        check(&undecided, &[(3, Some(replica(60, "")))], "pipeline accept-loss 1");
        assert_eq!(left_of(&undecided, &[(1, None)]).unwrap().node, None);
        assert_eq!(run(&mut tables, set_duty(2, NodeDuty::NodeEnteringMaintenance)).refused, "");
        check(&tables, &[(3, Some(replica(60, "")))], "node 2 is not dead");

        let mut open = three_nodes();
        run(&mut open, create([1, 2, 3]));
        check(&open, &[], "CONTAINER_OPEN");
        let (state, last_term, last_index) = (ContainerClosed as i32, 2, 70);
        let closed = SettledContainer { container: 1, state, last_term, last_index };
        run(&mut open, Command::SettleContainers(SettleContainersCommand { containers: vec![closed] }));
        check(&open, &[], "flotilla admin pipeline close 1");
    }
}
