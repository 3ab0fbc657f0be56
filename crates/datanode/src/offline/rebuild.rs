//! Recreating the index of a disk from its segments and logs alone.

use super::OfflineDisk;
use super::install::{self, BUILDING_DIR};
use super::replay::{
    DamagedContainer, Replayed, Until, end_without_log, forget_let_go, is_let_go, replay, unwritten_ends,
};
use super::survey::{PipelineFiles, Survey, survey};
use crate::container_end::ContainerEnd;
use crate::index::Index;
use crate::layout::{DB_DIR, LOST_DIR, OWNERS_DIR, container_dir};
use crate::spec_file;
use anyhow::{Context, bail, ensure};
use disk::Disk;
use std::collections::BTreeSet;
use types::{ContainerId, LogIndex, PipelineId};

#[derive(Clone, Copy, Debug, Default)]
pub struct RebuildOptions {
    /// Whether an index that is there is replaced even if the segments no longer hold all that it may know.
    pub accept_loss: bool,
}

#[derive(Debug)]
pub struct RebuildReport {
    pub pipelines: Vec<RebuiltPipeline>,
    /// Containers without a record, of which nothing is lost.
    pub nobodys: Vec<ContainerId>,
    /// Containers of which nothing can be read, not even whose they are, and why.
    pub lost: Vec<(ContainerId, String)>,
}

#[derive(Debug)]
pub struct RebuiltPipeline {
    pub pipeline: PipelineId,
    pub containers: Vec<ContainerId>,
    /// The entry up to which the index has all; a start applies what is committed after it.
    pub applied: Option<LogIndex>,
    /// The reason why entries that are known to be committed are missing.
    pub stopped: Option<String>,
    pub damaged: Vec<DamagedContainer>,
    pub log: RebuiltLog,
}

/// The fate of the pipeline as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuiltLog {
    /// Log and spec are here: a start opens it.
    Opens,
    /// The spec is not beside the log: the pipeline opens once SCM orders it again.
    WithoutSpec,
    /// The log is gone, or there is no hard state in it: the replica must not come back. Where the log was
    /// let go of, its containers are what they were known to be; where not, they say that it is lost.
    Gone,
}

impl RebuildReport {
    pub fn is_whole(&self) -> bool {
        self.losses().next().is_none()
    }

    /// The losses of this index against one that was there, which may have known them, in words.
    fn losses(&self) -> impl Iterator<Item = String> {
        let of_pipelines = self.pipelines.iter().flat_map(|rebuilt| {
            let damaged = rebuilt.damaged.iter().map(|damaged| damaged.why.as_str());
            let losses = rebuilt.stopped.as_deref().into_iter().chain(damaged);
            losses.map(|why| format!("pipeline {}: {why}", rebuilt.pipeline))
        });
        of_pipelines.chain(self.lost.iter().map(|(container, why)| format!("container {container}: {why}")))
    }
}

/// The findings of rebuilding pipelines on what stands beside their segments.
#[derive(Default)]
struct Beside {
    /// The ends of containers that are yet to be written down.
    ends: Vec<(ContainerId, ContainerEnd)>,
    /// Containers to which some log may have come, or be yet to come, without having written there.
    awaited: BTreeSet<ContainerId>,
}

impl OfflineDisk {
    /// Builds the index anew beside the old one and puts it in its place. A crash leaves the old one or the
    /// new one.
    pub async fn rebuild(&self, options: RebuildOptions) -> anyhow::Result<RebuildReport> {
        install::finish(&*self.real).await?;
        let survey = survey(&self.disk()).await?;
        let index = self.open_index(BUILDING_DIR).await?;
        let (mut pipelines, mut beside) = (Vec::new(), Beside::default());
        for (&pipeline, files) in &survey.pipelines {
            let rebuilt = self.rebuild_pipeline(&index, pipeline, files, &mut beside).await;
            pipelines.push(rebuilt.with_context(|| format!("rebuild pipeline {pipeline}"))?);
        }
        // Nobody can index what may be such a copy, and its files must not make this index look old.
        let unreadable = survey.unreadable.iter().map(|(container, _)| container);
        survey.nobodys.iter().chain(unreadable).try_for_each(|container| index.begin_import(*container))?;
        // What a roll names and is not here has a row by now, and a directory for the word on its end.
        let mut leftovers = Vec::new();
        for container in survey.nobodys.iter().filter(|it| !beside.awaited.contains(it)) {
            leftovers.extend(index.container(*container)?.is_none().then_some(*container));
        }
        index.flush()?;
        // The index is closed, so that all its files are as they stay.
        drop(index);
        let Survey { nobodys, unreadable: mut lost, .. } = survey;
        let known = self.known_before(&leftovers).await;
        lost.extend(known.iter().map(|container| (*container, "no record of it is left".to_owned())));
        let nobodys = nobodys.into_iter().filter(|container| !known.contains(container)).collect();
        let report = RebuildReport { pipelines, nobodys, lost };
        if let Some(why) = report.losses().next()
            && !options.accept_loss
            && install::has_index(&*self.real).await?
        {
            install::remove(&*self.real, BUILDING_DIR).await?;
            bail!(
                "the index in {DB_DIR} stays: the segments do not hold all that it may know ({why}). \
                 To replace it by what can still be read, repeat with --accept-loss"
            );
        }
        // The files are written before the index says the same: who reads a container that is over looks for
        // where it ends.
        for (container, end) in beside.ends {
            end.write(&*self.real, container).await?;
        }
        // A copy could not take the place of such a directory, in which nobody would ever look again.
        for container in leftovers {
            put_aside(&*self.real, container).await?;
        }
        // The index does not know these pipelines: beside a spec, also one that cannot be read, it would pass
        // for older than its disk.
        for rebuilt in report.pipelines.iter().filter(|rebuilt| rebuilt.log != RebuiltLog::Opens) {
            spec_file::remove(&*self.real, rebuilt.pipeline).await?;
        }
        install::install(&*self.real).await?;
        Ok(report)
    }

