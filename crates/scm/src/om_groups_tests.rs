use crate::om_groups::{OmGroups, is_down, problem};
use crate::om_orders::answer;
use crate::om_view::{lacks_room, leader};
use crate::oms::Oms;
use crate::ops::testing::{
    begin_restore, change, create_group, end_restore, found, give_up, members, note, register_om, run,
    set_om_duty, three_oms, uuid,
};
use crate::tables::{Tables, TablesMut};
use crate::world::World;
use proto::registry::KeyValue;
use proto::scm::{
    NodeDuty, OmGroup, OmHeartbeatResponse, OmMember, OmReplicaReport, RegisterOmCommand,
    scm_command::Command,
};
use std::time::Duration;
use tokio::time::Instant;
use types::NodeId;

const STALE_AFTER: Duration = Duration::from_secs(5);
const DEAD_AFTER: Duration = Duration::from_secs(600);
const DELAY: Duration = Duration::from_millis(200);

struct Fixture {
    tables: Tables,
    oms: Oms,
    planner: OmGroups,
    now: Instant,
}

/// A report of a replica of group 0 that leads, with these voters, and says nothing else.
fn begun(replica: u64, voters: &[(u64, u64)]) -> Vec<OmReplicaReport> {
    let member =
        |&(replica, om): &(u64, u64)| OmMember { replica, om, is_voter: true, ..OmMember::default() };
    let members = voters.iter().map(member).collect();
    let report = OmReplicaReport { replica, leader_replica: replica, term: 1, ..OmReplicaReport::default() };
    vec![OmReplicaReport { last_index: 1, applied_index: 1, members, ..report }]
}

/// [`begun`], with names in it, and with the members that SCM wants.
fn leads(replica: u64, voters: &[(u64, u64)]) -> Vec<OmReplicaReport> {
    let mut reports = begun(replica, voters);
    reports[0].is_founded = true;
    reports[0].wanted = voters.iter().map(|(replica, _)| *replica).collect();
    reports
}

impl Fixture {
    fn of(tables: Tables) -> Fixture {
        let now = Instant::now();
        let oms = Oms::new(STALE_AFTER, DEAD_AFTER, now);
        Fixture { tables, oms, planner: OmGroups::new(DELAY, 1), now }
    }

    /// OMs 1 to 3 speak and have nothing, for long enough.
    fn ready() -> Fixture {
        let mut fixture = Fixture::of(three_oms());
        (1..=3).for_each(|om| fixture.hear(om, vec![]));
        assert_eq!(fixture.decide(), [], "more may come");
        fixture.now += DELAY;
        fixture
    }

    /// Replicas 2, 3 and 4 on OMs 1, 2 and 3, led by the first; OMs 4 and 5 have nothing.
    fn of_three() -> Fixture {
        let mut fixture = Fixture::ready();
        [4, 5].into_iter().for_each(|number| drop(run(&mut fixture.tables, register_om(number))));
        for command in
            [found(0, 1), note(0, &[(2, 1)]), change(0, &[], &[2, 3]), note(0, &[(2, 1), (3, 2), (4, 3)])]
        {
            run(&mut fixture.tables, command);
        }
        fixture.all_speak();
        assert_eq!(fixture.decide(), []);
        fixture
    }

    fn all_speak(&mut self) {
        self.hear(1, leads(2, &[(2, 1), (3, 2), (4, 3)]));
        self.follow(2, 3);
        self.follow(3, 4);
        [4, 5].into_iter().for_each(|om| self.hear(om, vec![]));
    }

    fn hear(&mut self, om: u64, replicas: Vec<OmReplicaReport>) {
        self.oms.hear(NodeId(om), replicas, self.now);
    }

    /// The OM's replica follows.
    fn follow(&mut self, om: u64, replica: u64) {
        let report = OmReplicaReport { replica, term: 1, ..OmReplicaReport::default() };
        self.hear(om, vec![report]);
    }

    fn decide(&mut self) -> Vec<Command> {
        self.planner.decide(&World::of_oms(&self.tables, &self.oms, self.now))
    }

    /// Decides, and carries it out.
    fn carry_out(&mut self) -> Vec<Command> {
        let commands = self.decide();
        for command in commands.clone() {
            let reply = run(&mut self.tables, command);
            assert_eq!(reply.refused, "");
        }
        commands
    }

    fn answer(&self, om: u64) -> OmHeartbeatResponse {
        answer(&World::of_oms(&self.tables, &self.oms, self.now), NodeId(om))
    }

    fn told(&self, om: u64) -> Option<OmGroup> {
        self.answer(om).groups.pop()
    }

