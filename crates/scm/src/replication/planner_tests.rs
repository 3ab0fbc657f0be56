//! Cases of the planner, and a model: random clusters and events, after which every container has exactly
//! three good replicas wherever that is possible.

use super::planner::{
    CHECK_COUNTS_FOR, ContainerView, CopyWait, Findings, Limits, NodeView, NodeViews, examine, racks_wanted,
};
use super::tasks::{Order, Tasks};
use crate::quality::quality;
use crate::racks::{Rack, spread};
use ContainerTrouble::*;
use NodeDuty::*;
use ReplicaState::{ReplicaClosed, ReplicaOpen, ReplicaQuasiClosed, ReplicaWithoutLog};
use proptest::prelude::*;
use proto::scm::{
    ContainerRecord, ContainerReplica, ContainerState, ContainerTrouble, DeleteReplica, NodeDuty, NodeState,
    ReplicaState, TaskKind, TaskReport, TermEnd, task,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, NodeId};

const COPIES_PER_NODE_MAX: usize = 2;
const TASKS_PER_NODE_MAX: usize = 3;
const NOW_MS: u64 = 1_000_000_000_000;

fn record(container: u64, state: ContainerState) -> ContainerRecord {
    let state = state as i32;
    ContainerRecord {
        container,
        pipeline: 1,
        state,
        last_term: 1,
        last_index: 10,
        ..ContainerRecord::default()
    }
}

fn replica(container: u64, state: ReplicaState) -> ContainerReplica {
    ContainerReplica {
        container,
        pipeline: 1,
        state: state as i32,
        last_term: 1,
        last_index: 10,
        disk_bytes: 100,
        released: true,
        hash: "as read".to_owned(),
        checked_ms: NOW_MS,
        ..ContainerReplica::default()
    }
}

fn node(duty: NodeDuty, state: NodeState) -> NodeView {
    NodeView {
        state,
        duty,
        rack: Rack::default(),
        complete: true,
        capacity_bytes: 1_000_000,
        free_bytes: 500_000,
        room_bytes: 500_000,
    }
}

fn in_rack(rack: u64) -> NodeView {
    NodeView { rack: Rack(rack as u32), ..node(NodeInService, NodeState::NodeHealthy) }
}

fn limits(nodes: &NodeViews, now: Instant) -> Limits<'_> {
    Limits {
        all_known: super::all_known(nodes),
        nodes,
        copies_per_node_max: COPIES_PER_NODE_MAX,
        tasks_per_node_max: TASKS_PER_NODE_MAX,
        keep_free_percent: 5,
        ahead_kept: std::time::Duration::from_secs(3600),
        now,
        now_ms: NOW_MS,
    }
}

/// One closed container among five nodes in service, changed by the case.
struct Case {
    record: ContainerRecord,
    nodes: NodeViews,
    replicas: BTreeMap<NodeId, ContainerReplica>,
    on_lost_disks: BTreeSet<NodeId>,
    on_failing_disks: BTreeSet<NodeId>,
    on_dead_nodes: BTreeSet<NodeId>,
    behind: BTreeSet<NodeId>,
    coming: BTreeSet<NodeId>,
    over: bool,
    ahead_is_told: BTreeSet<NodeId>,
}

impl Case {
    /// Good replicas on these nodes.
    fn new(good: &[u64]) -> Case {
        Case {
            record: record(1, ContainerState::ContainerClosed),
            nodes: (1..=5).map(|n| (NodeId(n), node(NodeInService, NodeState::NodeHealthy))).collect(),
            replicas: good.iter().map(|n| (NodeId(*n), replica(1, ReplicaClosed))).collect(),
            on_lost_disks: BTreeSet::new(),
            on_failing_disks: BTreeSet::new(),
            on_dead_nodes: BTreeSet::new(),
            behind: BTreeSet::new(),
            coming: BTreeSet::new(),
            over: true,
            ahead_is_told: BTreeSet::new(),
        }
    }

    fn with(mut self, at: u64, change: impl FnOnce(&mut ContainerReplica)) -> Case {
        change(self.replicas.entry(NodeId(at)).or_insert_with(|| replica(1, ReplicaClosed)));
        self
    }

    fn node(mut self, at: u64, change: impl FnOnce(&mut NodeView)) -> Case {
        change(self.nodes.get_mut(&NodeId(at)).unwrap());
        self
    }

    fn only(mut self, nodes: u64) -> Case {
        self.nodes.retain(|node, _| node.0 <= nodes);
        self
    }

    fn findings(&self, tasks: &Tasks) -> Findings {
        let known = ContainerView {
            record: &self.record,
            pipeline_over: self.over,
            is_dispensable: self.over || self.record.emptied,
            replicas: self.replicas.iter().map(|(node, replica)| (*node, replica)).collect(),
            on_lost_disks: self.on_lost_disks.clone(),
            on_failing_disks: self.on_failing_disks.clone(),
            on_dead_nodes: self.on_dead_nodes.clone(),
            behind: self.behind.iter().chain(&self.coming).copied().collect(),
            coming: self.coming.clone(),
            ahead_is_told: self.ahead_is_told.clone(),
        };
        examine(&known, &limits(&self.nodes, Instant::now()), tasks, &tasks.copies())
    }

    /// Checks what is wrong, and what is asked of whom.
    fn check(&self, troubles: &[ContainerTrouble], asked: &[(u64, TaskKind)]) {
        let found = self.findings(&Tasks::default());
        let orders: Vec<_> = found.orders.iter().map(|(node, order)| (node.0, order.key().kind)).collect();
        assert_eq!((found.troubles.as_slice(), orders.as_slice()), (troubles, asked), "{:?}", found.orders);
    }
}

use TaskKind::{TaskCheck, TaskClose, TaskCopy, TaskDelete};

#[test]
fn three_good_replicas_are_left_alone() {
    Case::new(&[1, 3, 5]).check(&[], &[]);
}