    /// Those of these containers that the index which is there has; all of them where there is none, or it
    /// cannot be read.
    async fn known_before(&self, containers: &[ContainerId]) -> BTreeSet<ContainerId> {
        let mut known: BTreeSet<ContainerId> = containers.iter().copied().collect();
        if !known.is_empty()
            && install::has_index(&*self.real).await.is_ok_and(|has| has)
            && let Ok(index) = self.open_index(DB_DIR).await
        {
            let has = |container: &ContainerId| !matches!(index.container(*container), Ok(None));
            known.retain(has);
        }
        known
    }

    async fn rebuild_pipeline(
        &self,
        index: &Index,
        pipeline: PipelineId,
        files: &PipelineFiles,
        beside: &mut Beside,
    ) -> anyhow::Result<RebuiltPipeline> {
        let let_go = is_let_go(&self.disk(), pipeline).await?;
        let until = match &files.hard_state {
            Some(slot) => slot.committed.map_or(Until::Nothing, |id| Until::Last(id.index)),
            None if let_go => Until::All,
            None => Until::Lost,
        };
        let Replayed { containers, applied, stopped, missing, damaged, awaited } =
            replay(&self.disk(), pipeline, files, index, until).await?;
        for contents in &containers {
            let gone = contents.discards.iter().map(|record| record.tag);
            index.forget_blocks(contents.container, gone, contents.discards.list_bytes())?;
        }
        if until == Until::Lost {
            end_without_log(&self.disk(), pipeline, &containers, index).await?;
        }
        if let_go {
            forget_let_go(&self.disk(), pipeline, index, None).await?;
        }
        for lost in missing {
            index.add_lost(pipeline, lost, ContainerEnd::LOST)?;
        }
        beside.ends.extend(unwritten_ends(&self.disk(), pipeline, index).await?);
        beside.awaited.extend(awaited);
        let log = match files.hard_state {
            None => RebuiltLog::Gone,
            Some(_) => match spec_file::read(&*self.real, pipeline).await {
                Ok(Some(spec)) => {
                    index.save_pipeline_spec(&spec)?;
                    RebuiltLog::Opens
                }
                Ok(None) => RebuiltLog::WithoutSpec,
                // A spec that cannot be read is not missed: SCM has it too.
                Err(_) => RebuiltLog::WithoutSpec,
            },
        };
        let containers = containers.iter().map(|contents| contents.container).collect();
        Ok(RebuiltPipeline { pipeline, containers, applied, stopped, damaged, log })
    }
}

/// Moves a container's directory to where nobody looks for containers. What was moved there before stays: it
/// may have more than this tool can read.
async fn put_aside(disk: &dyn Disk, container: ContainerId) -> anyhow::Result<()> {
    let (from, to) = (container_dir(container), format!("{LOST_DIR}/{:016x}", container.0));
    let put = async {
        disk.create_dir_all(LOST_DIR).await?;
        ensure!(disk.list(&to).await?.is_empty(), "there is one already: take it away, and repeat");
        disk.rename(&from, &to).await?;
        disk.sync_dir(LOST_DIR).await?;
        Ok(disk.sync_dir(OWNERS_DIR).await?)
    };
    put.await.with_context(|| format!("put {from} aside, as {to}"))
}
