//! The reports of OMs to this leader: that they are there, and what each of their replicas is.

use crate::advance::Advance;
use crate::clock_apart::ClockApart;
use crate::nodes::is_version;
use crate::twins::Twins;
use proto::scm::{NodeState, OmMember, OmRecord, OmReplicaReport};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use types::NodeId;

/// The most replicas of one OM: more groups than a cluster of this version has names for.
const REPLICAS_MAX: usize = 1000;
/// The most members of one membership: voters of before and after, and those that come.
const MEMBERS_MAX: usize = 100;
/// The most replicas that a group tells of as given up: two at each reset that a person makes of it.
pub(crate) const GIVEN_UP_MAX: usize = 1000;
const ADDRESS_BYTES_MAX: usize = 255;
const WHY_BYTES_MAX: usize = 4096;

/// All that OMs reported to this leader. An OM that has said nothing yet counts as silent since the leader
/// began: it may have been well a moment ago.
pub(crate) struct Oms {
    since: Instant,
    stale_after: Duration,
    dead_after: Duration,
    heard: BTreeMap<NodeId, Heard>,
    /// The replicas that are to lead their groups, as somebody wishes, and until when that is told.
    successors: BTreeMap<u64, (u64, Instant)>,
    twins: Twins,
}

/// An OM's last heartbeat.
struct Heard {
    seen: Instant,
    clock: ClockApart,
    version: String,
    is_full: bool,
    replicas: BTreeMap<u64, ReplicaHeard>,
}

/// A replica as its OM described it last.
pub(crate) struct ReplicaHeard {
    pub(crate) report: OmReplicaReport,
    /// The end of the replica's log when its present members were first seen in this term: their entry is not
    /// behind that.
    members_at: u64,
    /// Whether the replica's log ended further on in the report before. A leader's log never shrinks: this
    /// report was under way for longer than one that was sent after it.
    is_late: bool,
    /// The moment when it was first heard that the replica does not run; `None` while it runs.
    closed_since: Option<Instant>,
    pub(crate) advance: Advance,
}

impl ReplicaHeard {
    fn of(
        report: OmReplicaReport,
        before: Option<&ReplicaHeard>,
        was_silent: bool,
        now: Instant,
    ) -> ReplicaHeard {
        // A leader's log only grows in its term: an entry that it has had since then is where it was.
        let membership = |report: &OmReplicaReport| {
            let members: Vec<_> = report.members.iter().map(voter).collect();
            (report.replica, report.term, report.is_changing, members)
        };
        let same = before.filter(|before| membership(&before.report) == membership(&report));
        let members_at = same.map_or(report.last_index, |before| before.members_at);
        let end = |report: &OmReplicaReport| (report.term, report.last_index);
        let before = before.filter(|before| before.report.replica == report.replica);
        let is_late = before.is_some_and(|before| end(&report) < end(&before.report));
        let closed_before = before.and_then(|before| before.closed_since);
        let closed_since = (!report.why.is_empty()).then(|| closed_before.unwrap_or(now));
        // While its OM was silent nobody knows whether it stood still.
        let advanced = before.filter(|_| !was_silent).map(|before| &before.advance);
        let advance = Advance::next(advanced, report.applied_index, now);
        ReplicaHeard { report, members_at, is_late, closed_since, advance }
    }

    /// Whether the members that the replica has are the group's: they are committed, and no others are under
    /// way.
    pub(crate) fn is_settled(&self) -> bool {
        !self.report.is_changing && self.report.applied_index >= self.members_at
    }

    pub(crate) fn leads(&self) -> bool {
        let OmReplicaReport { replica, leader_replica, .. } = self.report;
        replica != 0 && leader_replica == replica && !self.is_late
    }
}

fn voter(member: &OmMember) -> (u64, u64, bool) {
    (member.replica, member.om, member.is_voter)
}

impl Oms {
    pub(crate) fn new(stale_after: Duration, dead_after: Duration, now: Instant) -> Oms {
        Oms {
            since: now,
            stale_after,
            dead_after,
            heard: BTreeMap::new(),
            successors: BTreeMap::new(),
            twins: Twins::default(),
        }
    }