#[test]
fn what_lacks_is_copied_to_the_emptiest_nodes() {
    let case = Case::new(&[1]).node(4, |node| node.free_bytes = 900_000);
    case.check(&[ContainerUnderReplicated], &[(4, TaskCopy), (2, TaskCopy)]);
    let dead = Case::new(&[1, 2, 3]).node(2, |node| node.state = NodeState::NodeDead);
    dead.check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    let stale = Case::new(&[1, 2, 3]).node(2, |node| node.state = NodeState::NodeStale);
    stale.check(&[], &[]);
    let full = Case::new(&[1, 2]).node(3, |node| node.free_bytes = 50_050).only(3);
    full.check(&[ContainerUnderReplicated], &[]);
}

#[test]
fn what_waits_for_a_copy_says_for_what() {
    let check = |case: Case, expect: Option<CopyWait>| {
        let found = case.findings(&Tasks::default());
        assert_eq!(found.wait, expect, "{:?}", found.orders);
    };
    check(Case::new(&[1, 2, 3]), None);
    check(Case::new(&[1]), None);
    check(Case::new(&[1, 2]).only(2), Some(CopyWait::Node));
    // Room for the copy alone, and nothing beyond it.
    check(Case::new(&[1, 2]).node(3, |node| node.free_bytes = 50_050).only(3), Some(CopyWait::Room));
    check(Case::new(&[1]).node(3, |node| node.free_bytes = 50_050).only(3), Some(CopyWait::Room));
    // Small disks keep more than a twentieth.
    check(Case::new(&[1, 2]).node(3, |node| node.room_bytes = 50).only(3), Some(CopyWait::Room));
    let mut in_one_rack = Case::new(&[1, 2, 3]).node(5, |node| node.rack = Rack(1));
    in_one_rack = in_one_rack.node(5, |node| node.free_bytes = 0);
    check(in_one_rack, Some(CopyWait::Room));
    check(Case::new(&[1, 2]).node(3, |node| node.complete = false).only(3), Some(CopyWait::Reports));
    let silent = Case::new(&[1]).node(1, |node| node.state = NodeState::NodeStale);
    check(silent, Some(CopyWait::Source));
}

#[test]
fn a_replica_on_a_lost_disk_is_made_elsewhere_and_not_there() {
    let mut case = Case::new(&[1, 2]).only(4);
    case.on_lost_disks = [NodeId(3)].into();
    case.check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    let mut case = Case::new(&[1, 2]).only(3);
    case.on_lost_disks = [NodeId(3)].into();
    case.check(&[ContainerUnderReplicated], &[]);
    assert_eq!(case.findings(&Tasks::default()).wait, Some(CopyWait::Node));
}

#[test]
fn nothing_relies_on_a_disk_that_does_not_work() {
    let mut too_many = Case::new(&[1, 2, 3, 4]);
    too_many.on_failing_disks = [NodeId(1)].into();
    too_many.check(&[], &[]);
    let bad = |replica: &mut ContainerReplica| replica.unhealthy = "checksum".into();
    let mut last = Case::new(&[1]).with(2, bad).with(3, bad).only(3);
    last.on_failing_disks = [NodeId(1)].into();
    last.check(&[ContainerUnderReplicated, ContainerUnhealthy], &[]);
}

#[test]
fn a_source_gives_to_a_few_at_a_time() {
    let mut tasks = Tasks::default();
    let case = Case::new(&[1]);
    let another = ContainerView {
        record: &record(2, ContainerState::ContainerClosed),
        pipeline_over: true,
        is_dispensable: true,
        replicas: vec![],
        on_lost_disks: BTreeSet::new(),
        on_failing_disks: BTreeSet::new(),
        on_dead_nodes: BTreeSet::new(),
        behind: BTreeSet::new(),
        coming: BTreeSet::new(),
        ahead_is_told: BTreeSet::new(),
    };
    tasks.ask(NodeId(5), super::copy(&another, &[NodeId(1)], 100, false), Instant::now());
    assert_eq!(case.findings(&tasks).orders.len(), 1, "one of its two is under way");
    // With two sources each copy begins at another one.
    let first_of = |order: &Order| match order {
        Order::Copy { sources, .. } => sources[0].0,
        _ => panic!("{order:?}"),
    };
    let found = Case::new(&[1, 2]).node(2, |node| node.duty = NodeDecommissioning).findings(&tasks);
    assert_eq!(found.orders.iter().map(|(_, order)| first_of(order)).collect::<BTreeSet<_>>(), [1, 2].into());
}

/// A node that copies the container then takes it from none that has other bytes.
#[test]
fn a_copy_is_told_the_hash_on_which_the_good_replicas_agree() {
    let check = |case: Case, expect: &str| {
        let found = case.findings(&Tasks::default());
        let tasks = found.orders.iter().map(|(_, order)| order.to_task(|node| node.to_string()).task);
        let hashes: Vec<_> = tasks
            .filter_map(|task| match task {
                Some(task::Task::Copy(copy)) => Some(copy.hash),
                _ => None,
            })
            .collect();
        assert_eq!(hashes, [expect], "{:?}", found.orders);
    };
    let has = |hash: &'static str| move |replica: &mut ContainerReplica| replica.hash = hash.to_owned();
    check(Case::new(&[1, 2]), "as read");
    check(Case::new(&[1]).with(2, has("")), "as read");
    check(Case::new(&[]).with(1, has("")).with(2, has("")), "");
    check(Case::new(&[1]).with(2, has("otherwise")), "");
    let bad = |replica: &mut ContainerReplica| {
        has("otherwise")(replica);
        replica.unhealthy = "checksum".into();
    };
    check(Case::new(&[1, 2]).with(3, bad), "as read");
    // What a dead node has was read before something was discarded; the others have yet to be read again.
    let unread = Case::new(&[]).with(1, has("")).with(2, has(""));
    check(unread.with(3, has("before")).node(3, |node| node.state = NodeState::NodeDead), "");
}

#[test]
fn nothing_is_made_up_for_while_a_node_has_not_told_what_it_has() {
    Case::new(&[1, 2]).node(5, |node| node.complete = false).check(&[ContainerUnderReplicated], &[]);
    Case::new(&[]).node(5, |node| node.complete = false).check(&[], &[]);
    Case::new(&[]).check(&[ContainerMissing], &[]);
}

#[test]
fn a_member_whose_log_may_still_write_it_gets_no_copy() {
    let mut case = Case::new(&[1, 2]).only(4);
    case.over = false;
    // A member that does not come on gets no copy: another node does.
    case.behind = [NodeId(3)].into();
    case.check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    let mut case = case.only(3);
    case.behind = [NodeId(3)].into();
    case.check(&[ContainerUnderReplicated], &[]);
}

