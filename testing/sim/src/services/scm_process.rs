use super::clock::Ahead;
use super::memory_db::{MemoryDb, MemoryStore};
use crate::world::Context;
use disk::DataDirectory;
use disk::sim::SimDirectory;
use raft::{AddressBook, HostOptions, RaftHost};
use raftlog::{LogSpace, LogSpaceOptions};
use scm::{Scm, ScmOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tonic::service::{Routes, RoutesBuilder};

/// A process that could not start is started again after this, as a service manager does it.
pub(crate) const START_AGAIN: Duration = Duration::from_millis(500);

/// One life of the process of a member of SCM.
pub(crate) struct ScmProcess {
    pub(crate) options: ScmOptions,
    pub(crate) space: LogSpaceOptions,
    pub(crate) host: HostOptions,
    pub(crate) directory: SimDirectory,
    pub(crate) place: MemoryStore,
    pub(crate) ahead: Ahead,
}

impl ScmProcess {
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
        let (place, db) = (self.place.clone(), self.options.db.clone());
        let dbs = Arc::new(MemoryDb::open(place, db, disk.clone(), scm::APPLIED_KEY)?);
        let space = LogSpace::new(disk.clone(), self.space.clone());
        let addresses = AddressBook::default();
        let host = RaftHost::over(context.connector(), self.host.clone(), addresses.clone());
        let (options, clock) = (self.options.clone(), self.ahead.clock(context));
        let scm = Scm::start_on(options, disk, dbs, space, host.clone(), addresses, clock).await?;
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        scm.add_to(&mut routes);
        keep(scm);
        Ok(routes.routes())
    }
}

/// Lets a service live as long as its process.
pub(crate) fn keep<T: Send + 'static>(service: T) {
    tokio::spawn(async move {
        let _service = service;
        std::future::pending::<()>().await;
    });
}
