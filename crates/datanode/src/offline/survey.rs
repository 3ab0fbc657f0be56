//! A survey of the containers and pipelines on a disk, by its logs and segments alone.

use crate::container_reader::{ContainerReader, Reading};
use crate::layout::{GROUPS_DIR, OWNERS_DIR, container_dir, pipeline_of};
use crate::verdict::condemns;
use anyhow::Context;
use disk::Disk;
use raftlog::inspect::{HardStateSlot, SegmentName, SegmentScan, read_hard_state};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use types::{ContainerId, GroupId, GroupKind, OwnerId, PipelineId};

#[derive(Debug, Default)]
pub(super) struct Survey {
    pub pipelines: BTreeMap<PipelineId, PipelineFiles>,
    /// Containers without a whole first record: nobody can say whose they are. The open one of a pipeline
    /// that has written nothing since it rolled is one.
    pub nobodys: Vec<ContainerId>,
}

#[derive(Debug, Default)]
pub(super) struct PipelineFiles {
    /// The containers in the order of the log.
    pub containers: Vec<ContainerId>,
    /// The hard state of the pipeline's log; `None` when the log is gone, or neither slot is whole.
    pub hard_state: Option<HardStateSlot>,
    pub has_log: bool,
}

impl PipelineFiles {
    /// Whether a container may be missing: replicas that no log reads any more may have been deleted here.
    pub(super) fn may_lack(&self, container: ContainerId) -> bool {
        match &self.hard_state {
            Some(slot) if self.has_log => container.0 < slot.start_owner.0,
            _ => true,
        }
    }
}

pub(super) async fn survey(disk: &Arc<dyn Disk>) -> anyhow::Result<Survey> {
    let mut survey = Survey::default();
    for name in disk.list(GROUPS_DIR).await.context("list the logs")? {
        let Some(pipeline) = pipeline_of(&name) else { continue };
        let files = survey.pipelines.entry(pipeline).or_default();
        (files.has_log, files.hard_state) = (true, hard_state(disk, &name).await?);
    }
    for owner in raftlog::owners(&**disk, OWNERS_DIR).await.context("list the containers")? {
        let container = ContainerId(owner.0);
        let log = match log_in(disk, container).await {
            // The word on its segments, or on what was given up in them, is damaged: they say whose they are.
            Err(failure) if condemns(&failure) => log_of_any(disk, container).await?,
            log => log.with_context(|| format!("read container {container}"))?,
        };
        let log = log.and_then(|log| GroupId::try_from(log).ok());
        match log.filter(|log| log.kind == GroupKind::Pipeline) {
            Some(log) => {
                survey.pipelines.entry(PipelineId(log.number)).or_default().containers.push(container);
            }
            None => survey.nobodys.push(container),
        }
    }
    Ok(survey)
}

/// The log that the records of a container are of.
async fn log_in(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<Option<u64>> {
    let mut reader = ContainerReader::open(disk, container, Reading::Whole).await?;
    match reader.next().await? {
        Some(record) => Ok(Some(record.walked.log)),
        // The first record is damaged, or the container is empty: the records behind it may say.
        None => log_of(disk, container, reader.discards().compacted().segments.start).await,
    }
}

/// The log that the records of any segment of a container say they are of.
async fn log_of_any(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<Option<u64>> {
    let dir = container_dir(container);
    let mut names = disk.list(&dir).await.with_context(|| format!("list {dir}"))?;
    names.sort_unstable();
    for name in names {
        let Some(name) = SegmentName::of_path(&format!("{dir}/{name}")) else { continue };
        if let Some(log) = log_of(disk, container, name.segment).await? {
            return Ok(Some(log));
        }
    }
    Ok(None)
}

/// The log that most of the first records of a container say they are of.
async fn log_of(disk: &Arc<dyn Disk>, container: ContainerId, segment: u32) -> anyhow::Result<Option<u64>> {
    let name = SegmentName { owner: OwnerId::from(container), segment };
    let path = format!("{}/{:08x}.seg", container_dir(container), name.segment);
    match disk.open(&path, false).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => {
            let file = opened.with_context(|| format!("open {path}"))?;
            let scan = SegmentScan::new(file, Some(name)).await.with_context(|| format!("read {path}"))?;
            Ok(scan.log.filter(|_| !scan.is_renamed()))
        }
    }
}

async fn hard_state(disk: &Arc<dyn Disk>, group: &str) -> anyhow::Result<Option<HardStateSlot>> {
    let path = format!("{GROUPS_DIR}/{group}/hard-state");
    match disk.open(&path, false).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => {
            let file = opened.with_context(|| format!("open {path}"))?;
            let file = read_hard_state(file).await.with_context(|| format!("read {path}"))?;
            Ok(file.newest().copied())
        }
    }
}
