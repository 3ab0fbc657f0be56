use crate::args::{DNS_ZONE, DevArgs, OmReads, S3OmReads};
use crate::credentials::Credentials;
use crate::http::Http;
use crate::memory_share::{MemoryArgs, MemoryShare};
use crate::output;
use crate::ready::{check_ready_file, write_ready_file};
use crate::reclaim_times::ReclaimTimes;
use crate::role::Role;
use crate::s3_limits::S3Limits;
use crate::server::{Server, ServerOptions};
use crate::service_manager::{NotifyOptions, ServiceManager};
use crate::signals::{self, Hangups};
use anyhow::Context;
use registry::http::Hosts;
use rpc::Local;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The time for the cluster to be ready: one that is not by then is broken, and somebody wants to read why.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Memory for the tables of names, of which there are few on a laptop, where nobody says how much there is.
const OM_MEMORY_BYTES: usize = 64 << 20;

/// The roles of the first server.
const ALL_ROLES: [Role; 4] = [Role::Scm, Role::Om, Role::Datanode, Role::S3];

/// The number of servers, each with a datanode; the first one is everything else too.
const SERVERS: u16 = 3;

/// The free space below which a disk takes no more data: a laptop's disk is shared with everything else, so
/// that ends a little before it is full.
const RESERVE_BYTES: u64 = 256 << 20;

/// `flotilla dev`: the servers of a three-datanode cluster in one process, each with its own ports and
/// directories, exactly as `flotilla server` would run them.
pub(crate) async fn run(args: DevArgs) -> anyhow::Result<()> {
    check_ready_file(args.ready_file.as_deref())?;
    let credentials = Credentials::load_or_create(&credentials_path(&args))?;
    let (stopped, hangups) = signals::listen()?;
    let http_address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.http_port));
    let hosts = Hosts::new([format!(".{DNS_ZONE}")]);
    let http = Http::start(http_address, "--http-port", SERVERS.into(), hosts).await?;
    let manager = ServiceManager::start(&NotifyOptions::from_environment(), http.status());
    let mut servers = Vec::new();
    let started = tokio::select! {
        started = start_all(&args, &credentials, &http, &hangups, &mut servers) => started,
        () = stopped.cancelled() => Ok(None),
    };
    if let Ok(Some(endpoint)) = &started {
        announce(&args, &credentials, endpoint, &http, &servers)?;
        // All of the cluster is here: ready is when it takes writes.
        manager.ready().await;
        stopped.cancelled().await;
        eprintln!("stopping");
    }
    manager.stopping().await;
    // What the gateway has under way needs all three servers.
    if let Some(gateway) = servers.first_mut() {
        gateway.drain_s3().await;
    }
    // All servers stop at once: nobody is left to take over from anybody.
    futures::future::join_all(servers.into_iter().map(Server::stop)).await;
    http.stop().await;
    started.map(|_| ())
}

/// Starts the servers, and returns the S3 endpoint once the cluster takes writes.
async fn start_all(
    args: &DevArgs,
    credentials: &Credentials,
    http: &Http,
    hangups: &Hangups,
    servers: &mut Vec<Server>,
) -> anyhow::Result<Option<String>> {
    let local = Local::default();
    let memory = memory(args)?;
    for number in 1..=SERVERS {
        let scm = servers.first().map(|first| first.rpc_address.clone());
        let options = server_options(args, credentials, memory, number, scm);
        let server = Server::start(options, &local, http, hangups).await;
        let server = server.with_context(|| format!("start server {number} of {SERVERS}"))?;
        servers.push(server);
    }
    servers[0].ready(READY_WITHIN).await.context("wait for the cluster")?;
    let address = servers[0].s3_address.expect("the first server is the gateway");
    Ok(Some(format!("http://{address}")))
}

/// The file with the cluster's keys, which only its owner reads.
fn credentials_path(args: &DevArgs) -> PathBuf {
    args.data.join("credentials")
}

