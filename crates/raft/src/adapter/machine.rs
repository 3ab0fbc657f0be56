use crate::adapter::alive::Alive;
use crate::adapter::encoding::{applied_from, applied_to, log_id_from, log_id_of};
use crate::adapter::type_config::{Data, RaftLogId, RaftMembership, RaftStoredMembership, Reply, TypeConfig};
use crate::counts::Counts;
use crate::group::parked::{AppliedMark, ApplyWaits};
use crate::log::room_wait::RoomWait;
use crate::replica::identity::Identity;
use crate::snapshot::{SnapshotData, SnapshotStore};
use crate::{Applied, Committed, StateMachine};
use bytes::Bytes;
use disk::Disk;
use futures::{FutureExt, Stream, StreamExt};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, StoredMembership};
use std::collections::VecDeque;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use types::{GroupId, LogIndex, ReplicaId};

/// The most commands that are applied with one write of the state machine: a few milliseconds of work.
const APPLY_COUNT_MAX: usize = 1024;
/// The time between two attempts where a state machine lacks room.
const ROOM_LOOK: Duration = Duration::from_millis(500);

/// A replica that has been in no committed membership, as far as its disk says.
struct Newcomer {
    disk: Arc<dyn Disk>,
    group: GroupId,
    replica: ReplicaId,
    room_wait: RoomWait,
}

/// openraft, over our log and this machine.
pub(crate) type Raft = openraft::Raft<TypeConfig, Machine>;

/// A [`StateMachine`] as openraft wants it.
pub(crate) struct Machine {
    inner: Box<dyn StateMachine>,
    id: Option<RaftLogId>,
    membership: RaftStoredMembership,
    applied: AppliedMark,
    /// The snapshots of the state; `None` where it cannot be copied.
    snapshots: Option<Arc<SnapshotStore>>,
    counts: Arc<Counts>,
    /// The replica, while it is still to be noted down as a member.
    newcomer: Option<Newcomer>,
    room_wait: RoomWait,
    /// The field stands after the state machine, so it is dropped after it.
    _alive: Alive,
}

impl Machine {
    /// The machine, and a view of how far it has applied.
    pub(crate) fn new(
        inner: Box<dyn StateMachine>,
        snapshots: Option<Arc<SnapshotStore>>,
        alive: Alive,
        counts: Arc<Counts>,
        waits: ApplyWaits,
        room_wait: RoomWait,
    ) -> anyhow::Result<(Machine, watch::Receiver<Option<LogIndex>>)> {
        let stored = inner.applied()?;
        let membership = match &stored {
            Some(stored) => {
                applied_from(stored).map_err(|why| anyhow::anyhow!("stored applied position: {why}"))?
            }
            None => StoredMembership::default(),
        };
        let id = stored.map(|stored| stored.id);
        let (applied, applied_view) = AppliedMark::new(id.map(|id| id.index), waits);
        let id = id.map(log_id_from);
        let newcomer = None;
        let _alive = alive;
        let machine =
            Machine { inner, id, membership, applied, snapshots, counts, newcomer, room_wait, _alive };
        Ok((machine, applied_view))
    }

    pub(crate) fn applied_id(&self) -> Option<types::LogId> {
        self.id.as_ref().map(log_id_of)
    }

    /// Has the machine note on `disk` when the replica is a member for the first time.
    pub(crate) async fn note_member(
        &mut self,
        disk: Arc<dyn Disk>,
        group: GroupId,
        replica: ReplicaId,
        room_wait: RoomWait,
    ) -> io::Result<()> {
        self.newcomer = Some(Newcomer { disk, group, replica, room_wait });
        let membership = self.membership.membership().clone();
        self.note(&membership).await
    }

    /// Notes down that the replica is a member, if `membership` has it: durably before the state gets past
    /// `membership`, as after a restart only the newest one is known, which may be without the replica.
    async fn note(&mut self, membership: &RaftMembership) -> io::Result<()> {
        if let Some(Newcomer { disk, group, replica, room_wait }) = &self.newcomer
            && membership.get_node(&replica.0).is_some()
        {
            Identity::note_member(disk, *group, room_wait).await?;
            self.newcomer = None;
        }
        Ok(())
    }

