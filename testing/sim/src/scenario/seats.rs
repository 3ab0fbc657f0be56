use super::plan::GroupPlan;
use crate::mem_tables::MemTables;
use crate::world::ProcessId;
use disk::sim::Random;
use raft::Member;
use std::collections::BTreeMap;
use types::{GroupId, NodeId, ReplicaId};

/// One replica of a group on a machine, from when it is wanted there until it is removed.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) replica: ReplicaId,
    pub(super) tables: MemTables,
    /// Whether the replica is being removed; a crash does not change that.
    pub(super) is_leaving: bool,
}

/// The replicas of all groups on all machines, whether or not their processes are up. A machine has one of a
/// group at a time; the next one there has another id.
#[derive(Default)]
pub(super) struct Seats {
    seats: BTreeMap<(ProcessId, GroupId), Seat>,
    given: BTreeMap<(ProcessId, GroupId), u64>,
}

impl Seats {
    pub(super) fn get(&self, process: ProcessId, group: GroupId) -> Option<&Seat> {
        self.seats.get(&(process, group))
    }

    /// Gives a process a replica of a group that was not there before.
    pub(super) fn give(&mut self, process: ProcessId, group: &GroupPlan) -> Seat {
        let given = self.given.entry((process, group.id)).or_default();
        let replica = group.replica_on(process, *given);
        *given += 1;
        let seat = Seat { replica, tables: MemTables::default(), is_leaving: false };
        let before = self.seats.insert((process, group.id), seat.clone());
        assert!(before.is_none(), "{process} has a replica of {:?} already", group.id);
        seat
    }

    pub(super) fn leave(&mut self, process: ProcessId, group: GroupId) {
        if let Some(seat) = self.seats.get_mut(&(process, group)) {
            seat.is_leaving = true;
        }
    }

    /// Notes that the removal is done.
    pub(super) fn left(&mut self, process: ProcessId, group: GroupId) {
        self.seats.remove(&(process, group));
    }

    pub(super) fn on(&self, process: ProcessId) -> Vec<(GroupId, Seat)> {
        let here = self.seats.iter().filter(|((on, _), _)| *on == process);
        here.map(|((_, group), seat)| (*group, seat.clone())).collect()
    }

    pub(super) fn of(&self, group: GroupId) -> Vec<(ProcessId, ReplicaId)> {
        let of_it = self.seats.iter().filter(|((_, of), _)| *of == group);
        of_it.map(|((process, _), seat)| (*process, seat.replica)).collect()
    }

    /// Leaves in the tables of a machine what they have after a crash.
    pub(super) fn lose_power(&mut self, process: ProcessId, random: &mut Random) {
        for ((on, _), seat) in &mut self.seats {
            if *on == process {
                seat.tables = seat.tables.lose_power(random);
            }
        }
    }

    pub(super) fn member(&self, process: ProcessId, group: GroupId) -> Option<Member> {
        let seat = self.get(process, group)?;
        Some(member(process, seat.replica))
    }
}

/// The replica as other members are told of it.
pub(super) fn member(process: ProcessId, replica: ReplicaId) -> Member {
    Member { replica, node: NodeId(process.0 as u64 + 1), address: process.to_string() }
}
