//! A replica of a group of names that runs here.

use crate::change_queue::{self, ChangeQueue};
use crate::ops::{self, Founded, Fresh, Operation, RestoreRows};
use crate::replicas::why_told;
use crate::state_machine::Followed;
use crate::tables::{is_founded, restored};
use anyhow::bail;
use bytes::Bytes;
use prost::Message;
use proto::om::{
    FoundedCommand, OmCommand, OmEntry, OmReply, RestoreRowsRequest, RestoreRowsResponse, RestoredNames,
    om_reply,
};
use proto::scm::{OmGroup, OmMember, OmReplicaReport};
use proto::{Code, Failure, RequestId, Retry};
use raft::{AddressBook, Command, Group, GroupStatus, Member, Members, Role};
use rand::RngExt;
use statedb::GroupDb;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::info;
use types::random::random;
use types::{Clock, GroupId, NodeId, ReplicaId};

/// The time after which an attempt to change the members is given up and begun again: what it has reached
/// stays, and a member that is sent a snapshot goes on receiving it.
const CHANGE_MAX: Duration = Duration::from_secs(30);
/// The time to wait for the members that a log names: openraft tells them shortly after it has opened the
/// log.
const MEMBERS_WITHIN: Duration = Duration::from_secs(5);

/// The founding of names, as this process knows of it.
#[derive(Clone, Copy)]
struct Founding {
    /// The time by the clock of whoever founded them, if they come from a backup, else 0.
    founded_ms: u64,
    seen: Instant,
    /// Whether that was when it happened, and not at a later start.
    was_seen: bool,
}

impl Founding {
    /// Whether a request that is so old now may have been sent before. The clock of who founded the names may
    /// be ahead of this process's, which therefore must not have seen them founded when the request was sent.
    fn is_after(self, age: Duration, now_ms: u64, now: Instant) -> bool {
        let sent_ms = now_ms.saturating_sub(age.as_millis() as u64);
        let may_be_before = self.founded_ms != 0 && (self.was_seen || sent_ms < self.founded_ms);
        !age.is_zero() && may_be_before && now.saturating_duration_since(self.seen) < age
    }
}

/// A replica that is open. Its tasks end with it.
pub(crate) struct Replica {
    pub(crate) group: Group,
    pub(crate) dbs: Arc<dyn GroupDb>,
    /// The way of changes into the log.
    pub(crate) changes: Arc<ChangeQueue>,
    pub(crate) followed: Followed,
    statuses: watch::Receiver<GroupStatus>,
    /// Set once the tables have said that the names are founded. Names that are founded do not become
    /// otherwise.
    founded_by_tables: OnceLock<Founding>,
    /// Whether this process has seen the names when they were not founded.
    saw_unfounded: AtomicBool,
    /// Whether SCM has said that the names are founded, in this process's life.
    founded_by_scm: AtomicBool,
    clock: Arc<dyn Clock>,
    /// Notified when there is something new to tell SCM.
    news: Arc<Notify>,
    tasks: Mutex<Tasks>,
}

/// The OMs at which replicas are, as SCM has said: for good, as no replica moves.
#[derive(Debug, Default)]
pub(crate) struct ReplicaPlaces {
    by_replica: BTreeMap<(GroupId, ReplicaId), NodeId>,
    /// The groups of SCM's last answer; `None` before the first.
    answered: Option<BTreeSet<GroupId>>,
}

impl ReplicaPlaces {
    /// Takes in an answer of SCM's.
    pub(crate) fn note<'a>(&mut self, groups: impl Iterator<Item = (GroupId, &'a [OmMember])>) {
        let answered = self.answered.insert(BTreeSet::new());
        for (group, members) in groups {
            answered.insert(group);
            let told = members.iter().map(|member| ((group, ReplicaId(member.replica)), NodeId(member.om)));
            self.by_replica.extend(told);
        }
    }

    /// The OM at which a replica is; 0: SCM has not said so.
    fn of(&self, group: GroupId, replica: ReplicaId) -> NodeId {
        self.by_replica.get(&(group, replica)).copied().unwrap_or_default()
    }

    /// Whether a member that SCM has not placed is to be of no account: SCM has yet to answer, or it knows
    /// the group without it, which is about to be changed. An SCM that does not know the group learns all
    /// there is.
    fn has_no_place_for_strangers(&self, group: GroupId) -> bool {
        self.answered.as_ref().is_none_or(|answered| answered.contains(&group))
    }
}