    async fn apply_entries(
        &mut self,
        entries: Vec<io::Result<EntryResponder<TypeConfig>>>,
    ) -> io::Result<()> {
        let mut batch = Vec::with_capacity(entries.len());
        let mut replies = VecDeque::new();
        let mut responders: Vec<(Option<ApplyResponder<TypeConfig>>, bool)> =
            Vec::with_capacity(entries.len());
        for item in entries {
            let (entry, responder) = item?;
            let id = entry.log_id;
            let is_command = match entry.payload {
                EntryPayload::Blank => false,
                EntryPayload::Membership(membership) => {
                    self.membership = StoredMembership::new(Some(id), membership);
                    false
                }
                EntryPayload::Normal(Data::Located { meta, place, roll_to }) => {
                    batch.push(Committed { id: log_id_of(&id), meta, place, roll_to });
                    true
                }
                EntryPayload::Normal(Data::Reset(_)) => {
                    if let Some(before) = self.id.as_ref().map(log_id_of) {
                        replies.extend(self.apply_inner(std::mem::take(&mut batch), before).await?);
                    }
                    self.with_room(log_id_of(&id), |inner, applied| inner.reset(applied)).await?;
                    false
                }
                EntryPayload::Normal(Data::Whole(_)) => {
                    return Err(io::Error::other(format!(
                        "entry {id} came to apply without its place in the log"
                    )));
                }
            };
            responders.push((responder, is_command));
            self.id = Some(id);
        }

        let Some(id) = self.id.as_ref().map(log_id_of) else { return Ok(()) };
        let started = Instant::now();
        replies.extend(self.apply_inner(batch, id).await?);
        self.counts.apply.record_duration(started.elapsed());
        self.counts.apply_entries.record(responders.len() as u64);
        self.applied.set(Some(id.index));
        for (responder, is_command) in responders {
            let reply = if is_command { replies.pop_front().unwrap_or_default() } else { Bytes::new() };
            if let Some(responder) = responder {
                responder.send(Reply(reply));
            }
        }
        Ok(())
    }

    async fn apply_inner(&mut self, batch: Vec<Committed>, id: types::LogId) -> io::Result<Vec<Bytes>> {
        let count = batch.len();
        // The bytes are shared, not copied.
        let replies = self.with_room(id, |inner, applied| inner.apply(batch.clone(), applied)).await?;
        if replies.len() != count {
            let got = replies.len();
            return Err(io::Error::other(format!("the state machine answered {got} of {count} commands")));
        }
        Ok(replies)
    }