    /// Takes in the heartbeat of an OM: it is alive, and has these replicas and no others. True where that
    /// changes what is to be decided, or told.
    pub(crate) fn hear(&mut self, om: NodeId, replicas: Vec<OmReplicaReport>, now: Instant) -> bool {
        let was_silent = self.is_silent(om, now);
        let before = self.heard.remove(&om);
        let was_heard = before.is_some();
        let Heard { clock, version, is_full, replicas: before, .. } = before.unwrap_or_else(|| Heard {
            seen: now,
            clock: ClockApart::default(),
            version: String::new(),
            is_full: false,
            replicas: BTreeMap::new(),
        });
        let heard = |report: OmReplicaReport| {
            (report.group, ReplicaHeard::of(report.clone(), before.get(&report.group), was_silent, now))
        };
        let replicas: BTreeMap<u64, ReplicaHeard> = replicas.into_iter().map(heard).collect();
        let changed =
            was_silent || !was_heard || !replicas.iter().map(essence).eq(before.iter().map(essence));
        self.heard.insert(om, Heard { seen: now, clock, version, is_full, replicas });
        changed
    }

    /// Notes how far the clock of an OM that was just heard is from this process's. True when that became a
    /// problem.
    pub(crate) fn hear_clock(&mut self, om: NodeId, clock: ClockApart) -> bool {
        let Some(heard) = self.heard.get_mut(&om) else { return false };
        let before = std::mem::replace(&mut heard.clock, clock);
        before.problem().is_none() && clock.problem().is_some()
    }

    /// Notes the version of an OM that was just heard.
    pub(crate) fn hear_version(&mut self, om: NodeId, version: &str) {
        if let Some(heard) = self.heard.get_mut(&om)
            && is_version(version)
            && heard.version != version
        {
            heard.version = version.to_owned();
        }
    }

    pub(crate) fn hear_full(&mut self, om: NodeId, is_full: bool) {
        if let Some(heard) = self.heard.get_mut(&om) {
            heard.is_full = is_full;
        }
    }

    /// Whether the OM's disk takes nothing.
    pub(crate) fn is_full(&self, om: NodeId) -> bool {
        self.heard.get(&om).is_some_and(|heard| heard.is_full)
    }

    pub(crate) fn clock(&self, om: NodeId) -> ClockApart {
        self.heard.get(&om).map(|heard| heard.clock).unwrap_or_default()
    }

    /// The version of the OM's software; empty where this leader does not know it.
    pub(crate) fn version(&self, om: NodeId) -> &str {
        self.heard.get(&om).map_or("", |heard| &heard.version)
    }

    /// Whether the OM has told this leader what it has.
    pub(crate) fn has_told(&self, om: NodeId) -> bool {
        self.heard.contains_key(&om)
    }

    /// The time for which the OM has been silent.
    pub(crate) fn age(&self, om: NodeId, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard.get(&om).map_or(self.since, |heard| heard.seen))
    }

    /// Whether the OM has been silent for longer than a healthy one is.
    pub(crate) fn is_silent(&self, om: NodeId, now: Instant) -> bool {
        self.age(om, now) >= self.stale_after
    }

    /// The state of a registered OM. One at whose address there is another directory now is dead as soon as
    /// it is silent; where two have changed places, each of them comes back a moment later.
    pub(crate) fn state(&self, record: &OmRecord, now: Instant) -> NodeState {
        match (record.address.as_str(), self.heard_state(NodeId(record.om), now)) {
            ("", NodeState::NodeHealthy) => NodeState::NodeStale,
            ("", _) => NodeState::NodeDead,
            (_, heard) => heard,
        }
    }

    /// Whether the OM has said for a while that this replica of it does not run.
    pub(crate) fn cannot_run(&self, om: NodeId, group: u64, replica: u64, now: Instant) -> bool {
        let heard = self.replica(om, group).filter(|heard| heard.report.replica == replica);
        let since = heard.and_then(|heard| heard.closed_since);
        since.is_some_and(|since| now.saturating_duration_since(since) >= self.stale_after)
    }

    /// The state of an OM that follows from its silence alone.
    pub(crate) fn heard_state(&self, om: NodeId, now: Instant) -> NodeState {
        if self.age(om, now) >= self.dead_after {
            NodeState::NodeDead
        } else if self.is_silent(om, now) || !self.has_told(om) {
            NodeState::NodeStale
        } else {
            NodeState::NodeHealthy
        }
    }

    /// The OM's replica of a group, as it said last.
    pub(crate) fn replica(&self, om: NodeId, group: u64) -> Option<&ReplicaHeard> {
        self.heard.get(&om)?.replicas.get(&group)
    }

    /// All replicas of an OM, as it said last.
    pub(crate) fn replicas(&self, om: NodeId) -> impl Iterator<Item = &ReplicaHeard> {
        self.heard.get(&om).into_iter().flat_map(|heard| heard.replicas.values())
    }

    /// All replicas of a group that any OM has said it has.
    pub(crate) fn replicas_of(&self, group: u64) -> impl Iterator<Item = (NodeId, &ReplicaHeard)> {
        self.heard.iter().filter_map(move |(om, heard)| Some((*om, heard.replicas.get(&group)?)))
    }

    /// Notes that somebody at this address has the directory of an OM, which is elsewhere and well.
    pub(crate) fn note_twin(&mut self, om: NodeId, address: &str, now: Instant) {
        self.twins.note(om, address, now);
    }

    /// The address of an OM's twin that came lately.
    pub(crate) fn twin(&self, om: NodeId, now: Instant) -> Option<&str> {
        self.twins.lately(om, now, 2 * self.stale_after)
    }

    /// Wishes that a replica leads its group.
    pub(crate) fn wish(&mut self, group: u64, replica: u64, until: Instant) {
        self.successors.insert(group, (replica, until));
    }

    /// The moment until which the last wish for a group's leader was told.
    pub(crate) fn last_wish(&self, group: u64) -> Option<Instant> {
        self.successors.get(&group).map(|(_, until)| *until)
    }

    /// The replica that is to lead a group, while anybody wishes it.
    pub(crate) fn successor(&self, group: u64, now: Instant) -> Option<u64> {
        self.successors.get(&group).filter(|(_, until)| now < *until).map(|(replica, _)| *replica)
    }

    /// OMs of which none has said anything.
    #[cfg(test)]
    pub(crate) fn silent() -> &'static Oms {
        static SILENT: std::sync::LazyLock<Oms> =
            std::sync::LazyLock::new(|| Oms::new(Duration::MAX, Duration::MAX, Instant::now()));
        &SILENT
    }
}

