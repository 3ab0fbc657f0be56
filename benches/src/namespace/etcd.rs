use super::cluster::Spent;
use super::load::{Load, Measured};
use crate::scrape::scrape;
use crate::usage::Usage;
use anyhow::{Context, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::free_addresses;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

/// The metric that counts the syncs of a member's WAL.
const WAL_SYNCS: &str = "etcd_disk_wal_fsync_duration_seconds_count";
const START_WITHIN: Duration = Duration::from_secs(60);
/// The space that etcd may take before it refuses writes: its own default is 2 GiB.
const QUOTA_BYTES: u64 = 8 << 30;

/// Three members of etcd, each a process, into which the same load goes as into OMs: keys of 256 bytes with a
/// KiB each, one call for each, which is answered once a majority has synced it.
pub struct EtcdCluster {
    members: Vec<Member>,
    /// The address of the member that leads.
    leader: String,
    // Last, so that the processes end before their directories go.
    _dir: TempDir,
}

struct Member {
    process: Child,
    address: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl EtcdCluster {
    pub fn start(binary: &Path, members: usize) -> anyhow::Result<EtcdCluster> {
        let dir = tempfile::tempdir()?;
        let (clients, peers) = (free_addresses(members), free_addresses(members));
        let each = peers.iter().enumerate().map(|(at, peer)| format!("m{at}=http://{peer}"));
        let cluster = each.collect::<Vec<_>>().join(",");
        let start = |at: usize| {
            let (name, client) = (format!("m{at}"), format!("http://{}", clients[at]));
            let (peer, quota) = (format!("http://{}", peers[at]), QUOTA_BYTES.to_string());
            let process = Command::new(binary)
                .args(["--name", &name, "--data-dir"])
                .arg(dir.path().join(&name))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &cluster, "--quota-backend-bytes", &quota])
                .args(["--log-level", "error"])
                .stdin(Stdio::null())
                .spawn();
            anyhow::Ok(Member { process: process.context("start etcd")?, address: clients[at].clone() })
        };
        let members = (0..members).map(start).collect::<anyhow::Result<Vec<Member>>>()?;
        let leader = leader(&members)?;
        Ok(EtcdCluster { members, leader, _dir: dir })
    }

    /// Writes so many keys. All clients ask the member that leads, as clients of an OM do: the others would
    /// only hand on what they are asked.
    pub fn load(&self, load: Load<'_>) -> anyhow::Result<Measured> {
        let before = self.spent()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let began = Instant::now();
        let mut waits = runtime.block_on(put_all(&self.leader, load))?;
        let seconds = began.elapsed().as_secs_f64();
        let after = self.spent()?;
        waits.sort_unstable();
        let percentile = |share: f64| waits[(waits.len() as f64 * share) as usize].as_secs_f64() * 1e3;
        let total = json!({
            "operations": waits.len(), "per_second": waits.len() as f64 / seconds,
            "p50_ms": percentile(0.5), "p99_ms": percentile(0.99), "p999_ms": percentile(0.999),
            "max_ms": waits[waits.len() - 1].as_secs_f64() * 1e3,
        });
        Ok(Measured {
            total,
            windows: Vec::new(),
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            disk_cpu_seconds: 0.0,
            device_bytes: after.device_bytes - before.device_bytes,
            syncs: after.syncs - before.syncs,
        })
    }

    fn spent(&self) -> anyhow::Result<Spent> {
        let mut syncs = 0.0;
        for member in &self.members {
            let page = scrape(&format!("http://{}", member.address))?;
            // The page does not keep to what our own keep to.
            let count = page.lines().find_map(|line| line.strip_prefix(WAL_SYNCS)).context(WAL_SYNCS)?;
            syncs += count.trim().parse::<f64>()?;
        }
        let pids = || self.members.iter().map(|member| member.process.id());
        Ok(Spent {
            cpu_seconds: pids().map(|pid| Usage::of(pid).cpu_seconds).sum(),
            disk_cpu_seconds: 0.0,
            device_bytes: pids().map(Usage::device_bytes_written_of).sum(),
            syncs,
        })
    }
}

/// Waits until a member says of itself that it leads.
fn leader(members: &[Member]) -> anyhow::Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let give_up = Instant::now() + START_WITHIN;
    loop {
        for member in members {
            let told = runtime.block_on(async {
                let channel = connect(&member.address).await?;
                let call = Call::<StatusRequest, StatusResponse>::new(channel, STATUS);
                call.ask(StatusRequest {}).await
            });
            let Ok(told) = told else { continue };
            if told.leader != 0 && told.header.is_some_and(|header| header.member_id == told.leader) {
                return Ok(member.address.clone());
            }
        }
        ensure!(Instant::now() < give_up, "no member of etcd leads");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// How long each put took.
async fn put_all(address: &str, load: Load<'_>) -> anyhow::Result<Vec<Duration>> {
    let next = Arc::new(AtomicU64::new(load.first));
    let (end, mut clients, mut channels) = (load.first + load.count, Vec::new(), Vec::new());
    for _ in 0..load.connections {
        channels.push(connect(address).await?);
    }
    for client in 0..load.clients {
        let channel = channels[client as usize % channels.len()].clone();
        let next = next.clone();
        clients.push(tokio::spawn(async move {
            let (call, mut waits) = (Call::<PutRequest, PutResponse>::new(channel, PUT), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return anyhow::Ok(waits);
                }
                let put = PutRequest { key: drawn("name", number, 256), value: drawn("value", number, 1024) };
                let began = Instant::now();
                call.ask(put).await?;
                waits.push(began.elapsed());
            }
        }));
    }
    let mut waits = Vec::new();
    for client in clients {
        waits.extend(client.await??);
    }
    Ok(waits)
}

/// Letters that are the same for the same number, and say nothing of where it sorts.
fn drawn(purpose: &str, number: u64, bytes: usize) -> Vec<u8> {
    let drawn = Sha256::digest(format!("{purpose}{number}"));
    let text = drawn.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    text.bytes().cycle().take(bytes).collect()
}

async fn connect(address: &str) -> anyhow::Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.connect().await?)
}

const PUT: &str = "/etcdserverpb.KV/Put";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// A method of etcd, and a connection to ask for it.
struct Call<Request, Response> {
    channel: Channel,
    path: PathAndQuery,
    messages: std::marker::PhantomData<fn(Request) -> Response>,
}

impl<Request, Response> Call<Request, Response>
where
    Request: prost::Message + Send + Sync + 'static,
    Response: prost::Message + Default + Send + Sync + 'static,
{
    fn new(channel: Channel, path: &'static str) -> Self {
        Call { channel, path: PathAndQuery::from_static(path), messages: std::marker::PhantomData }
    }

    async fn ask(&self, request: Request) -> anyhow::Result<Response> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await?;
        let codec = tonic_prost::ProstCodec::<Request, Response>::default();
        Ok(client.unary(tonic::Request::new(request), self.path.clone(), codec).await?.into_inner())
    }
}

// The fields of etcd's messages that are used here.

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}
