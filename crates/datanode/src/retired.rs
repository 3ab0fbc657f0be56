//! A pipeline's replica that ends without its group: quasi-closing, and letting go.
//!
//! ```text
//! retired, durably                    from here on it never votes or appends again, whatever crashes
//! the group stops
//! what is known to be committed, flushed  from here on reads are held to it: what is applied proves nothing
//! the rest of the log is applied      a roll that is not known to be committed quasi-closes its container
//! `end` beside each that no committed roll ended  so that a rebuilt index has them too
//! the index says so, and is flushed   quasi-closed: reports may say it
//!
//! the log is removed, its id kept     a start that finds this begun goes on with it, and opens nothing
//! the end container is deleted        nothing was ever in it
//! the index forgets the pipeline, and is flushed
//! ```
//!
//! Every step may be repeated, and what follows a crash begins with the first. A replica that had ended with
//! its pipeline is flushed instead of quasi-closed: the log that would apply it again goes. Where the log is
//! lost, what stands in the containers is applied in its place, once SCM knows; each that no roll ended which
//! is known to be committed is without its log then.

use crate::blocking::blocking;
use crate::container_end::{ContainerEnd, EndFile};
use crate::container_reader::{ContainerReader, Contents, Reading};
use crate::datanode_disk::DatanodeDisk;
use crate::index::Index;
use crate::index::machine::PipelineMachine;
use crate::index::records::{ContainerRecord, ReplicaState, ends_with, log_end};
use crate::index_age::containers_without_row;
use crate::layout::{GROUPS_DIR, OWNERS_DIR};
use crate::pipeline::PipelineOrder;
use crate::verdict::condemns;
use anyhow::{Context, ensure};
use proto::scm::LogEnd;
use raft::{Applied, RaftHost, Replay, ReplicaRecord, StateMachine};
use raftlog::{EntryMeta, Log, LogState, OpenError, ReadError, WalkEnd, owner_files};
use std::sync::Arc;
use tracing::{info, warn};
use types::{ContainerId, GroupId, LogId, LogIndex, OwnerId};

/// The most entries that are read and applied at a time.
const BATCH_MAX: usize = 1024;

pub(crate) struct Retired {
    pub disk: Arc<DatanodeDisk>,
    pub order: PipelineOrder,
    /// Whether SCM knows that the log is lost, if it is: then what is left may be let go of.
    pub loss_is_told: bool,
}

impl Retired {
    fn group(&self) -> GroupId {
        GroupId::pipeline(self.order.pipeline)
    }

    /// Ends the replica by itself, unless it has ended; on return that is durable, and its containers say
    /// what they have; answers where its log ends, as far as that is known still.
    pub(crate) async fn quasi_close(&self, host: &RaftHost) -> Result<LogEnd, EndFailure> {
        if self.is_being_removed().await? {
            self.give_up_leftovers().await?;
            return Ok(LogEnd::default());
        }
        self.retire(host).await?;
        let end = self.apply_rest().await?;
        self.mark_ends().await?;
        Ok(end)
    }

    async fn retire(&self, host: &RaftHost) -> anyhow::Result<()> {
        if self.has_ended().await? {
            self.disk.index.with(move |index| index.flush()).await?;
        }
        Ok(host.retire(self.group(), self.order.replica, &self.disk.space).await?)
    }

    /// Whether the replica is past the point where its log is of use.
    pub(crate) async fn is_being_removed(&self) -> anyhow::Result<bool> {
        Ok(self.replica_record().await?.is_some_and(|record| record.stage.is_being_removed()))
    }

    async fn replica_record(&self) -> anyhow::Result<Option<ReplicaRecord>> {
        let disk = self.disk.space.disk();
        ReplicaRecord::read_unless_damaged(self.group(), disk).await.context("read its record")
    }

