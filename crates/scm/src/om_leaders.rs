//! Each OM leads its share of the groups of names. Leading costs most of what a group costs, and after
//! restarts one OM leads everything.

use crate::om_view::{OmLeader, is_well, leader, may_lack_room};
use crate::tables::OmReplica;
use crate::world::World;
use std::collections::BTreeMap;
use std::time::Duration;
use types::NodeId;

/// A member that lacks more entries than this is behind.
const BEHIND_ENTRIES_MAX: u64 = 10_000;

/// A group, the replica that is to lead it, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OmSuccession {
    pub(crate) group: u64,
    pub(crate) replica: u64,
    pub(crate) why: &'static str,
}

/// The moves away from OMs whose disks take nothing: such a leader commits nothing.
pub(crate) fn plan_from_full(world: &World<'_>) -> Vec<OmSuccession> {
    let led = led(world);
    let mut leads = Leads::of(&led);
    let is_stuck = |(group, leader): &&(u64, OmLeader<'_>)| {
        world.oms.is_full(leader.om) && world.oms.successor(*group, world.now).is_none()
    };
    let mut moves = Vec::new();
    for (group, leader) in led.iter().filter(is_stuck) {
        let fit = leader.voters().into_iter().filter(|voter| may_lead(world, *group, voter, leader));
        let Some(to) = fit.min_by_key(|voter| (leads.count(voter.om), voter.om)) else { continue };
        leads.add(to.om);
        moves.push(OmSuccession { group: *group, replica: to.replica, why: "a full disk" });
    }
    moves
}

/// The next move for balance, at most one: from the OM that leads most to the one that leads least, if that
/// evens anything out. A group's leader stays for `interval` after anybody has wished it, an operator too.
pub(crate) fn plan(world: &World<'_>, interval: Duration) -> Option<OmSuccession> {
    let led = led(world);
    let leads = Leads::of(&led);
    let of_group = |(group, leader): &(u64, OmLeader<'_>)| {
        let is_free = world.oms.last_wish(*group).is_none_or(|until| world.now >= until + interval);
        if !is_free || !leader.is_settled() {
            return None;
        }
        let fit = leader.voters().into_iter().filter(|voter| may_lead(world, *group, voter, leader));
        let to = fit.min_by_key(|voter| (leads.count(voter.om), voter.om))?;
        let gain = leads.count(leader.om.0).checked_sub(leads.count(to.om))?;
        // Moving one leader changes the difference by two.
        (gain > 1).then_some((gain, OmSuccession { group: *group, replica: to.replica, why: "balance" }))
    };
    let moves = led.iter().filter_map(of_group);
    moves.max_by_key(|(gain, best)| (*gain, std::cmp::Reverse(best.group))).map(|(_, best)| best)
}

/// The founded groups that are led.
fn led<'a>(world: &'a World<'_>) -> Vec<(u64, OmLeader<'a>)> {
    let records = world.tables.om_groups().values().filter(|record| record.is_founded);
    records.filter_map(|record| Some((record.group, leader(world, record)?))).collect()
}

/// The number of groups that each OM leads.
#[derive(Default)]
struct Leads(BTreeMap<u64, usize>);

