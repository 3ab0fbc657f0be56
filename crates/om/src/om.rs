use crate::counted::{Batches, Counted, expose_listings, expose_tables};
use crate::founding::{Founding, ask};
use crate::options::OmOptions;
use crate::service::{OPERATIONS, OmService, Opened};
use crate::state_machine::OmStateMachine;
use crate::tables::APPLIED_KEY;
use crate::upgrade::upgrade;
use crate::usage::Usage;
use anyhow::Context;
use disk::{DataDirectory, Disk, RealDisk};
use metrics::Exposition;
use proto::om::om_server::OmServer;
use proto::scm::GetClusterStatusRequest;
use proto::scm::scm_client::ScmClient;
use proto::{ClusterGuard, Code, Failure};
use raft::{AddressBook, Group, GroupSpec, GroupStart, Member, RaftHost, ReadIndexError, ReplicaHere, Role};
use raftlog::{LogSpace, LogSpec};
use statedb::{DbGenerations, GroupDb};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::service::RoutesBuilder;
use tonic::service::interceptor::InterceptedService;
use types::{Clock, GroupId, NodeId, OwnerId, ReplicaId};

/// A group of one elects itself; it only waits for its disk.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two tries to find out which cluster this OM is of.
const ASK_AGAIN: Duration = Duration::from_millis(200);
const NOTE_AGAIN: Duration = Duration::from_secs(1);

/// The word of SCM that it is of another cluster than the names that are here, as long as it stands.
#[derive(Clone, Default)]
struct Foreign(Arc<std::sync::Mutex<Option<String>>>);

impl Foreign {
    fn set(&self, why: Option<String>) {
        let before = std::mem::replace(&mut *self.0.lock().expect("no holder panics"), why.clone());
        match why {
            Some(why) if before.is_none() => tracing::error!(why, "OM is of another cluster"),
            None if before.is_some() => tracing::info!("OM is of SCM's cluster"),
            _ => {}
        }
    }

    fn check(&self) -> Result<(), String> {
        self.0.lock().expect("no holder panics").clone().map_or(Ok(()), Err)
    }
}

/// A running OM: the only member of its only group for now.
pub struct Om {
    service: OmService,
    scans_max: usize,
    host: RaftHost,
    /// Runs until the group is open.
    opening: Mutex<JoinHandle<()>>,
    foreign: Foreign,
}

impl Om {
    /// Opens the OM's group in a metadata directory, which it may share with an SCM, and waits until it
    /// leads. Where there is none yet that happens later: once SCM has said which cluster this is, and that
    /// no other OM has its names. Without an SCM nobody is asked.
    pub async fn start(
        options: OmOptions,
        disk: Arc<RealDisk>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Om> {
        let (there, db) = (disk.clone(), options.db.clone());
        let dbs = async move {
            let dir = format!("db-{}", group_id());
            let dbs = DbGenerations::open(there.clone(), &dir, &db, APPLIED_KEY).await;
            let dbs = dbs.with_context(|| format!("open {dir} in {}", there.root().display()))?;
            Ok(Arc::new(dbs) as Arc<dyn GroupDb>)
        };
        Om::start_on(options, disk, dbs, space, host, addresses, clock).await
    }

    /// [`Om::start`] on a directory that somebody opened. `dbs` opens the tables, once this is an OM of the
    /// cluster: one that is refused leaves nothing behind. They keep their applied position under
    /// [`APPLIED_KEY`].
    pub async fn start_on(
        options: OmOptions,
        disk: Arc<dyn DataDirectory>,
        dbs: impl Future<Output = anyhow::Result<Arc<dyn GroupDb>>> + Send + 'static,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Om> {
        let scans_max = options.scans_max;
        let scans = Arc::new(Semaphore::new(scans_max));
        let counted = Arc::new(Counted::new(OPERATIONS));
        let service = OmService { opened: Arc::default(), addresses, clock, scans, counted };
        let here: Arc<dyn Disk> = disk.clone();
        let here = ReplicaHere::of(group_id(), &here).await.context("read which replica is here")?;
        let is_founded = here.is_some() || options.scm.is_empty();
        let opened = service.opened.clone();
        let foreign = Foreign::default();
        let told = foreign.clone();
        let opener = Opener { options, disk, space, host: host.clone(), is_founded, opened, foreign: told };
        let opening = match is_founded && !opener.disk.stamp().cluster.is_empty() {
            true => {
                opener.open(dbs).await?;
                tokio::spawn(opener.note_again())
            }
            false => tokio::spawn(opener.join_and_open(dbs)),
        };
        Ok(Om { service, scans_max, host, opening: Mutex::new(opening), foreign })
    }

    /// Mounts the OM's service on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        let opened = self.service.opened.clone();
        let here = move || {
            let opened = opened.get()?.as_ref().ok()?;
            Some(opened.group.cluster().to_owned())
        };
        let service = OmServer::new(self.service.clone())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        routes.add_service(InterceptedService::new(service, ClusterGuard::new(here)));
    }

