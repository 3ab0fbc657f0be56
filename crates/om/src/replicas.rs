//! The replicas of groups of names that this directory has: which are open, and how they come and go.
//!
//! One task at a time brings them and removes them: the start of the OM, then its heartbeat. Every step may
//! be repeated, and a crash after any of them leaves what the next start goes on with:
//!
//! * A replica that comes is written down (`replicas/<group>`), then its tables and its log are made.
//! * A replica that goes is written down as being removed; its log and snapshots are deleted; it is written
//!   down as removed, so that its id is never used again here; its tables are deleted. From the first step on
//!   it is not opened any more.

use crate::change_queue::ChangeQueue;
use crate::options::OmOptions;
use crate::replica::{Replica, ReplicaPlaces};
use crate::state_machine::{Followed, OmStateMachine};
use crate::table_store::TableStore;
use crate::tables::ROOT;
use crate::upgrade::upgrade;
use anyhow::{Context, bail, ensure};
use disk::{DataDirectory, Disk};
use futures::future::join_all;
use proto::scm::{OmGroup, OmHeartbeatResponse, OmReplicaName, OmReplicaReport};
use proto::{Code, Failure};
use raft::{AddressBook, GroupSpec, GroupStart, Member, RaftHost, ReplicaRecord, ReplicaStage};
use raftlog::{LogSpace, LogSpec};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};
use types::{Clock, GroupId, NodeId, OwnerId, ReplicaId};

/// The time after which a replica that could not be opened is tried again, when SCM wants it.
const OPEN_AGAIN: Duration = Duration::from_secs(10);
/// A time that is longer than a process lives.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// The directory of the groups' logs.
const LOGS: &str = "groups";
/// The most characters of a report's reason: four bytes each stay below what SCM takes.
const WHY_CHARS_MAX: usize = 1000;
/// The time for which readers may go on with tables that are to be deleted.
const READ_ON_MAX: Duration = Duration::from_secs(10);

/// All that it takes to open a group.
pub(crate) struct Means {
    pub(crate) options: OmOptions,
    pub(crate) disk: Arc<dyn DataDirectory>,
    pub(crate) tables: Arc<dyn TableStore>,
    pub(crate) space: Arc<LogSpace>,
    pub(crate) host: RaftHost,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    /// The room for changes that wait or are under way, in bytes.
    pub(crate) room: Arc<Semaphore>,
}

pub(crate) struct Replicas {
    means: Means,
    slots: RwLock<BTreeMap<GroupId, Slot>>,
    /// Notified when there is something new to tell SCM.
    news: Arc<Notify>,
    places: Mutex<ReplicaPlaces>,
    told: Mutex<Told>,
    /// The reason why what SCM wants of a group is not done, as it was said last.
    said: Mutex<BTreeMap<GroupId, String>>,
}

/// SCM's last answer, as far as it tells whether this OM is as it should be.
#[derive(Default)]
struct Told {
    /// The groups in which this OM is to have a replica, and which.
    groups: BTreeMap<GroupId, ReplicaId>,
    /// The reason, as SCM says, why there are names that nobody serves though this OM stands by; empty: there
    /// are none.
    idle: String,
}

/// The place of a group's replica.
#[derive(Clone)]
enum Slot {
    Open(Arc<Replica>),
    /// The replica is on the disk, at least in part, or could not be begun, and does not run. `replica` 0:
    /// nothing says which it is. Before `again_at` it is not tried again.
    Closed {
        replica: ReplicaId,
        why: String,
        again_at: Instant,
    },
}

impl Replicas {
    pub(crate) fn new(means: Means) -> Replicas {
        let (slots, news, places, told, said) = Default::default();
        Replicas { means, slots, news, places, told, said }
    }

