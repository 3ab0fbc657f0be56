//! Groups of names: which OMs begin them, and who their members are to be. Each decision is pure, from one
//! look at the world and a little memory; `docs/adr/0013-scm-places-the-groups-of-names.md` says why they are
//! so.
//!
//! A group's record is what SCM wants. Its leader makes the record's members the voters, and says each second
//! who they are:
//!
//! | the record | the leader says | what follows |
//! |---|---|---|
//! | none, or not founded | an only voter that was told to begin leads | the group is founded: noted |
//! | none, or not founded | a founded group is led | it is taken over: noted |
//! | waits for the rows of a backup | an only voter that was told to begin leads, and has all | noted, once all groups have theirs; nothing else is |
//! | founded, uncertain since a forced reset | anything | noted |
//! | founded | a voter that the record never had, or lacks one that has voted, and has not heard of the record | SCM, or the group, has forgotten something: noted |
//! | founded | the record's members | they have voted: noted. Then, once it says that it is founded, it grows, or one member is replaced |
//! | founded | others yet | the change is under way: who was added and cannot come is exchanged |

use crate::advance::Advance;
use crate::om_view::{
    OmLeader, all_leaders, is_dead, is_healthy, is_in_service, is_well, leader, may_lack_room,
};
use crate::oms::ReplicaHeard;
use crate::ops::note_om_group;
use crate::tables::{NAMES_OF_BEFORE, OM_GROUPS_MAX, OM_MEMBERS, OmReplica, ROOT_OF_NAMES, om_duty};
use crate::world::World;
use proto::scm::{
    ChangeOmGroupCommand, CreateOmGroupCommand, FoundOmGroupCommand, NodeDuty, NoteOmGroupCommand,
    OmGroupRecord, OmMemberRecord, OmReplicaReport, OmRestore, SetOmDutyCommand, scm_command::Command,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::{NodeId, ReplicaId};

/// All groups: the root, those that were made, and those that a forced reset has lost, of which OMs have
/// names.
pub(crate) fn all(world: &World<'_>) -> BTreeSet<u64> {
    let heard = world.tables.oms().keys().flat_map(|om| world.oms.replicas(*om));
    let lost = heard.map(|heard| &heard.report).filter(|report| has_names(report)).map(|report| report.group);
    [ROOT_OF_NAMES].into_iter().chain(world.tables.om_groups().keys().copied()).chain(lost).collect()
}

/// The decisions on groups of one leadership.
pub(crate) struct OmGroups {
    delay: Duration,
    /// The number of groups that there are to be at least.
    wanted: usize,
    /// The OMs that were healthy and in service once.
    seen: BTreeSet<NodeId>,
    /// The moment from which on groups are begun: no OM of those that start together is missing then.
    due: Option<Instant>,
}

/// The replicas that OMs have, by the records, and by what is decided at this moment.
struct Loads(BTreeMap<NodeId, usize>);

impl OmGroups {
    pub(crate) fn new(delay: Duration, wanted: usize) -> OmGroups {
        OmGroups { delay, wanted, seen: BTreeSet::new(), due: None }
    }

    /// The moment at which something is due though nobody says anything new.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        self.due.filter(|due| *due > now)
    }

    /// The commands that are due now.
    pub(crate) fn decide(&mut self, world: &World<'_>) -> Vec<Command> {
        self.observe(world);
        let mut loads = Loads::of(world);
        let of_group = |group: u64| match world.tables.om_group(group) {
            Some(record) if record.is_founded => leader(world, record).map_or_else(
                || found_elsewhere(world, record),
                |leader| go_on(world, record, &leader, &mut loads),
            ),
            record => self.begin(world, group, record.unwrap_or(&OmGroupRecord::default()), &mut loads),
        };
        let mut commands: Vec<Command> = all(world).into_iter().filter_map(of_group).collect();
        commands.extend(self.missing(world));
        // A decision of now may need an OM that nothing has needed yet.
        if commands.is_empty() { emptied(world) } else { commands }
    }

    /// The commands that make the groups that are missing, once there is the root. Groups that a forced reset
    /// has lost are not made up for: they are somewhere, and come back.
    fn missing(&self, world: &World<'_>) -> Vec<Command> {
        let is_begun = world.tables.om_group(ROOT_OF_NAMES).is_some_and(|root| root.is_founded);
        if !is_begun || world.tables.may_have_lost_om_groups() {
            return Vec::new();
        }
        let wanted = self.wanted.min(OM_GROUPS_MAX);
        let missing = wanted.saturating_sub(world.tables.om_groups().len());
        vec![Command::CreateOmGroup(CreateOmGroupCommand { up_to: wanted as u64 }); missing]
    }

    fn observe(&mut self, world: &World<'_>) {
        let well = world.tables.oms().keys().copied().filter(|om| is_well(world, *om));
        let new: Vec<NodeId> = well.filter(|om| !self.seen.contains(om)).collect();
        if !new.is_empty() {
            self.seen.extend(new);
            self.due = Some(world.now + self.delay);
        }
    }

    /// The decision about a group that is not founded here. Names that are there are taken over; only where
    /// nobody can have any the group is begun.
    fn begin(
        &self,
        world: &World<'_>,
        group: u64,
        record: &OmGroupRecord,
        loads: &mut Loads,
    ) -> Option<Command> {
        if self.due.is_none_or(|due| world.now < due) {
            return None;
        }
        // Names of before that come back while the group is restored are not the group's: all groups come
        // from one backup.
        if record.restore.is_none() {
            let names =
                all_leaders(world, group).filter(|leader| leader.is_settled() && has_names(leader.report()));
            // Where two directories have names, the one with more of them counts.
            if let Some(names) = names.max_by_key(|leader| (leader.report().last_index, leader.report().term))
            {
                return note(world, group, &names);
            }
            // A group that SCM does not know was begun by somebody else.
            if group != ROOT_OF_NAMES && world.tables.om_group(group).is_none() {
                return None;
            }
            if names_are_on(world, group).is_some() || world.tables.names_may_be_elsewhere(group).is_some() {
                return None;
            }
        }
        if let Some(begun) = begun(world, group, record) {
            return note(world, group, &begun);
        }
        if record.members.first().is_some_and(|asked| is_to_come(world, group, asked)) {
            return None;
        }
        let om = loads.take(world, group, &record.members)?;
        Some(Command::FoundOmGroup(FoundOmGroupCommand { group, om: om.0 }))
    }
}