    /// Lets go of the pipeline; its containers stay.
    pub(crate) async fn let_go(&self, host: &RaftHost) -> Result<(), EndFailure> {
        if self.is_being_removed().await? {
            self.give_up_leftovers().await?;
        } else {
            self.retire(host).await?;
            match self.apply_rest().await {
                // Until SCM has the loss in its log, this replica must not become one that has nothing to
                // say.
                Err(EndFailure::LogLost(failure)) if self.loss_is_told => self.give_up(&failure).await?,
                applied => drop(applied?),
            }
            self.mark_ends().await?;
        }
        let removed = host.remove(self.group(), &self.disk.space, &self.order.log_spec()).await;
        removed.context("remove its log")?;
        let end = self.end_container().await?;
        if let Some(end) = end {
            let deleted = self.disk.space.delete_owner(OWNERS_DIR, OwnerId::from(end)).await;
            deleted.with_context(|| format!("delete container {end}, which the pipeline ended with"))?;
        }
        let pipeline = self.order.pipeline;
        self.disk
            .index
            .with(move |index| {
                index.forget_pipeline(pipeline, end)?;
                index.flush()
            })
            .await?;
        info!(%pipeline, disk = %self.disk.real.root().display(), "pipeline let go; its containers stay");
        Ok(())
    }

    async fn has_ended(&self) -> anyhow::Result<bool> {
        let (_, state) = self.open_container().await?;
        Ok(state.is_some_and(ReplicaState::is_over))
    }

    async fn open_container(&self) -> anyhow::Result<(ContainerId, Option<ReplicaState>)> {
        let (pipeline, first) = (self.order.pipeline, self.order.first_container);
        self.disk
            .index
            .with(move |index| {
                let open = index.open_container(pipeline)?.unwrap_or(first);
                Ok((open, index.container(open)?.map(|record| record.state)))
            })
            .await
    }

    /// The container that the last roll named, if it is applied and not yet forgotten. One that was closed by
    /// SCM's word has a file that says so. Only what is said to be the pipeline's open container may be taken
    /// for it: once that is forgotten, the others stay, however often this is repeated.
    async fn end_container(&self) -> anyhow::Result<Option<ContainerId>> {
        let pipeline = self.order.pipeline;
        let open = self.disk.index.with(move |index| {
            let Some(open) = index.open_container(pipeline)? else { return Ok(None) };
            let is_end = |record: ContainerRecord| record == ContainerRecord::end(pipeline, record.previous);
            Ok(index.container(open)?.is_some_and(is_end).then_some(open))
        });
        let Some(open) = open.await? else { return Ok(None) };
        let file = ContainerEnd::file(&**self.disk.space.disk(), open).await?;
        Ok((file == EndFile::None).then_some(open))
    }

    /// Applies what the log has and the index has not; answers where it ends. Where the replica's creation
    /// was interrupted before there was a log, nothing was ever in it.
    async fn apply_rest(&self) -> Result<LogEnd, EndFailure> {
        let failure = match self.apply_log().await {
            Err(failure) if is_lost(&failure) => failure,
            applied => return Ok(applied?),
        };
        let (open, _) = self.open_container().await?;
        match self.was_never_in_use(open, &failure).await.unwrap_or(false) {
            true => self.give_up(&failure).await?,
            false => return Err(EndFailure::LogLost(failure)),
        }
        Ok(log_end(self.order.first_container, LogId::default(), LogId::default()))
    }

    async fn apply_log(&self) -> anyhow::Result<LogEnd> {
        // To open a log that is missing would make an empty one.
        if !self.has_log().await? {
            return Err(LogGone::Missing.into());
        }
        let log = self.disk.space.open(self.order.log_spec()).await.context("open its log")?;
        let applied = self.apply_rest_of(&log).await;
        log.close().await;
        applied
    }