/// The work that a replica does beside what it is asked for.
#[derive(Default)]
struct Tasks {
    /// The task that tells of changes of role, term or leader.
    watcher: Option<JoinHandle<()>>,
    founding: Option<JoinHandle<()>>,
    change: Option<Change>,
    succession: Option<JoinHandle<()>>,
    /// The members that SCM wants, as it said last.
    wanted: BTreeSet<ReplicaId>,
    /// The backup whose rows are to come, as SCM said last; empty: none are.
    backup: Bytes,
    /// The reason why the last change of members did not come about.
    refused: String,
}

/// A change of members under way, or done.
struct Change {
    to: BTreeSet<ReplicaId>,
    task: JoinHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.take_tasks().iter().for_each(JoinHandle::abort);
    }
}

impl Replica {
    pub(crate) fn new(
        group: Group,
        dbs: Arc<dyn GroupDb>,
        changes: ChangeQueue,
        followed: Followed,
        clock: Arc<dyn Clock>,
        news: Arc<Notify>,
    ) -> Replica {
        let (statuses, told) = (group.watch(), news.clone());
        let mut watched = statuses.clone();
        let watcher = tokio::spawn(async move {
            while watched.changed().await.is_ok() {
                told.notify_one();
            }
        });
        let tasks = Mutex::new(Tasks { watcher: Some(watcher), ..Tasks::default() });
        let (founded_by_tables, saw_unfounded, founded_by_scm) = Default::default();
        let changes = Arc::new(changes);
        Replica {
            group,
            dbs,
            changes,
            followed,
            statuses,
            founded_by_tables,
            saw_unfounded,
            founded_by_scm,
            clock,
            news,
            tasks,
        }
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.group.replica()
    }

    /// Carries out a change that was prepared, where this replica leads.
    pub(crate) async fn carry_out(&self, command: OmCommand) -> Result<om_reply::Result, Failure> {
        result_of(self.changes.apply(command).await?)
    }

    pub(crate) async fn change<O: Operation>(&self, command: OmCommand) -> Result<O::Response, Failure> {
        ops::response::<O>(self.carry_out(command).await?)
    }

    fn take_tasks(&self) -> Vec<JoinHandle<()>> {
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder panics"));
        let change = tasks.change.map(|change| change.task);
        [tasks.watcher, tasks.founding, change, tasks.succession].into_iter().flatten().collect()
    }

    /// Ends the replica's tasks. What they had begun may be begun again.
    pub(crate) async fn stop_tasks(&self) {
        for task in self.take_tasks() {
            task.abort();
            // Cancelled, or done.
            let _ = task.await;
        }
    }

    pub(crate) fn is_founded_by_tables(&self) -> anyhow::Result<bool> {
        if self.founded_by_tables.get().is_none() {
            let tables = self.dbs.current();
            if is_founded(&*tables)? {
                let founded_ms = restored(&*tables)?.map_or(0, |names| names.founded_ms);
                let was_seen = self.saw_unfounded.load(Ordering::Relaxed);
                let founding = Founding { founded_ms, seen: Instant::now(), was_seen };
                let _ = self.founded_by_tables.set(founding);
            } else {
                self.saw_unfounded.store(true, Ordering::Relaxed);
            }
        }
        Ok(self.founded_by_tables.get().is_some())
    }

    /// Whether the group's names are founded, by its tables or by SCM's word. Names that come from a backup
    /// are when the tables say so, and not before.
    fn is_founded(&self) -> anyhow::Result<bool> {
        let by_scm = || Ok(self.founded_by_scm.load(Ordering::Relaxed) && self.restoring()?.is_none());
        if self.is_founded_by_tables()? { Ok(true) } else { by_scm() }
    }

    /// The note of what has come of a backup, while nobody is served yet.
    fn restoring(&self) -> anyhow::Result<Option<RestoredNames>> {
        Ok(restored(&*self.dbs.current())?.filter(|names| names.founded_ms == 0))
    }

    /// Refuses a request that may have been carried out before the names were restored: what became of it
    /// then nobody knows any more.
    pub(crate) fn check_remembers(&self, age: Duration, now_ms: u64) -> Result<(), Failure> {
        let was_before = |founding: &Founding| founding.is_after(age, now_ms, Instant::now());
        if !self.founded_by_tables.get().is_some_and(was_before) {
            return Ok(());
        }
        let why =
            format!("the request was first sent {age:?} ago, before the names were restored from a backup");
        Err(Failure { retry: Retry::No, ..Failure::new(Code::OutcomeUnknown, why) })
    }

