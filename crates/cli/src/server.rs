use crate::args::{OmReads, S3OmReads, ScmTimes, ServerArgs};
use crate::credentials::{Secret, systemd_directory};
use crate::http::Http;
use crate::logging;
use crate::memory_share::MemoryShare;
use crate::open_files;
use crate::presence::{Presence, Reached};
use crate::ready::{check_ready_file, write_ready_file};
use crate::reclaim_times::ReclaimTimes;
use crate::role::Role;
use crate::roles::Roles;
use crate::s3_limits::S3Limits;
use crate::service_manager::{NotifyOptions, ServiceManager};
use crate::signals::{self, Hangups};
use crate::version::VERSION;
use anyhow::{Context, bail};
use client::{Client, ClientOptions};
use datanode::{Datanode, DatanodeOptions};
use httpd::{BodyMemory, Counters, Plain, Port, Work};
use om::{Om, OmOptions};
use proto::Seeker;
use raft::{AddressBook, HostOptions, RaftHost};
use raftlog::{LogSpace, LogSpaceOptions};
use registry::dns::DnsSockets;
use registry::http::Hosts;
use rpc::{Gate, GateOptions, Local};
use s3gw::{Accounts, GatewayOptions, RequestLog};
use scm::{Scm, ScmOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use tracing::info;
use types::SystemClock;

/// The time that the gateway's connections get to finish what they are doing when the process stops: a chunk
/// and its commit on disks that stand still for a while. With all else that stopping takes it is less than
/// service managers wait (`deploy/flotilla.service`).
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// The time for the request log's last lines; a disk that hangs keeps no process from ending.
const REQUEST_LOG_CLOSE_MAX: Duration = Duration::from_secs(2);

/// The time for calls that are under way when the groups are gone; answers only have to be written.
pub(crate) const RPC_DRAIN_MAX: Duration = Duration::from_millis(500);

/// The free space below which SCM's and OM's commands are not taken. It is far below the reserve of data
/// disks, which is kept for them when they share a file system.
const METADATA_RESERVE_BYTES: u64 = 64 << 20;
/// The room that the request log leaves on its file system, or a tenth of that where it is small: SCM and OM,
/// whose disk it may be, take nothing more when it is full, and anybody may make requests.
const LEFT_BY_REQUEST_LOG_BYTES: u64 = 1 << 30;

/// The settings of one server: its roles, where they listen, and where they keep things.
#[derive(Clone, Debug)]
pub(crate) struct ServerOptions {
    pub roles: Vec<Role>,
    pub rpc: SocketAddr,
    pub advertise: Option<String>,
    pub meta: Option<PathBuf>,
    pub disks: Vec<PathBuf>,
    /// The way in which files of the data directories and of the metadata directory are read and written.
    pub disk_io: disk::DiskIo,
    pub scm: Option<String>,
    pub s3: SocketAddr,
    pub s3_limits: S3Limits,
    /// The file in which requests of S3 are written down; `None`: nowhere.
    pub s3_request_log: Option<PathBuf>,
    /// The address at which DNS is answered; `None`: nowhere.
    pub dns: Option<SocketAddr>,
    pub dns_zone: String,
    pub access_key: String,
    pub secret_key: Secret,
    /// Host names of the S3 endpoint.
    pub s3_domains: Vec<String>,
    pub container_bytes_max: u64,
    pub pipelines_per_disk: u32,
    pub keep_free_percent: u64,
    /// The least number of groups of names.
    pub om_groups: u16,
    /// Free space below which a disk takes no more data.
    pub reserve_bytes: u64,
    /// The memory of its parts; a gateway's is in `s3_limits` as well.
    pub memory: MemoryShare,
    pub scrub_bytes_per_second: u64,
    pub scrub_interval: Duration,
    pub compact_above_percent: u64,
    pub compact_bytes_per_second: u64,
    /// Growth of SCM's and OM's logs between two snapshots.
    pub metadata_log_bytes: u64,
    pub om_reads: OmReads,
    pub s3_om_reads: S3OmReads,
    pub reclaim: ReclaimTimes,
    /// The times for which SCM waits before it acts; `None`: SCM's own defaults.
    pub scm_times: Option<ScmTimes>,
}

impl ServerOptions {
    pub(crate) fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    /// Returns all contradictions at once, as one error.
    fn validate(&self) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        let metadata = self.has(Role::Scm) || self.has(Role::Om);
        if metadata && self.meta.is_none() {
            wrong.push("the roles scm and om need --meta DIR".to_owned());
        }
        if self.has(Role::Datanode) && self.disks.is_empty() {
            wrong.push("the role datanode needs at least one --disk DIR".to_owned());
        }
        if !self.has(Role::Scm) && self.scm.is_none() {
            wrong.push("without the role scm, give --scm HOST:PORT".to_owned());
        }
        if let Some(Err(failure)) = self.scm.as_ref().map(|addresses| Seeker::parse(addresses)) {
            wrong.push(format!("--scm: {failure}"));
        }
        if self.has(Role::S3) && (self.access_key.is_empty() || self.secret_key.reveal().len() < 8) {
            let keys = "the role s3 needs --access-key and --secret-key-file (8 characters or more), or FLOTILLA_ACCESS_KEY and FLOTILLA_SECRET_KEY";
            wrong.push(keys.to_owned());
        }
        if self.dns.is_some() && !self.has(Role::Scm) && self.scm.is_none() {
            wrong.push("--dns-listen needs --scm HOST:PORT".to_owned());
        }
        if self.advertise.is_none() && self.rpc.ip().is_unspecified() {
            wrong.push(format!(
                "--rpc {} listens everywhere: say with --advertise HOST:PORT where others reach it",
                self.rpc
            ));
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("; ")) }
    }
}