    async fn apply_rest_of(&self, log: &Log) -> anyhow::Result<LogEnd> {
        let pipeline = self.order.pipeline;
        let applied = self.disk.index.with(move |index| index.applied(pipeline)).await?;
        let LogState { last, purged, committed, .. } = log.state();
        let last = last.ok_or(LogGone::Empty)?;
        let at = applied.as_ref().map(|applied| applied.id.index);
        ensure!(
            purged.is_none_or(|purged| Some(purged.index) <= at),
            "the log begins after {purged:?}, but {at:?} is applied"
        );
        let hint = match committed {
            Some(id) => log.id_at(id.index).await.is_ok_and(|there| there == id).then_some(id.index),
            None => None,
        };
        let mut rest = self.begin_rest(applied, hint).await?;
        let mut next = at.map_or(LogIndex(0), LogIndex::next);
        while next <= last.index {
            let metas = log.read_meta(next..last.index.next(), BATCH_MAX).await.context("read the log")?;
            next = metas.last().context("the log gave no entry")?.id.index.next();
            rest = rest.with(metas).await?;
        }
        for (container, last) in self.unconfirmed_rolls().await? {
            self.check_records(container, last, Reading::Whole).await?;
        }
        if let Some(open) = rest.machine.still_open() {
            let metas =
                log.read_meta(last.index..last.index.next(), 1).await.context("read the log's last entry")?;
            let meta = metas.first().context("the log's last entry is purged")?;
            // After a roll nothing is in the open container yet.
            let last = Some(last).filter(|_| meta.place.owner == OwnerId::from(open));
            self.end(open, ReplicaState::QuasiClosed, last, Reading::Whole).await?;
        }
        self.last_told(log, last).await
    }

    /// Begins to apply what the index has not. What is known to be committed is written down before that:
    /// whatever follows may be flushed with anything else on this disk, and a crash must not make it look
    /// committed.
    async fn begin_rest(&self, applied: Option<Applied>, hint: Option<LogIndex>) -> anyhow::Result<Rest> {
        let (pipeline, first) = (self.order.pipeline, self.order.first_container);
        let known = applied.as_ref().map(|applied| applied.id.index).max(hint);
        let replay = Replay::new(applied.as_ref())?;
        let machine = self.disk.index.with(move |index| {
            let committed = index.note_known_committed(pipeline, known)?;
            let (machine, _) = PipelineMachine::new(index.clone(), pipeline, first, u64::MAX)?;
            Ok(machine.knowing_committed(Some(committed)))
        });
        Ok(Rest { machine: machine.await?, replay })
    }

    /// Applies the records that stand behind what is applied, in the open container and in those that its
    /// rolls name, as the log would have that is lost. Answers the last record of the container that is open
    /// then.
    async fn apply_what_stands(&self) -> anyhow::Result<Option<LogId>> {
        let pipeline = self.order.pipeline;
        let applied = self.disk.index.with(move |index| index.applied(pipeline)).await?;
        let applied_to = applied.as_ref().map(|applied| applied.id);
        let mut rest = self.begin_rest(applied, None).await?;
        while let Some(open) = rest.machine.still_open() {
            let was_here = self.disk.index.with(move |index| match applied_to {
                Some(id) => index.stands_in(open, id.index),
                None => Ok(false),
            });
            // What was applied was there, whatever can be read of it now.
            let was_here = was_here.await?.then_some(applied_to).flatten();
            self.cut_torn_tail(open, was_here).await?;
            let last;
            (rest, last) = self.apply_container(rest, open, applied_to).await?;
            if rest.machine.still_open() == Some(open) {
                return Ok(last.max(was_here));
            }
        }
        Ok(None)
    }

    /// Cuts a record that a crash has torn, as the log's recovery would have done: nobody was told that it is
    /// durable here.
    async fn cut_torn_tail(&self, container: ContainerId, applied: Option<LogId>) -> anyhow::Result<()> {
        let (disk, log) = (self.disk.space.disk(), self.group().to_u64());
        let whole_to = applied.map(|applied| applied.index);
        match raftlog::cut_torn_tail(disk, OWNERS_DIR, container.into(), log, whole_to).await {
            // It is found when the container is read.
            Err(failure) if failure.condemns() => Ok(()),
            cut => Ok(cut.map(drop)?),
        }
    }

    /// Applies what stands in a container behind what is applied, as far as it can be read; answers its last
    /// record. It is read from the disk: how it ends is written down, and the page cache may show what a sync
    /// that failed has lost.
    async fn apply_container(
        &self,
        mut rest: Rest,
        container: ContainerId,
        applied: Option<LogId>,
    ) -> anyhow::Result<(Rest, Option<LogId>)> {
        let opened = ContainerReader::open(self.disk.space.disk(), container, Reading::FromDisk(0)).await;
        let mut reader = match opened {
            Err(failure) if condemns(&failure) => return Ok((rest, None)),
            opened => opened?,
        };
        loop {
            let mut metas = Vec::new();
            let goes_on = loop {
                if metas.len() == BATCH_MAX {
                    break true;
                }
                let Some(read) = reader.next_readable().await? else { break false };
                let index = read.walked.meta.id.index;
                let is_new = applied.is_none_or(|applied| index > applied.index);
                if is_new && !read.is_discarded && !reader.is_known_repeat(index) {
                    metas.push(read.walked.meta);
                }
            };
            rest = rest.with(metas).await?;
            if !goes_on {
                return Ok((rest, reader.contents().last));
            }
        }
    }

