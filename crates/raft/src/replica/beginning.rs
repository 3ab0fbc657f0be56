//! A replica's beginning: it comes to its log as one of the group's first members, as one that joins, or
//! again after a restart.

use crate::adapter::encoding::{entry_to_record, first_membership, log_id_from};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::RaftEntry;
use crate::replica::begun_reset::settle_reset;
use crate::replica::identity::{End, Identity, Origin};
use crate::{GroupSpec, GroupStart};
use anyhow::{Context, bail};
use disk::Disk;
use openraft::EntryPayload;
use raftlog::{Log, LogSpace, LogSpec};
use std::sync::Arc;
use types::{LogId, LogIndex, ReplicaId};

/// Whether a replica was at work before: it may have promised something then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    New,
    Restarted,
}

/// The facts about a replica that its beginning found, or made.
pub(crate) struct Begun {
    /// Whether a committed membership has had the replica.
    pub(crate) was_member: bool,
    pub(crate) past: Past,
    /// Replicas of the group that a forced reset gave up.
    pub(crate) lost: Vec<ReplicaId>,
    /// The identity to write down as in use once the log has something.
    pub(crate) unused: Option<Identity>,
}

/// Writes the record of a replica that is new on the disk, before anything else of it is there.
pub(crate) async fn announce(space: &LogSpace, log: &LogSpec, spec: &GroupSpec) -> anyhow::Result<()> {
    let disk = space.disk();
    let lost = match Identity::read(disk, spec.group).await.context("read which replica is here")? {
        None => Vec::new(),
        Some(known) if known.makes_place(spec.replica) => known.lost,
        Some(_) => return Ok(()),
    };
    // A log of which nothing says whose it is: [`begin`] refuses it.
    if !disk.list(&log.dir).await.context("look whether there is a log")?.is_empty() {
        return Ok(());
    }
    begin_new(lost, disk, spec).await.map(drop)
}

/// Makes a replica's log and identity agree with what is asked for, or says why they do not. Repeated after a
/// crash at any point, it comes to the same end.
///
/// The log of one replica must not be opened as another's: the new name would not know the votes given under
/// the old.
pub(crate) async fn begin(log: &Log, disk: &Arc<dyn Disk>, spec: &GroupSpec) -> anyhow::Result<Begun> {
    let mut known = Identity::read(disk, spec.group).await.context("read which replica is here")?;
    if let Some(identity) = known {
        known = Some(settle_reset(identity, log, disk).await?);
    }
    let state = log.state();
    let is_empty = state.last.max(state.purged).is_none();
    let past = if state.hard_state.is_some() { Past::Restarted } else { Past::New };
    let identity = match known {
        Some(known) if !known.makes_place(spec.replica) => {
            check_goes_on(&known, spec)?;
            known
        }
        _ if !is_empty || past == Past::Restarted => bail!(
            "there is a log of {0}, and nothing says which replica it is of: the file replicas/{0} is lost, or that of another replica; restore it, or remove the replica that was here from its group",
            spec.group
        ),
        before => begin_new(before.map_or_else(Vec::new, |before| before.lost), disk, spec).await?,
    };
    check_not_lost(&identity, is_empty, past)?;
    if identity.origin == Origin::First && is_empty {
        start_log(log, spec).await?;
    }
    let promised = identity.origin == Origin::First || !is_empty || past == Past::Restarted;
    let identity =
        if promised { identity.into_use(disk).await.context("write that it is in use")? } else { identity };
    let unused = (!identity.is_used).then(|| identity.clone());
    Ok(Begun { was_member: identity.was_member, past, lost: identity.lost, unused })
}

fn check_goes_on(known: &Identity, spec: &GroupSpec) -> anyhow::Result<()> {
    let replica = known.replica;
    match known.end {
        Some(End::Removing) => {
            bail!("the removal of replica {replica} was interrupted: remove it again first")
        }
        Some(End::Removed) => bail!("replica {replica} was removed: its id is never used again"),
        Some(End::Retired) => bail!("replica {replica} is retired: it never votes or appends again"),
        None if replica != spec.replica => {
            bail!("the log in this place was made for another group or replica: {replica} of {}", spec.group)
        }
        None => Ok(()),
    }
}