/// The facts of a replica by which anything is decided; an index that grows is nothing new.
fn essence((group, heard): (&u64, &ReplicaHeard)) -> (u64, bool, bool, OmReplicaReport) {
    let report = OmReplicaReport { last_index: 0, applied_index: 0, ..heard.report.clone() };
    (*group, heard.is_settled(), heard.leads(), report)
}

/// The reason why an OM cannot have these replicas.
pub(crate) fn check_replicas(replicas: &[OmReplicaReport]) -> Result<(), String> {
    if replicas.len() > REPLICAS_MAX {
        return Err(format!("more than {REPLICAS_MAX} replicas on one OM"));
    }
    let mut groups = BTreeSet::new();
    for report in replicas {
        let group = report.group;
        if !groups.insert(group) {
            return Err(format!("two replicas of group {group} on one OM"));
        }
        if report.replica == 0 && report.why.is_empty() {
            return Err(format!("a replica of group {group} without a number, and it does not say why"));
        }
        if report.why.len().max(report.refused.len()) > WHY_BYTES_MAX {
            return Err(format!("what is wrong with group {group} has more than {WHY_BYTES_MAX} bytes"));
        }
        if report.given_up.len() > GIVEN_UP_MAX {
            return Err(format!("more than {GIVEN_UP_MAX} replicas of group {group} are given up"));
        }
        if report.wanted.len() > MEMBERS_MAX {
            return Err(format!("more than {MEMBERS_MAX} members of group {group} are wanted"));
        }
        check_members(group, &report.members)?;
    }
    Ok(())
}

