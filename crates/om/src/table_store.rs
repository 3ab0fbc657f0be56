//! The place where the tables of groups are.

use crate::tables::APPLIED_KEY;
use anyhow::Context;
use disk::RealDisk;
use futures::FutureExt;
use futures::future::BoxFuture;
use statedb::{DbGenerations, DbOptions, GroupDb};
use std::sync::Arc;
use types::GroupId;

/// The place of groups' tables: a disk, or memory in simulations.
pub trait TableStore: Send + Sync + 'static {
    /// Opens a group's tables, empty ones where there are none. They keep their applied position under
    /// [`APPLIED_KEY`].
    fn open(&self, group: GroupId) -> BoxFuture<'static, anyhow::Result<Arc<dyn GroupDb>>>;

    /// Deletes a group's tables, which nobody has open, durably. Safe to repeat; until it has returned they
    /// are not to be opened.
    fn delete(&self, group: GroupId) -> BoxFuture<'static, anyhow::Result<()>>;
}

/// Tables in the metadata directory, in `db-<group>`.
pub(crate) struct DiskTables {
    pub(crate) disk: Arc<RealDisk>,
    pub(crate) options: DbOptions,
}

fn dir(group: GroupId) -> String {
    format!("db-{group}")
}

impl TableStore for DiskTables {
    fn open(&self, group: GroupId) -> BoxFuture<'static, anyhow::Result<Arc<dyn GroupDb>>> {
        let (disk, options, dir) = (self.disk.clone(), self.options.clone(), dir(group));
        async move {
            let dbs = DbGenerations::open(disk.clone(), &dir, &options, APPLIED_KEY).await;
            let dbs = dbs.with_context(|| format!("open {dir} in {}", disk.root().display()))?;
            Ok(Arc::new(dbs) as Arc<dyn GroupDb>)
        }
        .boxed()
    }

    fn delete(&self, group: GroupId) -> BoxFuture<'static, anyhow::Result<()>> {
        let (disk, dir) = (self.disk.clone(), dir(group));
        async move {
            let deleted = DbGenerations::delete(&disk, &dir).await;
            deleted.with_context(|| format!("delete {dir} in {}", disk.root().display()))
        }
        .boxed()
    }
}