#[test]
fn members_that_will_have_it_are_waited_for() {
    let mut case = Case::new(&[1, 2]).with(3, |replica| *replica = self::replica(1, ReplicaOpen));
    case.over = false;
    case.coming = [NodeId(3)].into();
    case.check(&[], &[]);
    case.coming.clear();
    case.check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
}

#[test]
fn one_too_many_goes_from_the_fullest_node_that_may() {
    let case = || Case::new(&[1, 2, 3, 4]).node(2, |node| node.free_bytes = 100_000);
    case().check(&[ContainerOverReplicated], &[(2, TaskDelete)]);
    case().with(2, |replica| replica.released = false).check(&[ContainerOverReplicated], &[(4, TaskDelete)]);
    // A stale node's replica is not counted on.
    case().node(3, |node| node.state = NodeState::NodeStale).check(&[], &[]);
}

/// The node of a replica that is still to be marked may take long over that, or never manage (seed 808 of
/// `sim cluster`).
#[test]
fn one_that_is_still_to_be_marked_goes_before_one_that_is_closed() {
    let unmarked = |replica: &mut ContainerReplica| replica.set_state(ReplicaQuasiClosed);
    let fullest = Case::new(&[1, 2, 3, 4]).node(4, |node| node.free_bytes = 100_000);
    fullest.with(2, unmarked).check(&[ContainerOverReplicated], &[(2, TaskDelete)]);
}

/// The hashes of replicas say nothing until then, and one may be the only one that knows of what OM has
/// forgotten.
#[test]
fn none_is_too_many_before_all_have_discarded_the_same() {
    let more = |replica: &mut ContainerReplica| replica.discarded_blocks = 3;
    Case::new(&[1, 2, 3, 4]).with(1, more).check(&[ContainerOverReplicated], &[]);
}

#[test]
fn a_bad_replica_goes_when_three_good_ones_are_there() {
    let bad = |replica: &mut ContainerReplica| replica.unhealthy = "checksum".into();
    Case::new(&[1, 2]).with(3, bad).check(&[ContainerUnderReplicated, ContainerUnhealthy], &[(4, TaskCopy)]);
    Case::new(&[1, 2, 4]).with(3, bad).check(&[ContainerUnhealthy], &[(3, TaskDelete)]);
    // It is one witness of what was acknowledged, where the good ones are not of one mind.
    let other = |replica: &mut ContainerReplica| replica.hash = "other".into();
    let differ = Case::new(&[1, 2, 4]).with(1, |replica| replica.hash = "one".into()).with(2, other);
    differ.with(3, bad).check(&[ContainerUnhealthy, ContainerDifferent], &[]);
    // Its terms are compared with those of good ones, once these have been read.
    let unread = Case::new(&[1, 2, 4]).with(3, bad);
    let unread = [1, 2, 4].into_iter().fold(unread, |case, node| case.with(node, |it| it.hash.clear()));
    unread.check(&[ContainerUnhealthy], &[]);
    // There is no other node: the bad replica makes room.
    let room = Case::new(&[1, 2]).with(3, bad).only(3);
    room.check(&[ContainerUnderReplicated, ContainerUnhealthy], &[(3, TaskDelete)]);
    // The good ones were read as a whole a moment ago, or the bad ones may have what they lack: their hashes
    // are of the heads of records alone.
    let single = || Case::new(&[1]).with(2, bad).with(3, bad).only(3);
    single().check(&[ContainerUnderReplicated, ContainerUnhealthy], &[(3, TaskDelete)]);
    let two = || Case::new(&[1, 2]).with(3, bad).only(3);
    for checked_ms in [0, NOW_MS - CHECK_COUNTS_FOR.as_millis() as u64] {
        let unread = |case: Case, of: u64| case.with(of, |replica| replica.checked_ms = checked_ms);
        for (case, of) in [(single(), 1), (two(), 1), (two(), 2)] {
            unread(case, of).check(&[ContainerUnderReplicated, ContainerUnhealthy], &[(of, TaskCheck)]);
        }
        let neither = unread(unread(two(), 1), 2);
        neither.check(&[ContainerUnderReplicated, ContainerUnhealthy], &[(1, TaskCheck), (2, TaskCheck)]);
        // What cannot be read now, and nobody knows anything against, does not hold it up for ever.
        let mut tasks = Tasks::default();
        for (node, kind) in [(1, TaskCheck), (2, TaskDelete)] {
            let case = unread(two(), 1);
            let asked = |tasks: &Tasks| case.findings(tasks).orders.into_iter().next().expect("an order");
            let (of, order) = asked(&tasks);
            assert_eq!(order.key().kind, kind);
            if kind == TaskCheck {
                assert_eq!(of, NodeId(node));
                tasks.ask(of, order, Instant::now());
                let report = TaskReport {
                    container: 1,
                    kind: kind as i32,
                    failed: "too many open files".to_owned(),
                    ..TaskReport::default()
                };
                tasks.report(of, vec![report], Instant::now());
            }
        }
    }
    // A bad replica may be the best there is.
    let all_bad = Case::new(&[]).with(1, bad).with(2, bad).with(3, bad);
    all_bad.check(&[ContainerMissing, ContainerUnhealthy], &[]);
}

#[test]
fn replicas_that_ended_by_themselves_are_marked_or_replaced() {
    let exact = |replica: &mut ContainerReplica| *replica = self::replica(1, ReplicaQuasiClosed);
    Case::new(&[1, 2]).with(3, exact).check(&[], &[(3, TaskClose)]);
    // Its log may turn out to be lost.
    let not_let_go = |replica: &mut ContainerReplica| {
        *replica = ContainerReplica { released: false, ..self::replica(1, ReplicaQuasiClosed) }
    };
    Case::new(&[1, 2]).with(3, not_let_go).check(&[], &[]);
    let short = |replica: &mut ContainerReplica| {
        *replica = ContainerReplica { last_index: 9, ..self::replica(1, ReplicaQuasiClosed) }
    };
    Case::new(&[1, 2])
        .with(3, short)
        .check(&[ContainerUnderReplicated, ContainerDifferent], &[(4, TaskCopy)]);
    Case::new(&[1, 2, 4]).with(3, short).check(&[ContainerDifferent], &[(3, TaskDelete)]);
}

