use crate::formation::Formation;
use crate::leadership::Leadership;
use crate::options::ScmOptions;
use crate::registry::RegistryService;
use crate::seat::{Seat, Seats};
use crate::service::ScmService;
use crate::state_machine::SharedTables;
use crate::tables::{APPLIED_KEY, Tables};
use ::metrics::Exposition;
use anyhow::{Context, bail};
use disk::{DataDirectory, RealDisk};
use proto::ClusterGuard;
use proto::registry::registry_server::RegistryServer;
use proto::scm::scm_server::ScmServer;
use raft::{AddressBook, RaftHost};
use raftlog::LogSpace;
use statedb::{DbGenerations, GroupDb};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use types::{Clock, GroupId};

/// The time within which a group of one leads: it elects itself, and only waits for its disk.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The calls of those that do not know the cluster yet: which it is, and to join it.
const FOR_STRANGERS: [&str; 6] =
    ["Register", "RegisterOm", "Introduce", "JoinScm", "Watch", "GetClusterStatus"];

/// SCM's RocksDB in the metadata directory.
const DB_DIR: &str = "db-scm";

/// A running SCM: a member of its group, or on the way to be one.
pub struct Scm {
    leadership: Arc<Leadership>,
    seats: Arc<Seats>,
    dbs: Arc<dyn GroupDb>,
    host: RaftHost,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Scm {
    /// Opens SCM's replica in a metadata directory, which it may share with an OM. A process that is SCM all
    /// by itself leads on return, and its first start gives the cluster its id; one of several finds its
    /// place in the background, and needs the process's gRPC for that.
    pub async fn start(
        options: ScmOptions,
        disk: Arc<RealDisk>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Scm> {
        let dbs = DbGenerations::open(disk.clone(), DB_DIR, &options.db, APPLIED_KEY).await;
        let dbs = dbs.with_context(|| format!("open {DB_DIR} in {}", disk.root().display()))?;
        Scm::start_on(options, disk, Arc::new(dbs), space, host, addresses, clock).await
    }

    /// [`Scm::start`] on a directory and a database that somebody opened; the database keeps its applied
    /// position under [`APPLIED_KEY`].
    pub async fn start_on(
        options: ScmOptions,
        disk: Arc<dyn DataDirectory>,
        dbs: Arc<dyn GroupDb>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Scm> {
        let options = options.in_order()?;
        let root = disk.root().display();
        let tables = Tables::load(&dbs.current())
            .with_context(|| format!("load SCM's tables from {DB_DIR} in {root}"))?;
        let shared = SharedTables::new(tables);
        let seats =
            Seats::new(options.clone(), disk.clone(), space, host.clone(), dbs.clone(), shared.clone());
        let seats = Arc::new(seats);
        let leadership = Arc::new(Leadership::new(options, seats.clone(), addresses, shared, clock));
        let stop = CancellationToken::new();
        let follow = tokio::spawn({
            let (leadership, stop) = (leadership.clone(), stop.clone());
            async move { leadership.follow(stop).await }
        });
        let scm = Scm { leadership, seats, dbs, host, stop, tasks: Mutex::new(vec![follow]) };
        if let Err(error) = scm.take_seat(&disk).await {
            scm.shutdown().await;
            return Err(error);
        }
        Ok(scm)
    }

    async fn take_seat(&self, disk: &Arc<dyn DataDirectory>) -> anyhow::Result<()> {
        let here = self.seats.reopen().await?;
        let options = self.seats.options();
        if options.is_alone() {
            let seat = match here {
                Some(seat) => seat,
                None => self.seats.found().await?,
            };
            self.start_ready(&seat, &**disk).await?;
            self.seats.is_member();
            return Ok(());
        }
        let formation = Formation {
            seats: self.seats.clone(),
            disk: disk.clone(),
            connector: self.host.connector().clone(),
            address: options.address.clone(),
            members: options.members.clone(),
        };
        let (leadership, seats) = (self.leadership.clone(), self.seats.clone());
        let (disk, stop) = (disk.clone(), self.stop.clone());
        let forming = tokio::spawn(async move {
            // Every step may be dropped: it is repeated at the next start.
            let formed = stop.run_until_cancelled(async {
                formation.run().await?;
                check_stamp(&*disk, &leadership.cluster_named().await)?;
                formation.look_around().await?;
                seats.is_member();
                anyhow::Ok(())
            });
            if let Some(Err(failure)) = formed.await {
                let why = format!("{failure:#}");
                tracing::error!(why, "this SCM cannot be a member of the cluster");
                seats.failed(why);
            }
        });
        self.tasks.lock().expect("no holder of the tasks panics").push(forming);
        Ok(())
    }

    async fn start_ready(&self, seat: &Seat, disk: &dyn DataDirectory) -> anyhow::Result<()> {
        tokio::select! {
            ready = timeout(READY_TIMEOUT, self.leadership.ready()) => {
                ready.context("wait for SCM's group to elect its leader")?;
            }
            others = seat.others() => bail!(
                "SCM has other members, at {}: start this one with the same --scm list as they have", others.join(", ")
            ),
        }
        check_stamp(disk, &self.cluster())
    }

    /// Mounts SCM's services on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        let service = ScmServer::new(ScmService::new(self.leadership.clone(), self.seats.clone()))
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        let tables = self.leadership.tables.clone();
        let here =
            move || Some(tables.read(|tables| tables.cluster().to_owned())).filter(|id| !id.is_empty());
        let guard = ClusterGuard::new(here);
        routes.add_service(guard.clone().with_strangers_at(&FOR_STRANGERS).in_front_of(service));
        let registry = RegistryServer::new(RegistryService::new(self.leadership.clone(), self.stop.clone()))
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        routes.add_service(guard.in_front_of(registry));
    }

    /// The cluster's id.
    pub fn cluster(&self) -> String {
        self.leadership.tables.read(|tables| tables.cluster().to_owned())
    }

    /// The reason why SCM cannot do its work now, if there is one.
    pub fn readiness(&self) -> Result<(), String> {
        if let Some(why) = self.seats.waiting() {
            return Err(format!("it is no member of a cluster yet: {why}"));
        }
        let Some(seat) = self.seats.taken() else { return Err("it has no replica yet".to_owned()) };
        let status = seat.group.status();
        if status.is_removed {
            return Err(
                "it was removed from SCM's members; to join again it needs an empty --meta".to_owned()
            );
        }
        if seat.was_member && seat.group.members().get(seat.group.replica()).is_none() {
            // The process was stopped before it heard that the others had agreed. They send it nothing any
            // more.
            return Err(
                "it was removed from SCM's members as far as it has heard; see `flotilla admin scm roles`, and to join again it needs an empty --meta"
                    .to_owned(),
            );
        }
        seat.full_disk().map_or_else(|| seat.group.readiness(), Err)
    }

    /// Waits until this process is a member; fails when it cannot be one.
    pub async fn joined(&self) -> anyhow::Result<()> {
        self.seats.until_member().await
    }

    /// The number of entries that are committed and not applied here.
    pub fn lag(&self) -> u64 {
        self.leadership.group().map_or(0, |group| group.status().lag())
    }

    /// Adds to the metrics what SCM's leader knows of nodes, pipelines and containers, and what this member
    /// knows of the registry.
    pub fn expose(&self, exposition: &mut Exposition) {
        let leader = self.leadership.leader().ok();
        crate::metrics::expose(leader.as_deref(), exposition);
        crate::registry::expose(&self.leadership.tables, leader.as_deref(), exposition);
    }

    /// Ends watches and tasks, lets another member lead, closes the group and makes the tables durable, so
    /// that the next start replays little.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of the tasks panics"));
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of SCM");
            }
        }
        self.host.leave(GroupId::SCM).await;
        let db = self.dbs.current();
        match raft::blocking(move || db.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = format!("{error:#}"), "flush SCM's tables"),
            Err(error) => tracing::error!(%error, "flush SCM's tables"),
        }
    }
}

/// Stamps the metadata directory as the cluster's, if it belongs to none yet, and refuses one that belongs to
/// another.
fn check_stamp(disk: &dyn DataDirectory, ours: &str) -> anyhow::Result<()> {
    let stamped = disk.stamp().cluster;
    if stamped.is_empty() {
        return disk.join_cluster(ours, 0).context("stamp the metadata directory with the cluster's id");
    }
    if stamped != ours {
        let root = disk.root().display();
        bail!(
            "{root} belongs to cluster {stamped}, but the SCM in it is of cluster {ours}: SCM's files there were \
             lost or exchanged; restore them, or start with an empty directory"
        );
    }
    Ok(())
}

impl Drop for Scm {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
