use super::oracle::Oracle;
use super::plan::{GroupPlan, Plan};
use super::run::Run;
use super::seats::Seats;
use crate::world::ProcessId;
use disk::sim::Random;
use raft::{Group, Member, Members};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use types::{GroupId, ReplicaId};

/// An operator who decides about the members of one group: has them changed, one call at a time, repeats what
/// failed or turns to something else, and has removed replicas deleted where they are.
pub(super) struct Operator {
    pub(super) group: GroupId,
    goal: Goal,
    is_reached: bool,
    call: Option<Slot>,
    /// The times of the next call and of the next goal.
    next_at: Duration,
    next_goal: Duration,
}

/// The members that are to be, by the processes of their replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Goal {
    voters: BTreeSet<ProcessId>,
    learner: Option<ProcessId>,
}

/// Whether a call came to its end and was told that all is done.
type Slot = Arc<Mutex<Option<bool>>>;

impl Operator {
    pub(super) fn new(plan: &GroupPlan) -> Operator {
        Operator {
            group: plan.id,
            goal: Goal { voters: plan.first_members.iter().copied().collect(), learner: None },
            is_reached: true,
            call: None,
            next_at: Duration::ZERO,
            next_goal: Duration::from_secs(1),
        }
    }

    pub(super) fn wants(&self, process: ProcessId) -> bool {
        self.goal.voters.contains(&process) || self.goal.learner == Some(process)
    }

    /// The processes where the members are to be in the end.
    pub(super) fn processes(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.goal.voters.iter().copied().chain(self.goal.learner)
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_reached && self.call.is_none()
    }

    /// Keeps the goal from here on, and has it asked for once more: what an earlier call left half done is
    /// finished.
    pub(super) fn settle(&mut self) {
        self.is_reached = false;
    }

    /// Whether a replica knows exactly the members that are to be.
    pub(super) fn agrees(&self, members: &Members, seats: &Seats) -> bool {
        let replica = |process: &ProcessId| seats.get(*process, self.group).map(|seat| seat.replica);
        let voters: BTreeSet<ReplicaId> = self.goal.voters.iter().filter_map(replica).collect();
        let all: BTreeSet<ReplicaId> = self.processes().filter_map(|process| replica(&process)).collect();
        members.voter_sets == [voters] && members.all.iter().map(|member| member.replica).eq(all)
    }

    /// Takes the answer of the last call, if it has come; true when no call is under way.
    fn poll(&mut self, now: Duration, random: &mut Random) -> bool {
        let Some(slot) = &self.call else { return true };
        let answer = *slot.lock().expect("no holder panics");
        // A slot without an answer that nobody else holds means that its process is gone.
        if answer.is_none() && Arc::strong_count(slot) > 1 {
            return false;
        }
        self.is_reached = answer == Some(true);
        self.call = None;
        self.next_at = now + Duration::from_millis(20 + random.below(500));
        true
    }

    fn think(&mut self, now: Duration, plan: &Plan, random: &mut Random, seats: &Seats) {
        self.next_goal = now + Duration::from_millis(200 + random.below(2 * plan.change_pause_ms));
        let is_leaving =
            |process: &ProcessId| seats.get(*process, self.group).is_some_and(|seat| seat.is_leaving);
        let mut free: Vec<_> =
            (0..plan.processes).map(ProcessId).filter(|process| !is_leaving(process)).collect();
        let count = *random.pick(&[1, 2, 3, 3, 3, 4, 5]);
        let mut voters = BTreeSet::new();
        while voters.len() < count && !free.is_empty() {
            voters.insert(free.swap_remove(random.below(free.len() as u64) as usize));
        }
        if voters.is_empty() {
            return;
        }
        let learner = free.first().copied().filter(|_| random.one_in(4));
        self.goal = Goal { voters, learner };
        self.is_reached = false;
    }

    /// The change that is to be asked of the leader.
    fn change(&mut self, seats: &Seats, random: &mut Random) -> Change {
        let member = |process: &ProcessId| seats.member(*process, self.group);
        let slot = Slot::default();
        self.call = Some(slot.clone());
        Change {
            voters: self.goal.voters.iter().filter_map(member).collect(),
            learner: self.goal.learner.as_ref().and_then(member),
            patience: Duration::from_millis(*random.pick(&[300, 2000, 8000])),
            slot,
        }
    }
}