/// Whether the replica has names: somebody may have been served from it.
pub(crate) fn has_names(report: &OmReplicaReport) -> bool {
    report.is_founded || ReplicaId(report.replica) == NAMES_OF_BEFORE
}

/// Whether names of a group that is not founded here may be in a replica. A replica that does not run may be
/// anything, unless the record says that it was to begin the group.
fn may_have_names(record: Option<&OmGroupRecord>, om: NodeId, report: &OmReplicaReport) -> bool {
    let here = OmReplica { replica: report.replica, om: om.0 };
    let was_told = |record: &OmGroupRecord| here.is_in(&record.members) || here.is_in(&record.abandoned);
    has_names(report) || !report.why.is_empty() && !record.is_some_and(was_told)
}

/// An OM that is not dead and may have names of a group that is not founded here, with its replica.
pub(crate) fn names_are_on(world: &World<'_>, group: u64) -> Option<(NodeId, u64)> {
    let record = world.tables.om_group(group);
    let replicas = world.oms.replicas_of(group).map(|(om, heard)| (om, &heard.report));
    let mut there = replicas.filter(|(om, report)| may_have_names(record, *om, report));
    there.find(|(om, _)| !is_dead(world, *om)).map(|(om, report)| (om, report.replica))
}

/// The replica that has begun the group, as it was told to, now or before.
fn begun<'a>(world: &'a World<'_>, group: u64, record: &OmGroupRecord) -> Option<OmLeader<'a>> {
    let is_alone = |leader: &OmLeader<'_>| leader.members() == BTreeSet::from([leader.replica()]);
    let is_member = |leader: &OmLeader<'_>| leader.replica().is_in(&record.members);
    let was_told = |leader: &OmLeader<'_>| is_member(leader) || leader.replica().is_in(&record.abandoned);
    let begun = all_leaders(world, group).filter(|leader| {
        leader.is_settled() && is_alone(leader) && was_told(leader) && has_its_rows(record, leader.report())
    });
    begun.max_by_key(is_member)
}