    fn gone(&self, om: u64) -> Vec<u64> {
        self.answer(om).gone.into_iter().map(|name| name.replica).collect()
    }

    fn problem(&self) -> String {
        let world = World::of_oms(&self.tables, &self.oms, self.now);
        problem(&world, 0, self.tables.om_group(0)).unwrap_or_default()
    }
}

/// A member whose disk has no room for a snapshot votes and answers, and has not the names.
#[test]
fn a_member_that_does_not_come_on_is_told_of() {
    let mut fixture = Fixture::of_three();
    let at = |mut reports: Vec<OmReplicaReport>, applied_index: u64| {
        (reports[0].applied_index, reports[0].last_index) = (applied_index, applied_index);
        reports
    };
    let follows = |replica: u64| vec![OmReplicaReport { replica, term: 1, ..OmReplicaReport::default() }];
    for second in 1..=150 {
        fixture.now += Duration::from_secs(1);
        fixture.hear(1, at(leads(2, &[(2, 1), (3, 2), (4, 3)]), second));
        fixture.hear(2, at(follows(3), second));
        fixture.hear(3, at(follows(4), second.min(5)));
        if second == 60 {
            assert_eq!(fixture.problem(), "");
        }
    }
    assert!(fixture.problem().starts_with("OM 3 lacks 145 changes"), "{}", fixture.problem());
    fixture.hear(3, at(follows(4), 150));
    assert_eq!(fixture.problem(), "");
}

/// A leader that has room leads on and answers all questions, so that nobody else would say it.
#[test]
fn where_full_disks_leave_no_majority_no_name_can_be_changed() {
    let mut fixture = Fixture::of_three();
    let is_down = |fixture: &Fixture| {
        let world = World::of_oms(&fixture.tables, &fixture.oms, fixture.now);
        assert_eq!(is_down(&world, fixture.tables.om_group(0)), !fixture.problem().is_empty());
        is_down(&world, fixture.tables.om_group(0))
    };
    let are_refused = |fixture: &Fixture| {
        let world = World::of_oms(&fixture.tables, &fixture.oms, fixture.now);
        lacks_room(&world, fixture.tables.om_group(0).expect("it is founded"))
    };
    fixture.oms.hear_full(NodeId(2), true);
    assert!(!is_down(&fixture) && !are_refused(&fixture), "two have room");
    fixture.oms.hear_full(NodeId(3), true);
    assert!(is_down(&fixture) && are_refused(&fixture));
    assert!(fixture.problem().contains("disks of its OMs are full"), "{}", fixture.problem());
    fixture.oms.hear_full(NodeId(3), false);
    assert!(!is_down(&fixture) && !are_refused(&fixture));
    fixture.now += STALE_AFTER;
    fixture.hear(1, leads(2, &[(2, 1), (3, 2), (4, 3)]));
    fixture.follow(2, 3);
    assert!(is_down(&fixture), "one is full, and one is silent");
    assert!(!are_refused(&fixture), "the silent one may answer its leader all the same");
}

#[test]
fn a_cluster_gets_its_groups_once_the_root_is_founded_and_each_is_founded_and_grows() {
    let mut fixture = Fixture::ready();
    fixture.planner = OmGroups::new(DELAY, 3);
    (1..=3).for_each(|om| fixture.hear(om, vec![]));
    assert_eq!(fixture.decide(), [], "more may come");
    fixture.now += DELAY;
    assert_eq!(fixture.decide(), [found(0, 1)], "no others before there is a root");
    run(&mut fixture.tables, found(0, 1));
    fixture.hear(1, begun(2, &[(2, 1)]));
    assert_eq!(fixture.decide(), [Command::NoteOmGroup(noted(&[(2, 1)]))]);
    run(&mut fixture.tables, note(0, &[(2, 1)]));
    let decided = fixture.decide();
    assert_eq!(decided.iter().filter(|it| matches!(it, Command::CreateOmGroup(_))).count(), 2, "{decided:?}");
    for _ in 0..2 {
        run(&mut fixture.tables, create_group());
    }
    let begins = |command: &Command| match command {
        Command::FoundOmGroup(found) => Some((found.group, found.om)),
        _ => None,
    };
    let decided = fixture.decide();
    let begun: Vec<_> = decided.iter().filter_map(begins).collect();
    assert_eq!(begun, [(1, 2), (2, 3)], "on OMs that have least");
}

