//! The one way to go through the records of a container: copying, importing, scrubbing, hashing, ending and rebuilding it differ in
//! what they do with a record, and not in which records a container has, where it ends, or what its hash is.

use crate::container_end::{self, ContainerEnd};
use crate::hash::ContainerHash;
use crate::layout::{INCOMING_DIR, OWNERS_DIR};
use anyhow::Context;
use bytes::Bytes;
use disk::Disk;
use raftlog::{Discards, OwnerWalk, ReadError, Step, WalkEnd, WalkedRecord, owner_files};
use std::io;
use std::sync::Arc;
use types::{ContainerId, LogId, OwnerId};

/// Which files of a container are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// All segments of a container that is in its place.
    Container,
    /// Those from this one on.
    ContainerFrom { segment: u32 },
    /// All segments of a copy that is not published.
    Incoming,
}

/// Gives the records of a container in the order of their places; nothing is read before it is asked for.
pub(crate) struct ContainerReader {
    disk: Arc<dyn Disk>,
    container: ContainerId,
    walk: OwnerWalk,
    owners_dir: &'static str,
    /// As they were when the reading began: blocks may be deleted meanwhile.
    discards: Discards,
    contents: Contents,
    hash: ContainerHash,
}

/// A record whose head is verified; its body is read when that is asked for.
pub(crate) struct ReadRecord {
    pub walked: Box<WalkedRecord>,
    /// Its body was given up, and the record is none of what the replicas have in common.
    pub is_discarded: bool,
}

/// What was read of a container: all that it has, once the reader has come to the end.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    /// Records and their bytes, those included whose bodies were given up.
    pub records: u64,
    pub record_bytes: u64,
    pub last: Option<LogId>,
    /// Where and why the records end; `None` before that.
    pub end: Option<WalkEnd>,
}

impl Source {
    fn owners_dir(self) -> &'static str {
        match self {
            Source::Container | Source::ContainerFrom { .. } => OWNERS_DIR,
            Source::Incoming => INCOMING_DIR,
        }
    }

    fn first_segment(self) -> u32 {
        match self {
            Source::Container | Source::Incoming => 0,
            Source::ContainerFrom { segment } => segment,
        }
    }
}

impl ContainerReader {
    pub(crate) async fn open(
        disk: &Arc<dyn Disk>,
        container: ContainerId,
        source: Source,
    ) -> anyhow::Result<ContainerReader> {
        let (owner, owners_dir) = (OwnerId::from(container), source.owners_dir());
        let discards = Discards::read(&**disk, owners_dir, owner).await.context("read what was discarded")?;
        let walk = OwnerWalk::from_segment(disk.clone(), owners_dir, owner, source.first_segment()).await;
        let walk = walk.context("list segments")?;
        let contents = Contents { records: 0, record_bytes: 0, last: None, end: None };
        let (disk, hash) = (disk.clone(), ContainerHash::default());
        Ok(ContainerReader { disk, container, walk, owners_dir, discards, contents, hash })
    }

    /// The next record; `None` at the end, which is then in [`ContainerReader::contents`].
    pub(crate) async fn next(&mut self) -> Result<Option<ReadRecord>, ReadError> {
        let walked = match self.walk.next().await? {
            Step::Record(walked) => walked,
            Step::End(end) => {
                self.contents.end = Some(end);
                return Ok(None);
            }
        };
        let is_discarded = self.discards.contains(walked.meta.id.index, &walked.meta.place);
        if !is_discarded {
            self.hash.add(&walked);
        }
        self.contents.records += 1;
        self.contents.record_bytes += walked.bytes;
        self.contents.last = Some(walked.meta.id);
        Ok(Some(ReadRecord { walked, is_discarded }))
    }

    /// Reads the body of a record and checks all of it, unless it was given up, perhaps since the reading began.
    pub(crate) async fn check_body(&self, record: &ReadRecord) -> anyhow::Result<()> {
        if record.is_discarded {
            return Ok(());
        }
        match self.walk.check_body(&record.walked).await {
            Err(_) if self.is_discarded_by_now(record).await.context("read what was discarded")? => Ok(()),
            checked => Ok(checked?),
        }
    }

    /// The part of a body that begins at `at`, a multiple of 1 MiB, verified; with the last one comes what pads the record.
    pub(crate) async fn read_body(&self, record: &ReadRecord, at: usize) -> Result<Bytes, ReadError> {
        self.walk.read_body(&record.walked, at).await
    }

    pub(crate) async fn is_discarded_by_now(&self, record: &ReadRecord) -> io::Result<bool> {
        let now = Discards::read(&*self.disk, self.owners_dir, OwnerId::from(self.container)).await?;
        Ok(now.contains(record.walked.meta.id.index, &record.walked.meta.place))
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(crate) fn discards(&self) -> &Discards {
        &self.discards
    }

    /// The hash of the records that were read and not discarded: the container's when that was all of it.
    pub(crate) fn hash(&self) -> [u8; 32] {
        self.hash.clone().finish()
    }

    /// Why a container that is over does not end as it must; to be asked at the end. `None` where all is well.
    pub(crate) async fn wrong_end(&self) -> anyhow::Result<Option<String>> {
        let alone = self.alone().await?;
        let Contents { last, end, .. } = &self.contents;
        let is_whole = end.as_ref().is_some_and(|end| container_end::is_whole(end, *last, alone));
        Ok((!is_whole).then(|| match end {
            Some(end) => format!("container {} is closed, but: {end:?}", self.container),
            None => format!("container {} was not read to its end", self.container),
        }))
    }

    /// How it ended, if no roll that is known to be committed ended it.
    pub(crate) async fn alone(&self) -> anyhow::Result<Option<ContainerEnd>> {
        ContainerEnd::read(&*self.disk, self.container).await
    }
}

/// What a container's files take on its disk: their lengths but for the holes of deleted blocks.
pub(crate) async fn disk_bytes(disk: &dyn Disk, container: ContainerId) -> anyhow::Result<u64> {
    let owner = OwnerId::from(container);
    let files = owner_files(disk, OWNERS_DIR, owner).await.context("list its files")?;
    let discards = Discards::read(disk, OWNERS_DIR, owner).await.context("read what was discarded")?;
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    Ok(bytes.saturating_sub(discards.hole_bytes()))
}
