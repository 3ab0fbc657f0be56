//! The files of one owner, whether or not a log knows them.

use crate::segment::{SegmentId, owner_dir};
use crate::{OwnerWalk, Step};
use disk::Disk;
use std::io;
use std::sync::Arc;
use types::{LogId, OwnerId};

/// A file in an owner's directory: a segment, its index, the list of what was discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerFile {
    pub name: String,
    pub bytes: u64,
}

impl OwnerFile {
    /// The number of a segment; `None` of other files.
    pub fn segment(&self) -> Option<u32> {
        SegmentId::parse_number(&self.name)
    }
}

/// All files of an owner, by name, which is the order of its segments; none when it has no directory.
pub async fn owner_files(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Vec<OwnerFile>> {
    let dir = owner_dir(owners_dir, owner);
    let mut names = disk.list(&dir).await?;
    names.sort_unstable();
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        match disk.open(&format!("{dir}/{name}"), false).await {
            Ok(file) => files.push(OwnerFile { bytes: file.len().await?, name }),
            // Index files come and go.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(files)
}

/// The last whole record of an owner, by the heads of its last segment that has one.
pub async fn last_record(disk: Arc<dyn Disk>, owners_dir: &str, owner: OwnerId) -> io::Result<Option<LogId>> {
    let names = disk.list(&owner_dir(owners_dir, owner)).await?;
    let mut segments: Vec<_> = names.iter().filter_map(|name| SegmentId::parse_number(name)).collect();
    segments.sort_unstable();
    while let Some(segment) = segments.pop() {
        let mut walk = OwnerWalk::from_segment(disk.clone(), owners_dir, owner, segment).await?;
        let mut last = None;
        while let Step::Record(record) = walk.next().await? {
            last = Some(record.meta.id);
        }
        if last.is_some() {
            return Ok(last);
        }
    }
    Ok(None)
}