#[test]
fn groups_that_a_forced_reset_lost_come_back_and_are_not_made_up_for() {
    let mut fixture = Fixture::ready();
    fixture.planner = OmGroups::new(DELAY, 3);
    TablesMut::new(&mut fixture.tables).reset();
    let mut names = leads(70, &[(70, 2)]);
    names[0].group = 5;
    fixture.hear(2, names);
    (0..2).for_each(|_| {
        fixture.decide();
        fixture.now += DELAY;
    });
    let decided = fixture.decide();
    let [Command::NoteOmGroup(noted)] = &decided[..] else { panic!("{decided:?}") };
    assert_eq!((noted.group, noted.members.len()), (5, 1));
    // A group whose names nobody has any more is not begun: nobody says what it was.
    let mut fixture = Fixture::ready();
    let mut names = leads(70, &[(70, 2)]);
    (names[0].group, names[0].leader_replica) = (5, 0);
    fixture.hear(2, names);
    fixture.now += DEAD_AFTER;
    (1..=3).filter(|om| *om != 2).for_each(|om| fixture.hear(om, vec![]));
    fixture.decide();
    fixture.now += DELAY;
    let decided = fixture.decide();
    assert!(!decided.iter().any(|command| matches!(command, Command::FoundOmGroup(it) if it.group == 5)));
}

#[test]
fn a_group_is_begun_noted_and_grows_to_three_as_soon_as_there_are_three() {
    let mut fixture = Fixture::of(three_oms());
    fixture.hear(1, vec![]);
    fixture.decide();
    fixture.now += DELAY;
    assert_eq!(fixture.carry_out(), [found(0, 1)]);
    let told = fixture.told(1).unwrap();
    assert_eq!((told.is_founded, told.members[0].replica, told.members[0].om), (false, 2, 1));
    assert_eq!(fixture.decide(), [], "it is to begin");
    fixture.hear(1, begun(2, &[(2, 1)]));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(2, 1)]))]);
    assert!(fixture.told(1).unwrap().is_founded);
    fixture.hear(2, vec![]);
    assert_eq!(fixture.decide(), [], "two are no better than one");
    fixture.hear(3, vec![]);
    assert_eq!(fixture.decide(), [], "it has not heard that it is founded");
    fixture.hear(1, leads(2, &[(2, 1)]));
    assert_eq!(fixture.carry_out(), [change(0, &[], &[2, 3])]);
    assert_eq!(fixture.told(3).unwrap().members.len(), 3);
    assert_eq!(fixture.decide(), [], "the change is under way");
    let all = [(2, 1), (3, 2), (4, 3)];
    let mut changing = leads(2, &all);
    changing[0].is_changing = true;
    fixture.hear(1, changing);
    assert_eq!(fixture.decide(), []);
    fixture.hear(1, leads(2, &all));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&all))]);
    assert_eq!(fixture.decide(), []);
}

fn noted(members: &[(u64, u64)]) -> proto::scm::NoteOmGroupCommand {
    let Command::NoteOmGroup(mut command) = note(0, members) else { unreachable!("as it was made") };
    command.members.iter_mut().for_each(|member| member.has_voted = true);
    command
}

#[test]
fn names_that_are_there_are_taken_over_and_not_begun_beside() {
    let mut fixture = Fixture::ready();
    let mut silent = leads(9, &[(9, 3), (8, 2), (7, 1)]);
    silent[0].leader_replica = 0;
    fixture.hear(3, silent);
    assert_eq!(fixture.decide(), [], "it does not lead, and has names");
    assert!(fixture.problem().contains("OM 3 has names"), "{}", fixture.problem());
    let mut of_before = begun(1, &[(1, 0)]);
    of_before[0].last_index = 50;
    of_before[0].applied_index = 50;
    fixture.hear(2, of_before);
    fixture.hear(3, begun(1, &[(1, 0)]));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(1, 2)]))]);
    assert_eq!((fixture.told(3), fixture.gone(3)), (None, vec![]), "the second one stays as it is");
    fixture.hear(2, leads(1, &[(1, 0)]));
    assert_eq!(fixture.decide(), [], "OM 3 is none of three");
}

#[test]
fn what_does_not_run_may_have_names() {
    let unreadable = OmReplicaReport { why: "damaged".into(), ..OmReplicaReport::default() };
    let mut fixture = Fixture::ready();
    fixture.hear(3, vec![unreadable.clone()]);
    assert_eq!(fixture.decide(), []);
    let mut fixture = Fixture::ready();
    assert_eq!(fixture.carry_out(), [found(0, 1)]);
    fixture.now += STALE_AFTER;
    fixture.hear(1, vec![OmReplicaReport { replica: 2, ..unreadable.clone() }]);
    fixture.hear(2, vec![]);
    assert_eq!(fixture.decide(), [], "it could not begin yet");
    fixture.now += STALE_AFTER;
    fixture.hear(2, vec![]);
    assert_eq!(fixture.decide(), [found(0, 2)], "what was to begin has none");
    let mut fixture = Fixture::of_three();
    fixture.hear(2, vec![unreadable]);
    assert!(fixture.problem().contains("damaged"), "{}", fixture.problem());
    fixture.hear(2, vec![]);
    assert!(fixture.problem().contains("not have replica 3"), "{}", fixture.problem());
}

