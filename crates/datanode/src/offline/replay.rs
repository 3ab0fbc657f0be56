//! Applying a pipeline's segments to an index, as the pipeline itself would.

use super::survey::PipelineFiles;
use crate::container_end::{ContainerEnd, EndFile};
use crate::container_reader::{ContainerReader, Contents, ReadRecord, Reading};
use crate::hash;
use crate::import::imported_file;
use crate::import::manifest::Manifest;
use crate::index::Index;
use crate::index::machine::{ContainerMachine, PipelineMachine};
use crate::index::records::{ContainerRecord, ReplicaState};
use crate::layout::{OWNERS_DIR, container_dir};
use crate::pipeline::members_of;
use crate::spec_file;
use crate::verdict::condemns;
use anyhow::Context;
use disk::Disk;
use raft::{Replay, ReplicaRecord, ReplicaStage, StateMachine};
use raftlog::inspect::HardStateSlot;
use raftlog::{Discards, EntryMeta, WalkEnd, owner_files};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ContainerId, GroupId, LogId, LogIndex, Nonce, OwnerId, PipelineId};

/// The most commands that are applied as one batch.
const BATCH_MAX: usize = 1024;

/// The index of a log's first entry, with which a pipeline's first container begins.
const FIRST_INDEX: LogIndex = LogIndex(0);

/// The part of a log that is known to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Nothing,
    Last(LogIndex),
    /// All of a log that was let go of: beside each container that no committed roll ended stands how it
    /// ended.
    All,
    /// All that is left of a log that is lost: no roll is known to be committed.
    Lost,
}

impl Until {
    fn takes(self, index: LogIndex) -> bool {
        match self {
            Until::Nothing => false,
            Until::Last(last) => index <= last,
            Until::All | Until::Lost => true,
        }
    }
}

/// The contents of a pipeline's segments.
#[derive(Debug)]
pub(super) struct Replayed {
    pub containers: Vec<ContainerContents>,
    pub applied: Option<LogIndex>,
    /// The reason why records that should have been applied were not.
    pub stopped: Option<String>,
    /// Containers that others name and that are not here: deleted, or lost, and no record says which.
    pub missing: Vec<ContainerId>,
    pub damaged: Vec<DamagedContainer>,
    /// Containers to which the log may have come, or be yet to come.
    pub awaited: BTreeSet<ContainerId>,
}

/// A container that is here, and was not read to its end. What was read of it is in the index.
#[derive(Debug)]
pub struct DamagedContainer {
    pub container: ContainerId,
    /// The end of the container: the one that was copied with it, or where the reading of it ended, of one of
    /// which nothing here says where it ends.
    pub(super) end: ContainerEnd,
    pub why: String,
}

impl DamagedContainer {
    fn unread(container: ContainerId, why: String) -> DamagedContainer {
        DamagedContainer { container, end: ContainerEnd::LOST, why }
    }

    /// A copy, of which its manifest says where it ends.
    fn copied(manifest: &Manifest, why: String) -> DamagedContainer {
        let last = Some(manifest.last).filter(|last| *last != LogId::default());
        DamagedContainer { container: manifest.container, end: ContainerEnd::closed(last), why }
    }
}

#[derive(Debug)]
pub(super) struct ContainerContents {
    pub container: ContainerId,
    pub records: u64,
    pub record_bytes: u64,
    /// The last of its records that could be read.
    pub last: Option<LogId>,
    pub end: WalkEnd,
    pub discards: Discards,
    /// The hash of docs/format/container-hash.md, in hexadecimal digits.
    pub hash: String,
    /// The end of the container, if no roll that is known to be committed ended it.
    pub alone: EndFile,
}

impl ContainerContents {
    pub(super) fn is_finished(&self) -> bool {
        match (&self.end, self.alone) {
            (WalkEnd::Bad { .. }, _) | (_, EndFile::Damaged) => false,
            (_, EndFile::Says(end)) => end.state == ReplicaState::Closed,
            (WalkEnd::Rolled { .. }, EndFile::None) => true,
            (WalkEnd::Unfinished { .. }, EndFile::None) => false,
        }
    }

