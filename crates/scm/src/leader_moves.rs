//! Each node leads its share of the open pipelines: a third of those it is a member of. Leading costs CPU and
//! network, and after restarts a few nodes lead everything.

use crate::member_view::{MEMBERS, MemberView, PipelineView};
use crate::replication::{Order, Tasks};
use crate::world::World;
use proto::scm::{PipelineRecord, PipelineState, TaskKind};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use types::{NodeId, PipelineId};

/// The most leaders that are moved at a time: each move is a pause of some milliseconds for its pipeline's
/// writers.
const MOVES_MAX: usize = 4;
/// A member that lacks more entries than this is behind. Reports of different nodes are up to a heartbeat
/// apart, in which a busy pipeline appends some thousands.
const BEHIND_ENTRIES_MAX: u64 = 20_000;

/// A leader that should move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) pipeline: PipelineId,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) to_replica: u64,
}

impl Move {
    pub(crate) fn order(&self) -> Order {
        Order::MoveLeader { pipeline: self.pipeline, to_replica: self.to_replica }
    }
}

/// The balancer of leaders, with the pipelines whose leaders it has moved lately, and where to; moves that
/// operators wish are not among them.
pub(crate) struct LeaderBalancer {
    interval: Duration,
    moved: HashMap<PipelineId, (Instant, NodeId)>,
}

impl LeaderBalancer {
    /// A pipeline's leader is moved at most once in `interval`.
    pub(crate) fn new(interval: Duration) -> LeaderBalancer {
        LeaderBalancer { interval, moved: HashMap::new() }
    }

    /// The next move, at most one at a time.
    pub(crate) fn plan(&mut self, world: &World<'_>, tasks: &Tasks) -> Option<Move> {
        let now = world.now;
        self.moved.retain(|_, (at, _)| now.saturating_duration_since(*at) < self.interval);
        if world.in_safe_mode || tasks.count(TaskKind::TaskMoveLeader) >= MOVES_MAX {
            return None;
        }
        let is_under_way =
            |from, pipeline: PipelineId| tasks.is_asked(from, TaskKind::TaskMoveLeader, pipeline.0);
        let moved_to = |pipeline| self.moved.get(&pipeline).map(|(_, to)| *to);
        let best = best_move(world, moved_to, is_under_way)?;
        self.moved.insert(best.pipeline, (now, best.to));
        Some(best)
    }
}

/// The move that evens out most, if any does. `moved_to` knows where a pipeline's leader was moved to lately.
fn best_move(
    world: &World<'_>,
    moved_to: impl Fn(PipelineId) -> Option<NodeId>,
    is_under_way: impl Fn(NodeId, PipelineId) -> bool,
) -> Option<Move> {
    let mut led: Vec<(&PipelineView<'_>, NodeId)> = Vec::new();
    // The pipelines that a node leads above its share, times the members of each.
    let mut excess: HashMap<NodeId, i64> = HashMap::new();
    let is_open = |view: &&PipelineView<'_>| view.record.state() == PipelineState::PipelineOpen;
    for pipeline in world.unended_pipelines().iter().filter(is_open) {
        let Some(leader) = pipeline.seen.leader else { continue };
        for member in &pipeline.record.members {
            *excess.entry(NodeId(member.node)).or_default() -= 1;
        }
        *excess.entry(leader).or_default() += MEMBERS as i64;
        led.push((pipeline, leader));
    }
    let excess = |node: NodeId| excess.get(&node).copied().unwrap_or(0);
    let of_pipeline = |(view, from): (&PipelineView<'_>, NodeId)| {
        let pipeline = PipelineId(view.record.pipeline);
        if is_under_way(from, pipeline) {
            return None;
        }
        let moved_to = moved_to(pipeline);
        let may_lead = |member: &&MemberView<'_>| member.node_id() != from && may_lead(view, member, from);
        let fit = view.members.iter().filter(may_lead).map(|member| member.member);
        // A member that the lead was moved to lately did not come to lead.
        let to = fit.min_by_key(|member| {
            let node = NodeId(member.node);
            (moved_to == Some(node), excess(node), node)
        })?;
        // A leader without room refuses all writes, whatever its share, and whatever was moved lately.
        let is_stuck = view.member_on(from).is_some_and(|member| member.disk_is_full);
        let gain = if is_stuck { i64::MAX } else { excess(from) - excess(NodeId(to.node)) };
        // A move changes the difference by twice the members: a gain of no more than their number would only
        // swap.
        let is_due = is_stuck || gain > MEMBERS as i64 && moved_to.is_none();
        // One that was not tried lately goes before one that was, and failed.
        let rank = (gain, moved_to.is_none());
        is_due.then_some((rank, Move { pipeline, from, to: NodeId(to.node), to_replica: to.replica }))
    };
    let moves = led.into_iter().filter_map(of_pipeline);
    moves.max_by_key(|(rank, best)| (*rank, std::cmp::Reverse(best.pipeline))).map(|(_, best)| best)
}

/// The member that an operator's wish moves the lead to: the one that was named, or any other than the
/// leader.
pub(crate) fn wished_move(
    record: &PipelineRecord,
    to: Option<NodeId>,
    world: &World<'_>,
) -> Result<Option<Move>, String> {
    let pipeline = PipelineId(record.pipeline);
    let view = PipelineView::of(record, world.nodes, world.now);
    let from = view.seen.leader.ok_or_else(|| format!("pipeline {pipeline} has no leader"))?;
    if to == Some(from) {
        return Ok(None);
    }
    let is_wanted = |member: &&MemberView<'_>| match to {
        Some(node) => member.node_id() == node,
        None => member.node_id() != from,
    };
    if !view.members.iter().any(|member| is_wanted(&member)) {
        return Err(format!("pipeline {pipeline} has no member on node {}", to.unwrap_or_default()));
    }
    let member = view.members.iter().filter(is_wanted).find(|member| may_lead(&view, member, from));
    let member = member.map(|member| member.member);
    let member =
        member.ok_or_else(|| "it does not run there, is silent, is behind, or has no room".to_owned())?;
    Ok(Some(Move { pipeline, from, to: NodeId(member.node), to_replica: member.replica }))
}

