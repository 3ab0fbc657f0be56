//! The directory of an OM at some time.

use crate::services::{MemoryTables, quick_disk};
use disk::Disk;
use disk::sim::SimDisk;

/// All that an OM has.
pub(super) struct OmCopy {
    pub(super) disk: SimDisk,
    pub(super) tables: MemoryTables,
}

pub(super) async fn copy_disk(disk: &SimDisk) -> std::io::Result<SimDisk> {
    let copy = SimDisk::new(quick_disk());
    for (path, _) in disk.files() {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        copy.create_dir_all(dir).await?;
        let file = copy.open(&path, true).await?;
        file.write_and_sync(0, vec![disk.stored(&path)?]).await?;
        copy.sync_dir(dir).await?;
    }
    Ok(copy)
}