/// A call, to be made by a replica.
struct Change {
    voters: Vec<Member>,
    learner: Option<Member>,
    patience: Duration,
    slot: Slot,
}

impl Change {
    /// Makes the call, in the replica's process.
    async fn make(self, group: Group, oracle: Oracle) {
        let deadline = Instant::now() + self.patience;
        let mut done = group.set_members(&self.voters, deadline).await;
        if let Some(learner) = self.learner.filter(|_| done.is_ok()) {
            done = group.add_learner(learner, deadline).await;
        }
        oracle.members_changed(group.id(), &done);
        *self.slot.lock().expect("no holder panics") = Some(done.is_ok());
    }
}

impl Run {
    pub(super) fn operators_step(&mut self, is_ending: bool) {
        self.removals_step();
        for at in 0..self.operators.len() {
            if self.plan.group(self.operators[at].group).changes_members {
                self.operate(at, is_ending);
            }
        }
    }

    fn operate(&mut self, at: usize, is_ending: bool) {
        /// One failed call in so many makes the operator want something else.
        const TURNS_ONE_IN: u64 = 6;
        /// One call in so many is followed by a fault.
        const DISTURBED_ONE_IN: u64 = 3;
        const DISTURBED_WITHIN_MS: u64 = 150;
        let now = self.world.now();
        let plan = self.plan.clone();
        let operator = &mut self.operators[at];
        if !operator.poll(now, &mut self.random) {
            return;
        }
        let turns = if operator.is_reached {
            now >= operator.next_goal
        } else {
            now >= operator.next_at && self.random.one_in(TURNS_ONE_IN)
        };
        if turns && !is_ending && !plan.is_quiet(now) {
            operator.think(now, &plan, &mut self.random, &self.seats);
            self.seat(at);
        }
        let operator = &mut self.operators[at];
        if operator.is_reached || now < operator.next_at {
            return;
        }
        let group = operator.group;
        operator.next_at = now + Duration::from_millis(20);
        let Some((process, replica)) =
            self.leader(group).and_then(|leader| Some((leader, self.nodes[leader.0].replica(group)?)))
        else {
            return;
        };
        let change = self.operators[at].change(&self.seats, &mut self.random);
        self.world
            .trace()
            .event(format_args!("{group:?}: {process} is asked for {:?}", self.operators[at].goal));
        if self.random.one_in(DISTURBED_ONE_IN) {
            self.next_fault =
                self.next_fault.min(now + Duration::from_millis(self.random.below(DISTURBED_WITHIN_MS)));
        }
        self.world.spawn(process, change.make(replica.group, self.oracle.clone()));
    }

    /// Gives the processes of the goal the replicas that they lack.
    fn seat(&mut self, at: usize) {
        let operator = &self.operators[at];
        let group = operator.group;
        let missing: Vec<_> =
            operator.processes().filter(|process| self.seats.get(*process, group).is_none()).collect();
        for process in missing {
            let seat = self.seats.give(process, self.plan.group(group));
            if self.world.is_up(process) {
                self.world.spawn(process, self.nodes[process.0].clone().open(group, seat));
            }
        }
    }

    /// Deletes replicas that know of their removal, a while after they were told.
    fn removals_step(&mut self) {
        let now = self.world.now();
        let mut leaving = Vec::new();
        for ((process, group), watch) in &self.statuses {
            let operator = self.operators.iter().find(|operator| operator.group == *group);
            let is_wanted = operator.is_none_or(|operator| operator.wants(*process));
            let is_due = watch.removed_at.is_some_and(|at| at <= now) && !is_wanted;
            if is_due && watch.replica.group.status().is_removed && self.nodes[process.0].forget(*group) {
                leaving.push((*process, *group));
            }
        }
        for (process, group) in leaving {
            self.world.trace().event(format_args!("{process} removes its replica of {group:?}"));
            self.statuses.remove(&(process, group));
            self.seats.leave(process, group);
            self.world.spawn(process, self.nodes[process.0].clone().remove(group));
        }
    }
}