    fn as_damaged(&self) -> DamagedContainer {
        let end = ContainerEnd { last: self.last, ..ContainerEnd::LOST };
        DamagedContainer { container: self.container, end, why: end_text(self) }
    }

    /// The reason why this is not all of what was copied here.
    fn lacks_of(&self, manifest: &Manifest) -> Option<String> {
        let last = self.last.unwrap_or_default();
        match self.end {
            WalkEnd::Bad { .. } => Some(end_text(self)),
            _ if last != manifest.last => {
                Some(format!("it ends with entry {}, not {}", last.index, manifest.last.index))
            }
            WalkEnd::Rolled { .. } | WalkEnd::Unfinished { .. } => None,
        }
    }
}

/// Walks all containers of a pipeline, and applies what `until` says to `index`.
pub(super) async fn replay(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    files: &PipelineFiles,
    index: &Index,
    until: Until,
) -> anyhow::Result<Replayed> {
    let (mut containers, mut missing) = (Vec::new(), Vec::new());
    let (mut copied, mut damaged) = (BTreeSet::new(), Vec::new());
    let mut applying = Applying {
        index,
        pipeline,
        until,
        opens: files.hard_state.is_some(),
        begins_behind_gap: true,
        machine: None,
        replay: replay_of(disk, pipeline, files).await?,
        applied: None,
        stopped: None,
    };
    // A log that forgot nothing begins with the container its hard state names.
    let begins = files.hard_state.filter(|slot| slot.purged.is_none());
    let mut next = begins.map(|slot| ContainerId(slot.start_owner.0));
    for &container in &files.containers {
        let manifest = match imported(disk, container).await {
            Err(failure) if condemns(&failure) => Some(None),
            manifest => manifest?.map(Some),
        };
        if let Some(manifest) = manifest {
            // The copy stands in place of a replica that was deleted, to which the container before may have
            // rolled.
            if next == Some(container) {
                applying.skip(container)?;
                next = None;
            }
            applying.finish();
            match manifest {
                Some(manifest) => {
                    copied.insert(container);
                    match replay_imported(disk, &manifest, index).await {
                        Err(failure) if condemns(&failure) => {
                            damaged.push(DamagedContainer::copied(&manifest, format!("{failure:#}")));
                        }
                        contents => {
                            let contents = contents?;
                            let lacks = contents.lacks_of(&manifest);
                            damaged.extend(lacks.map(|why| DamagedContainer::copied(&manifest, why)));
                            containers.push(contents);
                        }
                    }
                }
                None => {
                    let why = "the record of where it was copied from is damaged".to_owned();
                    damaged.push(DamagedContainer::unread(container, why));
                }
            }
            continue;
        }
        if let Some(expected) = next.filter(|next| *next != container) {
            let unfinished = containers.iter().find(|contents| contents.container == expected);
            if files.may_lack(expected)
                && let Some(unfinished) = unfinished
            {
                applying.give_up(expected)?;
                damaged.push(unfinished.as_damaged());
            } else if files.may_lack(expected) {
                applying.skip(expected)?;
                // Containers that a log has forgotten are closed on all its members.
                let is_unknown = files.hard_state.is_none() && !files.containers.contains(&expected);
                missing.extend(is_unknown.then_some(expected));
            } else {
                applying.stop(format!("container {expected} should follow, but {container} is there"));
            }
        }
        let contents = match walk(disk, container, &mut applying).await {
            Err(failure) if condemns(&failure) && files.may_lack(container) => {
                applying.give_up(container)?;
                damaged.push(DamagedContainer::unread(container, format!("{failure:#}")));
                next = None;
                continue;
            }
            contents => contents.with_context(|| format!("walk container {container}"))?,
        };
        next = match &contents.end {
            WalkEnd::Rolled { to } => Some(ContainerId(to.0)),
            // Nothing can follow a container that is not finished.
            WalkEnd::Unfinished { .. } | WalkEnd::Bad { .. } => Some(container),
        };
        containers.push(contents);
    }
    // The log has gone on behind the last container that has records.
    let last = containers.iter().find(|contents| Some(contents.container) == next);
    let has_gone_on = files.has_log && files.hard_state.is_some();
    if let Some(unfinished) = last.filter(|last| has_gone_on && files.may_lack(last.container)) {
        applying.give_up(unfinished.container)?;
        damaged.push(unfinished.as_damaged());
    }
    applying.finish();
    let Applying { applied, mut stopped, begins_behind_gap, .. } = applying;
    if let Some(slot) = files.hard_state.filter(|slot| begins_behind_gap && slot.purged.is_some()) {
        // Nothing was written yet to the container that the log has come to.
        index.set_open(pipeline, ContainerId(slot.start_owner.0))?;
    }
    // A log that is here is applied to its end by the next start: until then its containers are open, or what
    // is left of it would be refused.
    let has_all = |last: Option<LogId>| files.hard_state.is_none() || last.map(|last| last.index) <= applied;
    // What was copied here is closed, as its record of that says.
    let own = containers.iter().filter(|contents| !copied.contains(&contents.container));
    let own: Vec<&ContainerContents> = own.collect();
    set_ends(disk, pipeline, index, &own, files.hard_state.is_none(), has_all).await?;
    set_missing(disk, pipeline, index, &mut missing).await?;
    for DamagedContainer { container, end, why } in &damaged {
        index.end_unhealthy(pipeline, *container, *end, why)?;
    }
    if let Until::Last(last) = until
        && stopped.is_none()
        && applied.is_none_or(|applied| applied < last)
        && !files.hard_state.is_some_and(|slot| lost_only_what_was_not_synced(&slot, containers.last()))
    {
        let ends = containers.last().map_or("there are no records".to_owned(), end_text);
        stopped = Some(format!("entry {last} is known to be committed, but {ends}"));
    }
    let mut awaited: BTreeSet<ContainerId> = index.open_container(pipeline)?.into_iter().collect();
    awaited.extend(files.hard_state.map(|slot| ContainerId(slot.start_owner.0)));
    awaited.extend(next);
    Ok(Replayed { containers, applied, stopped, missing, damaged, awaited })
}