    /// The last record that stands in a container of which SCM is told. The record of a leader that came
    /// after the pipeline's last roll stands in the container that never holds data.
    async fn last_told(&self, log: &Log, last: LogId) -> anyhow::Result<LogEnd> {
        let pipeline = self.order.pipeline;
        let (open, _) = self.open_container().await?;
        let rolled = self.disk.index.with(move |index| {
            let is_end =
                |record: &ContainerRecord| *record == ContainerRecord::end(pipeline, record.previous);
            index.container(open)?.filter(is_end).map(|end| index.last_roll(&end)).transpose()
        });
        if let Some(end) = rolled.await? {
            return Ok(ends_with(end, last));
        }
        let metas =
            log.read_meta(last.index..last.index.next(), 1).await.context("read the log's last entry")?;
        Ok(metas
            .first()
            .map_or_else(LogEnd::default, |meta| log_end(ContainerId(meta.place.owner.0), last, last)))
    }

    /// Ends a container that no roll ended which is known to be committed, once it was read; `last` is its
    /// last record. Its file comes first: whoever reads the container because the index says that it is over
    /// looks for where it ends, and takes it for damaged when nothing says so.
    async fn end(
        &self,
        container: ContainerId,
        state: ReplicaState,
        last: Option<LogId>,
        reading: Reading,
    ) -> anyhow::Result<()> {
        if let Some(last) = last {
            self.check_records(container, last, reading).await?;
        }
        let pipeline = self.order.pipeline;
        let committed = self.disk.index.with(move |index| {
            let known = index.known_committed(pipeline)?.unwrap_or_default();
            index.committed_in(container, known)
        });
        let end = ContainerEnd { state, last, committed: committed.await? };
        let _ending = self.disk.ending.lock().await;
        end.write(&**self.disk.space.disk(), container).await?;
        self.disk.index.with(move |index| index.set_end(container, end)).await
    }

    /// Containers that a roll ended which is not known to be committed, and their last records. One whose end
    /// is written down beside it was read before that.
    async fn unconfirmed_rolls(&self) -> anyhow::Result<Vec<(ContainerId, LogId)>> {
        let pipeline = self.order.pipeline;
        let mut unread = Vec::new();
        for (container, record) in self.disk.index.with(move |index| index.containers()).await? {
            let ContainerRecord { state, last, committed, .. } = record;
            if record.pipeline != pipeline || state != ReplicaState::QuasiClosed {
                continue;
            }
            let end = ContainerEnd { state, last, committed };
            let disk = &**self.disk.space.disk();
            if ContainerEnd::file(disk, container).await? != EndFile::Says(end) {
                unread.extend(last.map(|last| (container, last)));
            }
        }
        Ok(unread)
    }

    /// Reads all that is in the container, to its last record, before its replica says how it ended: SCM
    /// takes the end of the member whose log is longest, and nobody could make a copy of one that is damaged.
    /// What the log knows to be durable is not read when it is opened.
    async fn check_records(
        &self,
        container: ContainerId,
        last: LogId,
        reading: Reading,
    ) -> anyhow::Result<()> {
        let read = async {
            let mut reader = ContainerReader::open(self.disk.space.disk(), container, reading).await?;
            while let Some(record) = reader.next().await? {
                reader.check_body(&record).await?;
            }
            let Contents { last: read_to, end, .. } = reader.contents();
            ensure!(
                *read_to == Some(last) && !matches!(end, Some(WalkEnd::Bad { .. })),
                "it is to have {last:?}, and breaks off after {read_to:?}: {end:?}"
            );
            Ok(())
        };
        match read.await {
            Err(failure) if condemns(&failure) => {
                self.disk.mark_unhealthy(container, format!("{failure:#}")).await;
                // The mark is durable before the end is written down: the container is not read again after
                // that.
                self.disk.index.with(move |index| index.flush()).await
            }
            read => read.with_context(|| format!("read container {container}")),
        }
    }