/// Whether a replica that has begun the group has what the group is to be founded with: all rows of a backup,
/// once all groups have theirs, or else nothing.
fn has_its_rows(record: &OmGroupRecord, report: &OmReplicaReport) -> bool {
    match &record.restore {
        Some(restore) => restore.is_complete && report.is_restored && report.backup == restore.backup,
        None => report.backup.is_empty(),
    }
}

/// Whether the group is founded, or a replica has begun it and has all rows of this backup.
pub(crate) fn is_restored(world: &World<'_>, record: &OmGroupRecord, backup: &[u8]) -> bool {
    let restore = record.restore.clone().map(|restore| OmRestore { is_complete: true, ..restore });
    let is_of = |restore: &OmRestore| restore.backup == backup;
    let as_decided = OmGroupRecord { restore: restore.filter(is_of), ..record.clone() };
    record.is_founded || as_decided.restore.is_some() && begun(world, record.group, &as_decided).is_some()
}

/// Whether an OM that was asked to begin a group need not be given up. It has not had the time yet to speak
/// to a leader of SCM that has just begun.
fn is_to_come(world: &World<'_>, group: u64, asked: &OmMemberRecord) -> bool {
    let om = NodeId(asked.om);
    let is_there = !is_dead(world, om) && is_in_service(world, om) && !world.oms.is_silent(om, world.now);
    is_there && !cannot_run(world, group, asked)
}

fn cannot_run(world: &World<'_>, group: u64, member: &OmMemberRecord) -> bool {
    world.oms.cannot_run(NodeId(member.om), group, member.replica, world.now)
}

/// The reason why a replica does not run, as its OM says it.
fn why_not<'a>(world: &'a World<'_>, group: u64, member: &OmMemberRecord) -> Option<&'a str> {
    let report = &world.oms.replica(NodeId(member.om), group)?.report;
    (report.replica == member.replica && !report.why.is_empty()).then_some(&report.why)
}

/// The decision about a founded group of whose record no replica leads: names that were founded, or went on,
/// with replicas that a forced reset has lost, are noted.
fn found_elsewhere(world: &World<'_>, record: &OmGroupRecord) -> Option<Command> {
    let is_lost = |leader: &OmLeader<'_>| {
        let replica = ReplicaId(leader.report().replica);
        let is_there = leader.is_settled() && leader.report().is_founded && !leader.is_given_up(record);
        is_there && world.tables.may_be_lost_replica(replica)
    };
    let lost = all_leaders(world, record.group).filter(is_lost);
    let newest = lost.max_by_key(|leader| leader.report().term)?;
    note(world, record.group, &newest)
}

/// The decision that follows from what the leader of a founded group says.
fn go_on(
    world: &World<'_>,
    record: &OmGroupRecord,
    leader: &OmLeader<'_>,
    loads: &mut Loads,
) -> Option<Command> {
    if !leader.is_settled() {
        return None;
    }
    if leader.contradicts(record) {
        return note(world, record.group, leader);
    }
    let (voters, wanted) = (leader.voters(), OmReplica::all(&record.members));
    if voters != wanted {
        return exchange(world, record, &voters, loads);
    }
    if record.members.iter().any(|member| !member.has_voted) {
        return note(world, record.group, leader);
    }
    // The names must say themselves that they are founded before anybody else gets them.
    if !leader.report().is_founded {
        return None;
    }
    grow(world, record, loads).or_else(|| replace(world, record, loads))
}

/// The command that notes the members as the group's leader says them, if a group can have these.
fn note(world: &World<'_>, group: u64, leader: &OmLeader<'_>) -> Option<Command> {
    let member = |voter: OmReplica| OmMemberRecord { replica: voter.replica, om: voter.om, has_voted: true };
    let members = leader.voters().into_iter().map(member).collect();
    let given_up = leader.report().given_up.clone();
    let command = NoteOmGroupCommand { group, members, given_up };
    note_om_group::check(world.tables, &command).is_ok().then_some(Command::NoteOmGroup(command))
}