#[test]
fn what_was_begun_and_never_told_to_is_no_ones_names() {
    let mut fixture = Fixture::ready();
    fixture.hear(1, begun(7, &[(7, 1)]));
    assert_eq!(fixture.carry_out(), [found(0, 2)], "OM 1 has no room for another replica of it");
    fixture.hear(1, begun(7, &[(7, 1)]));
    assert_eq!((fixture.decide(), fixture.told(1)), (vec![], None));
}

#[test]
fn who_does_not_begin_is_given_up_and_who_begins_first_is_taken() {
    let mut fixture = Fixture::ready();
    assert_eq!(fixture.carry_out(), [found(0, 1)]);
    fixture.now += STALE_AFTER;
    fixture.hear(2, vec![]);
    assert_eq!(fixture.carry_out(), [found(0, 2)]);
    fixture.hear(1, begun(2, &[(2, 1)]));
    assert_eq!(fixture.told(1), None);
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(2, 1)]))]);
    fixture.hear(2, begun(3, &[(3, 2)]));
    assert_eq!((fixture.told(2), fixture.gone(2)), (None, vec![]));
    fixture.hear(1, leads(2, &[(2, 1)]));
    assert_eq!((fixture.told(2), fixture.gone(2)), (None, vec![3]), "nobody was ever served from it");
}

#[test]
fn an_om_noted_before_or_lost_by_a_reset_is_waited_for() {
    let mut fixture = Fixture::ready();
    let note = KeyValue { key: "flotilla/om/0".into(), value: "h:1 0".into(), ..KeyValue::default() };
    TablesMut::new(&mut fixture.tables).put_key(note);
    assert_eq!(fixture.decide(), []);
    assert!(fixture.problem().contains("by the OM at h:1"), "{}", fixture.problem());
    fixture.hear(2, begun(1, &[(1, 0)]));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(1, 2)]))]);
    assert_eq!(fixture.tables.directory().key("flotilla/om/0"), None);

    let mut fixture = Fixture::ready();
    TablesMut::new(&mut fixture.tables).reset();
    assert_eq!(fixture.decide(), []);
    assert!(fixture.problem().contains("om give-up 0"), "{}", fixture.problem());
    run(&mut fixture.tables, give_up(0));
    assert_eq!(fixture.decide(), [found(0, 1)]);
}

#[test]
fn one_dead_member_is_replaced_and_told_to_go_once_the_group_has_gone_on() {
    let mut fixture = Fixture::of_three();
    fixture.now += DEAD_AFTER;
    fixture.all_speak();
    // OM 3 died at the beginning.
    let dead_since = Fixture::of_three();
    fixture.oms = dead_since.oms;
    fixture.now = dead_since.now + DEAD_AFTER;
    let all = [(2, 1), (3, 2), (4, 3)];
    fixture.hear(1, leads(2, &all));
    fixture.follow(2, 3);
    [4, 5].into_iter().for_each(|om| fixture.hear(om, vec![]));
    assert_eq!(fixture.carry_out(), [change(0, &[4], &[4])]);
    assert!(fixture.problem().contains("members are changing"), "{}", fixture.problem());
    assert_eq!(fixture.decide(), [], "the leader has not heard of it yet");
    fixture.follow(3, 4);
    assert_eq!(fixture.gone(3), [0; 0], "it votes");
    let now = [(2, 1), (3, 2), (5, 4)];
    let mut uncommitted = leads(2, &now);
    uncommitted[0].last_index = 2;
    fixture.hear(1, uncommitted.clone());
    assert_eq!((fixture.decide(), fixture.gone(3)), (vec![], vec![]), "it may have to vote on this");
    uncommitted[0].applied_index = 2;
    let wanted = std::mem::take(&mut uncommitted[0].wanted);
    fixture.hear(1, uncommitted.clone());
    assert_eq!(fixture.gone(3), [0; 0], "it may be told to come back, for all the leader has heard");
    uncommitted[0].wanted = wanted;
    fixture.hear(1, uncommitted);
    assert_eq!((fixture.gone(3), fixture.gone(2)), (vec![4], vec![]));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&now))]);
    assert_eq!(fixture.gone(3), [4]);
    assert_eq!(fixture.told(3), None);
}