/// The replay of a log from its beginning, or from behind what it has forgotten: the entry that says which
/// its members are may have gone with its container. They stay the same as long as the pipeline is there.
async fn replay_of(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    files: &PipelineFiles,
) -> anyhow::Result<Replay> {
    let has_forgotten = files.hard_state.is_some_and(|slot| slot.purged.is_some());
    // A pipeline whose spec is not here, or cannot be read, is not opened by a start.
    match spec_file::read(&**disk, pipeline).await {
        Ok(Some(spec)) if has_forgotten => Replay::behind_first(&members_of(&spec)),
        _ => Replay::new(None),
    }
}

/// Whether a log that ends there was whole as far as it was synced, by what its start goes by as well. A
/// member knows of commits that only the others have on disk: a loss of power takes their entries from it,
/// and they come again.
fn lost_only_what_was_not_synced(slot: &HardStateSlot, last: Option<&ContainerContents>) -> bool {
    let Some(ContainerContents { container, last, end, .. }) = last else { return false };
    let ends_in = match *end {
        WalkEnd::Rolled { to } => (to, 0),
        WalkEnd::Unfinished { segment, .. } | WalkEnd::Bad { segment, .. } => {
            (OwnerId::from(*container), segment)
        }
    };
    let has_durable =
        slot.durable <= *last || slot.durable.is_some_and(|durable| slot.purged >= Some(durable));
    has_durable && slot.begun.is_none_or(|begun| begun <= ends_in)
}