/// The change that puts another member in place of one that was added, is no voter yet, and will not come:
/// without that one the leader changes nothing.
fn exchange(
    world: &World<'_>,
    record: &OmGroupRecord,
    voters: &BTreeSet<OmReplica>,
    loads: &mut Loads,
) -> Option<Command> {
    let is_waited_for =
        |member: &&OmMemberRecord| !member.has_voted && !voters.contains(&OmReplica::from(*member));
    let waited_for = record.members.iter().filter(is_waited_for);
    let urgency = |member: &OmMemberRecord| match cannot_run(world, record.group, member) {
        true => Urgency::Dead,
        false => urgency(world, member),
    };
    let lost = waited_for.min_by_key(|member| urgency(member))?;
    change_one(world, record, lost, urgency(lost), loads)
}

/// The change that adds all missing members at once, where there are OMs for them: two voters would bear less
/// than one.
fn grow(world: &World<'_>, record: &OmGroupRecord, loads: &mut Loads) -> Option<Command> {
    let missing = OM_MEMBERS.saturating_sub(record.members.len());
    let staying = record.members.iter().filter(|member| is_well(world, NodeId(member.om))).count();
    let candidates = loads.candidates(world, record.group, &record.members);
    if missing == 0 || candidates.len() < missing || staying + candidates.len() < OM_MEMBERS {
        return None;
    }
    let added = candidates.into_iter().take(missing).inspect(|om| loads.add(*om)).map(|om| om.0).collect();
    Some(Command::ChangeOmGroup(ChangeOmGroupCommand { group: record.group, removed: Vec::new(), added }))
}

/// The change that replaces one member whose OM is lost, or is to be emptied, by another.
fn replace(world: &World<'_>, record: &OmGroupRecord, loads: &mut Loads) -> Option<Command> {
    let worst = record.members.iter().min_by_key(|member| urgency(world, member))?;
    change_one(world, record, worst, urgency(world, worst), loads)
}

fn change_one(
    world: &World<'_>,
    record: &OmGroupRecord,
    member: &OmMemberRecord,
    urgency: Urgency,
    loads: &mut Loads,
) -> Option<Command> {
    if urgency == Urgency::Stays {
        return None;
    }
    let om = loads.take(world, record.group, &record.members)?;
    let (removed, added) = (vec![member.replica], vec![om.0]);
    Some(Command::ChangeOmGroup(ChangeOmGroupCommand { group: record.group, removed, added }))
}

/// The order in which members are replaced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    Dead,
    Leaves,
    Stays,
}

fn urgency(world: &World<'_>, member: &OmMemberRecord) -> Urgency {
    let om = NodeId(member.om);
    match () {
        () if is_dead(world, om) => Urgency::Dead,
        () if !is_in_service(world, om) => Urgency::Leaves,
        () => Urgency::Stays,
    }
}

/// The commands that note leaving OMs as emptied: no record has them, and where one once had, all its members
/// have voted since. No OM is noted while SCM does not know what a forced reset has lost.
fn emptied(world: &World<'_>) -> Vec<Command> {
    if world.tables.om_groups().values().any(|group| group.is_uncertain) {
        return Vec::new();
    }
    let leaving = world.tables.oms().values().filter(|om| om_duty(om) == NodeDuty::NodeDecommissioning);
    let is_in = |om: u64, records: &[OmMemberRecord]| records.iter().any(|record| record.om == om);
    let is_needed = |om: u64, group: &OmGroupRecord| {
        is_in(om, &group.members)
            || is_in(om, &group.removed) && group.members.iter().any(|member| !member.has_voted)
    };
    let groups = || world.tables.om_groups().values();
    let is_in_group = |om: u64, group: &OmGroupRecord| {
        leader(world, group).is_some_and(|leader| leader.members().iter().any(|member| member.om == om))
    };
    // The OM may have names that are not founded here, or not known any more.
    let has_names = |om: u64| {
        let is_founded = |group: u64| world.tables.om_group(group).is_some_and(|record| record.is_founded);
        let has_told = is_dead(world, NodeId(om)) || world.oms.has_told(NodeId(om));
        !has_told || world.oms.replicas(NodeId(om)).any(|heard| !is_founded(heard.report.group))
    };
    let is_needed =
        |om: &u64| has_names(*om) || groups().any(|group| is_needed(*om, group) || is_in_group(*om, group));
    let emptied = leaving.map(|om| om.om).filter(|om| !is_needed(om));
    let duty = NodeDuty::NodeDecommissioned as i32;
    emptied.map(|om| Command::SetOmDuty(SetOmDutyCommand { om, duty })).collect()
}