#[test]
fn nobody_is_dead_for_a_leader_of_scm_that_has_just_begun_but_the_replaced() {
    let mut fixture = Fixture::of_three();
    fixture.oms = Oms::new(STALE_AFTER, DEAD_AFTER, fixture.now + DEAD_AFTER);
    fixture.now += DEAD_AFTER;
    let all = [(2, 1), (3, 2), (4, 3)];
    fixture.hear(1, leads(2, &all));
    fixture.hear(4, vec![]);
    assert_eq!(fixture.decide(), []);
    let emptied = RegisterOmCommand { uuid: uuid(9), address: "om3:1".into(), om: 3 };
    assert_eq!(run(&mut fixture.tables, Command::RegisterOm(emptied)).om, 6);
    fixture.hear(6, vec![]);
    assert_eq!(fixture.decide(), [change(0, &[4], &[4])], "of two without replicas, the first");
}

#[test]
fn an_added_member_that_dies_before_it_votes_is_exchanged() {
    let mut fixture = Fixture::of_three();
    run(&mut fixture.tables, set_om_duty(3, NodeDuty::NodeDecommissioning));
    assert_eq!(fixture.carry_out(), [change(0, &[4], &[4])]);
    fixture.now += DEAD_AFTER;
    let all = [(2, 1), (3, 2), (4, 3)];
    fixture.hear(1, leads(2, &all));
    fixture.follow(2, 3);
    fixture.follow(3, 4);
    assert_eq!(fixture.decide(), [], "there is nobody else");
    fixture.hear(5, vec![]);
    assert_eq!(fixture.carry_out(), [change(0, &[5], &[5])]);
    // The leader was quicker than its last word.
    fixture.hear(1, leads(2, &[(2, 1), (3, 2), (5, 4)]));
    assert_eq!(fixture.decide(), [], "it goes on from there");
    fixture.hear(1, leads(2, &[(2, 1), (3, 2), (6, 5)]));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(2, 1), (3, 2), (6, 5)]))]);
    assert_eq!(fixture.carry_out(), [set_om_duty(3, NodeDuty::NodeDecommissioned)]);
    assert_eq!(members(&fixture.tables, 0), [(2, 1), (3, 2), (6, 5)]);
}

#[test]
fn an_om_is_emptied_when_its_groups_have_gone_on_without_it() {
    let mut fixture = Fixture::of_three();
    run(&mut fixture.tables, set_om_duty(1, NodeDuty::NodeDecommissioning));
    run(&mut fixture.tables, set_om_duty(5, NodeDuty::NodeDecommissioning));
    let is_done = |om| set_om_duty(om, NodeDuty::NodeDecommissioned);
    assert_eq!(fixture.carry_out(), [change(0, &[2], &[4])]);
    assert_eq!(fixture.carry_out(), [is_done(5)]);
    assert_eq!(fixture.told(1).unwrap().members.len(), 3, "it leads, and must change the members");
    assert_eq!(fixture.decide(), []);
    let now = [(3, 2), (4, 3), (5, 4)];
    // Replica 2 has handed over.
    fixture.follow(1, 2);
    let mut next = leads(3, &now);
    next[0].term = 2;
    fixture.hear(2, next);
    assert_eq!((fixture.told(1), fixture.gone(1)), (None, vec![2]));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&now))]);
    assert_eq!(fixture.carry_out(), [is_done(1)]);
}

#[test]
fn a_change_that_was_decided_is_not_taken_back_by_an_old_word() {
    let mut fixture = Fixture::of_three();
    run(&mut fixture.tables, set_om_duty(3, NodeDuty::NodeDecommissioning));
    fixture.carry_out();
    let before = [(2, 1), (3, 2), (4, 3)];
    let now = [(2, 1), (3, 2), (5, 4)];
    fixture.hear(1, leads(2, &before));
    assert_eq!(fixture.decide(), []);
    let mut done = leads(2, &now);
    (done[0].last_index, done[0].applied_index) = (4, 4);
    fixture.hear(1, done.clone());
    fixture.carry_out();
    fixture.hear(1, leads(2, &before));
    assert_eq!(fixture.decide(), [set_om_duty(3, NodeDuty::NodeDecommissioned)], "it was under way for long");
    fixture.hear(1, done);
    assert_eq!(members(&fixture.tables, 0), now);
}

#[test]
fn a_group_that_a_person_has_reset_is_what_it_says_and_grows_again() {
    let mut fixture = Fixture::of_three();
    let mut alone = leads(3, &[(3, 2)]);
    alone[0].term = 2;
    alone[0].wanted.clear();
    fixture.hear(2, alone);
    assert_eq!((fixture.told(1), fixture.told(2)), (None, None), "it must not ask those back");
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(3, 2)]))]);
    fixture.follow(1, 2);
    let mut alone = leads(3, &[(3, 2)]);
    alone[0].term = 2;
    fixture.hear(2, alone);
    assert_eq!(fixture.gone(1), [2], "it would have to forget what it has acknowledged");
    assert_eq!(fixture.carry_out(), [change(0, &[], &[4, 5])]);
}