impl ServerOptions {
    /// Looks for the secret key where the arguments say that it is.
    fn of(args: ServerArgs) -> anyhow::Result<ServerOptions> {
        args.reclaim.check()?;
        let secret_key =
            Secret::find(args.secret_key, args.secret_key_file.as_deref(), systemd_directory().as_deref())?;
        let memory = args.memory.share(args.s3_limits.s3_memory_bytes, &args.roles, args.disks.len());
        let memory = memory.map_err(anyhow::Error::msg)?;
        let s3_limits = S3Limits { s3_memory_bytes: Some(memory.s3), ..args.s3_limits };
        Ok(ServerOptions {
            roles: args.roles,
            rpc: args.rpc,
            advertise: args.advertise,
            meta: args.meta,
            disks: args.disks,
            scm: args.scm,
            s3: args.s3,
            s3_limits,
            s3_request_log: args.s3_request_log,
            dns: args.dns_listen,
            dns_zone: args.dns_zone,
            access_key: args.access_key.unwrap_or_default(),
            secret_key,
            s3_domains: args.s3_domains,
            container_bytes_max: args.container_bytes_max,
            pipelines_per_disk: args.pipelines_per_disk,
            keep_free_percent: args.keep_free_percent,
            om_groups: args.om_groups,
            disk_io: args.disk_io,
            reserve_bytes: args.reserve_bytes,
            memory,
            scrub_bytes_per_second: args.scrub_bytes_per_second,
            scrub_interval: args.scrub_interval,
            compact_above_percent: args.compact_above_percent,
            compact_bytes_per_second: args.compact_bytes_per_second,
            metadata_log_bytes: args.metadata_log_bytes,
            om_reads: args.om_reads,
            s3_om_reads: args.s3_om_reads,
            reclaim: args.reclaim,
            scm_times: Some(args.scm_times),
        })
    }
}

/// The roles of one process, running.
pub(crate) struct Server {
    pub rpc_address: String,
    pub s3_address: Option<SocketAddr>,
    pub dns_address: Option<SocketAddr>,
    roles: Arc<Roles>,
    /// The services of this process, which its roles call without a connection.
    local: Local,
    rpc: Service,
    s3: Option<Service>,
    /// The task that opens the request log again at each SIGHUP.
    reopener: Option<JoinHandle<()>>,
    /// `None` where nobody knows of an SCM.
    presence: Option<Presence>,
}