#[test]
fn a_replica_without_its_log_is_kept_where_it_is_all_there_is_and_replaced_where_it_is_not() {
    let without_log = |replica: &mut ContainerReplica| *replica = self::replica(1, ReplicaWithoutLog);
    Case::new(&[1, 2]).with(3, without_log).check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    Case::new(&[1, 2, 4]).with(3, without_log).check(&[], &[(3, TaskDelete)]);
    let alone = Case::new(&[]).with(3, without_log);
    let asked: Vec<_> =
        alone.findings(&Tasks::default()).orders.iter().map(|(_, order)| order.key().kind).collect();
    assert_eq!(asked[0], TaskClose);
    assert!(!asked.contains(&TaskDelete), "{asked:?}");
    // A better one may be on a node that has yet to tell.
    let mut untold = Case::new(&[]).with(3, without_log);
    untold.nodes.get_mut(&NodeId(1)).unwrap().complete = false;
    let asked = untold.findings(&Tasks::default()).orders;
    assert!(asked.iter().all(|(_, order)| !order.is_close()), "{asked:?}");
}

/// The replica may be the only one that has what was acknowledged.
#[test]
fn a_replica_that_goes_on_past_the_container_is_told_of_before_it_is_deleted() {
    let long = |replica: &mut ContainerReplica| {
        *replica = ContainerReplica { last_index: 1000, blocks: 3, ..self::replica(1, ReplicaQuasiClosed) }
    };
    let blank = |replica: &mut ContainerReplica| {
        *replica = ContainerReplica { last_index: 1000, ..self::replica(1, ReplicaQuasiClosed) }
    };
    Case::new(&[1, 2, 4]).with(3, blank).check(&[ContainerDifferent], &[(3, TaskDelete)]);
    let case = Case::new(&[1, 2, 4]).with(3, long);
    case.check(&[ContainerAhead], &[]);
    Case { ahead_is_told: [NodeId(1)].into(), ..Case::new(&[1, 2, 4]).with(3, long) }
        .check(&[ContainerAhead], &[]);
    Case { ahead_is_told: [NodeId(3)].into(), ..case }.check(&[ContainerAhead], &[(3, TaskDelete)]);
}

/// A member that lost what it had acknowledged led those who lacked it: the one that has it ends at an older
/// term, and is no older copy.
#[test]
fn a_replica_with_what_was_committed_and_the_others_lack_is_told_of_and_never_deleted() {
    let with_terms = |index: u64| {
        let mut case = Case::new(&[1, 2, 4]);
        case.record.last_term = 2;
        for replica in case.replicas.values_mut() {
            let ends = [(1, index), (2, 10)].map(|(term, last_index)| TermEnd { term, last_index, mark: 0 });
            *replica = ContainerReplica { last_term: 2, terms: ends.to_vec(), ..replica.clone() };
        }
        case
    };
    let committed = |replica: &mut ContainerReplica| {
        *replica = ContainerReplica {
            last_index: 8,
            blocks: 3,
            committed_term: 1,
            committed_index: 8,
            terms: vec![TermEnd { term: 1, last_index: 8, mark: 0 }],
            ..self::replica(1, ReplicaQuasiClosed)
        }
    };
    let diverged = with_terms(7).with(3, committed);
    diverged.check(&[ContainerDiverged], &[]);
    Case { ahead_is_told: [NodeId(3)].into(), ..with_terms(7).with(3, committed) }
        .check(&[ContainerDiverged], &[]);
    with_terms(8).with(3, committed).check(&[ContainerDifferent], &[(3, TaskDelete)]);
    // Damage may hide that it is of another history, and so does that nobody has read it yet.
    let ways: [fn(&mut ContainerReplica); 2] = [|it| it.committed_unread = true, |it| it.terms.clear()];
    for hides in ways {
        let hidden = with_terms(8).with(3, move |replica| {
            committed(replica);
            hides(replica);
        });
        hidden.check(&[ContainerDifferent], &[]);
    }
    // Such a replica does not become worthless by what is known against it, either, or by having lost its
    // log.
    let at_the_end = |state: ReplicaState, unhealthy: &'static str| {
        move |replica: &mut ContainerReplica| {
            *replica = ContainerReplica {
                last_term: 2,
                committed_term: 1,
                committed_index: 8,
                unhealthy: unhealthy.to_owned(),
                ..self::replica(1, state)
            }
        }
    };
    let check =
        |shared_to: u64, state, unhealthy, troubles: &[ContainerTrouble], asked: &[(u64, TaskKind)]| {
            with_terms(shared_to).with(3, at_the_end(state, unhealthy)).check(troubles, asked);
        };
    check(7, ReplicaClosed, "a block", &[ContainerDiverged, ContainerUnhealthy], &[]);
    check(8, ReplicaClosed, "a block", &[ContainerUnhealthy], &[(3, TaskDelete)]);
    check(7, ReplicaWithoutLog, "", &[ContainerDiverged], &[]);
    check(8, ReplicaWithoutLog, "", &[], &[(3, TaskDelete)]);
    let mut unread = with_terms(8).with(3, committed);
    for replica in unread.replicas.values_mut() {
        replica.terms.clear();
    }
    unread.check(&[ContainerDifferent], &[]);
}