#[test]
fn one_message_that_nobody_confirms_changes_nothing() {
    let mut fixture = Fixture::of_three();
    let follows = |replica: u64| {
        vec![OmReplicaReport { replica, leader_replica: 2, term: 1, ..OmReplicaReport::default() }]
    };
    fixture.hear(2, follows(3));
    let mut forged = leads_after_reset(4, &[(4, 3)], &[2, 3]);
    forged[0].term = 1 << 20;
    fixture.hear(3, forged);
    assert_eq!(fixture.decide(), []);
    assert_eq!((fixture.gone(1), fixture.gone(2)), (vec![], vec![]));
    assert_eq!(fixture.told(2).unwrap().members.len(), 3);
    fixture.hear(3, follows(4));
    assert_eq!((fixture.decide(), fixture.problem()), (vec![], String::new()));
}

/// SCM came back with an old copy of its directory.
#[test]
fn a_voter_that_the_record_never_had_is_noted_though_the_leader_was_told_otherwise() {
    let mut fixture = Fixture::of_three();
    // The draw of a number, as for a replica that SCM has forgotten.
    run(&mut fixture.tables, found(1, 5));
    let mut now = leads(2, &[(2, 1), (3, 2), (5, 4)]);
    now[0].wanted = vec![2, 3, 4];
    fixture.hear(1, now);
    fixture.hear(4, vec![OmReplicaReport { replica: 5, leader_replica: 2, ..OmReplicaReport::default() }]);
    run(&mut fixture.tables, set_om_duty(4, NodeDuty::NodeDecommissioning));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(2, 1), (3, 2), (5, 4)]))]);
    assert_eq!(members(&fixture.tables, 0), [(2, 1), (3, 2), (5, 4)]);
}

/// [`leads`], after a person gave up the replicas in `given_up`.
fn leads_after_reset(replica: u64, voters: &[(u64, u64)], given_up: &[u64]) -> Vec<OmReplicaReport> {
    let mut reports = leads(replica, voters);
    reports[0].given_up = given_up.to_vec();
    reports
}

#[test]
fn a_reset_group_is_believed_though_it_was_told_of_its_old_members_before_it_led() {
    let mut fixture = Fixture::of_three();
    let mut reset = leads_after_reset(3, &[(3, 2)], &[2, 4]);
    reset[0].wanted = vec![2, 3, 4];
    fixture.hear(2, reset);
    fixture.hear(1, vec![]);
    let Some(Command::NoteOmGroup(note)) = fixture.carry_out().pop() else { panic!("nothing is noted") };
    assert_eq!((note.members[0].replica, note.given_up), (3, vec![2, 4]));
    assert_eq!(members(&fixture.tables, 0), [(3, 2)]);
}

#[test]
fn the_history_that_a_person_gave_up_never_leads_again() {
    let mut fixture = Fixture::of_three();
    fixture.hear(2, leads_after_reset(3, &[(3, 2)], &[2, 4]));
    fixture.hear(1, vec![]);
    fixture.carry_out();
    // All replicas come back at once, and the old ones elect first.
    let mut silent = leads_after_reset(3, &[(3, 2)], &[2, 4]);
    silent[0].leader_replica = 0;
    fixture.hear(2, silent);
    let mut past = leads(2, &[(2, 1), (3, 2), (4, 3)]);
    past[0].term = 9;
    fixture.hear(1, past);
    fixture.follow(3, 4);
    assert_eq!(fixture.decide(), []);
    assert_eq!((fixture.told(1), fixture.gone(2), fixture.gone(3)), (None, vec![], vec![]));
    fixture.hear(2, leads_after_reset(3, &[(3, 2)], &[2, 4]));
    assert_eq!((fixture.gone(1), fixture.gone(3)), (vec![2], vec![4]), "the group has gone on without them");
    // A person who decides otherwise afterwards is believed.
    fixture.hear(2, vec![]);
    let mut later = leads_after_reset(2, &[(2, 1)], &[3, 4]);
    later[0].term = 10;
    fixture.hear(1, later);
    assert!(matches!(fixture.carry_out()[..], [Command::NoteOmGroup(_)]));
    assert_eq!(members(&fixture.tables, 0), [(2, 1)]);
}

