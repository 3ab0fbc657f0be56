use crate::leadership::Leadership;
use crate::options::ScmOptions;
use crate::service::ScmService;
use crate::state_machine::{ScmStateMachine, SharedTables};
use crate::tables::{APPLIED_KEY, Tables};
use ::metrics::Exposition;
use anyhow::{Context, bail};
use disk::RealDisk;
use proto::scm::scm_server::ScmServer;
use raft::{AddressBook, DbGenerations, GroupSpec, GroupStart, Member, RaftHost};
use raftlog::{LogSpace, LogSpec};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use types::{Clock, GroupId, NodeId, OwnerId, ReplicaId};

/// A group of one elects itself; it only waits for its disk.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// SCM's RocksDB in the metadata directory.
const DB_DIR: &str = "db-scm";

/// A running SCM: the only member of its group for now.
pub struct Scm {
    leadership: Arc<Leadership>,
    dbs: DbGenerations,
    host: RaftHost,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Scm {
    /// Opens SCM's group in a metadata directory, which it may share with an OM, and waits until it leads. The first
    /// start gives the cluster its id.
    pub async fn start(
        options: ScmOptions,
        disk: Arc<RealDisk>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Scm> {
        let root = disk.root().display();
        let dbs = DbGenerations::open(disk.clone(), DB_DIR, &options.db, APPLIED_KEY).await;
        let dbs = dbs.with_context(|| format!("open {DB_DIR} in {root}"))?;
        let tables = Tables::load(&dbs.current())
            .with_context(|| format!("load SCM's tables from {DB_DIR} in {root}"))?;
        let shared = SharedTables::new(tables);
        let machine = ScmStateMachine { dbs: dbs.clone(), shared: shared.clone() };
        let group =
            host.open(group_spec(&options), &space, log_spec(), machine).await.context("open SCM's group")?;
        let leadership = Arc::new(Leadership::new(options, group, addresses, shared, clock));
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (leadership, stop) = (leadership.clone(), stop.clone());
            async move { leadership.follow(stop).await }
        });
        let scm = Scm { leadership, dbs, host, stop, task: Mutex::new(Some(task)) };
        if let Err(error) = scm.start_ready(&disk).await {
            scm.shutdown().await;
            return Err(error);
        }
        Ok(scm)
    }

    async fn start_ready(&self, disk: &RealDisk) -> anyhow::Result<()> {
        timeout(READY_TIMEOUT, self.leadership.ready())
            .await
            .context("wait for SCM's group to elect its leader")?;
        let (ours, stamped) = (self.cluster(), disk.stamp().cluster);
        if stamped.is_empty() {
            disk.join_cluster(&ours, 0).context("stamp the metadata directory with the cluster's id")?;
        } else if stamped != ours {
            let root = disk.root().display();
            bail!(
                "{root} belongs to cluster {stamped}, but the SCM in it is of cluster {ours}: SCM's files there were \
                 lost or exchanged; restore them, or start with an empty directory"
            );
        }
        Ok(())
    }

    /// Mounts SCM's service on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        let service = ScmServer::new(ScmService::new(self.leadership.clone()))
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        routes.add_service(service);
    }

    /// The cluster's id.
    pub fn cluster(&self) -> String {
        self.leadership.tables.read(|tables| tables.cluster().to_owned())
    }

    /// Why SCM cannot do its work now, if so.
    pub fn readiness(&self) -> Result<(), String> {
        self.leadership.group.status().readiness()
    }

    /// What its leader knows of nodes, pipelines and containers.
    pub fn expose(&self, exposition: &mut Exposition) {
        crate::metrics::expose(self.leadership.leader().ok().as_deref(), exposition);
    }

    /// Ends watches and tasks, closes the group and makes the tables durable, so that the next start replays little.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        let task = self.task.lock().expect("no holder of the task panics").take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "scm's leader task");
        }
        self.host.close(GroupId::SCM).await;
        let db = self.dbs.current();
        match tokio::task::spawn_blocking(move || db.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = format!("{error:#}"), "flush SCM's tables"),
            Err(error) => tracing::error!(%error, "flush SCM's tables"),
        }
    }
}

impl Drop for Scm {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn group_spec(options: &ScmOptions) -> GroupSpec {
    let replica = ReplicaId(1);
    GroupSpec {
        // One member: nobody else is spoken to.
        cluster: String::new(),
        group: GroupId::SCM,
        replica,
        timing: options.timing,
        start: GroupStart::First(vec![Member { replica, node: NodeId(0), address: options.address.clone() }]),
        campaign: true,
        snapshots: Some(options.snapshots),
        lease_reads: false,
    }
}

fn log_spec() -> LogSpec {
    let group = GroupId::SCM;
    LogSpec {
        log: group.to_u64(),
        dir: format!("groups/{group}"),
        owners_dir: format!("meta/{group}"),
        first_owner: OwnerId(0),
    }
}
