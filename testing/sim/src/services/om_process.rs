use super::clock::Ahead;
use super::memory_db::{MemoryTableStore, MemoryTables};
use super::scm_process::{START_AGAIN, keep};
use crate::world::Context;
use disk::DataDirectory;
use disk::sim::SimDirectory;
use om::{Om, OmOptions};
use raft::{AddressBook, HostOptions, RaftHost};
use raftlog::{LogSpace, LogSpaceOptions};
use std::sync::Arc;
use tokio::time::sleep;
use tonic::service::{Routes, RoutesBuilder};

/// One life of an OM's process.
pub(crate) struct OmProcess {
    pub(crate) options: OmOptions,
    pub(crate) space: LogSpaceOptions,
    pub(crate) host: HostOptions,
    pub(crate) directory: SimDirectory,
    pub(crate) tables: MemoryTables,
    pub(crate) ahead: Ahead,
}

impl OmProcess {
    pub(crate) async fn run(self, context: Context) -> Routes {
        loop {
            match self.try_start(&context).await {
                Ok(routes) => return routes,
                Err(failure) => {
                    context.trace.event(format_args!("{} cannot start: {failure:#}", self.options.address));
                    sleep(START_AGAIN).await;
                }
            }
        }
    }

    async fn try_start(&self, context: &Context) -> anyhow::Result<Routes> {
        let disk: Arc<dyn DataDirectory> = Arc::new(self.directory.clone());
        let (tables, options) = (self.tables.clone(), self.options.db.clone());
        let tables = Arc::new(MemoryTableStore { tables, options, disk: disk.clone() });
        let space = LogSpace::new(disk.clone(), self.space.clone());
        let addresses = AddressBook::default();
        let host = RaftHost::over(context.connector(), self.host.clone(), addresses.clone());
        let (options, clock) = (self.options.clone(), self.ahead.clock(context));
        let om = Om::start_on(options, disk, tables, space, host.clone(), addresses, clock).await?;
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        om.add_to(&mut routes);
        keep(om);
        Ok(routes.routes())
    }
}