#[test]
fn who_says_that_it_cannot_is_not_waited_for() {
    let cannot = |replica: u64| {
        let why = "no room".to_owned();
        vec![OmReplicaReport { replica, why, ..OmReplicaReport::default() }]
    };
    let mut fixture = Fixture::ready();
    assert_eq!(fixture.carry_out(), [found(0, 1)]);
    fixture.hear(1, cannot(2));
    assert!(fixture.problem().contains("OM 1 is to begin it, and cannot: no room"), "{}", fixture.problem());
    assert_eq!(fixture.decide(), [], "it may be about to begin");
    fixture.now += STALE_AFTER;
    fixture.hear(1, cannot(2));
    [2, 3].into_iter().for_each(|om| fixture.hear(om, vec![]));
    assert_eq!(fixture.carry_out(), [found(0, 2)]);

    let mut fixture = Fixture::of_three();
    run(&mut fixture.tables, change(0, &[4], &[4]));
    assert_eq!(fixture.decide(), [], "it is to come");
    fixture.hear(4, cannot(5));
    assert!(fixture.problem().contains("OM 4 cannot have it: no room"), "{}", fixture.problem());
    fixture.now += STALE_AFTER;
    fixture.hear(1, leads(2, &[(2, 1), (3, 2), (4, 3)]));
    fixture.follow(2, 3);
    fixture.follow(3, 4);
    fixture.hear(4, cannot(5));
    fixture.hear(5, vec![]);
    assert_eq!(fixture.carry_out(), [change(0, &[5], &[5])]);
    let mut refuses = leads(2, &[(2, 1), (3, 2), (4, 3)]);
    refuses[0].refused = "replica 6 does not answer".to_owned();
    fixture.hear(1, refuses);
    assert!(fixture.problem().contains("changing: replica 6 does not answer"), "{}", fixture.problem());
}

#[test]
fn nobody_is_emptied_while_what_it_has_may_be_needed() {
    let emptied = |om: u64| set_om_duty_command(om);
    let mut fixture = Fixture::of_three();
    run(&mut fixture.tables, set_om_duty(4, NodeDuty::NodeDecommissioning));
    assert_eq!(fixture.carry_out(), [emptied(4)]);
    let mut fixture = Fixture::of_three();
    TablesMut::new(&mut fixture.tables).reset();
    run(&mut fixture.tables, set_om_duty(4, NodeDuty::NodeDecommissioning));
    fixture.hear(1, vec![]);
    assert_eq!(fixture.decide(), [], "the group may be elsewhere");
}

fn set_om_duty_command(om: u64) -> Command {
    set_om_duty(om, NodeDuty::NodeDecommissioned)
}

#[test]
fn members_that_a_reset_of_scm_has_lost_come_back_by_what_the_group_says() {
    let mut fixture = Fixture::of_three();
    TablesMut::new(&mut fixture.tables).reset();
    let went_on = [(2, 1), (3, 2), (70, 77)];
    fixture.hear(1, leads(2, &went_on));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&went_on))]);
    assert_eq!(fixture.decide(), [], "OM 77 may yet come");
    // No replica is left that the record has.
    let gone_on = [(80, 4), (81, 5), (70, 77)];
    for (om, reports) in [(1, vec![]), (2, vec![]), (3, vec![]), (4, leads(80, &gone_on))] {
        fixture.hear(om, reports);
    }
    fixture.carry_out();
    assert_eq!(members(&fixture.tables, 0), [(70, 77), (80, 4), (81, 5)]);
}

/// The OM was told to have replica 5, and has said so only after it was to have another one.
#[test]
fn a_replica_in_the_way_of_the_one_that_its_om_is_to_have_goes() {
    let mut fixture = Fixture::of_three();
    run(&mut fixture.tables, set_om_duty(3, NodeDuty::NodeDecommissioning));
    assert_eq!(fixture.carry_out(), [change(0, &[4], &[4])]);
    let mut alone = leads(2, &[(2, 1)]);
    alone[0].term = 2;
    alone[0].wanted.clear();
    fixture.hear(1, alone.clone());
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(2, 1)]))]);
    assert_eq!(fixture.carry_out(), [change(0, &[], &[4, 5])]);
    fixture.follow(4, 5);
    assert_eq!((fixture.told(4), fixture.gone(4)), (None, vec![]));
    alone[0].wanted = vec![2, 6, 7];
    fixture.hear(1, alone);
    assert_eq!(fixture.gone(4), [5]);
    fixture.hear(4, vec![]);
    assert!(fixture.told(4).is_some());
}