/// How far its records are committed only its log knew: what no good one has of them may have been
/// acknowledged, and so may what cannot be read.
#[test]
fn a_replica_without_its_log_goes_at_once_only_where_all_it_has_is_elsewhere() {
    let ends = |of: &[(u64, u64)]| -> Vec<TermEnd> {
        of.iter().map(|&(term, last_index)| TermEnd { term, last_index, mark: 0 }).collect()
    };
    let case = || {
        let mut case = Case::new(&[1, 2, 4]);
        case.record.last_term = 3;
        for replica in case.replicas.values_mut() {
            *replica = ContainerReplica { last_term: 3, terms: ends(&[(1, 7), (3, 10)]), ..replica.clone() };
        }
        case
    };
    let with = |last: (u64, u64), terms: &[(u64, u64)], unhealthy: &str| {
        let replica = ContainerReplica {
            last_term: last.0,
            last_index: last.1,
            blocks: 3,
            committed_term: 1,
            committed_index: 5,
            terms: ends(terms),
            terms_to_committed: if terms.is_empty() { ends(&[(1, 5)]) } else { Vec::new() },
            unhealthy: unhealthy.to_owned(),
            ..self::replica(1, ReplicaWithoutLog)
        };
        case().with(3, |it| *it = replica)
    };
    with((1, 6), &[(1, 6)], "").check(&[ContainerDifferent], &[(3, TaskDelete)]);
    let more = with((2, 9), &[(1, 7), (2, 9)], "");
    more.check(&[ContainerAhead], &[]);
    Case { ahead_is_told: [NodeId(3)].into(), ..more }.check(&[ContainerAhead], &[(3, TaskDelete)]);
    // So it is where both end alike, and began a term of one number differently.
    with((3, 10), &[(1, 6), (3, 10)], "").check(&[ContainerAhead], &[]);
    with((3, 10), &[(1, 7), (3, 10)], "").check(&[], &[(3, TaskDelete)]);
    // It will be read.
    with((2, 9), &[], "").check(&[ContainerDifferent], &[]);
    with((3, 10), &[], "").check(&[], &[]);
    // It never will.
    let damaged = with((2, 9), &[], "a record");
    damaged.check(&[ContainerAhead, ContainerUnhealthy], &[]);
    let damaged = Case { ahead_is_told: [NodeId(3)].into(), ..damaged };
    damaged.check(&[ContainerAhead, ContainerUnhealthy], &[(3, TaskDelete)]);
}

#[test]
fn nodes_that_leave_count_as_their_duty_says() {
    let leaves = |duty| Case::new(&[1, 2, 3]).node(3, |node| node.duty = duty);
    leaves(NodeDecommissioning).check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    leaves(NodeEnteringMaintenance).check(&[], &[]);
    leaves(NodeInMaintenance).node(3, |node| node.state = NodeState::NodeDead).check(&[], &[]);
    let two = leaves(NodeInMaintenance).node(2, |node| node.duty = NodeInMaintenance);
    two.check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    Case::new(&[1, 2, 4]).with(3, |_| {}).node(3, |node| node.duty = NodeDecommissioning).check(&[], &[]);
}

#[test]
fn replicas_stand_in_two_racks_where_there_are_two() {
    let racks = |good: &[u64], racks: [u32; 5]| {
        let mut case = Case::new(good);
        case.nodes.values_mut().zip(racks).for_each(|(node, rack)| node.rack = Rack(rack));
        case
    };
    racks(&[1, 2, 3], [0, 0, 1, 1, 1]).check(&[], &[]);
    racks(&[1, 2, 3], [0, 0, 0, 0, 1]).check(&[ContainerMisReplicated], &[(5, TaskCopy)]);
    // The fullest goes, but for the one that stands alone in its rack.
    let one_too_many = racks(&[1, 2, 3, 5], [0, 0, 0, 0, 1]).node(5, |node| node.free_bytes = 100_000);
    one_too_many
        .node(2, |node| node.free_bytes = 200_000)
        .check(&[ContainerOverReplicated], &[(2, TaskDelete)]);
    // The lacking replica goes to the other rack, if it can, though nodes of this one are emptier.
    let lacks = || racks(&[1, 2], [0, 0, 0, 1, 1]).node(3, |node| node.free_bytes = 900_000);
    lacks().check(&[ContainerUnderReplicated], &[(4, TaskCopy)]);
    let nobody = |node: &mut NodeView| node.free_bytes = 0;
    lacks().node(4, nobody).node(5, nobody).check(&[ContainerUnderReplicated], &[(3, TaskCopy)]);
    // Where the other rack has no room, three in one rack are better than a copy more.
    racks(&[1, 2, 3], [0, 0, 0, 0, 1]).node(5, nobody).check(&[ContainerMisReplicated], &[]);
    racks(&[1, 2, 3], [0, 0, 0, 0, 1]).node(5, |node| node.state = NodeState::NodeDead).check(&[], &[]);
}

#[test]
fn nodes_of_another_rack_that_are_merely_busy_are_waited_for() {
    let case = |good: &[u64]| {
        let mut case = Case::new(good);
        case.nodes.values_mut().zip([0, 0, 0, 1, 1]).for_each(|(node, rack)| node.rack = Rack(rack));
        case
    };
    let mut tasks = Tasks::default();
    for (number, target) in [4, 4, 5, 5].into_iter().enumerate() {
        let record = record(10 + number as u64, ContainerState::ContainerClosed);
        let another = ContainerView {
            record: &record,
            pipeline_over: true,
            is_dispensable: true,
            replicas: vec![],
            on_lost_disks: BTreeSet::new(),
            on_failing_disks: BTreeSet::new(),
            on_dead_nodes: BTreeSet::new(),
            behind: BTreeSet::new(),
            coming: BTreeSet::new(),
            ahead_is_told: BTreeSet::new(),
        };
        tasks.ask(NodeId(target), super::copy(&another, &[NodeId(9)], 100, false), Instant::now());
    }
    let waiting = case(&[1, 2]).findings(&tasks);
    assert_eq!((waiting.orders.as_slice(), waiting.wait), (&[][..], Some(CopyWait::Turn)));
    // The only replica there is waits for nobody, but the third one does.
    let last = case(&[1]).node(3, |node| node.free_bytes = 900_000).findings(&tasks);
    let targets: Vec<u64> = last.orders.iter().map(|(node, _)| node.0).collect();
    assert_eq!((targets, last.wait), (vec![3], Some(CopyWait::Turn)));
}

#[test]
fn what_holds_nothing_any_more_is_deleted_when_no_log_needs_it() {
    let mut case = Case::new(&[1, 2]);
    case.record.state = ContainerState::ContainerDeleted as i32;
    case.check(&[], &[(1, TaskDelete), (2, TaskDelete)]);
    case.over = false;
    case.check(&[], &[]);
}