/// Refuses an empty log that was lost. One that was not is that of a replica that promised nothing yet, or of
/// one that joined and promised its vote alone. Anything else was lost, and with it votes and entries that
/// others count on: the same name must not begin anew.
fn check_not_lost(identity: &Identity, is_empty: bool, past: Past) -> anyhow::Result<()> {
    let is_lost = match past {
        Past::Restarted => identity.origin == Origin::First,
        Past::New => identity.is_used,
    };
    if is_empty && is_lost {
        bail!(
            "the replica was in use, but its log is empty: the log was lost; if its files are elsewhere, restore them"
        );
    }
    Ok(())
}

/// Writes the identity of a new replica, durably before the log has anything: a log that is in use names its
/// replica.
async fn begin_new(lost: Vec<ReplicaId>, disk: &Arc<dyn Disk>, spec: &GroupSpec) -> anyhow::Result<Identity> {
    if let GroupStart::First(members) = &spec.start
        && !members.iter().any(|member| member.replica == spec.replica)
    {
        bail!("replica {} is not among the first members {members:?}", spec.replica);
    }
    let origin = match spec.start {
        GroupStart::First(_) => Origin::First,
        GroupStart::Join => Origin::Joined,
    };
    let identity = Identity { lost, ..Identity::new(spec.group, spec.replica, origin) };
    identity.write(disk).await.context("write which replica is here")?;
    Ok(identity)
}

/// Gives an empty log its first entry, the members, which is the same on all replicas. Durable before the
/// replica can give a vote: a replica that voted and then lost its members would stand aside for ever.
async fn start_log(log: &Log, spec: &GroupSpec) -> anyhow::Result<()> {
    let GroupStart::First(members) = &spec.start else {
        bail!("replica {} was made as a first member, and the first members are not given", spec.replica);
    };
    let membership = first_membership(members).map_err(anyhow::Error::msg)?;
    if membership.get_node(&spec.replica.0).is_none() {
        bail!("replica {} is not among the first members {members:?}", spec.replica);
    }
    let entry =
        RaftEntry { log_id: log_id_from(LogId::default()), payload: EntryPayload::Membership(membership) };
    log.append(vec![entry_to_record(entry)?])?.durable().await?;
    Ok(())
}

/// Refuses a log that lacks what the state has. A state machine may be behind its log (a crash took what it
/// had in memory), never ahead: it applies only what the log has durably. Ahead means that the log was lost
/// or replaced, and with it entries this replica acknowledged; except by a snapshot, which a crash may find
/// installed and the log not purged to it. Nothing that is purged may be missing: a snapshot that is ahead of
/// the state is installed next.
///
/// The comparison is by index: the end of a log may be of a newer term than what is committed at a higher
/// index, and never be committed.
pub(crate) fn check_log(log: &Log, applied: Option<LogId>, snapshot: Option<LogId>) -> anyhow::Result<()> {
    let state = log.state();
    let last = index_max(state.last, state.purged);
    let have = index_max(applied, snapshot);
    if state.hard_state.is_none()
        && let Some(have) = have
    {
        // Entries and snapshots come from a leader, whose election is written down first.
        bail!(
            "the state machine or a snapshot is at {have:?}, but the log knows of no vote: the log was lost"
        );
    }
    if index_of(applied) > index_of(index_max(last, snapshot)) {
        bail!("the state machine has applied {applied:?}, but the log ends at {last:?}: the log was lost");
    }
    if index_of(state.purged) > index_of(have) {
        bail!(
            "the log begins after {:?}, but the state machine has applied {applied:?}: the state was lost",
            state.purged
        );
    }
    Ok(())
}