#[test]
fn who_may_have_voted_does_not_begin_again_with_nothing() {
    let mut fixture = Fixture::of_three();
    fixture.hear(2, vec![]);
    assert_eq!(fixture.told(2), None);
    run(&mut fixture.tables, set_om_duty(3, NodeDuty::NodeDecommissioning));
    assert_eq!(fixture.carry_out(), [change(0, &[4], &[4])]);
    assert!(fixture.told(4).is_some());
    TablesMut::new(&mut fixture.tables).reset();
    assert_eq!(fixture.told(4), None, "it may have come and gone in what is lost");
    let before = [(2, 1), (3, 2), (4, 3)];
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&before))]);
    assert_eq!(fixture.carry_out(), [change(0, &[4], &[4])]);
    assert_eq!(fixture.told(4).unwrap().members[2].replica, 2_000_000);

    let mut fixture = Fixture::ready();
    fixture.carry_out();
    assert!(fixture.told(1).is_some());
    TablesMut::new(&mut fixture.tables).reset();
    assert_eq!(fixture.told(1), None);
}

#[test]
fn a_leader_that_nobody_knows_is_not_believed() {
    let mut fixture = Fixture::of_three();
    fixture.follow(1, 2);
    fixture.hear(4, leads(9, &[(9, 4)]));
    fixture.hear(5, leads(1, &[(1, 5)]));
    assert_eq!(fixture.decide(), []);
    let world = World::of_oms(&fixture.tables, &fixture.oms, fixture.now);
    assert!(leader(&world, fixture.tables.om_group(0).unwrap()).is_none());
    assert_eq!((fixture.told(4), fixture.gone(4), fixture.gone(5)), (None, vec![], vec![]));
    assert!(fixture.problem().contains("majority"), "{}", fixture.problem());
}

/// [`begun`], with rows of a backup, all of them or not.
fn restored(replica: u64, om: u64, backup: u8, is_restored: bool) -> Vec<OmReplicaReport> {
    let mut reports = begun(replica, &[(replica, om)]);
    (reports[0].backup, reports[0].is_restored) = (uuid(backup), is_restored);
    reports
}

#[test]
fn a_group_that_is_restored_is_founded_with_all_rows_once_that_is_decided_and_with_nothing_else() {
    let mut fixture = Fixture::ready();
    run(&mut fixture.tables, found(0, 1));
    run(&mut fixture.tables, note(0, &[(2, 1)]));
    run(&mut fixture.tables, begin_restore(9, &[0]));
    assert_eq!(fixture.carry_out(), [found(0, 1)]);
    assert_eq!(fixture.told(1).unwrap().backup, uuid(9));
    assert!(fixture.problem().contains("being restored"), "{}", fixture.problem());
    let never_founded = |fixture: &mut Fixture, why: &str| assert_eq!(fixture.decide(), [], "{why}");
    for (reports, why) in [
        (begun(3, &[(3, 1)]), "it has no rows"),
        (restored(3, 1, 9, false), "it has some"),
        (restored(3, 1, 9, true), "others may lack theirs"),
        (leads(2, &[(2, 1)]), "names of before come back"),
    ] {
        fixture.hear(1, reports);
        never_founded(&mut fixture, why);
    }
    run(&mut fixture.tables, end_restore(9));
    for (reports, why) in [
        (begun(3, &[(3, 1)]), "its disk was emptied"),
        (restored(3, 1, 9, false), "it lacks some"),
        (restored(3, 1, 8, true), "they are of another backup"),
        (leads(2, &[(2, 1)]), "names of before come back"),
    ] {
        fixture.hear(1, reports);
        never_founded(&mut fixture, why);
    }
    fixture.hear(1, restored(3, 1, 9, true));
    assert_eq!(fixture.carry_out(), [Command::NoteOmGroup(noted(&[(3, 1)]))]);
    assert!(fixture.told(1).unwrap().is_founded);
}

#[test]
fn another_om_takes_the_rows_where_the_first_one_dies_and_an_scm_that_forgot_the_restore_founds_no_half_of_it()
 {
    let mut fixture = Fixture::ready();
    run(&mut fixture.tables, found(0, 1));
    fixture.hear(1, restored(2, 1, 9, true));
    assert_eq!(fixture.decide(), [], "nobody wants these rows here");
    run(&mut fixture.tables, begin_restore(9, &[0]));
    // The OM that has rows is not told of the group any more, and stands in nobody's way.
    assert_eq!(fixture.carry_out(), [found(0, 2)]);
    fixture.hear(2, restored(3, 2, 9, false));
    fixture.now += STALE_AFTER;
    [1, 3].into_iter().for_each(|om| fixture.hear(om, vec![]));
    fixture.decide();
    fixture.now += DELAY;
    let decided = fixture.carry_out();
    assert!(matches!(&decided[..], [Command::FoundOmGroup(begun)] if begun.om != 2), "{decided:?}");
}