impl Leads {
    fn of(led: &[(u64, OmLeader<'_>)]) -> Leads {
        let mut leads = Leads::default();
        led.iter().for_each(|(_, leader)| leads.add(leader.om.0));
        leads
    }

    fn add(&mut self, om: u64) {
        *self.0.entry(om).or_default() += 1;
    }

    fn count(&self, om: u64) -> usize {
        self.0.get(&om).copied().unwrap_or(0)
    }
}

/// Whether the voter is well, has room, and has nearly all that the leader has. Nobody may where those with
/// room are no majority: a new leader could not commit the first entry of its term, and not even answer
/// questions.
fn may_lead(world: &World<'_>, group: u64, voter: &OmReplica, leader: &OmLeader<'_>) -> bool {
    let om = NodeId(voter.om);
    let majority_has_room = world.tables.om_group(group).is_some_and(|record| !may_lack_room(world, record));
    let said = world.oms.replica(om, group).map(|heard| &heard.report);
    *voter != leader.replica()
        && majority_has_room
        && is_well(world, om)
        && !world.oms.is_full(om)
        && said.is_some_and(|said| {
            said.replica == voter.replica
                && said.why.is_empty()
                && said.applied_index + BEHIND_ENTRIES_MAX >= leader.report().applied_index
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oms::Oms;
    use crate::ops::testing::{create_group, note, run, three_oms};
    use crate::tables::{Tables, TablesMut};
    use proptest::prelude::*;
    use proto::scm::{OmMember, OmReplicaReport};
    use tokio::time::Instant;

    const INTERVAL: Duration = Duration::from_secs(60);

    /// Replicas of group `g` have the numbers 10 g + OM.
    fn replica(group: u64, om: u64) -> u64 {
        10 * group + om
    }

    /// The report of an OM on a group of three that `leader` leads.
    fn said(group: u64, om: u64, leader: u64) -> OmReplicaReport {
        let member = |om| OmMember { replica: replica(group, om), om, is_voter: true, ..OmMember::default() };
        OmReplicaReport {
            group,
            replica: replica(group, om),
            term: 1,
            leader_replica: replica(group, leader),
            last_index: 9,
            applied_index: 9,
            members: (1..=3).map(member).collect(),
            is_founded: true,
            wanted: (1..=3).map(|om| replica(group, om)).collect(),
            ..OmReplicaReport::default()
        }
    }

    /// Groups 0 to 3 on three OMs.
    fn four_groups() -> Tables {
        let mut tables = three_oms();
        let mut change = TablesMut::new(&mut tables);
        while change.draw_om_replica().0 < replica(3, 3) {}
        (1..=3).for_each(|_| drop(run(&mut tables, create_group())));
        for group in 0..=3 {
            let members: Vec<_> = (1..=3).map(|om| (replica(group, om), om)).collect();
            assert_eq!(run(&mut tables, note(group, &members)).refused, "");
        }
        tables
    }

    fn hear(oms: &mut Oms, led_by: [u64; 4], now: Instant) {
        for om in 1..=3 {
            let reports = (0..=3).map(|group| said(group, om, led_by[group as usize]));
            oms.hear(NodeId(om), reports.collect(), now);
        }
    }

    #[test]
    fn leaders_are_spread_one_by_one_until_no_move_evens_anything_out() {
        let tables = four_groups();
        let mut now = Instant::now();
        let mut oms = Oms::new(Duration::from_secs(5), Duration::from_secs(600), now);
        let mut led_by = [1; 4];
        let mut moved = Vec::new();
        for _ in 0..10 {
            now += Duration::from_secs(2);
            hear(&mut oms, led_by, now);
            let Some(next) = plan(&World::of_oms(&tables, &oms, now), INTERVAL) else { continue };
            oms.wish(next.group, next.replica, now);
            assert!(!moved.contains(&next.group), "each once");
            moved.push(next.group);
            led_by[next.group as usize] = next.replica - 10 * next.group;
        }
        led_by.sort_unstable();
        assert_eq!(led_by, [1, 1, 2, 3]);
    }

    proptest! {
        /// An OM that cannot lead is behind, or its disk is full.
        #[test]
        fn moves_end_with_every_om_that_can_at_its_share(
            mut led_by in prop::array::uniform4(1u64..=3),
            unfit in prop::option::of((1u64..=3, any::<bool>())),
        ) {
            let (tables, now) = (four_groups(), Instant::now());
            let is_fit = |om: &u64| unfit.is_none_or(|(unfit, _)| unfit != *om);
            let mut moves = 0;
            loop {
                let mut oms = Oms::new(Duration::from_secs(5), Duration::from_secs(600), now);
                for om in 1..=3 {
                    let index = if is_fit(&om) { 90_000 } else { 9 };
                    let at = |report| OmReplicaReport { last_index: index, applied_index: index, ..report };
                    let reports = (0..=3).map(|group| at(said(group, om, led_by[group as usize])));
                    oms.hear(NodeId(om), reports.collect(), now);
                    oms.hear_full(NodeId(om), unfit == Some((om, true)));
                }
                let world = World::of_oms(&tables, &oms, now);
                let next = plan_from_full(&world).into_iter().next().or_else(|| plan(&world, INTERVAL));
                let Some(OmSuccession { group, replica, .. }) = next else { break };
                let om = replica - 10 * group;
                prop_assert!(is_fit(&om) && om != led_by[group as usize], "{} leads group {} next", om, group);
                led_by[group as usize] = om;
                moves += 1;
                prop_assert!(moves <= 2 * led_by.len(), "they do not end: {:?}", led_by);
            }
            let led = |om: u64| led_by.iter().filter(|leader| **leader == om).count();
            let least = (1..=3).filter(is_fit).map(led).min().unwrap();
            prop_assert!((1..=3).all(|om| led(om) <= least + 1), "{:?}", led_by);
            prop_assert!(unfit.is_none_or(|(unfit, is_full)| !is_full || led(unfit) == 0), "{:?}", led_by);
        }
    }

    #[test]
    fn nobody_leads_who_is_silent_or_behind_or_against_an_operators_wish() {
        let tables = four_groups();
        let start = Instant::now();
        let new = || Oms::new(Duration::from_secs(5), Duration::from_secs(600), start);
        let plan = |oms: &Oms, now| plan(&World::of_oms(&tables, oms, now), INTERVAL);
        let mut silent = new();
        hear(&mut silent, [1; 4], start);
        let later = start + Duration::from_secs(6);
        silent.hear(NodeId(1), (0..=3).map(|group| said(group, 1, 1)).collect(), later);
        assert_eq!(plan(&silent, later), None);
        let mut behind = new();
        for om in 1..=3 {
            let index = if om == 1 { 20_000 } else { 9_000 };
            let at = |report| OmReplicaReport { last_index: index, applied_index: index, ..report };
            behind.hear(NodeId(om), (0..=3).map(|group| at(said(group, om, 1))).collect(), start);
        }
        assert_eq!(plan(&behind, start), None);
        let mut wished = new();
        hear(&mut wished, [1; 4], start);
        assert!(plan(&wished, start).is_some());
        let until = start + Duration::from_secs(15);
        (0..=3).for_each(|group| wished.wish(group, replica(group, 1), until));
        for (seconds, is_moved) in [(0, false), (15, false), (74, false), (75, true)] {
            let now = start + Duration::from_secs(seconds);
            hear(&mut wished, [1; 4], now);
            assert_eq!(plan(&wished, now).is_some(), is_moved, "after {seconds} s");
        }
        let mut full = new();
        hear(&mut full, [1; 4], start);
        full.hear_full(NodeId(2), true);
        assert_eq!(plan(&full, start).map(|next| next.replica % 10), Some(3));
        full.hear_full(NodeId(3), true);
        assert_eq!(plan(&full, start), None);
        let mut one_with_room = new();
        hear(&mut one_with_room, [1, 1, 2, 2], start);
        (1..=2).for_each(|om| one_with_room.hear_full(NodeId(om), true));
        assert_eq!(plan(&one_with_room, start), None, "it could commit nothing");
    }

    #[test]
    fn all_groups_leave_an_om_whose_disk_is_full_where_another_voter_has_room() {
        let tables = four_groups();
        let start = Instant::now();
        let mut oms = Oms::new(Duration::from_secs(5), Duration::from_secs(600), start);
        hear(&mut oms, [1, 1, 1, 2], start);
        let plan = |oms: &Oms, now| plan_from_full(&World::of_oms(&tables, oms, now));
        assert_eq!(plan(&oms, start), []);
        oms.hear_full(NodeId(1), true);
        // A wish of an operator's, long ago, holds nobody back.
        oms.wish(2, replica(2, 1), start);
        let om = |moves: Vec<OmSuccession>| -> Vec<(u64, u64)> {
            moves.iter().map(|next| (next.group, next.replica % 10)).collect()
        };
        assert_eq!(om(plan(&oms, start)), [(0, 3), (1, 2), (2, 3)], "evenly");
        let until = start + Duration::from_secs(15);
        oms.wish(0, replica(0, 3), until);
        assert_eq!(om(plan(&oms, start)), [(1, 3), (2, 2)], "what is under way is not begun again");
        oms.hear_full(NodeId(3), true);
        assert_eq!(plan(&oms, start), [], "one with room could commit nothing");
        oms.hear_full(NodeId(2), true);
        assert_eq!(plan(&oms, start), [], "nobody can lead better");
    }
}
