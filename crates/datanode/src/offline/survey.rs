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
    /// Containers without a record that says whose they are. The open one of a pipeline that has written
    /// nothing since it rolled is one.
    pub nobodys: Vec<ContainerId>,
    /// Containers of which nobody can say whose they are, as what would say so cannot be read.
    pub unreadable: Vec<(ContainerId, String)>,
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
            Ok(Some(log)) => Some(log),
            Err(failure) if !condemns(&failure) => {
                return Err(failure.context(format!("read container {container}")));
            }
            // Its first record, its first segment, or the word on its segments is lost or damaged: what is
            // left of them says whose they are.
            first => match log_of_any(disk, container).await? {
                (None, Some(why)) => {
                    let why = first.err().map_or(why, |failure| format!("{failure:#}"));
                    survey.unreadable.push((container, why));
                    continue;
                }
                (log, _) => log,
            },
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

/// The log that the first record of a container is of.
async fn log_in(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<Option<u64>> {
    let mut reader = ContainerReader::open(disk, container, Reading::Whole).await?;
    Ok(reader.next().await?.map(|record| record.walked.log))
}

/// The log that the records of any segment of a container say they are of; and why one could not be read.
async fn log_of_any(
    disk: &Arc<dyn Disk>,
    container: ContainerId,
) -> anyhow::Result<(Option<u64>, Option<String>)> {
    let dir = container_dir(container);
    let mut names = disk.list(&dir).await.with_context(|| format!("list {dir}"))?;
    names.sort_unstable();
    let mut unread = None;
    for name in names {
        let Some(name) = SegmentName::of_path(&format!("{dir}/{name}")) else { continue };
        match log_of(disk, container, name.segment).await {
            Ok(Some(log)) => return Ok((Some(log), unread)),
            Ok(None) => {}
            Err(failure) if condemns(&failure) => unread = Some(format!("{failure:#}")),
            Err(failure) => return Err(failure),
        }
    }
    Ok((None, unread))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::tests::{FIRST, Left, PIPELINE, SECOND};
    use disk::RealDisk;
    use diskhooks::{Act, HookedDisk};

    const EIO: i32 = 5;

    #[tokio::test]
    async fn what_cannot_be_read_is_told_of_and_is_nobodys_only_where_nothing_says_more() {
        let left = Left::of_small_blocks().await;
        let real = Arc::new(RealDisk::open(&left.root(), 1).unwrap());
        for (unreadable, is_lost) in [("00000000.seg", false), (".seg", true)] {
            let dir = container_dir(FIRST);
            let hooked = HookedDisk::new(real.clone(), move |call| {
                match call.path.starts_with(&dir) && call.path.ends_with(unreadable) {
                    true => Act::Fail(std::io::Error::from_raw_os_error(EIO)),
                    false => Act::Pass,
                }
            });
            let disk: Arc<dyn Disk> = Arc::new(hooked);
            let found = survey(&disk).await.unwrap();
            let lost: Vec<_> = found.unreadable.iter().map(|(container, _)| *container).collect();
            assert_eq!((lost.contains(&FIRST), found.nobodys.len()), (is_lost, 0), "{found:?}");
            let of_log = &found.pipelines[&PIPELINE].containers;
            assert_eq!((of_log.contains(&FIRST), of_log.contains(&SECOND)), (!is_lost, true), "{found:?}");
        }
    }
}
