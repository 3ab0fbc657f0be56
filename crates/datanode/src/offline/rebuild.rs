//! Recreating the index of a disk from its segments and logs alone.

use super::OfflineDisk;
use super::install::{self, BUILDING_DIR};
use super::replay::{
    DamagedContainer, Replayed, Until, end_without_log, forget_let_go, is_let_go, replay, unwritten_ends,
};
use super::survey::{PipelineFiles, Survey, survey};
use crate::container_end::ContainerEnd;
use crate::index::Index;
use crate::layout::DB_DIR;
use crate::spec_file;
use anyhow::{Context, bail};
use types::{ContainerId, LogIndex, PipelineId};

#[derive(Clone, Copy, Debug, Default)]
pub struct RebuildOptions {
    /// Whether an index that is there is replaced even if the segments no longer hold all that it may know.
    pub accept_loss: bool,
}

#[derive(Debug)]
pub struct RebuildReport {
    pub pipelines: Vec<RebuiltPipeline>,
    /// Containers without a record that says whose they are.
    pub nobodys: Vec<ContainerId>,
    /// Containers of which nobody can say whose they are, as what would say so cannot be read, and why.
    pub unreadable: Vec<(ContainerId, String)>,
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

    /// What an index that was there may have known and this one does not, in words.
    fn losses(&self) -> impl Iterator<Item = String> {
        let of_pipelines = self.pipelines.iter().flat_map(|rebuilt| {
            let damaged = rebuilt.damaged.iter().map(|damaged| damaged.why.as_str());
            let losses = rebuilt.stopped.as_deref().into_iter().chain(damaged);
            losses.map(|why| format!("pipeline {}: {why}", rebuilt.pipeline))
        });
        let unreadable =
            self.unreadable.iter().map(|(container, why)| format!("container {container}: {why}"));
        of_pipelines.chain(unreadable)
    }
}

impl OfflineDisk {
    /// Builds the index anew beside the old one and puts it in its place. A crash leaves the old one or the
    /// new one.
    pub async fn rebuild(&self, options: RebuildOptions) -> anyhow::Result<RebuildReport> {
        install::finish(&*self.real).await?;
        let survey = survey(&self.disk()).await?;
        let index = self.open_index(BUILDING_DIR).await?;
        let (mut pipelines, mut ends) = (Vec::new(), Vec::new());
        for (&pipeline, files) in &survey.pipelines {
            let rebuilt = self.rebuild_pipeline(&index, pipeline, files, &mut ends).await;
            pipelines.push(rebuilt.with_context(|| format!("rebuild pipeline {pipeline}"))?);
        }
        // Nobody can index what may be such a copy, and its files must not make this index look old.
        let unreadable = survey.unreadable.iter().map(|(container, _)| container);
        survey.nobodys.iter().chain(unreadable).try_for_each(|container| index.begin_import(*container))?;
        index.flush()?;
        // The index is closed, so that all its files are as they stay.
        drop(index);
        let Survey { nobodys, unreadable, .. } = survey;
        let report = RebuildReport { pipelines, nobodys, unreadable };
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
        for (container, end) in ends {
            end.write(&*self.real, container).await?;
        }
        // The index does not know these pipelines: beside a spec, also one that cannot be read, it would pass
        // for older than its disk.
        for rebuilt in report.pipelines.iter().filter(|rebuilt| rebuilt.log != RebuiltLog::Opens) {
            spec_file::remove(&*self.real, rebuilt.pipeline).await?;
        }
        install::install(&*self.real).await?;
        Ok(report)
    }

    async fn rebuild_pipeline(
        &self,
        index: &Index,
        pipeline: PipelineId,
        files: &PipelineFiles,
        ends: &mut Vec<(ContainerId, ContainerEnd)>,
    ) -> anyhow::Result<RebuiltPipeline> {
        let let_go = is_let_go(&self.disk(), pipeline).await?;
        let until = match &files.hard_state {
            Some(slot) => slot.committed.map_or(Until::Nothing, |id| Until::Last(id.index)),
            None if let_go => Until::All,
            None => Until::Lost,
        };
        let Replayed { containers, applied, stopped, missing, damaged } =
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
        ends.extend(unwritten_ends(&self.disk(), pipeline, index).await?);
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
