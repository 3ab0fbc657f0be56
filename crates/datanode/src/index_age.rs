//! An index that is older than its disk: RocksDB opens one whose newest files are gone as it was before them.
//! Pipelines and containers that it lacks would pass for let go of or deleted, so such a disk is refused
//! until its index is rebuilt.

use crate::container_reader::{ContainerReader, Reading};
use crate::import::imported_file;
use crate::index::Index;
use crate::layout::{DB_DIR, GROUPS_DIR, OWNERS_DIR, container_dir, pipeline_of};
use crate::spec_file;
use crate::verdict::condemns;
use anyhow::{Context, bail};
use disk::{DataDirectory, Disk};
use proto::datanode::PipelineSpec;
use raft::ReplicaRecord;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::{ContainerId, GroupId, GroupKind, PipelineId};

/// Refuses an index without what the disk shows that it once had.
pub(crate) async fn check(
    real: &dyn DataDirectory,
    disk: &Arc<dyn Disk>,
    index: &Index,
    specs: &[PipelineSpec],
) -> anyhow::Result<()> {
    let known: BTreeSet<PipelineId> = specs.iter().map(|spec| PipelineId(spec.pipeline)).collect();
    let forgotten = match forgotten_log(real, disk, &known).await? {
        Some(pipeline) => Some(format!("pipeline {pipeline}, whose log is there")),
        None => {
            let found = forgotten_container(real, disk, index, &known).await?;
            found.map(|id| format!("container {id}, which is there"))
        }
    };
    let Some(forgotten) = forgotten else { return Ok(()) };
    let root = real.root().display();
    bail!(
        "the block index {root}/{DB_DIR} does not know {forgotten}: it is older than the disk; `flotilla debug container \
         rebuild {root}` recreates it from the segments"
    )
}

/// A pipeline whose log is here, and that the index knew once and does not know now. A pipeline's spec stands
/// beside its log only once the index has it, and a replica is marked as removed before the index forgets it.
async fn forgotten_log(
    real: &dyn DataDirectory,
    disk: &Arc<dyn Disk>,
    known: &BTreeSet<PipelineId>,
) -> anyhow::Result<Option<PipelineId>> {
    for name in real.list(GROUPS_DIR).await.context("list the logs")? {
        let Some(pipeline) = pipeline_of(&name).filter(|pipeline| !known.contains(pipeline)) else {
            continue;
        };
        let group = GroupId::pipeline(pipeline);
        let record = ReplicaRecord::read_unless_damaged(group, disk).await;
        let record = record.with_context(|| format!("read the record of the replica of {group}"))?;
        let is_gone = record.is_some_and(|record| record.stage.is_being_removed());
        // A spec that cannot be read is no sign of its absence.
        let has_spec = !matches!(spec_file::read(real, pipeline).await, Ok(None));
        if has_spec && !is_gone {
            return Ok(Some(pipeline));
        }
    }
    Ok(None)
}

/// A container without a row and a mark that is a copy, or whose log is gone: the index had a row of it once.
/// A log that is on its way out has such containers filed, so its own are no sign.
async fn forgotten_container(
    real: &dyn DataDirectory,
    disk: &Arc<dyn Disk>,
    index: &Index,
    known: &BTreeSet<PipelineId>,
) -> anyhow::Result<Option<ContainerId>> {
    for container in unlisted(disk, index).await? {
        if is_copy(disk, container).await? {
            return Ok(Some(container));
        }
        let Some(pipeline) = pipeline_in(disk, container).await? else { continue };
        let log = format!("{GROUPS_DIR}/{}", GroupId::pipeline(pipeline));
        if !known.contains(&pipeline) && real.list(&log).await?.is_empty() {
            return Ok(Some(container));
        }
    }
    Ok(None)
}

/// Containers on the disk of which the index has neither a row nor a mark.
async fn unlisted(disk: &Arc<dyn Disk>, index: &Index) -> anyhow::Result<Vec<ContainerId>> {
    let listed = index.with(|index| {
        let rows = index.containers()?.into_iter().map(|(container, _)| container);
        Ok(rows.chain(index.deletions()?).chain(index.imports()?).collect::<BTreeSet<_>>())
    });
    let listed = listed.await?;
    let there = raftlog::owners(&**disk, OWNERS_DIR).await.context("list the containers")?;
    let there = there.into_iter().map(|owner| ContainerId(owner.0));
    Ok(there.filter(|container| !listed.contains(container)).collect())
}