    /// The reason why the OM cannot do its work now, if there is one.
    pub fn readiness(&self) -> Result<(), String> {
        self.foreign.check()?;
        self.service.opened().map_err(|failure| failure.message)?.group.status().readiness()
    }

    /// Entries that are committed and not applied here.
    pub fn lag(&self) -> u64 {
        self.service.opened().map_or(0, |opened| opened.group.status().lag())
    }

    pub fn expose(&self, exposition: &mut Exposition) {
        self.service.counted.expose(exposition);
        expose_listings(self.scans_max - self.service.scans.available_permits(), exposition);
        if let Ok(opened) = self.service.opened() {
            let tables = opened.dbs.current();
            opened.usage.expose(&tables, exposition);
            opened.batches.expose(exposition);
            expose_tables(tables.rocks(), exposition);
        }
    }

    /// Closes the group and makes the tables durable, so that the next start replays little.
    pub async fn shutdown(&self) {
        let mut opening = self.opening.lock().await;
        opening.abort();
        // What it had begun is done, or never will be. One that was waited for must not be again.
        if !opening.is_finished() {
            let _ = (&mut *opening).await;
        }
        self.host.close(group_id()).await;
        let Ok(opened) = self.service.opened() else { return };
        let db = opened.dbs.current();
        match tokio::task::spawn_blocking(move || db.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = format!("{error:#}"), "flush the OM's tables"),
            Err(error) => tracing::error!(%error, "flush the OM's tables"),
        }
    }
}

/// All that it takes to open the OM's group.
struct Opener {
    options: OmOptions,
    disk: Arc<dyn DataDirectory>,
    space: Arc<LogSpace>,
    host: RaftHost,
    /// The names are here, or nobody can say that they are elsewhere.
    is_founded: bool,
    opened: Arc<OnceLock<Result<Opened, String>>>,
    foreign: Foreign,
}

