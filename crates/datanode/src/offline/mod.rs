//! Operations on a disk of a datanode that is stopped: `flotilla debug container`. The directory's lock keeps
//! a datanode and these apart.

pub(crate) mod install;
mod list;
mod rebuild;
mod replay;
mod survey;
mod verify;

pub use list::{IndexedContainer, ListedContainer};
pub use rebuild::{RebuildOptions, RebuildReport, RebuiltLog, RebuiltPipeline};
pub use replay::DamagedContainer;
pub use verify::{ContainerVerdict, Finding, FindingKind, VerifyReport};

use crate::index::Index;
use crate::layout::DB_DIR;
use anyhow::{Context, bail};
use disk::{DataDirectory, Disk, DiskIo, RealDisk};
use statedb::{Db, DbOptions};
use std::path::Path;
use std::sync::Arc;

/// A data directory that nobody else uses.
pub struct OfflineDisk {
    real: Arc<dyn DataDirectory>,
    db: DbOptions,
}

impl OfflineDisk {
    /// Locks a data directory; refuses what is none, and one in use. Blocks.
    pub fn open(root: &Path) -> anyhow::Result<OfflineDisk> {
        let Some(stamp) = RealDisk::peek(root)? else {
            bail!("{} is no data directory: there is no VERSION in it", root.display());
        };
        let real = RealDisk::open_with(root, stamp.node_uuid, DiskIo::Threads)?;
        Ok(OfflineDisk::over(Arc::new(real), DbOptions::default()))
    }

    /// A data directory that the caller has locked.
    pub fn over(real: Arc<dyn DataDirectory>, db: DbOptions) -> OfflineDisk {
        OfflineDisk { real, db }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        self.real.clone()
    }

    /// The index as the datanode left it; `None` when it has none.
    async fn index(&self) -> anyhow::Result<Option<Index>> {
        install::finish(&*self.real).await?;
        if !install::has_index(&*self.real).await? {
            return Ok(None);
        }
        self.open_index(DB_DIR).await.map(Some)
    }

    async fn open_index(&self, dir: &str) -> anyhow::Result<Index> {
        let path =
            self.real.database(dir).await.with_context(|| format!("look for the block index in {dir}"))?;
        let db = Db::open(&path, &self.db).with_context(|| format!("open the block index in {dir}"))?;
        Ok(Index::new(Arc::new(db)))
    }
}

#[cfg(test)]
pub(crate) mod tests;