/// Containers with records that the index does not know, and their pipelines: their log has rolled to them
/// and was not applied that far, or a flush is missing. Copies are left out, and those that are marked; one
/// whose first record is damaged is no sign of anything.
pub(crate) async fn containers_without_row(
    disk: &Arc<dyn Disk>,
    index: &Index,
) -> anyhow::Result<Vec<(ContainerId, PipelineId)>> {
    let mut found = Vec::new();
    for container in unlisted(disk, index).await? {
        if is_copy(disk, container).await? {
            continue;
        }
        found.extend(pipeline_in(disk, container).await?.map(|pipeline| (container, pipeline)));
    }
    Ok(found)
}

/// Whether a container came from another node; one whose file `imported` is damaged did, and one whose file
/// the medium does not give back may have.
pub(crate) async fn is_copy(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<bool> {
    match imported_file::read(&**disk, &container_dir(container)).await {
        Err(failure) if condemns(&failure) => Ok(true),
        read => Ok(read?.is_some()),
    }
}

/// The pipeline of the container's first record; `None` where it has no whole one.
async fn pipeline_in(disk: &Arc<dyn Disk>, container: ContainerId) -> anyhow::Result<Option<PipelineId>> {
    let first = async {
        let mut reader = ContainerReader::open(disk, container, Reading::Whole).await?;
        reader.next().await.with_context(|| format!("read container {container}"))
    };
    let first = match first.await {
        Err(failure) if condemns(&failure) => None,
        first => first?,
    };
    let log = first.and_then(|record| GroupId::try_from(record.walked.log).ok());
    Ok(log.filter(|log| log.kind == GroupKind::Pipeline).map(|log| PipelineId(log.number)))
}

#[cfg(test)]
mod tests {
    use crate::datanode_disk::DatanodeDisk;
    use crate::index::Index;
    use crate::inventory::Inventory;
    use crate::layout::{DB_DIR, GROUPS_DIR};
    use crate::offline::tests::Left;
    use crate::options::DatanodeOptions;
    use crate::spec_file;
    use disk::{Disk, RealDisk};
    use proto::datanode::PipelineSpec;
    use statedb::{Db, DbOptions};
    use std::path::Path;
    use std::sync::Arc;
    use types::{GroupId, PipelineId};

    async fn open(real: &Arc<RealDisk>) -> anyhow::Result<()> {
        let options = DatanodeOptions::default();
        DatanodeDisk::open(real.clone(), &options, Inventory::default()).await.map(drop)
    }

    fn index(root: &Path) -> Index {
        Index::new(Arc::new(Db::open(&root.join(DB_DIR), &DbOptions::default()).unwrap()))
    }

    #[tokio::test]
    async fn an_index_that_is_older_than_its_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = Arc::new(RealDisk::open(dir.path(), 1).unwrap());
        open(&real).await.unwrap();
        let spec = PipelineSpec { pipeline: 7, ..PipelineSpec::default() };
        real.create_dir_all(&format!("{GROUPS_DIR}/{}", GroupId::pipeline(PipelineId(7)))).await.unwrap();
        open(&real).await.expect("it may have been about to know it");
        spec_file::write(&*real, &spec).await.unwrap();
        let refused = open(&real).await.unwrap_err();
        assert!(refused.to_string().contains("does not know pipeline 7"), "{refused:#}");
        index(dir.path()).save_pipeline_spec(&spec).unwrap();
        open(&real).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn containers_of_logs_that_are_gone_are_known_or_the_index_is_older() {
        let left = Left::new().await.copy();
        let root = left.root();
        let real = Arc::new(RealDisk::open(&root, 1).unwrap());
        open(&real).await.unwrap();
        let in_use = real.list(GROUPS_DIR).await.unwrap();
        real.remove_dir_all(DB_DIR).await.unwrap();
        drop(index(&root));
        let refused = open(&real).await.unwrap_err();
        assert!(refused.to_string().contains("does not know pipeline"), "{refused:#}");
        for group in in_use {
            real.remove_dir_all(&format!("{GROUPS_DIR}/{group}")).await.unwrap();
        }
        let refused = open(&real).await.unwrap_err();
        assert!(refused.to_string().contains("does not know container"), "{refused:#}");
    }
}