impl Opener {
    /// Asks until SCM answers: it may be away, or not yet be there. What fails after that does not mend
    /// itself.
    async fn join_and_open(self, dbs: impl Future<Output = anyhow::Result<Arc<dyn GroupDb>>>) {
        let founding = Founding::new(&self.options.address);
        let mut said = String::new();
        let joined = loop {
            match self.join(&founding).await {
                Err(failure) if failure.code != Code::PreconditionFailed => {
                    let why = failure.to_string();
                    if why != said {
                        tracing::info!(
                            why,
                            scm = self.options.scm,
                            "OM waits for SCM to say which cluster this is"
                        );
                        said = why;
                    }
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                joined => break joined,
            }
        };
        let opened = async {
            let cluster = joined?;
            self.disk.join_cluster(&cluster, 0).context("stamp the metadata directory")?;
            self.open(dbs).await?;
            anyhow::Ok(cluster)
        };
        match opened.await {
            Ok(cluster) => tracing::info!(cluster, "OM joined the cluster"),
            Err(failure) => {
                let why = format!("{failure:#}");
                tracing::error!(why, "OM cannot open its group: stop it, and mend that");
                let _ = self.opened.set(Err(why));
            }
        }
    }

    /// Notes again whose the names are that are here: SCM may have lost its note, or never had one.
    async fn note_again(self) {
        let OmOptions { address, scm, .. } = &self.options;
        let (founding, cluster) = (Founding::new(address), self.disk.stamp().cluster);
        while !scm.is_empty() {
            let noted = founding.note(scm, &self.host, &cluster).await;
            // It has told nobody which names it has, and goes on with none of theirs.
            let is_foreign = noted.as_ref().err().filter(|failure| failure.code == Code::WrongCluster);
            let why = is_foreign.map(|failure| {
                let root = self.disk.root().display();
                format!("{root} belongs to cluster {cluster}, the SCM of --scm {scm} to another: {failure}")
            });
            self.foreign.set(why);
            match noted {
                Err(failure) if failure.code != Code::PreconditionFailed => {
                    tokio::time::sleep(NOTE_AGAIN).await
                }
                Ok(()) | Err(_) => break,
            }
        }
    }

    /// The cluster that this is, once it is certain that no other OM has its names.
    async fn join(&self, founding: &Founding) -> Result<String, Failure> {
        let (scm, host) = (&self.options.scm, &self.host);
        let status = ask(scm, host, |channel| async move {
            ScmClient::new(channel).get_cluster_status(GetClusterStatusRequest {}).await
        });
        let cluster = status.await?.cluster;
        if !self.is_founded {
            founding.note(scm, host, &cluster).await?;
        }
        Ok(cluster)
    }

    async fn open(&self, dbs: impl Future<Output = anyhow::Result<Arc<dyn GroupDb>>>) -> anyhow::Result<()> {
        let Opener { options, disk, space, host, opened, .. } = self;
        let (dbs, usage) = (dbs.await?, Arc::new(Usage::default()));
        let batches = Arc::new(Batches::default());
        // Blocks, as opening them did.
        let tables = dbs.current();
        upgrade(&tables)
            .and_then(|()| usage.read(&tables))
            .with_context(|| format!("read OM's tables in {}", disk.root().display()))?;
        let machine = OmStateMachine { dbs: dbs.clone(), usage: usage.clone(), batches: batches.clone() };
        let spec = group_spec(options, disk.stamp().cluster);
        let group = host.open(spec, space, log_spec(), machine).await.context("open the OM's group")?;
        let ready = timeout(READY_TIMEOUT, start_ready(&group)).await;
        let ready = ready.context("wait for the OM's group to elect its leader").and_then(|ready| ready);
        if let Err(error) = ready {
            host.close(group_id()).await;
            return Err(error);
        }
        let _ = opened.set(Ok(Opened { group, dbs, usage, batches }));
        Ok(())
    }
}

/// Waits until the group leads and has applied what its log holds.
async fn start_ready(group: &Group) -> anyhow::Result<()> {
    let mut status = group.watch();
    loop {
        let found = status.wait_for(|status| status.role == Role::Leader || status.failure.is_some()).await;
        if let Some(failure) = found.context("the OM's group stopped")?.failure.clone() {
            anyhow::bail!("the OM's group failed: {failure}");
        }
        match group.read_index().await {
            Ok(_) => return Ok(()),
            Err(error @ ReadIndexError::Stopped { .. }) => return Err(error).context("catch up"),
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn group_id() -> GroupId {
    GroupId::om(0)
}

fn group_spec(options: &OmOptions, cluster: String) -> GroupSpec {
    let replica = ReplicaId(1);
    GroupSpec {
        cluster,
        group: group_id(),
        replica,
        timing: options.timing,
        start: GroupStart::First(vec![Member { replica, node: NodeId(0), address: options.address.clone() }]),
        campaign: true,
        snapshots: Some(options.snapshots),
        lease_reads: false,
    }
}

fn log_spec() -> LogSpec {
    let group = group_id();
    LogSpec {
        log: group.to_u64(),
        dir: format!("groups/{group}"),
        owners_dir: format!("meta/{group}"),
        first_owner: OwnerId(0),
    }
}
