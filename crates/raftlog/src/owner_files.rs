//! The files of one owner, whether or not a log knows them.

use crate::compacted::{self, Compacted};
use crate::discards;
use crate::segment::{SegmentId, owner_dir};
use disk::Disk;
use std::io;
use types::OwnerId;

/// A file in an owner's directory: a segment, its index, the list of what was discarded, and so on.
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

    /// Whether it is the list of what was discarded.
    pub fn is_list(&self) -> bool {
        self.name == discards::FILE_NAME
    }
}

/// All files of an owner, by name, which is the order of its segments; none when it has no directory.
/// Segments that a compaction left, or has not finished, are not among them.
pub async fn owner_files(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Vec<OwnerFile>> {
    let dir = owner_dir(owners_dir, owner);
    let mut names = disk.list(&dir).await?;
    names.sort_unstable();
    let compacted = match names.iter().any(|name| name == compacted::FILE_NAME) {
        true => Compacted::read(disk, owners_dir, owner).await?,
        false => Compacted::NEVER,
    };
    let is_of_it = |number| compacted.segments.contains(&number);
    names.retain(|name| SegmentId::parse_number(name).is_none_or(is_of_it));
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