/// Whether the member is well, has room, and has nearly all that the leader has.
fn may_lead(pipeline: &PipelineView<'_>, member: &MemberView<'_>, leader: NodeId) -> bool {
    let of_leader = pipeline.member_on(leader).and_then(|leader| leader.said);
    let (Some(report), Some(of_leader)) = (member.said, of_leader) else { return false };
    member.is_healthy()
        && !member.disk_is_full
        && pipeline.fault(member).is_none()
        && report.last_index + BEHIND_ENTRIES_MAX >= of_leader.last_index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{Nodes, Silence};
    use crate::ops::testing::{create, disk, run, three_nodes};
    use crate::tables::Tables;
    use proptest::prelude::*;
    use proto::scm::{
        DiskReport, DiskState, MemberState, OpenPipelineCommand, PipelineReport, scm_command::Command,
    };

    /// Six pipelines of three nodes; `leaders` names the leader of each. `last` is the last index of each
    /// node.
    fn cluster(leaders: [u64; 6], last: [u64; 3]) -> (Tables, Nodes, Instant) {
        let mut tables = three_nodes();
        let now = Instant::now();
        let mut nodes = Nodes::new(
            Silence {
                stale_after: Duration::from_secs(2),
                dead_after: Duration::from_secs(18),
                disk_lost_after: std::time::Duration::from_secs(30),
            },
            now,
        );
        for pipeline in 1..=6 {
            run(&mut tables, create([1, 2, 3]));
            run(&mut tables, Command::OpenPipeline(OpenPipelineCommand { pipeline }));
        }
        for node in 1..=3u64 {
            nodes.see(NodeId(node), vec![DiskReport { disk: disk(node, 0), ..DiskReport::default() }], now);
            let report = |(n, leader): (usize, &u64)| PipelineReport {
                pipeline: n as u64 + 1,
                replica: n as u64 * 3 + node,
                term: 1,
                leader_replica: n as u64 * 3 + leader,
                last_index: last[node as usize - 1],
                state: MemberState::Runs as i32,
                ..PipelineReport::default()
            };
            nodes.report_pipelines(
                NodeId(node),
                leaders.iter().enumerate().map(report).collect(),
                &Default::default(),
            );
        }
        (tables, nodes, now)
    }

    fn check(leaders: [u64; 6], last: [u64; 3], expect: Option<(u64, u64, u64)>) {
        let (tables, nodes, now) = cluster(leaders, last);
        let found = best_move(&World::at(&tables, &nodes, now), |_| None, |_, _| false);
        assert_eq!(found.map(|found| (found.pipeline.0, found.from.0, found.to.0)), expect);
    }

    #[test]
    fn who_leads_too_much_gives_one_away() {
        check([1, 1, 2, 2, 3, 3], [9; 3], None);
        check([1, 1, 1, 2, 2, 3], [9; 3], Some((1, 1, 3)));
        check([2, 1, 1, 1, 1, 1], [9; 3], Some((2, 1, 3)));
        check([1, 1, 1, 2, 2, 2], [9; 3], Some((1, 1, 3)));
    }

    #[test]
    fn who_has_no_room_gives_each_away_to_who_has() {
        let (tables, mut nodes, now) = cluster([1, 1, 2, 2, 3, 3], [9; 3]);
        let mut best = |full: u64, moved_to: Option<u64>, under_way: &[u64]| {
            let state = DiskState::Full as i32;
            nodes.see(
                NodeId(full),
                vec![DiskReport { disk: disk(full, 0), state, ..DiskReport::default() }],
                now,
            );
            let is_under_way = |_, pipeline: PipelineId| under_way.contains(&pipeline.0);
            let found = best_move(&World::at(&tables, &nodes, now), |_| moved_to.map(NodeId), is_under_way);
            found.map(|found| (found.pipeline.0, found.from.0, found.to.0))
        };
        assert_eq!(best(1, None, &[]), Some((1, 1, 2)));
        assert_eq!(best(1, Some(2), &[]), Some((1, 1, 3)), "the other one did not come to lead");
        assert_eq!(best(1, None, &[1]), Some((2, 1, 2)), "one after the other, side by side");
        assert_eq!(best(1, None, &[1, 2]), None);
        assert_eq!(best(2, None, &[]), Some((1, 1, 3)));
        assert_eq!(best(2, Some(3), &[]), Some((1, 1, 3)), "there is nobody else");
        assert_eq!(best(3, None, &[]), None);
    }

    #[test]
    fn nobody_who_is_behind_gets_one() {
        check([1; 6], [90_000, 90_000, 5], Some((1, 1, 2)));
        check([1; 6], [90_000, 5, 5], None);
    }

    #[test]
    fn a_pipeline_that_was_moved_lately_stays() {
        let (tables, nodes, now) = cluster([1; 6], [9; 3]);
        let world = World::at(&tables, &nodes, now);
        let best = |below: u64| {
            best_move(&world, |pipeline| (pipeline.0 < below).then_some(NodeId(2)), |_, _| false)
        };
        assert_eq!(best(3).unwrap().pipeline, PipelineId(3));
        assert_eq!(best(7), None);
    }

    proptest! {
        /// A member that cannot lead is behind, or its disk is full.
        #[test]
        fn moves_end_with_everybody_who_can_at_their_share(
            mut leaders in prop::array::uniform6(1u64..=3),
            unfit in prop::option::of((1u64..=3, any::<bool>())),
        ) {
            let is_fit = |node: &u64| unfit.is_none_or(|(unfit, _)| unfit != *node);
            let last = [1, 2, 3].map(|node| if is_fit(&node) { 90_000 } else { 5 });
            let mut moves = 0;
            loop {
                let (tables, mut nodes, now) = cluster(leaders, last);
                if let Some((full, true)) = unfit {
                    let state = DiskState::Full as i32;
                    let of_disk = DiskReport { disk: disk(full, 0), state, ..DiskReport::default() };
                    nodes.see(NodeId(full), vec![of_disk], now);
                }
                let best = best_move(&World::at(&tables, &nodes, now), |_| None, |_, _| false);
                let Some(Move { pipeline, from, to, to_replica }) = best else { break };
                let at = pipeline.0 as usize - 1;
                prop_assert_eq!((from.0, to_replica), (leaders[at], at as u64 * 3 + to.0));
                prop_assert!(is_fit(&to.0), "{} cannot lead", to);
                leaders[at] = to.0;
                moves += 1;
                prop_assert!(moves <= 2 * leaders.len(), "they do not end: {:?}", leaders);
            }
            let led = |node: u64| leaders.iter().filter(|leader| **leader == node).count();
            let least = (1..=3).filter(is_fit).map(led).min().unwrap();
            prop_assert!((1..=3).all(|node| led(node) <= least + 1), "{:?}", leaders);
            prop_assert!(unfit.is_none_or(|(unfit, is_full)| !is_full || led(unfit) == 0), "{:?}", leaders);
        }
    }

    #[test]
    fn operators_may_choose() {
        let (tables, nodes, now) = cluster([1; 6], [90_000, 90_000, 5]);
        let record = tables.pipeline(PipelineId(1)).unwrap();
        let world = World::at(&tables, &nodes, now);
        let wished = |to| wished_move(record, to, &world);
        assert_eq!(wished(Some(NodeId(1))), Ok(None), "it leads already");
        assert_eq!(wished(None).unwrap().unwrap().to, NodeId(2));
        assert!(wished(Some(NodeId(3))).unwrap_err().contains("behind"));
        assert!(wished(Some(NodeId(7))).unwrap_err().contains("no member on node 7"));
    }
}