#[test]
fn what_differs_is_said() {
    let hash = |text: &'static str| move |replica: &mut ContainerReplica| replica.hash = text.into();
    Case::new(&[1, 2, 3]).with(1, hash("a")).with(2, hash("a")).with(3, hash("")).check(&[], &[]);
    Case::new(&[1, 2, 3])
        .with(1, hash("a"))
        .with(2, hash("b"))
        .with(3, hash(""))
        .check(&[ContainerDifferent], &[]);
    let mut quasi = Case::new(&[1, 2]).with(2, |replica| replica.last_index = 7);
    quasi.record.state = ContainerState::ContainerQuasiClosed as i32;
    quasi.check(&[ContainerUnderReplicated, ContainerDifferent], &[]);
}

#[test]
fn what_waits_for_a_third_member_is_said() {
    let quasi = |on: &[u64]| {
        let mut case = Case::new(on);
        case.record.state = ContainerState::ContainerQuasiClosed as i32;
        case
    };
    quasi(&[1, 2]).check(&[ContainerUnderReplicated], &[]);
    quasi(&[1, 2, 3]).check(&[], &[]);
    let is_dead = |node: &mut NodeView| node.state = NodeState::NodeDead;
    quasi(&[1, 2, 3]).node(3, is_dead).check(&[ContainerUnderReplicated], &[]);
}

// ---- the model ----

const NODES: u64 = 6;
const CONTAINERS: u64 = 5;

#[derive(Clone, Copy, Debug)]
enum Event {
    Kill(u64),
    Revive(u64),
    Leave(u64),
    Return(u64),
    /// A replica is found to be bad, ends elsewhere, or its disk is gone.
    Corrupt(u64, u64),
    Shorten(u64, u64),
    Lose(u64, u64),
    /// SCM looks, and nodes carry out what they are told; each `n`-th task fails.
    Work(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let node = || 1..=NODES;
    let container = || 1..=CONTAINERS;
    let event = prop_oneof![
        2 => node().prop_map(Event::Kill),
        3 => node().prop_map(Event::Revive),
        1 => node().prop_map(Event::Leave),
        2 => node().prop_map(Event::Return),
        2 => (container(), node()).prop_map(|(container, node)| Event::Corrupt(container, node)),
        1 => (container(), node()).prop_map(|(container, node)| Event::Shorten(container, node)),
        1 => (container(), node()).prop_map(|(container, node)| Event::Lose(container, node)),
        8 => (1..8u64).prop_map(Event::Work),
    ];
    prop::collection::vec(event, 0..60)
}

struct Model {
    nodes: NodeViews,
    containers: BTreeMap<ContainerId, (ContainerRecord, BTreeMap<NodeId, ContainerReplica>)>,
    tasks: Tasks,
    now: Instant,
    worked: u64,
}

impl Model {
    fn new(nodes: u64, racks: u64, places: &[u64]) -> Model {
        let container = |(n, first): (usize, &u64)| {
            let number = n as u64 + 1;
            let on = (0..3).map(|step| NodeId(1 + (first + step) % nodes));
            let replicas = on.map(|node| (node, replica(number, ReplicaClosed))).collect();
            (ContainerId(number), (record(number, ContainerState::ContainerClosed), replicas))
        };
        Model {
            nodes: (1..=nodes).map(|n| (NodeId(n), in_rack(n % racks))).collect(),
            containers: places.iter().enumerate().map(container).collect(),
            tasks: Tasks::default(),
            now: Instant::now(),
            worked: 0,
        }
    }

    fn happen(&mut self, event: Event) {
        let set_node = |nodes: &mut NodeViews, node: u64, change: &dyn Fn(&mut NodeView)| {
            if let Some(view) = nodes.get_mut(&NodeId(node)) {
                change(view);
            }
        };
        match event {
            Event::Kill(node) => set_node(&mut self.nodes, node, &|view| view.state = NodeState::NodeDead),
            Event::Revive(node) => {
                set_node(&mut self.nodes, node, &|view| view.state = NodeState::NodeHealthy)
            }
            Event::Leave(node) => set_node(&mut self.nodes, node, &|view| view.duty = NodeDecommissioning),
            Event::Return(node) => set_node(&mut self.nodes, node, &|view| view.duty = NodeInService),
            Event::Corrupt(container, node) => {
                self.change(container, node, |replica| replica.unhealthy = "checksum".to_owned());
            }
            Event::Shorten(container, node) => self.change(container, node, |replica| replica.last_index = 9),
            Event::Lose(container, node) => {
                let lost = self.containers.get_mut(&ContainerId(container));
                lost.and_then(|(_, replicas)| replicas.remove(&NodeId(node)));
            }
            Event::Work(fails) => self.work(fails),
        }
    }

    fn change(&mut self, container: u64, node: u64, change: impl FnOnce(&mut ContainerReplica)) {
        if let Some((_, replicas)) = self.containers.get_mut(&ContainerId(container))
            && let Some(replica) = replicas.get_mut(&NodeId(node))
        {
            change(replica);
        }
    }

    fn good_on(&self, container: ContainerId, wanted: impl Fn(NodeId, &NodeView) -> bool) -> usize {
        let (record, replicas) = &self.containers[&container];
        let good = replicas.iter().filter(|(node, replica)| {
            quality(record, replica).is_good() && wanted(**node, &self.nodes[node])
        });
        good.count()
    }

    /// Looks at all containers as SCM does, and returns how many orders there were; each is checked as it is
    /// decided.
    fn look(&mut self) -> usize {
        self.now += Duration::from_secs(10);
        let mut ordered = 0;
        for container in self.containers.keys().copied().collect::<Vec<_>>() {
            let copies = self.tasks.copies();
            let (record, replicas) = &self.containers[&container];
            let known = ContainerView {
                record,
                pipeline_over: true,
                is_dispensable: true,
                replicas: replicas.iter().map(|(node, replica)| (*node, replica)).collect(),
                on_lost_disks: BTreeSet::new(),
                on_failing_disks: BTreeSet::new(),
                on_dead_nodes: BTreeSet::new(),
                behind: BTreeSet::new(),
                coming: BTreeSet::new(),
                ahead_is_told: BTreeSet::new(),
            };
            let found = examine(&known, &limits(&self.nodes, self.now), &self.tasks, &copies);
            for (node, order) in found.orders {
                if order.key().kind == TaskDelete {
                    self.check_deletion(container, node);
                }
                self.tasks.ask(node, order, self.now);
                ordered += 1;
            }
        }
        self.check_limits();
        ordered
    }