    async fn has_log(&self) -> anyhow::Result<bool> {
        let names = self.disk.real.list(GROUPS_DIR).await.context("list the logs")?;
        Ok(names.contains(&self.group().to_string()))
    }

    /// Ends a replica whose log is lost or damaged with what stands in its containers: no more can be said of
    /// it. How far that is committed only the log knew, beyond what was applied.
    async fn give_up(&self, failure: &anyhow::Error) -> anyhow::Result<()> {
        let (open, state) = self.open_container().await?;
        let pipeline = self.order.pipeline;
        if state == Some(ReplicaState::Open) {
            if self.was_never_in_use(open, failure).await? {
                self.disk.index.with(move |index| index.end_unused(pipeline, open)).await?;
            } else {
                let why = format!("the log of its pipeline cannot be read: {failure:#}");
                warn!(%pipeline, container = %open, why, "its containers end with what stands in them, which proves nothing");
                let last = self.apply_what_stands().await?;
                let (open, state) = self.open_container().await?;
                // After the pipeline's last roll none is open.
                if state == Some(ReplicaState::Open) {
                    self.end(open, ReplicaState::WithoutLog, last, Reading::FromDisk(0)).await?;
                }
            }
        }
        for (container, last) in self.unconfirmed_rolls().await? {
            self.end(container, ReplicaState::WithoutLog, Some(last), Reading::FromDisk(0)).await?;
        }
        self.file_forgotten().await
    }

    /// Files containers whose rows were not flushed: the log that would have applied them again is gone, and
    /// without a row nobody would know of them.
    async fn file_forgotten(&self) -> anyhow::Result<()> {
        let pipeline = self.order.pipeline;
        let found = containers_without_row(self.disk.space.disk(), &self.disk.index).await?;
        let forgotten = found.into_iter().filter(|(_, of)| *of == pipeline).map(|(container, _)| container);
        let forgotten: Vec<ContainerId> = forgotten.collect();
        if forgotten.is_empty() {
            return Ok(());
        }
        warn!(%pipeline, ?forgotten, "containers of a lost log were not in the index: they prove nothing");
        for container in forgotten {
            self.end_without_rows(container).await?;
        }
        Ok(())
    }

    /// Ends a container with records that the index does not know, and that nothing will apply any more. It
    /// is not empty, and nobody may take what it answers for what it has: so it is unhealthy, by the same
    /// step.
    async fn end_without_rows(&self, container: ContainerId) -> anyhow::Result<()> {
        let mut reader = ContainerReader::open(self.disk.space.disk(), container, Reading::Whole).await?;
        while reader.next_readable().await?.is_some() {}
        let (pipeline, last) = (self.order.pipeline, reader.contents().last);
        let end = ContainerEnd { last, ..ContainerEnd::LOST };
        let index = &self.disk.index;
        if last.is_none() {
            let end_empty = move |index: &Index| match index.container(container)? {
                Some(_) => index.set_end(container, end),
                None => index.add_lost(pipeline, container, end),
            };
            return index.with(end_empty).await;
        }
        let why = "the index may lack blocks of it, and the log that would tell is lost: `flotilla debug container rebuild` finds them";
        index.with(move |index| index.end_unhealthy(pipeline, container, end, why)).await?;
        // The memory of the node is to say so, too.
        self.disk.mark_unhealthy(container, why.to_owned()).await;
        Ok(())
    }

    /// Gives up containers that are open although the log is on its way out: their index was rebuilt, or is
    /// older than the end, and nobody can say what should be in them.
    async fn give_up_leftovers(&self) -> anyhow::Result<()> {
        self.file_forgotten().await?;
        let pipeline = self.order.pipeline;
        for container in self.disk.index.with(move |index| index.left_open(pipeline)).await? {
            self.end_without_rows(container).await?;
            warn!(%pipeline, %container, "a container was open, and its pipeline is over: it proves nothing");
        }
        self.mark_ends().await
    }