fn check_members(group: u64, members: &[OmMember]) -> Result<(), String> {
    if members.len() > MEMBERS_MAX {
        return Err(format!("more than {MEMBERS_MAX} members of group {group}"));
    }
    let mut replicas = BTreeSet::new();
    for member in members {
        if member.replica == 0 || !replicas.insert(member.replica) {
            return Err(format!("members of group {group} need numbers that are different and not 0"));
        }
        if member.address.len() > ADDRESS_BYTES_MAX {
            return Err(format!("an address of group {group} has more than {ADDRESS_BYTES_MAX} bytes"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE_AFTER: Duration = Duration::from_secs(5);
    const DEAD_AFTER: Duration = Duration::from_secs(600);

    fn record(om: u64, address: &str) -> OmRecord {
        OmRecord { om, address: address.to_owned(), ..OmRecord::default() }
    }

    fn report(replica: u64, last_index: u64, applied_index: u64) -> OmReplicaReport {
        let members = vec![OmMember { replica, om: 1, is_voter: true, ..OmMember::default() }];
        OmReplicaReport { replica, last_index, applied_index, members, ..OmReplicaReport::default() }
    }

    #[test]
    fn silence_tells_the_state_and_who_has_not_spoken_is_silent_since_the_leader_began() {
        let start = Instant::now();
        let mut oms = Oms::new(STALE_AFTER, DEAD_AFTER, start);
        let (om, here) = (NodeId(1), record(1, "a:1"));
        assert_eq!(oms.state(&here, start), NodeState::NodeStale);
        assert_eq!(oms.state(&here, start + DEAD_AFTER), NodeState::NodeDead);
        assert!(oms.hear(om, vec![], start + STALE_AFTER));
        assert_eq!(oms.state(&here, start + DEAD_AFTER), NodeState::NodeStale);
        assert_eq!(oms.state(&here, start + STALE_AFTER), NodeState::NodeHealthy);
        let replaced = record(1, "");
        assert_eq!(oms.state(&replaced, start + STALE_AFTER), NodeState::NodeStale, "it was here just now");
        assert_eq!(oms.state(&replaced, start + 2 * STALE_AFTER), NodeState::NodeDead);
        assert_eq!(oms.state(&here, start + STALE_AFTER + DEAD_AFTER), NodeState::NodeDead);
    }

    #[test]
    fn what_changes_nothing_is_no_news() {
        let (om, now) = (NodeId(1), Instant::now());
        let mut oms = Oms::new(STALE_AFTER, DEAD_AFTER, now);
        assert!(oms.hear(om, vec![report(2, 1, 1)], now), "it is here");
        assert!(!oms.hear(om, vec![report(2, 9, 8)], now), "its log grows");
        assert!(oms.hear(om, vec![OmReplicaReport { leader_replica: 2, ..report(2, 9, 8) }], now));
        assert!(oms.hear(om, vec![], now));
        assert!(!oms.hear(om, vec![], now));
        assert!(oms.hear(om, vec![], now + STALE_AFTER), "it was silent");
    }

    #[test]
    fn members_count_once_all_up_to_where_they_were_seen_is_applied() {
        let (om, now) = (NodeId(1), Instant::now());
        let mut oms = Oms::new(STALE_AFTER, DEAD_AFTER, now);
        let mut settled = |report| {
            oms.hear(om, vec![report], now);
            oms.replica(om, 0).unwrap().is_settled()
        };
        assert!(!settled(report(2, 5, 4)), "the fifth entry may have them");
        assert!(settled(report(2, 7, 5)));
        assert!(!settled(OmReplicaReport { is_changing: true, ..report(2, 8, 8) }));
        assert!(!settled(report(2, 9, 8)));
        assert!(settled(report(2, 9, 9)));
        assert!(
            !settled(OmReplicaReport { term: 1, ..report(2, 10, 9) }),
            "it may have lost that entry since"
        );
    }

    #[test]
    fn a_heartbeat_that_comes_after_a_later_one_makes_nobody_lead() {
        let (om, now) = (NodeId(1), Instant::now());
        let mut oms = Oms::new(STALE_AFTER, DEAD_AFTER, now);
        let mut leads = |term, last_index| {
            let report = OmReplicaReport { term, leader_replica: 2, ..report(2, last_index, last_index) };
            oms.hear(om, vec![report], now);
            oms.replica(om, 0).unwrap().leads()
        };
        assert!(leads(3, 7) && leads(3, 7) && leads(3, 9) && leads(4, 8));
        assert!(!leads(3, 9), "that was under way for long");
        assert!(leads(4, 8));
        assert!(!leads(1, 2), "an old copy of a directory");
        assert!(leads(1, 3), "but it is what is there now");
    }

    #[test]
    fn a_heartbeat_is_bounded() {
        let refused = |replicas: Vec<OmReplicaReport>| check_replicas(&replicas).unwrap_err();
        assert_eq!(check_replicas(&[report(1, 0, 0)]), Ok(()));
        assert!(refused(vec![report(0, 0, 0)]).contains("without a number"));
        let unreadable = OmReplicaReport { why: "damaged".into(), ..OmReplicaReport::default() };
        assert_eq!(check_replicas(&[unreadable]), Ok(()), "nothing says which replica it is");
        assert!(refused(vec![report(1, 0, 0); 2]).contains("two replicas"));
        assert!(refused(vec![report(1, 0, 0); 1001]).contains("more than 1000"));
        let long = "x".repeat(WHY_BYTES_MAX + 1);
        assert!(refused(vec![OmReplicaReport { why: long.clone(), ..report(1, 0, 0) }]).contains("bytes"));
        let wanted = (1..=101).collect();
        assert!(refused(vec![OmReplicaReport { wanted, ..report(1, 0, 0) }]).contains("are wanted"));
        let with = |members| vec![OmReplicaReport { members, ..report(1, 0, 0) }];
        let member = |replica| OmMember { replica, ..OmMember::default() };
        assert!(refused(with((1..=101).map(member).collect())).contains("more than 100 members"));
        assert!(refused(with(vec![member(1), member(1)])).contains("different"));
        assert!(refused(with(vec![OmMember { address: long, ..member(1) }])).contains("an address"));
    }
}