    /// Resolves when there is something new to tell SCM, once for all that came since it did.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    fn slot(&self, group: GroupId) -> Option<Slot> {
        self.slots.read().expect("no holder panics").get(&group).cloned()
    }

    fn set_closed(&self, group: GroupId, replica: ReplicaId, why: String, again_at: Instant) {
        let is_told = match self.slot(group) {
            Some(Slot::Closed { replica: known, why: said, .. }) => known == replica && said == why,
            Some(Slot::Open(_)) | None => false,
        };
        let closed = Slot::Closed { replica, why, again_at };
        self.slots.write().expect("no holder panics").insert(group, closed);
        if !is_told {
            self.news.notify_one();
        }
    }

    fn vacate(&self, group: GroupId) {
        if self.slots.write().expect("no holder panics").remove(&group).is_some() {
            self.news.notify_one();
        }
    }

    /// The replicas that run, in the order of their groups.
    pub(crate) fn open(&self) -> Vec<Arc<Replica>> {
        let slots = self.slots.read().expect("no holder panics");
        let open = slots.values().filter_map(|slot| match slot {
            Slot::Open(replica) => Some(replica.clone()),
            Slot::Closed { .. } => None,
        });
        open.collect()
    }

    /// The replicas that answer for their groups and are those that SCM wants here. What goes on by itself
    /// tells other groups what to do; a directory of before a restore leads groups that others have by now.
    pub(crate) fn led(&self, addresses: &AddressBook) -> impl Iterator<Item = Arc<Replica>> {
        self.answering(addresses).into_iter().filter(|replica| self.wants(replica))
    }

    /// The replicas that answer for their groups, also those that SCM wants elsewhere by now.
    pub(crate) fn answering(&self, addresses: &AddressBook) -> Vec<Arc<Replica>> {
        self.open().into_iter().filter(|replica| replica.check_serves(addresses).is_ok()).collect()
    }

    /// Whether SCM wants the replica here.
    pub(crate) fn wants(&self, replica: &Replica) -> bool {
        let told = self.told.lock().expect("no holder panics");
        told.groups.get(&replica.group.id()) == Some(&replica.id())
    }

    /// [`Replicas::led`] of the root.
    pub(crate) fn led_root(&self, addresses: &AddressBook) -> Option<Arc<Replica>> {
        self.led(addresses).find(|replica| replica.group.id() == GroupId::om(ROOT))
    }

    /// The replica that answers for a group.
    pub(crate) fn serving(&self, group: GroupId, addresses: &AddressBook) -> Result<Arc<Replica>, Failure> {
        let replica = self.member(group)?;
        replica.check_serves(addresses)?;
        Ok(replica)
    }

    /// A replica of a group whose names are founded, whether it leads or not.
    pub(crate) fn reading(&self, group: GroupId) -> Result<Arc<Replica>, Failure> {
        let replica = self.member(group)?;
        replica.check_founded()?;
        Ok(replica)
    }

    fn member(&self, group: GroupId) -> Result<Arc<Replica>, Failure> {
        match self.slot(group) {
            Some(Slot::Open(replica)) => Ok(replica),
            Some(Slot::Closed { why, .. }) => Err(Failure::new(Code::Unavailable, why)),
            None => {
                let why = format!("this OM has no replica of {group}");
                Err(Failure { message: why, ..Failure::not_leader(None) })
            }
        }
    }

    /// A replica that may serve nobody yet.
    pub(crate) fn running(&self, group: GroupId) -> Result<Arc<Replica>, Failure> {
        match self.slot(group) {
            Some(Slot::Open(replica)) => Ok(replica),
            Some(Slot::Closed { why, .. }) => Err(Failure::new(Code::Unavailable, why)),
            None => Err(Failure::new(Code::Unavailable, format!("this OM has no replica of {group}"))),
        }
    }

    /// The reason why this OM is not what SCM wants it to be: every group that it is to be in runs here,
    /// votes, and is led by somebody who is heard. An OM that stands by is well where nothing waits for it.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        let slots = self.slots.read().expect("no holder panics");
        let told = self.told.lock().expect("no holder panics");
        for slot in slots.values() {
            match slot {
                Slot::Open(replica) => replica.readiness()?,
                Slot::Closed { why, .. } => return Err(why.clone()),
            }
        }
        if let Some(group) = told.groups.keys().find(|group| !slots.contains_key(group)) {
            return Err(format!("its replica of {group} is to come"));
        }
        match slots.is_empty() && !told.idle.is_empty() {
            true => Err(told.idle.clone()),
            false => Ok(()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.read().expect("no holder panics").is_empty()
    }

    /// The replicas that are here, as SCM is told of them by the OM with this number.
    pub(crate) fn reports(&self, om: NodeId) -> Vec<OmReplicaReport> {
        let slots = self.slots.read().expect("no holder panics").clone();
        let places = self.places.lock().expect("no holder panics");
        let report = |(group, slot): (GroupId, Slot)| match slot {
            Slot::Open(replica) => replica.report(om, &places),
            Slot::Closed { replica, why, .. } => {
                let why = why_told(&why);
                OmReplicaReport { group: group.number, replica: replica.0, why, ..OmReplicaReport::default() }
            }
        };
        slots.into_iter().map(report).collect()
    }

    /// The number that members of the groups here know this OM by; 0: none.
    pub(crate) async fn node(&self) -> NodeId {
        let open = self.open();
        for replica in &open {
            replica.members_known().await;
        }
        open.iter().map(|replica| replica.node()).find(|node| node.0 != 0).unwrap_or_default()
    }

    /// Opens what is on the disk, and finishes what a crash has left of a removal. What cannot be opened is
    /// said, and keeps nothing else from running.
    pub(crate) async fn open_all(&self) -> anyhow::Result<()> {
        let disk = self.disk();
        let known = ReplicaRecord::groups(&disk).await.context("list replicas")?;
        self.note_nameless_logs(&known).await?;
        for group in known {
            if group.kind != types::GroupKind::Om || matches!(self.slot(group), Some(Slot::Open(_))) {
                continue;
            }
            if let Err(failure) = self.reopen(group).await {
                let why = format!("{failure:#}");
                error!(%group, why, "OM cannot open its replica of a group: stop it, and mend that");
                let known = ReplicaRecord::read_unless_damaged(group, &disk).await.ok().flatten();
                let replica = known.map_or(ReplicaId(0), |known| known.replica);
                self.set_closed(group, replica, why, Instant::now() + OPEN_AGAIN);
            }
        }
        Ok(())
    }

    /// Closes the groups whose log is here and of which nothing says which replica it is: names may be in the
    /// log, and nobody begins others beside them.
    async fn note_nameless_logs(&self, known: &[GroupId]) -> anyhow::Result<()> {
        let names = self.disk().list(LOGS).await.context("list logs")?;
        let logs = names.iter().filter_map(|name| name.parse::<GroupId>().ok());
        for group in logs.filter(|group| group.kind == types::GroupKind::Om && !known.contains(group)) {
            let why = format!(
                "there is a log of {group} in {LOGS}, and nothing says which replica it is of: replicas/{group} is lost"
            );
            error!(%group, why, "OM cannot open its replica of a group: restore that file, or empty the directory");
            self.set_closed(group, ReplicaId(0), why, Instant::now() + NEVER);
        }
        Ok(())
    }

    async fn reopen(&self, group: GroupId) -> anyhow::Result<()> {
        let here = self.here(group).await?.context("which replica is here is not known")?;
        if here.stage.is_being_removed() {
            return self.delete(group).await;
        }
        if here.stage == ReplicaStage::Creating && here.was_member && !self.has_log(group).await? {
            // Nothing of the group is begun, and SCM says how it is to begin.
            let why = format!("replica {} of {group} is to begin, and waits for SCM", here.replica);
            self.set_closed(group, here.replica, why, Instant::now());
            return Ok(());
        }
        self.open_replica(group, here.replica, self.start_again(here)).await
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.means.disk.clone()
    }

    async fn here(&self, group: GroupId) -> anyhow::Result<Option<ReplicaRecord>> {
        ReplicaRecord::read(group, &self.disk()).await.context("read which replica is here")
    }

    async fn has_log(&self, group: GroupId) -> anyhow::Result<bool> {
        let log = self.means.space.open(log_spec(group)).await.context("look into its log")?;
        let state = log.state();
        log.close().await;
        Ok(state.last.max(state.purged).is_some())
    }

    /// The start of a replica that was at work before: one that was a member need not wait to stand for
    /// election. Which members there are its log says.
    fn start_again(&self, here: ReplicaRecord) -> GroupStart {
        let address = self.means.options.address.clone();
        match here.was_member {
            true => GroupStart::First(vec![Member { replica: here.replica, node: NodeId(0), address }]),
            false => GroupStart::Join,
        }
    }

    async fn open_replica(
        &self,
        group: GroupId,
        replica: ReplicaId,
        start: GroupStart,
    ) -> anyhow::Result<()> {
        let Means { options, disk, tables, space, host, addresses, clock, room } = &self.means;
        let spec = GroupSpec {
            cluster: disk.stamp().cluster,
            group,
            replica,
            timing: options.timing,
            start,
            campaign: true,
            snapshots: Some(options.snapshots),
            lease_reads: true,
        };
        host.announce(&spec, space, &log_spec(group)).await?;
        let (dbs, followed) = (tables.open(group).await?, Followed::default());
        // This blocks the thread, as opening the tables did.
        let machine = upgrade(&dbs.current())
            .and_then(|()| OmStateMachine::open(group.number, dbs.clone(), followed.clone()))
            .with_context(|| format!("read the tables of {group} in {}", disk.root().display()))?;
        let opened = host.open(spec, space, log_spec(group), machine).await?;
        let changes = ChangeQueue::new(opened.clone(), addresses.clone(), room.clone());
        let replica = Replica::new(opened, dbs, changes, followed, clock.clone(), self.news.clone());
        let open = Slot::Open(Arc::new(replica));
        self.slots.write().expect("no holder panics").insert(group, open);
        self.news.notify_one();
        Ok(())
    }

    /// Notes what SCM says to the OM with this number: what it is to have, and where the replicas of these
    /// groups are.
    pub(crate) fn note(&self, om: NodeId, answer: &OmHeartbeatResponse) {
        let groups = &answer.groups;
        let mine = groups.iter().filter_map(|told| {
            let mine = told.members.iter().find(|member| member.om == om.0)?;
            Some((group_id(told.group)?, ReplicaId(mine.replica)))
        });
        let mine = mine.collect();
        *self.told.lock().expect("no holder panics") = Told { groups: mine, idle: answer.idle.clone() };
        let known = groups.iter().filter_map(|told| Some((group_id(told.group)?, &told.members[..])));
        self.places.lock().expect("no holder panics").note(known);
    }

    /// Carries out what SCM says of a group to the OM with this number.
    pub(crate) async fn told(&self, om: NodeId, told: &OmGroup) {
        let Some(group) = group_id(told.group) else { return };
        let mine = told.members.iter().find(|member| member.om == om.0).map(|mine| ReplicaId(mine.replica));
        match (self.slot(group), mine) {
            (Some(Slot::Open(replica)), _) => {
                // A replica that leads, and was taken out, is to change the members.
                match mine.filter(|mine| *mine != replica.id()) {
                    Some(mine) => {
                        let here = replica.id();
                        self.say(group, format!("SCM wants replica {mine} here, and replica {here} is"));
                    }
                    None => replica.follow(told),
                }
            }
            (Some(Slot::Closed { again_at, .. }), _) if Instant::now() < again_at => {}
            (Some(Slot::Closed { .. }) | None, Some(mine)) => {
                match self.open_as_told(om, group, mine, told).await {
                    Ok(()) => {
                        info!(%group, replica = %mine, is_founded = told.is_founded, "opened the replica that SCM wants here")
                    }
                    Err(failure) => {
                        let why = format!("{failure:#}");
                        self.set_closed(group, mine, why.clone(), Instant::now() + OPEN_AGAIN);
                        self.say(group, why);
                    }
                }
            }
            (Some(Slot::Closed { .. }) | None, None) => {}
        }
    }

    /// Whether nothing can be written here. Others fill the disk too, while nothing is written here: it is
    /// asked again for the next time.
    pub(crate) fn is_full(&self) -> bool {
        self.means.space.refresh_free_bytes();
        self.check_space().is_err()
    }

    /// The reason why nothing can be written here, if that is so.
    pub(crate) fn check_space(&self) -> Result<(), String> {
        self.means.space.check_space(1).map_err(|full| full.to_string())
    }

    /// Lets another member lead a group.
    pub(crate) fn hand_over(&self, to: &OmReplicaName) {
        if let Some(Slot::Open(replica)) = group_id(to.group).and_then(|group| self.slot(group)) {
            replica.hand_over(ReplicaId(to.replica));
        }
    }

    /// Opens the replica that SCM wants here: what is on the disk of it, or a new one. Only a group that is
    /// not founded is begun, and only by one member.
    async fn open_as_told(
        &self,
        om: NodeId,
        group: GroupId,
        replica: ReplicaId,
        told: &OmGroup,
    ) -> anyhow::Result<()> {
        ensure!(replica.0 != 0, "SCM gave it the number 0");
        match self.here(group).await? {
            Some(record) if record.stage.is_being_removed() => {
                self.delete(group).await.context("finish the removal of the one before")?;
                if record.replica == replica {
                    bail!("replica {replica} was removed: its id is never used again");
                }
            }
            Some(record) if record.replica != replica => {
                bail!("SCM wants replica {replica} here, and the directory has replica {}", record.replica);
            }
            Some(ReplicaRecord { stage: ReplicaStage::Creating, .. }) | None => {}
            Some(here) => return self.open_replica(group, replica, self.start_again(here)).await,
        }
        let start = match told.is_founded {
            true => GroupStart::Join,
            false => {
                let count = told.members.len();
                ensure!(count == 1, "the group is not founded, and is to have {count} members");
                let address = self.means.options.address.clone();
                GroupStart::First(vec![Member { replica, node: NodeId::of_om(om.0), address }])
            }
        };
        self.open_replica(group, replica, start).await
    }

    /// Removes a replica without which its group has gone on. A replica that is not here, or not any more,
    /// need not be removed.
    pub(crate) async fn gone(&self, name: &OmReplicaName) {
        let Some(group) = group_id(name.group) else { return };
        if let Err(failure) = self.remove(group, ReplicaId(name.replica)).await {
            self.say(group, format!("remove replica {}: {failure:#}", name.replica));
        }
    }

    async fn remove(&self, group: GroupId, replica: ReplicaId) -> anyhow::Result<()> {
        let record = ReplicaRecord::read_unless_damaged(group, &self.disk())
            .await
            .context("read which replica is here")?;
        let slot = self.slot(group);
        // The tables of a removed replica may still be there, to be deleted.
        let is_here = |record: ReplicaRecord| {
            record.replica == replica && (record.stage != ReplicaStage::Removed || slot.is_some())
        };
        if !record.is_some_and(is_here) {
            // A replica that could not be begun has left nothing but the word in its slot.
            if matches!(slot, Some(Slot::Closed { replica: closed, .. }) if closed == replica) {
                self.vacate(group);
            }
            return Ok(());
        }
        if let Some(Slot::Open(open)) = &slot {
            // The group itself says otherwise, and who says that it has gone on cannot have asked it.
            ensure!(!open.leads_names(), "it leads its group, and votes in it");
        }
        info!(%group, %replica, "remove a replica: its group has gone on without it");
        self.set_closed(group, replica, "it is being removed".to_owned(), Instant::now());
        if let Some(Slot::Open(open)) = slot {
            open.stop_tasks().await;
            self.means.host.close(group).await;
            until_unread(group, open).await;
        }
        self.delete(group).await?;
        self.vacate(group);
        info!(%group, %replica, "removed a replica");
        Ok(())
    }

    /// Deletes all that is of a replica that does not run. Safe to repeat; from the first step on the replica
    /// is none that is opened.
    async fn delete(&self, group: GroupId) -> anyhow::Result<()> {
        let Means { host, space, tables, .. } = &self.means;
        host.remove(group, space, &log_spec(group)).await?;
        tables.delete(group).await
    }

    /// Says why SCM is not obeyed, once.
    fn say(&self, group: GroupId, why: String) {
        let mut said = self.said.lock().expect("no holder panics");
        if said.get(&group) != Some(&why) {
            warn!(%group, why, "SCM wants of a group what cannot be done now");
            said.insert(group, why);
        }
    }

    /// Lets others lead, closes the groups and makes the tables durable, so that the next start replays
    /// little.
    pub(crate) async fn shutdown(&self) {
        join_all(self.open().into_iter().map(|replica| async move {
            replica.stop_tasks().await;
            self.means.host.leave(replica.group.id()).await;
            let (db, group) = (replica.dbs.current(), replica.group.id());
            match tokio::task::spawn_blocking(move || db.flush()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(%group, error = format!("{error:#}"), "flush OM's tables"),
                Err(error) => error!(%group, %error, "flush OM's tables"),
            }
        }))
        .await;
    }
}

/// Waits until nobody reads the tables any more. Who takes too long finds them gone.
async fn until_unread(group: GroupId, replica: Arc<Replica>) {
    let tables = Arc::downgrade(&replica.dbs.current());
    drop(replica);
    let give_up = Instant::now() + READ_ON_MAX;
    while tables.strong_count() > 0 {
        if Instant::now() > give_up {
            warn!(%group, "tables that are to be deleted are still read");
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Cuts a reason to what SCM takes: it refuses a report with a longer one.
pub(crate) fn why_told(why: &str) -> String {
    why.chars().take(WHY_CHARS_MAX).collect()
}

/// The id of the group of names with this number; `None`: no group has such a number.
fn group_id(number: u64) -> Option<GroupId> {
    (number >> 56 == 0).then(|| GroupId::om(number))
}

fn log_spec(group: GroupId) -> LogSpec {
    LogSpec {
        log: group.to_u64(),
        dir: format!("{LOGS}/{group}"),
        owners_dir: format!("meta/{group}"),
        first_owner: OwnerId(0),
    }
}