/// Refuses a log that names a term that is too high: no election can have led to it, and none can lead past
/// it, so the replica would wait for ever.
pub(crate) fn check_terms(log: &Log, limit: TermLimit) -> anyhow::Result<()> {
    let state = log.state();
    let voted = state.hard_state.map(|state| state.vote_term);
    let ids = [state.last, state.purged].into_iter().flatten();
    for term in voted.into_iter().chain(ids.map(|id| id.term.0)) {
        limit.check(term).context(
            "the disk has a term that cannot be right: set the clock, or see docs/forced-recovery.md",
        )?;
    }
    Ok(())
}

/// Finishes an install that a crash interrupted: the snapshot counts, and the log was not purged to it.
/// openraft does so only where the log's end is of no newer term than the snapshot's.
pub(crate) async fn finish_install(log: &Log, snapshot: Option<LogId>) -> anyhow::Result<()> {
    let state = log.state();
    let last = index_max(state.last, state.purged);
    if let Some(snapshot) = snapshot
        && index_of(last) < Some(snapshot.index)
    {
        log.purge(snapshot).await.context("purge the log to its snapshot")?;
    }
    Ok(())
}

fn index_of(id: Option<LogId>) -> Option<LogIndex> {
    id.map(|id| id.index)
}

fn index_max(a: Option<LogId>, b: Option<LogId>) -> Option<LogId> {
    if index_of(a) < index_of(b) { b } else { a }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::snapshot::testing::{FileState, GROUP, members};
    use crate::{AddressBook, Group, HostOptions, Member, RaftHost, Timing};
    use disk::sim::{SimDisk, SimOptions};
    use raftlog::{Entry, HardState, LogSpaceOptions};
    use std::time::Duration;
    use types::{OwnerId, Payload, Term};

    const TIMING: Timing = Timing {
        heartbeat: Duration::from_millis(100),
        election_min: Duration::from_millis(500),
        election_max: Duration::from_millis(800),
    };

    pub(crate) fn id(term: u64, index: u64) -> LogId {
        LogId { term: Term(term), index: LogIndex(index) }
    }

    pub(crate) fn log_spec() -> LogSpec {
        let (dir, owners_dir) = ("groups/om".to_owned(), "meta/om".to_owned());
        LogSpec { log: GROUP.to_u64(), dir, owners_dir, first_owner: OwnerId(0) }
    }

    pub(crate) fn group_spec(replica: u64, start: GroupStart) -> GroupSpec {
        GroupSpec {
            cluster: "test".to_owned(),
            group: GROUP,
            replica: ReplicaId(replica),
            timing: TIMING,
            start,
            campaign: false,
            lease_reads: false,
            snapshots: None,
        }
    }

    pub(crate) fn first() -> GroupSpec {
        group_spec(1, GroupStart::First(members()))
    }

    /// openraft tells what it has found shortly after it has begun.
    pub(crate) async fn knows_members(group: &Group) {
        let wait = group.raft().wait(Some(Duration::from_secs(30)));
        let knows =
            wait.metrics(|metrics| metrics.membership_config.log_id().is_some(), "it knows its members");
        knows.await.expect("it knows its members");
    }

    /// A replica on a simulated disk.
    pub(crate) struct Site {
        pub(crate) disk: Arc<dyn Disk>,
        pub(crate) space: Arc<LogSpace>,
        pub(crate) host: RaftHost,
    }

    impl Site {
        pub(crate) fn new() -> Site {
            Site::on(Arc::new(SimDisk::new(SimOptions::default())))
        }

        pub(crate) fn on(disk: Arc<dyn Disk>) -> Site {
            let options = LogSpaceOptions {
                reserve_bytes: 0,
                segment_bytes_max: 1 << 20,
                ..LogSpaceOptions::default()
            };
            let space = LogSpace::new(disk.clone(), options);
            Site { disk, space, host: RaftHost::new(HostOptions::default(), AddressBook::default()) }
        }

        pub(crate) async fn log(&self) -> Log {
            self.space.open(log_spec()).await.expect("the log opens")
        }

        pub(crate) async fn state(&self) -> FileState {
            FileState::open(&self.disk, 10_000).await.expect("the state opens")
        }

        pub(crate) async fn open(&self, spec: GroupSpec) -> Result<Group, String> {
            let opened = self.host.open(spec, &self.space, log_spec(), self.state().await).await;
            opened.map_err(|error| error.to_string())
        }

        pub(crate) async fn found(&self) {
            self.open(first()).await.expect("a first member opens");
            self.host.close(GROUP).await;
        }

        /// Advances as after voting in `term` and entries up to `last`.
        pub(crate) async fn advance(&self, term: u64, last: LogId) {
            let log = self.log().await;
            let vote = HardState { vote_term: term, vote_replica: 2, vote_committed: true };
            log.save_hard_state(vote).await.expect("vote");
            let blank = |n| Entry {
                id: id(if n == last.index.0 { last.term.0 } else { 1 }, n),
                kind: 1,
                meta: Default::default(),
                body: Payload::default(),
                roll_to: None,
            };
            let next = log.state().last.map_or(0, |last| last.index.0 + 1);
            let token = log.append((next..=last.index.0).map(blank).collect()).expect("append");
            token.durable().await.expect("durable");
            log.close().await;
        }

        /// A complete snapshot at `at`, and the state as an install leaves it.
        pub(crate) async fn snapshot(&self, at: LogId) {
            let state = self.state().await;
            state.set(at);
            state.store().await.expect("the store opens").write().await.expect("a snapshot is written");
        }

        async fn lose_log(&self) {
            self.space.remove(&log_spec()).await.expect("remove the log");
            self.space.delete_owner("meta/om", OwnerId(0)).await.expect("remove its segments");
        }

        async fn refused(&self, spec: GroupSpec) -> String {
            self.open(spec).await.map(|_| ()).expect_err("it opens")
        }
    }

    /// The leader of term 6 shipped what was proposed in term 4; what this replica had from the leader of
    /// term 5 was never committed. The crash came after the install and before the purge.
    #[tokio::test]
    async fn a_snapshot_of_an_older_term_past_the_logs_end_is_no_lost_log() {
        let site = Site::new();
        site.found().await;
        site.advance(6, id(5, 100)).await;
        site.snapshot(id(4, 5000)).await;
        let group = site.open(first()).await.expect("it opens");
        assert_eq!(group.log().state().purged, Some(id(4, 5000)));
        assert_eq!(group.log().state().last.filter(|last| *last != id(4, 5000)), None, "the old end is gone");
        assert_eq!(group.status().applied, Some(LogIndex(5000)));
        drop(group);
        site.host.close(GROUP).await;
        site.open(first()).await.expect("it opens again");
        site.host.close(GROUP).await;
    }

    #[tokio::test]
    async fn a_log_that_is_lost_beside_its_snapshots_is_noticed() {
        for spec in [first(), group_spec(7, GroupStart::Join)] {
            let site = Site::new();
            site.open(spec.clone()).await.expect("it opens");
            site.host.close(GROUP).await;
            site.snapshot(id(1, 50)).await;
            site.lose_log().await;
            let why = site.refused(spec).await;
            assert!(why.contains("the log was lost"), "{why}");
        }
    }

    #[tokio::test]
    async fn a_log_of_which_no_record_tells_is_opened_by_nobody() {
        for spec in [first(), group_spec(7, GroupStart::Join)] {
            let site = Site::new();
            site.found().await;
            site.disk.remove_file(&format!("replicas/{GROUP}")).await.expect("removed");
            let why = site.refused(spec).await;
            assert!(why.contains("nothing says which replica it is of"), "{why}");
        }
    }

    /// Without a snapshot, and without a state: nothing but the note that it was in use says that there was a
    /// log.
    #[tokio::test]
    async fn a_log_that_is_lost_with_its_votes_is_noticed() {
        let site = Site::new();
        site.found().await;
        site.lose_log().await;
        let why = site.refused(first()).await;
        assert!(why.contains("was in use"), "{why}");

        let site = Site::new();
        let joiner = group_spec(7, GroupStart::Join);
        for _ in 0..2 {
            // The replica has promised nothing yet.
            site.open(joiner.clone()).await.expect("it opens");
            site.host.close(GROUP).await;
            site.lose_log().await;
        }
        site.advance(3, id(3, 10)).await;
        site.open(joiner.clone()).await.expect("it opens with what it was sent");
        site.host.close(GROUP).await;
        site.lose_log().await;
        let why = site.refused(joiner).await;
        assert!(why.contains("was in use"), "{why}");
    }

    /// openraft saves the vote for a leader that it follows, and the note is there when the leader is
    /// answered.
    #[tokio::test]
    async fn the_first_vote_of_one_that_joined_is_noted() {
        let site = Site::new();
        let joiner = group_spec(7, GroupStart::Join);
        let log = site.log().await;
        let Begun { unused, .. } = begin(&log, &site.disk, &joiner).await.expect("it begins");
        let identity = unused.expect("not in use");
        assert_eq!((identity.origin, identity.is_used), (Origin::Joined, false));
        let counts = Arc::new(crate::counts::Counts::new(ReplicaId(7)));
        let (alive, _) = crate::adapter::alive::Alive::new();
        let mut store = crate::log::log_store::LogStore::new(
            log,
            1 << 20,
            None,
            alive,
            counts,
            Some(identity),
            Default::default(),
        );
        let vote = crate::adapter::type_config::RaftVote::new(3, 2);
        openraft::storage::RaftLogStorage::save_vote(&mut store, &vote).await.expect("saved");
        let noted = Identity::read(&site.disk, GROUP).await.expect("read").expect("there");
        assert_eq!(noted, Identity { is_used: true, ..Identity::new(GROUP, ReplicaId(7), Origin::Joined) });
    }

    /// A leader adds a replica and removes it. What the replica has applied says that it is no member, and
    /// not that it was one.
    #[tokio::test]
    async fn one_that_joined_and_was_removed_knows_so_after_a_restart() {
        let site = Site::new();
        let joiner = group_spec(7, GroupStart::Join);
        let group = site.open(joiner.clone()).await.expect("it opens");
        let seventh =
            Member { replica: ReplicaId(7), node: types::NodeId(7), address: "127.0.0.1:1".to_owned() };
        let with_it = [members(), vec![seventh]].concat();
        let entry = |(index, members): (u64, &[Member])| RaftEntry {
            log_id: log_id_from(id(1, index)),
            payload: EntryPayload::Membership(first_membership(members).expect("members")),
        };
        let append = openraft::raft::AppendEntriesRequest {
            vote: crate::adapter::type_config::RaftVote::new_committed(3, 2),
            prev_log_id: None,
            leader_commit: Some(log_id_from(id(1, 2))),
            entries: (0..).zip([&members()[..], &with_it, &members()]).map(entry).collect(),
        };
        group.raft().append_entries(append).await.expect("it follows");
        group.wait_applied(LogIndex(2), Duration::from_secs(30)).await.expect("applied");
        drop(group);
        site.host.close(GROUP).await;
        // What is applied is durable by now.
        site.snapshot(id(1, 2)).await;
        let group = site.open(joiner).await.expect("it opens again");
        knows_members(&group).await;
        let status = group.status();
        assert!(status.applied == Some(LogIndex(2)) && status.is_removed, "{status:?}");
        drop(group);
        site.host.close(GROUP).await;
    }

    #[tokio::test]
    async fn what_a_reset_gave_up_stays_known_to_the_next_replica_after_restarts() {
        let site = Site::new();
        let lost = vec![ReplicaId(2), ReplicaId(3)];
        let first = Identity::new(GROUP, ReplicaId(1), Origin::First);
        let removed = Identity { lost: lost.clone(), ..first.ended(End::Removed) };
        removed.write(&site.disk).await.expect("written");
        for _ in 0..2 {
            let log = site.log().await;
            let begun = begin(&log, &site.disk, &group_spec(7, GroupStart::Join)).await.expect("it begins");
            assert_eq!(begun.lost, lost);
            log.close().await;
        }
    }
}