/// The manifest of a container of this disk that was copied here.
async fn imported(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<Option<Manifest>> {
    imported_file::read(&**disk, &container_dir(container)).await?.map(Manifest::parse).transpose()
}

/// Applies a container that was copied here, by itself: those before and after it may be elsewhere.
async fn replay_imported(
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
    index: &Index,
) -> anyhow::Result<ContainerContents> {
    let container = manifest.container;
    let mut machine = Some(ContainerMachine::new(index.clone(), manifest.pipeline, container)?);
    let (mut replay, mut last) = (Replay::new(None)?, manifest.last);
    let mut apply = |replay: &mut Replay| {
        let (before, batch) = (machine.take(), replay.take().map(|(batch, _)| batch));
        machine = Some(before.expect("put back below").applied(batch.unwrap_or_default())?);
        anyhow::Ok(())
    };
    let contents = walk_with(disk, container, |record| {
        last = record.id;
        if !manifest.repeats.contains(&record.id.index) {
            replay.push(record)?;
        }
        if replay.pending() >= BATCH_MAX { apply(&mut replay) } else { Ok(()) }
    });
    let contents = contents.await.with_context(|| format!("walk container {container}"))?;
    apply(&mut replay)?;
    machine.expect("put back above").finish(last, &[], None)?;
    Ok(contents)
}

/// Takes the ends of a log's containers that their segments do not show from the files beside them. Where
/// such a file is damaged and the log gone, nobody can say any more how its container ended: the roll that
/// ends it may never have been committed.
async fn set_ends(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    index: &Index,
    own: &[&ContainerContents],
    log_is_gone: bool,
    has_all: impl Fn(Option<LogId>) -> bool,
) -> anyhow::Result<()> {
    for (container, _) in index.containers()?.into_iter().filter(|(_, it)| it.pipeline == pipeline) {
        let here = own.iter().find(|contents| contents.container == container);
        match ContainerEnd::file(&**disk, container).await? {
            EndFile::Says(end) if has_all(end.last) => index.set_end(container, end)?,
            EndFile::Damaged if log_is_gone && here.is_some() => {
                let last = here.and_then(|contents| contents.last);
                index.set_end(container, ContainerEnd { last, ..ContainerEnd::LOST })?;
            }
            EndFile::Says(_) | EndFile::Damaged | EndFile::None => {}
        }
    }
    Ok(())
}

/// Adds the missing containers of which an earlier rebuilding has left word to the index, as lost.
async fn set_missing(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    index: &Index,
    missing: &mut Vec<ContainerId>,
) -> anyhow::Result<()> {
    for container in std::mem::take(missing) {
        match ContainerEnd::file(&**disk, container).await? {
            EndFile::Says(end) if end.state == ReplicaState::WithoutLog => {
                index.add_lost(pipeline, container, end)?
            }
            // It is here, and none of its records could be read.
            EndFile::Says(_) | EndFile::Damaged => {
                let why = "none of its records can be read";
                index.end_unhealthy(pipeline, container, ContainerEnd::LOST, why)?;
            }
            EndFile::None => missing.push(container),
        }
    }
    Ok(())
}

/// Forgets a pipeline that was let go, as the datanode did: the container it ended with is the one that no
/// record is in. One that its last roll names and that is not here was deleted, if `before`, the index that
/// the datanode kept, does not have it; without that it may be lost as well, and says so.
pub(super) async fn forget_let_go(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    index: &Index,
    before: Option<&Index>,
) -> anyhow::Result<()> {
    let mut end = None;
    if let Some(open) = index.open_container(pipeline)? {
        let state = index.container(open)?.map(|record| record.state);
        let is_nothing = match state {
            Some(ReplicaState::Closed) => ContainerEnd::file(&**disk, open).await? == EndFile::None,
            Some(ReplicaState::Open) if has_files(disk, open).await? => false,
            Some(ReplicaState::Open) => match before {
                Some(before) => before.container(open)?.is_none(),
                None => {
                    index.set_end(open, ContainerEnd::LOST)?;
                    false
                }
            },
            Some(ReplicaState::QuasiClosed | ReplicaState::WithoutLog) | None => false,
        };
        end = is_nothing.then_some(open);
    }
    index.forget_pipeline(pipeline, end)
}

async fn has_files(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<bool> {
    Ok(!owner_files(&**disk, OWNERS_DIR, OwnerId::from(container)).await?.is_empty())
}

/// Ends the containers of a pipeline whose log is lost, but those that SCM had closed, or that had ended
/// before: the disk may lack what this very replica acknowledged, and the rolls that it shows may never have
/// been committed.
pub(super) async fn end_without_log(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    containers: &[ContainerContents],
    index: &Index,
) -> anyhow::Result<()> {
    let mut all = index.containers()?;
    // The container that a pipeline ends with is nobody's but the pipeline's.
    all.retain(|(_, record)| {
        record.pipeline == pipeline && *record != ContainerRecord::end(pipeline, record.previous)
    });
    for (container, record) in all {
        let is_lost = match record.state {
            ReplicaState::Open => true,
            ReplicaState::QuasiClosed => ContainerEnd::file(&**disk, container).await? == EndFile::None,
            ReplicaState::Closed | ReplicaState::WithoutLog => false,
        };
        if is_lost {
            let contents = containers.iter().find(|contents| contents.container == container);
            let last = contents.and_then(|contents| contents.last);
            index.set_end(container, ContainerEnd { last, ..ContainerEnd::LOST })?;
        }
    }
    Ok(())
}

/// The ends of containers that the index has and no file beside them says yet.
pub(super) async fn unwritten_ends(
    disk: &Arc<dyn Disk>,
    pipeline: PipelineId,
    index: &Index,
) -> anyhow::Result<Vec<(ContainerId, ContainerEnd)>> {
    let mut ends = Vec::new();
    for (container, record) in index.containers()? {
        let ContainerRecord { state, last, committed, .. } = record;
        let is_alone = matches!(state, ReplicaState::QuasiClosed | ReplicaState::WithoutLog);
        if record.pipeline == pipeline
            && is_alone
            && !matches!(ContainerEnd::file(&**disk, container).await?, EndFile::Says(_))
        {
            ends.push((container, ContainerEnd { state, last, committed }));
        }
    }
    Ok(ends)
}

/// Whether a pipeline's replica here was let go of: its log is gone because it is not needed.
pub(super) async fn is_let_go(disk: &Arc<dyn Disk>, pipeline: PipelineId) -> anyhow::Result<bool> {
    let record = ReplicaRecord::read_unless_damaged(GroupId::pipeline(pipeline), disk).await;
    let record = record.with_context(|| format!("read the record of the replica of pipeline {pipeline}"))?;
    Ok(record.is_some_and(|record| record.stage == ReplicaStage::Removed))
}

pub(super) fn end_text(contents: &ContainerContents) -> String {
    let container = contents.container;
    match &contents.end {
        WalkEnd::Rolled { to } => format!("container {container} rolls to {}", ContainerId(to.0)),
        WalkEnd::Unfinished { segment, offset } => {
            format!("container {container} ends in segment {segment:08x} at byte {offset}")
        }
        WalkEnd::Bad { segment, offset, why } => {
            format!("in container {container}, segment {segment:08x}, byte {offset}: {why}")
        }
    }
}

async fn walk(
    disk: &Arc<dyn Disk>,
    container: ContainerId,
    applying: &mut Applying<'_>,
) -> anyhow::Result<ContainerContents> {
    let contents = walk_with(disk, container, |record| {
        applying.push(container, record);
        Ok(())
    });
    let contents = contents.await?;
    applying.remember_writers(container, &contents.discards)?;
    Ok(contents)
}

async fn walk_with(
    disk: &Arc<dyn Disk>,
    container: ContainerId,
    mut take: impl FnMut(EntryMeta) -> anyhow::Result<()>,
) -> anyhow::Result<ContainerContents> {
    let mut reader = ContainerReader::open(disk, container, Reading::Whole).await?;
    while let Some(ReadRecord { walked, .. }) = reader.next().await? {
        if !reader.is_known_repeat(walked.meta.id.index) {
            take(walked.meta)?;
        }
    }
    let hash = hash::to_hex(&reader.hash());
    let alone = ContainerEnd::file(&**disk, container).await?;
    let discards = reader.discards().clone();
    let Contents { records, record_bytes, last, end, .. } = reader.contents().clone();
    let end = end.context("a container that was read to its end has none")?;
    Ok(ContainerContents { container, records, record_bytes, last, end, discards, hash, alone })
}

struct Applying<'a> {
    index: &'a Index,
    pipeline: PipelineId,
    until: Until,
    /// Whether the log is here, so that a start opens the pipeline.
    opens: bool,
    /// Whether the next record is the first, or the first after containers that are not here.
    begins_behind_gap: bool,
    machine: Option<PipelineMachine>,
    replay: Replay,
    applied: Option<LogIndex>,
    stopped: Option<String>,
}

impl Applying<'_> {
    fn push(&mut self, container: ContainerId, record: EntryMeta) {
        if self.stopped.is_some() {
            return;
        }
        let begun = self.begin(container, record.id.index);
        let pushed = begun.and_then(|()| match self.until.takes(record.id.index) {
            true => self.try_push(container, record),
            false => Ok(()),
        });
        if let Err(failure) = pushed {
            self.stop(format!("{failure:#}"));
        }
    }

    /// Takes a container for the one that is written to where the roll that leads to it stood in one that was
    /// deleted: the pipeline would go on in its first.
    fn begin(&mut self, container: ContainerId, index: LogIndex) -> anyhow::Result<()> {
        let behind_gap = std::mem::take(&mut self.begins_behind_gap);
        if self.opens && behind_gap && index > FIRST_INDEX {
            self.index.set_open(self.pipeline, container)?;
        }
        Ok(())
    }

    fn try_push(&mut self, container: ContainerId, record: EntryMeta) -> anyhow::Result<()> {
        if self.machine.is_none() {
            let index = self.index.clone();
            let (machine, _) = PipelineMachine::new(index, self.pipeline, container, u64::MAX)?;
            self.machine = Some(match self.until {
                Until::Lost => machine.knowing_committed(None),
                Until::Nothing | Until::Last(_) | Until::All => machine,
            });
        }
        self.replay.push(record)?;
        if self.replay.pending() >= BATCH_MAX { self.apply() } else { Ok(()) }
    }

    fn apply(&mut self) -> anyhow::Result<()> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let Some((batch, applied)) = self.replay.take() else { return Ok(()) };
        let index = applied.id.index;
        machine.apply(batch, applied)?;
        self.applied = Some(index);
        Ok(())
    }

    /// Remembers the writers of blocks whose records a compaction left out. They may still ask for them: the
    /// container after this one must not take a chunk that is sent again for a beginning.
    fn remember_writers(&mut self, container: ContainerId, discards: &Discards) -> anyhow::Result<()> {
        if !discards.compacted().is_compacted() || self.stopped.is_some() {
            return Ok(());
        }
        self.finish();
        let begins = discards.iter().filter(|record| record.tag == record.index.0);
        let writers = begins.filter_map(|record| Some((Nonce(record.name?), record.tag)));
        self.index.remember_writers(container, writers)
    }

    /// Goes on behind a container that is here, is over, and was not read to its end.
    fn give_up(&mut self, damaged: ContainerId) -> anyhow::Result<()> {
        self.finish();
        self.machine = None;
        self.begins_behind_gap = true;
        self.index.leave_open(self.pipeline, damaged)
    }

    /// Goes on behind containers whose replicas were deleted here, the first of them this one.
    fn skip(&mut self, deleted: ContainerId) -> anyhow::Result<()> {
        self.finish();
        self.machine = None;
        self.begins_behind_gap = true;
        self.index.forget_open(self.pipeline, deleted)
    }

    fn stop(&mut self, why: String) {
        self.finish();
        self.stopped.get_or_insert(why);
    }

    fn finish(&mut self) {
        if self.stopped.is_none()
            && let Err(failure) = self.apply()
        {
            self.stopped = Some(format!("{failure:#}"));
        }
    }
}