/// The memory of all three servers together.
fn memory(args: &DevArgs) -> anyhow::Result<MemoryShare> {
    let of_names = args.memory.memory.is_none().then_some(OM_MEMORY_BYTES);
    let said = MemoryArgs { om_memory: args.memory.om_memory.or(of_names), ..args.memory.clone() };
    let disks = usize::from(SERVERS) * usize::from(args.disks);
    said.share(args.s3_limits.s3_memory_bytes, &ALL_ROLES, disks).map_err(anyhow::Error::msg)
}

fn server_options(
    args: &DevArgs,
    credentials: &Credentials,
    memory: MemoryShare,
    number: u16,
    scm: Option<String>,
) -> ServerOptions {
    let first = number == 1;
    let rpc_port = if args.rpc_port == 0 { 0 } else { args.rpc_port + (number - 1) };
    let defaults = datanode::DatanodeOptions::default();
    let servers = usize::from(SERVERS);
    let node_dir = args.data.join(format!("dn{number}"));
    ServerOptions {
        roles: if first { ALL_ROLES.to_vec() } else { vec![Role::Datanode] },
        rpc: SocketAddr::from((Ipv4Addr::LOCALHOST, rpc_port)),
        advertise: None,
        meta: first.then(|| args.data.join("meta")),
        disks: (1..=args.disks).map(|disk| node_dir.join(format!("disk{disk}"))).collect(),
        disk_io: args.disk_io,
        scm,
        s3: SocketAddr::new(args.host, args.s3_port),
        s3_limits: S3Limits { s3_memory_bytes: Some(memory.s3), ..args.s3_limits.clone() },
        s3_request_log: args.s3_request_log.clone().filter(|_| first),
        dns: args.dns_port.filter(|_| first).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        dns_zone: DNS_ZONE.to_owned(),
        access_key: credentials.access_key.clone(),
        secret_key: credentials.secret_key.clone(),
        s3_domains: args.s3_domains.clone(),
        container_bytes_max: 2 << 30,
        pipelines_per_disk: 2,
        keep_free_percent: scm::ScmOptions::default().keep_free_percent,
        om_groups: 4,
        reserve_bytes: RESERVE_BYTES,
        memory: MemoryShare { data: memory.data / servers, ..memory },
        scrub_bytes_per_second: defaults.scrub_bytes_per_second,
        scrub_interval: defaults.scrub_interval,
        compact_above_percent: defaults.compact_above_percent,
        compact_bytes_per_second: defaults.compact_bytes_per_second,
        metadata_log_bytes: args.metadata_log_bytes,
        om_reads: OmReads::default(),
        s3_om_reads: S3OmReads::default(),
        // Whoever tries reclaiming out wants to see it soon.
        reclaim: ReclaimTimes { any_reclaim_after: true, ..args.reclaim },
        scm_times: None,
    }
}

fn announce(
    args: &DevArgs,
    credentials: &Credentials,
    endpoint: &str,
    http: &Http,
    servers: &[Server],
) -> anyhow::Result<()> {
    let rpc = &servers[0].rpc_address;
    output::print(&format!(
        "S3 endpoint  {endpoint}\naccess key   {}\nsecret key   in {}\nSCM and OM   {rpc}\nmetrics      http://{}/metrics\ndata         {}\nready\n",
        credentials.access_key,
        credentials_path(args).display(),
        http.address,
        args.data.display(),
    ))?;
    let mut values = vec![
        ("S3_ENDPOINT", endpoint.to_owned()),
        ("ACCESS_KEY", credentials.access_key.clone()),
        ("SECRET_KEY", credentials.secret_key.reveal().to_owned()),
        ("RPC", rpc.clone()),
        ("HTTP", format!("http://{}", http.address)),
    ];
    if let Some(dns) = servers[0].dns_address {
        values.push(("DNS", dns.to_string()));
    }
    write_ready_file(args.ready_file.as_deref(), &values)
}