    /// Takes a part of a backup's rows, where this replica has begun its group for just that.
    pub(crate) async fn restore(
        &self,
        request: RestoreRowsRequest,
        addresses: &AddressBook,
    ) -> Result<RestoreRowsResponse, Failure> {
        self.check_leads(addresses)?;
        if self.tasks.lock().expect("no holder panics").backup != request.backup {
            let why = format!("SCM has not said that {} is to have the rows of this backup", self.group.id());
            return Err(Failure::new(Code::NotYet, why));
        }
        let fresh = Fresh { random: 0, now_ms: self.clock.now_ms() };
        let command = ops::prepare::<RestoreRows>(RequestId(random().random()), None, request, fresh)?;
        let meta = OmEntry { commands: vec![command] }.encode_to_vec().into();
        // The command goes past the queue: with others in its entry it would be a request like them.
        let done = self.group.apply(Command { meta, ..Command::default() }).await;
        let done = done.map_err(|error| error.into_failure(addresses))?;
        let reply = change_queue::replies(done.reply, 1)?.pop().unwrap_or_default();
        let restored = ops::response::<RestoreRows>(result_of(reply)?)?;
        self.news.notify_one();
        Ok(restored)
    }

    /// Whether this replica answers for its group: it leads, and the group's names are founded.
    pub(crate) fn check_serves(&self, addresses: &AddressBook) -> Result<(), Failure> {
        // The group's own status is a moment newer than what it has published.
        if !self.leads() {
            self.check_leads(addresses)?;
        }
        self.check_founded()
    }

    /// Whether this replica leads, as was published last, which costs next to nothing to know.
    pub(crate) fn leads(&self) -> bool {
        self.statuses.borrow().role == Role::Leader
    }

    pub(crate) fn check_founded(&self) -> Result<(), Failure> {
        match self.is_founded() {
            Ok(true) => Ok(()),
            Ok(false) => {
                let why =
                    format!("the names of {} are not founded: SCM has not noted them yet", self.group.id());
                Err(Failure::new(Code::Unavailable, why))
            }
            Err(error) => Err(Failure::internal(format!("read whether the names are founded: {error:#}"))),
        }
    }

    fn check_leads(&self, addresses: &AddressBook) -> Result<(), Failure> {
        let GroupStatus { role, leader, failure, .. } = self.group.status();
        match role {
            Role::Leader => Ok(()),
            Role::Stopped => {
                let why = failure.as_deref().unwrap_or("it was closed");
                let why = format!("the replica of {} stopped: {why}", self.group.id());
                Err(Failure::new(Code::Unavailable, why))
            }
            Role::Follower | Role::Candidate | Role::Learner => {
                let leader = leader.filter(|leader| leader.replica != self.id());
                let address = leader.map(|leader| addresses.of(&leader));
                Err(Failure::not_leader(address.filter(|address| !address.is_empty())))
            }
        }
    }