/// A listener and its connections. Each has a token of its own: the gateway's last requests need the gRPC of
/// this very process.
pub(crate) struct Service {
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Service {
    /// Takes no more connections, and lets those there are finish what they are doing.
    pub(crate) async fn drain(mut self, within: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(within, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

impl Server {
    /// Starts a server. Binds first, so that a taken port is said before anything is written; then opens what
    /// is on the disks; then answers. `http` tells of it from then on.
    pub(crate) async fn start(
        options: ServerOptions,
        local: &Local,
        http: &Http,
        hangups: &Hangups,
    ) -> anyhow::Result<Server> {
        options.validate()?;
        let listener = TcpListener::bind(options.rpc).await;
        let listener = listener.with_context(|| format!("listen on {} (--rpc)", options.rpc))?;
        let rpc_address = match &options.advertise {
            Some(address) => address.clone(),
            None => listener.local_addr().context("ask for the bound address")?.to_string(),
        };
        let s3_listener = match options.has(Role::S3) {
            true => Some(
                TcpListener::bind(options.s3)
                    .await
                    .with_context(|| format!("listen on {} (--s3)", options.s3))?,
            ),
            false => None,
        };
        let dns = match options.dns {
            Some(address) => Some(
                DnsSockets::bind(address)
                    .await
                    .with_context(|| format!("listen on {address} (--dns-listen)"))?,
            ),
            None => None,
        };
        let accounts = match options.has(Role::S3) {
            true => Some(open_accounts(options.s3_request_log.as_deref())?),
            false => None,
        };
        let knows_scm = options.has(Role::Scm) || options.scm.is_some();

        let scm_address = options.scm.clone().unwrap_or_else(|| rpc_address.clone());
        let addresses = AddressBook::default();
        let raft_options =
            HostOptions { leases: options.om_reads == OmReads::Lease, ..HostOptions::default() };
        let host = RaftHost::new(raft_options, addresses.clone());
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        logging::add_to(&mut routes);

        let (meta, scm, om) = start_metadata(&options, &rpc_address, &host, &addresses).await?;
        if let Some(scm) = &scm {
            scm.add_to(&mut routes);
        }
        if let Some(om) = &om {
            om.add_to(&mut routes);
        }
        let datanode = match options.has(Role::Datanode) {
            true => Some(start_datanode(&options, &rpc_address, &scm_address, &host, &addresses).await?),
            false => None,
        };
        if let Some(datanode) = &datanode {
            datanode.add_to(&mut routes);
        }

        let gate = Gate::new(GateOptions::default().with_connections(open_files::part(open_files::OF_RPC)));
        let routes = routes.routes();
        local.open(&rpc_address, routes.clone());
        let rpc = serve_rpc(listener, &gate, routes);
        let (mut client, mut s3_address, mut s3) = (None, None, None);
        if let Some((listener, accounts)) = s3_listener.zip(accounts.clone()) {
            let connected = Client::connect(ClientOptions {
                scm: scm_address.clone(),
                memory_bytes_max: options.s3_limits.data_bytes(),
                om_reads: match options.s3_om_reads {
                    S3OmReads::Leader => client::OmReads::Leader,
                    S3OmReads::Any => client::OmReads::Any,
                },
                local: local.clone(),
                ..ClientOptions::default()
            });
            s3_address = Some(listener.local_addr().context("ask for the bound address")?);
            s3 = Some(serve_s3(listener, connected.clone(), accounts, &options, http));
            client = Some(connected);
        }
        info!(rpc = %rpc_address, s3 = ?s3_address, roles = ?options.roles, "started");
        let reopener = accounts.clone().map(|accounts| tokio::spawn(reopen_at(hangups.clone(), accounts)));
        let gate = gate.counts().clone();
        let roles = Arc::new(Roles { host, gate, meta, scm, om, datanode, client, accounts });
        http.watch(&roles);
        let dns_address = dns.as_ref().map(|sockets| sockets.address);
        let mut presence = None;
        if knows_scm {
            let reached = Reached { rpc: &rpc_address, s3: s3_address };
            let dns = dns.map(|sockets| (sockets, options.dns_zone.as_str()));
            presence = Some(Presence::start(&scm_address, &roles, &reached, http, dns)?);
        }
        let local = local.clone();
        Ok(Server { rpc_address, s3_address, dns_address, roles, local, rpc, s3, reopener, presence })
    }

    /// Waits until the roles can do their work: a gateway sees a pipeline that takes writes, and the
    /// namespace.
    pub(crate) async fn ready(&self, within: Duration) -> anyhow::Result<()> {
        match &self.roles.client {
            Some(client) => client.ready(within).await,
            None => Ok(()),
        }
    }

    /// Leaves the registry, and lets the gateway finish what it has under way; `stop` does it too.
    pub(crate) async fn drain_s3(&mut self) {
        if let Some(presence) = &mut self.presence {
            presence.leave().await;
        }
        if let Some(s3) = self.s3.take() {
            s3.drain(DRAIN_MAX).await;
        }
        if let Some(reopener) = self.reopener.take() {
            reopener.abort();
        }
        if let Some(log) = self.roles.accounts.as_ref().and_then(|accounts| accounts.log()) {
            log.close(REQUEST_LOG_CLOSE_MAX).await;
        }
    }

    /// Lets others lead what this server leads, so that nobody waits for elections once it stops.
    pub(crate) async fn hand_over(&self) {
        self.roles.host.hand_over().await;
    }

    /// Stops in the order in which nothing acknowledged is at stake: callers first, then data, then names,
    /// then the groups beneath them, and gRPC, which all of them speak, last. (A crash at any moment is safe
    /// too; this is only quicker to come back from.)
    pub(crate) async fn stop(mut self) {
        self.drain_s3().await;
        if let Some(presence) = self.presence.take() {
            presence.stop().await;
        }
        if let Some(datanode) = &self.roles.datanode {
            datanode.shutdown().await;
        }
        if let Some(om) = &self.roles.om {
            om.shutdown().await;
        }
        if let Some(scm) = &self.roles.scm {
            scm.shutdown().await;
        }
        self.roles.host.shutdown().await;
        self.local.close(&self.rpc_address);
        self.rpc.drain(RPC_DRAIN_MAX).await;
    }
}

type Metadata = (Option<(PathBuf, Arc<LogSpace>)>, Option<Scm>, Option<Om>);

/// Starts SCM and OM, which share the metadata directory of their process.
async fn start_metadata(
    options: &ServerOptions,
    rpc_address: &str,
    host: &RaftHost,
    addresses: &AddressBook,
) -> anyhow::Result<Metadata> {
    if !options.has(Role::Scm) && !options.has(Role::Om) {
        return Ok((None, None, None));
    }
    let root = options.meta.as_ref().expect("validated: metadata roles have a directory");
    let disk = Arc::new(disk::RealDisk::open_with(root, uuid::Uuid::new_v4().as_u128(), options.disk_io)?);
    let snapshots = raft::SnapshotPolicy::every(options.metadata_log_bytes);
    let log = LogSpaceOptions {
        reserve_bytes: METADATA_RESERVE_BYTES,
        // Whole segments are deleted: with larger ones a short log would keep much more than its limit.
        segment_bytes_max: (options.metadata_log_bytes / 2).min(LogSpaceOptions::default().segment_bytes_max),
        ..LogSpaceOptions::within(options.memory.logs)
    };
    let space = LogSpace::new(disk.clone(), log);
    let clock = Arc::new(SystemClock);
    let mut scm = None;
    if options.has(Role::Scm) {
        let scm_options = ScmOptions { snapshots, ..scm_options(options, rpc_address) };
        let (disk, space) = (disk.clone(), space.clone());
        let started =
            Scm::start(scm_options, disk, space, host.clone(), addresses.clone(), clock.clone()).await;
        scm = Some(started.context("start scm")?);
    }
    let mut om = None;
    if options.has(Role::Om) {
        let scm = options.scm.clone().unwrap_or_else(|| rpc_address.to_owned());
        let (address, version) = (rpc_address.to_owned(), VERSION.to_owned());
        let om_options = OmOptions {
            address,
            scm,
            version,
            snapshots,
            memory_bytes: options.memory.om,
            reclaim_after: options.reclaim.reclaim_after,
            sweep_after: options.reclaim.sweep_after,
            sweep_every: options.reclaim.sweep_every.0,
            ..OmOptions::default()
        };
        let started =
            Om::start(om_options, disk.clone(), space.clone(), host.clone(), addresses.clone(), clock).await;
        om = Some(started.context("start om")?);
    }
    Ok((Some((root.clone(), space)), scm, om))
}

fn addresses_of(list: &str) -> impl Iterator<Item = String> {
    list.split(',').map(|address| address.trim().to_owned()).filter(|address| !address.is_empty())
}

fn scm_options(options: &ServerOptions, rpc_address: &str) -> ScmOptions {
    let defaults = ScmOptions {
        address: rpc_address.to_owned(),
        pipelines_per_disk: options.pipelines_per_disk,
        keep_free_percent: options.keep_free_percent,
        om_groups: options.om_groups.into(),
        members: options.scm.iter().flat_map(|list| addresses_of(list)).collect(),
        ..ScmOptions::default()
    };
    let Some(times) = &options.scm_times else { return defaults };
    ScmOptions {
        stale_after: times.stale_after,
        dead_after: times.dead_after,
        member_fault_grace: times.member_fault_grace,
        quasi_close_after: times.quasi_close_after,
        ahead_kept: times.ahead_kept,
        task_within: times.task_within,
        roll_dead_after: times.roll_dead_after,
        roll_open_after: times.roll_open_after,
        ..defaults
    }
}

async fn start_datanode(
    options: &ServerOptions,
    rpc_address: &str,
    scm_address: &str,
    host: &RaftHost,
    addresses: &AddressBook,
) -> anyhow::Result<Datanode> {
    let datanode_options = DatanodeOptions {
        disks: options.disks.clone(),
        disk_io: options.disk_io,
        scm: scm_address.to_owned(),
        address: rpc_address.to_owned(),
        version: VERSION.to_owned(),
        container_bytes_max: options.container_bytes_max,
        memory_bytes_max: options.memory.data,
        scrub_bytes_per_second: options.scrub_bytes_per_second,
        scrub_interval: options.scrub_interval,
        compact_above_percent: options.compact_above_percent,
        compact_bytes_per_second: options.compact_bytes_per_second,
        log: LogSpaceOptions { reserve_bytes: options.reserve_bytes, ..LogSpaceOptions::default() },
        ..DatanodeOptions::default()
    };
    Datanode::start(datanode_options, host.clone(), addresses.clone()).await.context("start datanode")
}

fn serve_rpc(listener: TcpListener, gate: &Gate, routes: Routes) -> Service {
    let stop = CancellationToken::new();
    let (gate, stopped) = (gate.clone(), stop.clone().cancelled_owned());
    let task = tokio::spawn(async move { gate.serve(listener, routes, stopped).await });
    Service { stop, task }
}

/// The names by which the S3 endpoint is asked: those it was given, and the one that the registry's DNS
/// answers for.
fn s3_domains(options: &ServerOptions) -> Vec<String> {
    let in_zone = format!("s3gw.service.{}", options.dns_zone);
    options.s3_domains.iter().cloned().chain([in_zone]).collect()
}

/// Opens the accounts of S3's requests. A request log that cannot be opened is said at the start; later,
/// requests go on without it.
fn open_accounts(request_log: Option<&Path>) -> anyhow::Result<Arc<Accounts>> {
    let open = |path: &Path| {
        let of = path.to_owned();
        let log = RequestLog::open(path, Box::new(move || has_room_for_requests(&of)));
        log.with_context(|| format!("open {} (--s3-request-log)", path.display()))
    };
    Ok(Accounts::new(request_log.map(open).transpose()?))
}

/// Whether the request log may grow.
fn has_room_for_requests(log: &Path) -> io::Result<()> {
    // Of the directory: the file has no name between a rotation and SIGHUP.
    let space =
        disk::space(log.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    let kept_bytes = LEFT_BY_REQUEST_LOG_BYTES.min(space.capacity_bytes / 10);
    match space.free_bytes < kept_bytes {
        true => Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{} bytes are free, and {kept_bytes} are left to others", space.free_bytes),
        )),
        false => Ok(()),
    }
}

async fn reopen_at(mut hangups: Hangups, accounts: Arc<Accounts>) {
    hangups.mark_unchanged();
    while hangups.changed().await.is_ok() {
        if let Some(log) = accounts.log() {
            log.reopen();
        }
    }
}

fn serve_s3(
    listener: TcpListener,
    client: Client,
    accounts: Arc<Accounts>,
    options: &ServerOptions,
    http: &Http,
) -> Service {
    let gateway = GatewayOptions {
        access_key: options.access_key.clone(),
        secret_key: options.secret_key.reveal().to_owned(),
        domains: s3_domains(options),
        ..GatewayOptions::default()
    };
    let counters = Arc::new(Counters::default());
    let work = Work::new(options.s3_limits.s3_requests_max, counters.clone());
    let documents = BodyMemory::new(options.s3_limits.documents_bytes(), counters.clone());
    let port = Port {
        name: "s3",
        router: s3gw::router(client, gateway, work, documents, accounts),
        limits: Arc::new(options.s3_limits.limits()),
        counters: counters.clone(),
        document: s3gw::document,
        request_id_header: s3gw::REQUEST_ID_HEADER,
    };
    http.watch_port(port.name, counters);
    let stop = CancellationToken::new();
    let task = tokio::spawn(httpd::serve(listener, port, Plain, stop.clone()));
    Service { stop, task }
}

/// `flotilla server`: the roles of one process, until Ctrl-C or SIGTERM.
pub(crate) async fn run(args: ServerArgs) -> anyhow::Result<()> {
    let ready_file = args.ready_file.clone();
    check_ready_file(ready_file.as_deref())?;
    let hosts = Hosts::new(args.http_host.iter().cloned().chain([format!(".{}", args.dns_zone)]));
    let (http_address, options) = (args.http, ServerOptions::of(args)?);
    // Options are checked before any port is bound: what is missing is said before what is taken.
    options.validate()?;
    let (stopped, hangups) = signals::listen()?;
    let http = Http::start(http_address, "--http", 1, hosts).await?;
    info!(http = %http.address, "metrics and health checks");
    let manager = ServiceManager::start(&NotifyOptions::from_environment(), http.status());
    let local = Local::default();
    // The first process of a container hears SIGTERM only where somebody listens for it.
    let started = tokio::select! {
        started = Box::pin(Server::start(options, &local, &http, &hangups)) => started.map(Some),
        () = stopped.cancelled() => Ok(None),
    };
    let Ok(Some(server)) = started else {
        manager.stopping().await;
        http.stop().await;
        return started.map(|_| ());
    };
    manager.ready().await;
    tokio::select! {
        ready = wait_ready(&server) => ready?,
        () = stopped.cancelled() => {
            manager.stopping().await;
            server.stop().await;
            http.stop().await;
            return Ok(());
        }
    }
    let mut values = vec![("RPC", server.rpc_address.clone()), ("HTTP", format!("http://{}", http.address))];
    if let Some(address) = server.s3_address {
        values.push(("S3_ENDPOINT", format!("http://{address}")));
    }
    if let Some(address) = server.dns_address {
        values.push(("DNS", address.to_string()));
    }
    write_ready_file(ready_file.as_deref(), &values)?;
    info!("ready");
    stopped.cancelled().await;
    info!("stopping");
    manager.stopping().await;
    server.hand_over().await;
    server.stop().await;
    http.stop().await;
    Ok(())
}

/// Waits until the roles can do their work. A gateway that starts before its cluster says now and then that
/// it waits.
async fn wait_ready(server: &Server) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    const ASK_AGAIN: Duration = Duration::from_secs(1);
    if let Some(scm) = &server.roles.scm {
        scm.joined().await.context("become a member of SCM")?;
    }
    while let Err(error) = server.ready(PATIENCE).await {
        info!(why = format!("{error:#}"), "not ready yet");
        tokio::time::sleep(ASK_AGAIN).await;
    }
    Ok(())
}