    fn check_deletion(&self, container: ContainerId, node: NodeId) {
        let going = self.tasks.nodes_with(TaskDelete, container);
        let left = self
            .good_on(container, |other, view| other != node && !going.contains(&other) && view.in_service());
        let (record, replicas) = &self.containers[&container];
        let needed = if quality(record, &replicas[&node]).is_good() { 3 } else { 1 };
        assert!(left >= needed, "deleting {container} on {node} leaves {left} good replicas");
    }

    fn check_limits(&self) {
        let copies = self.tasks.copies();
        for &node in self.nodes.keys() {
            assert!(copies.to(node) <= COPIES_PER_NODE_MAX, "copies to {node}");
            assert!(copies.from(node) <= COPIES_PER_NODE_MAX, "copies from {node}");
            assert!(self.tasks.count_of(node) <= TASKS_PER_NODE_MAX + COPIES_PER_NODE_MAX, "tasks of {node}");
        }
    }

    /// Looks, and lets nodes that speak carry out what they are told.
    fn work(&mut self, fails: u64) {
        self.look();
        let orders: Vec<(NodeId, Order)> =
            self.tasks.all().map(|(node, asked)| (node, asked.order.clone())).collect();
        for (node, order) in orders {
            if self.nodes[&node].state != NodeState::NodeHealthy {
                continue;
            }
            self.worked += 1;
            if fails > 1 && self.worked.is_multiple_of(fails) || !self.carry_out(node, &order) {
                self.fail(node, &order);
            }
        }
        let containers = &self.containers;
        let nodes = &self.nodes;
        let is_done = |node: NodeId, order: &Order| match order {
            Order::Copy { container, .. } => containers[container].1.contains_key(&node),
            Order::Delete { replica, .. } => {
                !containers[&ContainerId(replica.container)].1.contains_key(&node)
            }
            _ => true,
        };
        let is_void = |node: NodeId, _: &Order| nodes[&node].state == NodeState::NodeDead;
        self.tasks.drop_done(self.now, Duration::from_secs(120), is_done, is_void);
    }

    fn carry_out(&mut self, node: NodeId, order: &Order) -> bool {
        let nodes = &self.nodes;
        match order {
            Order::Copy { container, sources, .. } => {
                let (record, replicas) = self.containers.get_mut(container).unwrap();
                let has = |source: &NodeId| {
                    let speaks = nodes[source].state == NodeState::NodeHealthy;
                    speaks && replicas.get(source).is_some_and(|replica| quality(record, replica).is_good())
                };
                let found = sources.iter().any(has);
                if found {
                    replicas.insert(node, replica(container.0, ReplicaClosed));
                }
                found
            }
            Order::Delete { replica, .. } => {
                self.containers.get_mut(&ContainerId(replica.container)).unwrap().1.remove(&node);
                true
            }
            _ => true,
        }
    }

    fn fail(&mut self, node: NodeId, order: &Order) {
        let key = order.key();
        let report = TaskReport {
            container: key.number,
            kind: key.kind as i32,
            failed: "the model says so".to_owned(),
            ..TaskReport::default()
        };
        self.tasks.report(node, vec![report], self.now);
    }

    fn settle_down(&mut self) {
        for _ in 0..300 {
            self.work(1);
        }
        assert_eq!(self.look(), 0, "still busy after 300 looks");
    }