    /// The reason why the group serves nobody through this replica or another one, if it is known here. A
    /// replica that is to join makes up for no loss yet: it has not got everything.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        self.group.readiness()?;
        if !self.group.members().is_voter(self.id()) {
            return Err("its replica is joining its group, and does not vote yet".to_owned());
        }
        match self.is_founded() {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err("its group's names are not founded yet: it waits for SCM to note them".to_owned())
            }
            Err(error) => Err(format!("its tables cannot be read: {error:#}")),
        }
    }

    /// The number that the group's members know this OM by; 0: none.
    pub(crate) fn node(&self) -> NodeId {
        self.group.members().get(self.id()).map_or(NodeId(0), |member| member.node)
    }

    /// Waits until what the log says of the members is known.
    pub(crate) async fn members_known(&self) {
        let log = self.group.log().state();
        let give_up = Instant::now() + MEMBERS_WITHIN;
        let has_log = log.last.max(log.purged).is_some();
        while has_log && self.group.members().all.is_empty() && Instant::now() < give_up {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether founded names are led from here, by the group's own account: this replica votes, leads, and is
    /// heard. A group that was begun here and founded elsewhere is led too, and has no names.
    pub(crate) fn leads_names(&self) -> bool {
        let leads = self.group.status().role == Role::Leader && self.group.hears_majority();
        leads && self.group.members().is_voter(self.id()) && self.is_founded_by_tables().unwrap_or(true)
    }

    /// The replica as SCM is told of it by the OM with this number. `by_scm` is where SCM says that replicas
    /// are.
    pub(crate) fn report(&self, om: NodeId, by_scm: &ReplicaPlaces) -> OmReplicaReport {
        let (status, members) = (self.group.status(), self.group.members());
        let leader = self.group.heard_leader().map_or(ReplicaId(0), |leader| leader.replica);
        let place = |member: &Member| match member.node {
            _ if member.replica == self.id() => om,
            // A member of before ADR 0013, which the log knows by no number.
            NodeId(0) => by_scm.of(self.group.id(), member.replica),
            node => NodeId(node.om_number()),
        };
        let has_stranger = members.all.iter().any(|member| place(member) == NodeId(0));
        let member = |member: &Member| OmMember {
            replica: member.replica.0,
            om: place(member).0,
            address: member.address.clone(),
            is_voter: members.is_voter(member.replica),
        };
        let coming = match self.is_founded_by_tables() {
            Ok(false) => self.restoring().ok().flatten().unwrap_or_default(),
            Ok(true) | Err(_) => RestoredNames::default(),
        };
        let is_stopped = status.role == Role::Stopped;
        let why = status.failure.unwrap_or_else(|| "its group stopped".to_owned());
        OmReplicaReport {
            group: self.group.id().number,
            replica: self.id().0,
            term: status.term.0,
            leader_replica: leader.0,
            last_index: status.last.map_or(0, |index| index.0),
            applied_index: status.applied.map_or(0, |index| index.0),
            members: members.all.iter().map(member).collect(),
            is_changing: self.group.is_changing_members()
                || has_stranger && by_scm.has_no_place_for_strangers(self.group.id()),
            why: if is_stopped { why_told(&why) } else { String::new() },
            is_founded: self.is_founded_by_tables().unwrap_or(false),
            wanted: self.wanted(),
            given_up: self.group.given_up().iter().map(|replica| replica.0).collect(),
            refused: self.refused(),
            backup: coming.backup,
            is_restored: coming.is_all,
            keys: self.followed.usage.keys(&self.dbs.current()),
        }
    }

    /// The reason why the members that SCM wants are not the group's yet, if the last attempt had one.
    fn refused(&self) -> String {
        why_told(&self.tasks.lock().expect("no holder panics").refused)
    }

    /// The members that SCM wants, once no change to others goes on.
    fn wanted(&self) -> Vec<u64> {
        let tasks = self.tasks.lock().expect("no holder panics");
        let goes_on = |change: &Change| change.to != tasks.wanted && !change.task.is_finished();
        match tasks.change.as_ref().is_some_and(goes_on) {
            true => Vec::new(),
            false => tasks.wanted.iter().map(|replica| replica.0).collect(),
        }
    }

    /// Takes in what SCM says of the group, and does what is a leader's to do about it, in the background.
    pub(crate) fn follow(self: &Arc<Replica>, told: &OmGroup) {
        self.want(told.members.iter().map(|member| ReplicaId(member.replica)).collect());
        self.tasks.lock().expect("no holder panics").backup = told.backup.clone();
        if told.is_founded {
            self.founded_by_scm.store(true, Ordering::Relaxed);
        }
        if self.statuses.borrow().role != Role::Leader {
            return;
        }
        if told.is_founded && !self.is_founded_by_tables().unwrap_or(true) {
            self.found();
        }
        self.change_members(&told.members);
    }

    /// Notes the members that SCM wants. A change to others is dropped.
    fn want(&self, wanted: BTreeSet<ReplicaId>) {
        let mut tasks = self.tasks.lock().expect("no holder panics");
        if let Some(change) = tasks.change.as_ref().filter(|change| change.to != wanted) {
            change.task.abort();
        }
        tasks.wanted = wanted;
    }

    /// Writes into the group's own log that its names are founded.
    fn found(self: &Arc<Replica>) {
        let mut tasks = self.tasks.lock().expect("no holder panics");
        if tasks.founding.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let (changes, now_ms, news) = (self.changes.clone(), self.clock.now_ms(), self.news.clone());
        let group = self.group.id();
        tasks.founding = Some(tokio::spawn(async move {
            match found(&changes, now_ms).await {
                Ok(()) => {
                    info!(%group, "the names are founded here");
                    news.notify_one();
                }
                // SCM says it again.
                Err(error) => {
                    info!(%group, error = format!("{error:#}"), "note that names are founded")
                }
            }
        }));
    }

    /// Lets another member lead, if this one does and no such change is under way.
    pub(crate) fn hand_over(&self, to: ReplicaId) {
        let mut tasks = self.tasks.lock().expect("no holder panics");
        let is_leader = self.statuses.borrow().role == Role::Leader;
        if !is_leader || tasks.succession.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let group = self.group.clone();
        tasks.succession = Some(tokio::spawn(async move {
            match group.transfer_leader(to).await {
                Ok(()) => info!(group = %group.id(), %to, "another member leads, as SCM wishes"),
                // SCM says it again, for a while.
                Err(error) => {
                    info!(group = %group.id(), %to, error = error.to_string(), "let another member lead")
                }
            }
        }));
    }

    /// Makes the members that SCM wants the voters of the group, one change at a time.
    fn change_members(self: &Arc<Replica>, wanted: &[OmMember]) {
        let now = self.group.members();
        let to: BTreeSet<ReplicaId> = wanted.iter().map(|member| ReplicaId(member.replica)).collect();
        if are(&now, &to) {
            return;
        }
        let mut tasks = self.tasks.lock().expect("no holder panics");
        let earlier = match tasks.change.take() {
            Some(earlier) if earlier.to == to && !earlier.task.is_finished() => {
                tasks.change = Some(earlier);
                return;
            }
            earlier => earlier.map(|earlier| earlier.task),
        };
        earlier.iter().for_each(JoinHandle::abort);
        let members: Vec<Member> = wanted.iter().map(|wanted| as_member(&now, wanted)).collect();
        let (replica, group, news) = (Arc::downgrade(self), self.group.clone(), self.news.clone());
        info!(group = %group.id(), from = ?now.all, to = ?members, "change the members");
        let task = tokio::spawn(async move {
            if let Some(earlier) = earlier {
                // Cancelled, or done.
                let _ = earlier.await;
            }
            let done = group.set_members(&members, Instant::now() + CHANGE_MAX).await;
            match (done, replica.upgrade()) {
                (Ok(()), replica) => {
                    info!(group = %group.id(), ?members, "the members are changed");
                    replica.iter().for_each(|replica| replica.note_refusal(String::new()));
                    news.notify_one();
                }
                (Err(error), Some(replica)) => replica.note_refusal(error.to_string()),
                (Err(_), None) => {}
            }
        });
        tasks.change = Some(Change { to, task });
    }

    fn note_refusal(&self, why: String) {
        let mut tasks = self.tasks.lock().expect("no holder panics");
        if tasks.refused == why {
            return;
        }
        if !why.is_empty() {
            info!(group = %self.group.id(), why, "members are not changed");
        }
        tasks.refused = why;
        self.news.notify_one();
    }
}

/// Whether `voters`, and nobody else, are the members, all of them with a vote, and no change is left half
/// done.
fn are(members: &Members, voters: &BTreeSet<ReplicaId>) -> bool {
    let all: BTreeSet<ReplicaId> = members.all.iter().map(|member| member.replica).collect();
    members.voter_sets.as_slice() == std::slice::from_ref(voters) && all == *voters
}

/// The member that SCM wants, as it goes into the group. One that the group has already stays as the group
/// knows it: where its node is now, the address book says.
fn as_member(now: &Members, wanted: &OmMember) -> Member {
    let replica = ReplicaId(wanted.replica);
    let new = || Member { replica, node: NodeId::of_om(wanted.om), address: wanted.address.clone() };
    now.get(replica).cloned().unwrap_or_else(new)
}

fn result_of(reply: OmReply) -> Result<om_reply::Result, Failure> {
    match reply.result {
        Some(om_reply::Result::Error(error)) => Err(error.into()),
        Some(result) => Ok(result),
        None => Err(Failure::internal("the reply is empty")),
    }
}

async fn found(changes: &ChangeQueue, now_ms: u64) -> anyhow::Result<()> {
    let fresh = Fresh { random: random().random(), now_ms };
    let command = ops::prepare::<Founded>(RequestId(random().random()), None, FoundedCommand {}, fresh)?;
    match changes.apply(command).await?.result {
        Some(om_reply::Result::Error(error)) => bail!("{}", Failure::from(error)),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_was_sent_before_the_names_were_founded_only_if_no_clock_says_otherwise() {
        let seen = Instant::now();
        let founding = Founding { founded_ms: 100_000, seen, was_seen: false };
        let is_after = |age_ms, now_ms, later_ms| {
            let age = Duration::from_millis(age_ms);
            founding.is_after(age, now_ms, seen + Duration::from_millis(later_ms))
        };
        assert!(is_after(2000, 101_000, 1000));
        assert!(!is_after(900, 101_000, 1000));
        assert!(!is_after(0, 101_000, 1000), "it was never sent before");
        // The clock of who founded the names is a minute ahead.
        assert!(!is_after(5, 41_000, 1000));
        assert!(is_after(2000, 41_000, 1000));
        // This process's clock is ahead of that one.
        let seen_then = Founding { was_seen: true, ..founding };
        let age = Duration::from_secs(2);
        assert!(seen_then.is_after(age, 9_000_000, seen) && !founding.is_after(age, 9_000_000, seen));
        assert!(!Founding { founded_ms: 0, ..seen_then }.is_after(age, 9_000_000, seen), "from no backup");
        // The process began long after.
        assert!(!is_after(2000, 9_000_000, 1000));
    }
}