    /// Whether the pipeline's creation was interrupted before its log began: its record says that it promised
    /// nothing, and nothing was ever written to its first container.
    async fn was_never_in_use(&self, open: ContainerId, failure: &anyhow::Error) -> anyhow::Result<bool> {
        if self.replica_record().await?.is_none_or(|record| record.is_used) {
            return Ok(false);
        }
        let pipeline = self.order.pipeline;
        let is_new = self.disk.index.with(move |index| {
            let (first, record) = (ContainerId(0), index.container(open)?);
            let is_untouched = record == Some(ContainerRecord::opened(pipeline, first))
                || record == Some(ContainerRecord::end(pipeline, first));
            Ok(is_untouched && index.applied(pipeline)?.is_none())
        });
        Ok(match failure.downcast_ref::<LogGone>() {
            Some(LogGone::Empty) => is_new.await?,
            // Where the log was lost, the container's files tell that there was one.
            Some(LogGone::Missing) => {
                is_new.await?
                    && owner_files(&**self.disk.space.disk(), OWNERS_DIR, OwnerId::from(open))
                        .await?
                        .is_empty()
            }
            None => false,
        })
    }

    /// Says beside each quasi-closed container how it ended, and makes all of it durable.
    async fn mark_ends(&self) -> anyhow::Result<()> {
        let pipeline = self.order.pipeline;
        let containers = self.disk.index.with(move |index| index.containers()).await?;
        for (container, _) in containers.into_iter().filter(|(_, record)| record.pipeline == pipeline) {
            self.mark_end(container).await?;
        }
        self.disk.index.with(move |index| index.flush()).await
    }

    /// Marks the container's end by what its record says under the lock: SCM may have had the container
    /// closed meanwhile.
    async fn mark_end(&self, container: ContainerId) -> anyhow::Result<()> {
        let _ending = self.disk.ending.lock().await;
        let Some(record) = self.disk.index.with(move |index| index.container(container)).await? else {
            return Ok(());
        };
        let ContainerRecord { state, last, committed, .. } = record;
        if !matches!(state, ReplicaState::QuasiClosed | ReplicaState::WithoutLog) {
            return Ok(());
        }
        // A roll notes how far the log is known to be committed, which may be in a container before this one.
        let here = self.disk.index.with(move |index| index.committed_in(container, committed)).await?;
        let end = ContainerEnd { state, last, committed: here };
        let disk = self.disk.space.disk();
        if ContainerEnd::file(&**disk, container).await? != EndFile::Says(end) {
            end.write(&**disk, container).await?;
        }
        match here == committed {
            true => Ok(()),
            false => self.disk.index.with(move |index| index.set_end(container, end)).await,
        }
    }
}

/// The reason for which a replica did not end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndFailure {
    /// There was a log, and it is lost or damaged: nobody can say what it had.
    #[error("{0:#}")]
    LogLost(anyhow::Error),
    /// Another try may do it.
    #[error("{0:#}")]
    Other(#[from] anyhow::Error),
}

#[derive(Debug, thiserror::Error)]
enum LogGone {
    /// The log's directory is not there.
    #[error("the log is missing")]
    Missing,
    /// The log never took the entry that its group begins with.
    #[error("the log is empty")]
    Empty,
}

/// Whether the log is gone, or its bytes are wrong or not to be had from the medium: trying again gives no
/// more.
fn is_lost(failure: &anyhow::Error) -> bool {
    failure.chain().any(|cause| {
        let opened = cause.downcast_ref::<OpenError>().is_some_and(OpenError::condemns);
        let read = cause.downcast_ref::<ReadError>().is_some_and(ReadError::condemns);
        opened || read || cause.is::<LogGone>()
    })
}

struct Rest {
    machine: PipelineMachine,
    replay: Replay,
}

impl Rest {
    /// Applies those that come next.
    async fn with(mut self, metas: Vec<EntryMeta>) -> anyhow::Result<Rest> {
        if metas.is_empty() {
            return Ok(self);
        }
        blocking(move || {
            for meta in metas {
                self.replay.push(meta)?;
            }
            if let Some((batch, applied)) = self.replay.take() {
                self.machine.apply(batch, applied)?;
            }
            Ok(self)
        })
        .await
    }
}

#[cfg(test)]
mod tests;