    fn check_settled(&self) {
        let in_service = self.nodes.values().filter(|view| view.in_service()).count();
        for (container, (record, replicas)) in &self.containers {
            let to_copy_from = self.good_on(*container, |_, view| view.state == NodeState::NodeHealthy);
            let good = self.good_on(*container, |_, view| view.in_service());
            let expect = in_service.min(3);
            // A worthless replica gives way only where a good one is in service: nowhere else is firm ground.
            if good == 0 {
                continue;
            }
            assert!(to_copy_from >= good);
            assert_eq!(good, expect, "good replicas of {container}: {replicas:?} on {:?}", self.nodes);
            if good == 3 {
                let worthless = replicas.iter().filter(|(node, replica)| {
                    self.nodes[node].state == NodeState::NodeHealthy && !quality(record, replica).is_good()
                });
                assert_eq!(worthless.count(), 0, "{container}: {replicas:?}");
                let holders = replicas.keys().map(|node| self.nodes[node]).filter(NodeView::in_service);
                let spread = spread(holders.map(|view| view.rack));
                assert!(spread >= racks_wanted(&self.nodes), "{container}: {replicas:?} on {:?}", self.nodes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A failure prints the fewest events that lead to it; they can be given to the model as they are.
    #[test]
    fn whatever_happens_three_good_replicas_come_of_it(
        nodes in 3..=NODES,
        racks in 1..=3u64,
        places in prop::collection::vec(0..NODES, CONTAINERS as usize),
        events in events(),
    ) {
        let mut model = Model::new(nodes, racks, &places);
        for event in events {
            model.happen(event);
        }
        model.settle_down();
        model.check_settled();
    }
}

/// A node's share in the container: nothing, or a replica in one of these states, that ends so far from where
/// the container does, bad or not.
fn any_replica() -> impl Strategy<Value = Option<(ReplicaState, u64, bool)>> {
    let states = [ReplicaClosed, ReplicaQuasiClosed, ReplicaWithoutLog, ReplicaOpen];
    let ends = prop_oneof![6 => Just(10u64), 1 => Just(9), 1 => Just(11)];
    prop::option::of((prop::sample::select(states.to_vec()), ends, prop::bool::weighted(0.2)))
}

fn any_node() -> impl Strategy<Value = NodeView> {
    let duties = [
        NodeInService,
        NodeInService,
        NodeDecommissioning,
        NodeDecommissioned,
        NodeEnteringMaintenance,
        NodeInMaintenance,
    ];
    let states = [NodeState::NodeHealthy, NodeState::NodeHealthy, NodeState::NodeStale, NodeState::NodeDead];
    let (duties, states) = (prop::sample::select(duties.to_vec()), prop::sample::select(states.to_vec()));
    let views = (duties, states, prop::bool::weighted(0.9), 0..2u32, prop::bool::ANY);
    views.prop_map(|(duty, state, complete, rack, has_room)| NodeView {
        rack: Rack(rack),
        complete,
        free_bytes: if has_room { 500_000 } else { 0 },
        ..node(duty, state)
    })
}

/// The oddity of a node: what it has of the container, what is with the disk of that, and whether it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Oddity {
    None,
    LostDisk,
    FailingDisk,
    Comes,
    AheadIsTold,
    IsCopying,
    IsDeleting,
}

fn any_oddity() -> impl Strategy<Value = Oddity> {
    use Oddity::*;
    let odd = [LostDisk, FailingDisk, Comes, AheadIsTold, IsCopying, IsDeleting];
    prop_oneof![4 => Just(None), 2 => prop::sample::select(odd.to_vec())]
}

/// A replica's state, its last index, and whether it is bad.
type AnyReplica = (ReplicaState, u64, bool);

/// A state of the container and what was asked, as long as it can be one.
fn case_of(states: &[(NodeView, Option<AnyReplica>, Oddity)]) -> (Case, Tasks) {
    let (mut case, mut tasks) = (Case::new(&[]), Tasks::default());
    case.nodes.clear();
    for (n, (view, has, oddity)) in (1..).zip(states) {
        let node = NodeId(n);
        case.nodes.insert(node, *view);
        let has = has.filter(|_| !matches!(oddity, Oddity::LostDisk | Oddity::Comes | Oddity::IsCopying));
        if let Some((state, last_index, is_bad)) = has {
            let unhealthy = if is_bad { "bad".to_owned() } else { String::new() };
            case.replicas.insert(node, ContainerReplica { last_index, unhealthy, ..replica(1, state) });
        }
        let (container, pipeline) = (ContainerId(1), types::PipelineId(1));
        match oddity {
            Oddity::None => {}
            Oddity::LostDisk => drop(case.on_lost_disks.insert(node)),
            Oddity::FailingDisk => drop(case.on_failing_disks.insert(node)),
            Oddity::Comes => {
                case.over = false;
                case.coming.insert(node);
            }
            Oddity::AheadIsTold => drop(case.ahead_is_told.insert(node)),
            Oddity::IsCopying => {
                let (sources, hash) = (vec![], String::new());
                let copy = Order::Copy { container, pipeline, sources, hash, bytes: 1, to_balance: false };
                tasks.ask(node, copy, Instant::now());
            }
            Oddity::IsDeleting => {
                let replica = DeleteReplica { container: container.0, ..DeleteReplica::default() };
                tasks.ask(node, Order::Delete { replica, beside: 0 }, Instant::now());
            }
        }
    }
    (case, tasks)
}

/// The rule, counted anew: a closed container has three good replicas on nodes that stay, or it is said that
/// it has not, and for each that lacks a copy is under way, or it is said what that waits for. A member that
/// comes will have one, or stops being one that comes.
fn check_is_said(case: &Case, tasks: &Tasks) -> Result<(), String> {
    let found = case.findings(tasks);
    let all_known = case.nodes.values().all(|view| view.complete || view.state == NodeState::NodeDead);
    let stays = |node: &NodeId| {
        let view = case.nodes[node];
        match view.duty {
            NodeInService => view.state != NodeState::NodeDead,
            NodeEnteringMaintenance | NodeInMaintenance => true,
            _ => false,
        }
    };
    let is_deleting = |node: &NodeId| tasks.nodes_with(TaskDelete, ContainerId(1)).contains(node);
    // Whether one without its log is good depends on the others: the planner's own word on that is tested
    // above.
    let good = case.replicas.iter().filter(|(node, replica)| {
        stays(node) && !is_deleting(node) && quality(&case.record, replica).is_good()
    });
    let has_its_log = |replica: &ContainerReplica| replica.state() != ReplicaWithoutLog;
    let any_has_its_log = case
        .replicas
        .values()
        .any(|replica| quality(&case.record, replica).is_good() && has_its_log(replica));
    let good = good.filter(|(_, replica)| has_its_log(replica) || !any_has_its_log).count();
    let coming = case.coming.iter().filter(|node| stays(node)).count();
    if good + coming >= 3 {
        return Ok(());
    }
    let is_said = found.troubles.iter().any(|it| matches!(it, ContainerMissing | ContainerUnderReplicated));
    // Until all nodes have told what they have, a replica that is not there is merely not known; one that is
    // being copied waits for nothing.
    let copying = tasks.nodes_with(TaskCopy, ContainerId(1)).len();
    let waits_for_reports =
        !all_known && (found.wait == Some(CopyWait::Reports) || good + coming + copying >= 3);
    if !is_said && !waits_for_reports {
        return Err(format!("{good} good ones, {coming} coming, and nothing is said: {found:?}"));
    }
    let ordered = found.orders.iter().filter(|(_, order)| order.is_copy()).count();
    let under_way = ordered + tasks.nodes_with(TaskCopy, ContainerId(1)).len();
    match good + coming + under_way >= 3 || found.wait.is_some() {
        true => Ok(()),
        false => Err(format!("{good} good ones, {under_way} copies under way, and no word why: {found:?}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A failure prints the state: nodes in their order, with what each has.
    #[test]
    fn what_lacks_good_replicas_is_said_to_with_the_reason(
        states in prop::collection::vec((any_node(), any_replica(), any_oddity()), 1..=6),
    ) {
        let (case, tasks) = case_of(&states);
        prop_assert_eq!(check_is_said(&case, &tasks), Ok(()));
    }
}

/// No good replica is there, and one member of three will have it: that is too little, and nothing to be
/// silent about.
#[test]
fn one_member_that_comes_is_not_three_replicas() {
    let mut case = Case::new(&[]);
    (case.over, case.coming) = (false, BTreeSet::from([NodeId(1)]));
    case.check(&[ContainerUnderReplicated], &[]);
    case.coming.extend([NodeId(2), NodeId(3)]);
    case.check(&[], &[]);
}

/// The checker of the model finds what it is there for: a planner whose deletion counts on too little is
/// caught.
#[test]
#[should_panic(expected = "leaves 2 good replicas")]
fn the_model_catches_a_deletion_too_many() {
    Model::new(4, 1, &[0, 0, 0, 0, 0]).check_deletion(ContainerId(1), NodeId(1));
}