impl Loads {
    fn of(world: &World<'_>) -> Loads {
        let mut loads = Loads(BTreeMap::new());
        let members = world.tables.om_groups().values().flat_map(|record| &record.members);
        members.for_each(|member| loads.add(NodeId(member.om)));
        loads
    }

    fn add(&mut self, om: NodeId) {
        *self.0.entry(om).or_default() += 1;
    }

    /// OMs that may be given a replica of the group: they have none, neither by the record nor as they say.
    /// OMs with the fewest replicas go first.
    fn candidates(&self, world: &World<'_>, group: u64, members: &[OmMemberRecord]) -> Vec<NodeId> {
        let has_none = |om: &NodeId| {
            members.iter().all(|member| member.om != om.0) && world.oms.replica(*om, group).is_none()
        };
        let oms = world.tables.oms().keys().copied();
        let mut found: Vec<NodeId> = oms.filter(|om| is_well(world, *om)).filter(has_none).collect();
        found.sort_by_key(|om| (self.0.get(om).copied().unwrap_or(0), *om));
        found
    }

    /// The best of the candidates, counted as taken.
    fn take(&mut self, world: &World<'_>, group: u64, members: &[OmMemberRecord]) -> Option<NodeId> {
        let om = self.candidates(world, group, members).into_iter().next()?;
        self.add(om);
        Some(om)
    }
}

/// Whether nobody can change names of a group.
pub(crate) fn is_down(world: &World<'_>, record: Option<&OmGroupRecord>) -> bool {
    has_no_leader(world, record) || record.is_some_and(|record| may_lack_room(world, record))
}

/// Whether each member of a group is known to know no leader, or is not heard of any more.
fn has_no_leader(world: &World<'_>, record: Option<&OmGroupRecord>) -> bool {
    let Some(record) = record.filter(|record| record.is_founded) else { return true };
    let has_no_leader = |member: &OmMemberRecord| {
        let om = NodeId(member.om);
        let is_led = |heard: &ReplicaHeard| heard.report.leader_replica != 0;
        let knows_none =
            || world.oms.has_told(om) && !world.oms.replica(om, record.group).is_some_and(is_led);
        is_dead(world, om) || world.oms.is_silent(om, world.now) || knows_none()
    };
    leader(world, record).is_none() && record.members.iter().all(has_no_leader)
}

/// The reason why a group has no leader though this OM is there, and has nothing to do with it.
pub(crate) fn idle(world: &World<'_>, om: NodeId) -> Option<String> {
    let is_idle = |group: &u64| {
        let record = world.tables.om_group(*group);
        let is_member = record.is_some_and(|record| record.members.iter().any(|member| member.om == om.0));
        !is_member && has_no_leader(world, record)
    };
    let group = all(world).into_iter().find(is_idle)?;
    let problem = problem(world, group, world.tables.om_group(group))?;
    Some(format!("group {group} of names, in which it is not, has no leader: {problem}"))
}