    /// Changes the state, and waits where there is no room for it: other members' disks may have room, and a
    /// group that ended would have to be opened again by a person. A panic in a state machine stops its group
    /// with a reason, like an error: openraft would only go silent.
    async fn with_room<T>(
        &mut self,
        id: types::LogId,
        apply: impl Fn(&mut dyn StateMachine, Applied) -> anyhow::Result<T>,
    ) -> io::Result<T> {
        loop {
            let applied = applied_to(id, &self.membership);
            match std::panic::catch_unwind(AssertUnwindSafe(|| apply(&mut *self.inner, applied))) {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(failed)) if self.room_wait.lasts() && self.inner.lacks_room(&failed) => {
                    tokio::time::sleep(ROOM_LOOK).await;
                }
                Ok(Err(failed)) => return Err(io::Error::other(format!("apply up to {id:?}: {failed:#}"))),
                Err(_) => {
                    let why = format!("the state machine panicked while applying up to {id:?}");
                    return Err(io::Error::other(why));
                }
            }
        }
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<RaftLogId>, RaftStoredMembership), io::Error> {
        Ok((self.id, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut entries = entries.fuse();
        while let Some(first) = entries.next().await {
            let ready = ready_with(first, &mut entries);
            for (entry, _) in ready.iter().flatten() {
                if let EntryPayload::Membership(membership) = &entry.payload {
                    self.note(membership).await?;
                }
            }
            self.apply_entries(ready).await?;
        }
        Ok(())
    }

    /// The builder of a snapshot. Unless `force` is set, openraft only learns of the one that the keeper
    /// wrote: an attempt that fails inside openraft, on a full disk say, would end the group. openraft forces
    /// one at its start, where a log is purged and its snapshot is lost.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        let Some(store) = self.snapshots.clone() else {
            return Some(Builder::Position(Some(nothing(self.id, &self.membership))));
        };
        let build = match (force, store.current().is_some(), &self.id) {
            (false, false, _) => return None,
            (false, true, _) => Build::Tell,
            (true, _, Some(_)) => Build::Write,
            (true, _, None) => Build::Nothing,
        };
        Some(Builder::Stored { store, build })
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        unreachable!("openraft asks try_create_snapshot_builder")
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        let Some(stored) = snapshot.stored() else { return Err(no_snapshots()) };
        self.note(meta.last_membership.membership()).await?;
        let Some(store) = &self.snapshots else { return Err(no_snapshots()) };
        store.install(stored).await.map_err(|error| io::Error::other(format!("{error:#}")))?;
        let applied = self.inner.applied().map_err(|error| io::Error::other(format!("{error:#}")))?;
        if applied.as_ref() != Some(&stored.manifest.applied) {
            let of = &stored.manifest.applied.id;
            return Err(io::Error::other(format!(
                "with the snapshot up to {of:?} installed the state machine is at {applied:?}"
            )));
        }
        self.id = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.applied.set(self.id.as_ref().map(|id| LogIndex(id.index)));
        Ok(())
    }

    /// A group without snapshots answers with an empty one: without an answer, openraft ends the leader when
    /// a member needs what is purged. The empty one stands at what is applied: openraft takes a purged log
    /// for broken where no snapshot has what is missing.
    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig, SnapshotData>>, io::Error> {
        let Some(store) = &self.snapshots else {
            return Ok(Some(nothing(self.id, &self.membership)));
        };
        Ok(store.current().map(|stored| stored.for_openraft()))
    }
}

/// An entry and those that are ready behind it. (`ready_chunks` would make room for the most there may be,
/// 216 KiB, each time.)
fn ready_with<T>(first: T, entries: &mut (impl Stream<Item = T> + Unpin)) -> Vec<T> {
    let mut ready = vec![first];
    while ready.len() < APPLY_COUNT_MAX
        && let Some(Some(next)) = entries.next().now_or_never()
    {
        ready.push(next);
    }
    ready
}

pub(crate) enum Builder {
    Stored {
        store: Arc<SnapshotStore>,
        build: Build,
    },
    /// The position of a state that cannot be copied; given once.
    Position(Option<SnapshotOf<TypeConfig, SnapshotData>>),
}

pub(crate) enum Build {
    /// Tells which snapshot is there.
    Tell,
    Write,
    /// Nothing is applied that could be copied.
    Nothing,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, SnapshotData>, io::Error> {
        let (store, build) = match self {
            Builder::Stored { store, build } => (store, build),
            Builder::Position(position) => {
                return Ok(position.take().unwrap_or_else(|| nothing(None, &StoredMembership::default())));
            }
        };
        let current = match build {
            Build::Tell => store.current(),
            Build::Write => None,
            Build::Nothing => return Ok(nothing(None, &StoredMembership::default())),
        };
        let stored = match current {
            Some(current) => current,
            None => store.write().await.map_err(|error| io::Error::other(format!("{error:#}")))?,
        };
        Ok(stored.for_openraft())
    }
}

fn nothing(at: Option<RaftLogId>, membership: &RaftStoredMembership) -> SnapshotOf<TypeConfig, SnapshotData> {
    let meta = SnapshotMetaOf::<TypeConfig> { last_log_id: at, last_membership: membership.clone() };
    SnapshotOf::<TypeConfig, SnapshotData> { meta, snapshot: SnapshotData::None }
}

fn no_snapshots() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the group has no snapshots")
}