/// The reason, in words, why a group is not as it is to be.
pub(crate) fn problem(world: &World<'_>, group: u64, record: Option<&OmGroupRecord>) -> Option<String> {
    let Some(record) = record.filter(|record| record.is_founded) else {
        return Some(problem_unfounded(world, group, record));
    };
    let Some(leader) = leader(world, record) else {
        return Some(match has_no_leader(world, Some(record)) {
            true => "no member leads: a majority of them is needed".to_owned(),
            false => "its leader has not been heard of".to_owned(),
        });
    };
    if may_lack_room(world, record) {
        return Some("the disks of its OMs are full, so that no majority takes a change".to_owned());
    }
    let on = |member: &OmMemberRecord| format!("OM {}", member.om);
    let of = |wanted: Urgency| {
        let found = record.members.iter().find(|member| urgency(world, member) == wanted);
        found.map(on)
    };
    let place = || match Loads::of(world).candidates(world, group, &record.members).is_empty() {
        true => "no other OM can take its place",
        false => "another one takes its place",
    };
    if let Some(om) = of(Urgency::Dead) {
        return Some(format!("{om} is dead, and {}", place()));
    }
    if let Some(om) = of(Urgency::Leaves) {
        return Some(format!("{om} is to be emptied, and {}", place()));
    }
    if leader.voters() != OmReplica::all(&record.members) || !leader.is_settled() {
        let joiner = record.members.iter().find_map(|member| {
            why_not(world, group, member).map(|why| format!("OM {} cannot have it: {why}", member.om))
        });
        let refused = Some(leader.report().refused.clone()).filter(|why| !why.is_empty());
        let why = joiner.or(refused).map_or(String::new(), |why| format!(": {why}"));
        return Some(format!("its members are changing{why}"));
    }
    record.members.iter().find_map(|member| problem_of_member(world, record, member, leader.advance()))
}

/// The reason why a member is not as it is to be, beside a leader that has come so far.
fn problem_of_member(
    world: &World<'_>,
    record: &OmGroupRecord,
    member: &OmMemberRecord,
    leader: &Advance,
) -> Option<String> {
    let om = NodeId(member.om);
    if !is_healthy(world, om) {
        return Some(format!("OM {om} is silent"));
    }
    match world.oms.replica(om, record.group) {
        Some(heard) if !heard.report.why.is_empty() => {
            Some(format!("the replica on OM {om} does not run: {}", heard.report.why))
        }
        Some(heard) if heard.report.replica == member.replica => {
            let lacks = heard.advance.lacks(leader, world.now)?;
            Some(format!(
                "OM {om} lacks {lacks} changes and has taken none for a minute: it takes in a snapshot, or \
                 cannot; its log says why"
            ))
        }
        _ => Some(format!(
            "OM {om} does not have replica {} any more: empty its directory, or decommission it",
            member.replica
        )),
    }
}

fn problem_unfounded(world: &World<'_>, group: u64, record: Option<&OmGroupRecord>) -> String {
    let asked = record.and_then(|record| record.members.first());
    if let Some(restore) = record.and_then(|record| record.restore.as_ref()) {
        return problem_restoring(world, group, restore, asked);
    }
    match (names_are_on(world, group), world.tables.names_may_be_elsewhere(group), asked) {
        (Some((om, _)), ..) => {
            format!("OM {om} has names of it, and does not lead: a majority of its members is needed")
        }
        (None, Some(why), _) => format!(
            "{why}: bring back the OMs that have it, or, where it is lost for good or was never founded, \
             `flotilla admin om give-up {group}`"
        ),
        (None, None, Some(member)) => match why_not(world, group, member) {
            Some(why) => format!("OM {} is to begin it, and cannot: {why}", member.om),
            None => format!("OM {} is to begin it", member.om),
        },
        (None, None, None) => {
            "no OM is healthy, in service and without a replica of it, to begin it".to_owned()
        }
    }
}

fn problem_restoring(
    world: &World<'_>,
    group: u64,
    restore: &OmRestore,
    asked: Option<&OmMemberRecord>,
) -> String {
    let waits = match asked {
        _ if restore.is_complete => "all groups have their rows".to_owned(),
        Some(member) => match why_not(world, group, member) {
            Some(why) => format!("OM {} is to take the rows, and cannot: {why}", member.om),
            None => format!(
                "OM {} takes the rows; if nobody sends any, give `flotilla admin om restore` again",
                member.om
            ),
        },
        None => "no OM is healthy, in service and without a replica of it, to take the rows".to_owned(),
    };
    format!("its names are being restored from a backup: {waits}")
}
