//! Healthy instances over DNS, UDP and TCP (docs/registry.md has the names). Answers from a copy of the
//! registry, asks nobody else anything, and answers for no other zone.

mod reply;
mod tcp;
mod udp;
mod zone;

use crate::client::RegistryClient;
use crate::mirror::Mirror;
use ::metrics::{Exposition, Metric};
use hickory_proto::rr::Name;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;
use zone::Zone;

const QUERIES: Metric =
    Metric { name: "flotilla_dns_queries_total", help: "DNS messages received, by how they came." };
const MALFORMED: Metric =
    Metric { name: "flotilla_dns_malformed_total", help: "DNS messages that are none." };
const CONNECTIONS_REFUSED: Metric = Metric {
    name: "flotilla_dns_connections_refused_total",
    help: "TCP connections closed because too many were open.",
};

/// Counts of what has come in.
#[derive(Default)]
struct Counts {
    udp: AtomicU64,
    tcp: AtomicU64,
    malformed: AtomicU64,
    connections_refused: AtomicU64,
}

/// Sockets that are bound, UDP and TCP on the same port.
pub struct DnsSockets {
    pub address: SocketAddr,
    udp: UdpSocket,
    tcp: TcpListener,
}

/// The DNS server, which answers until it is stopped.
pub struct DnsServer {
    pub address: SocketAddr,
    zone: Arc<Zone>,
    counts: Arc<Counts>,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl DnsSockets {
    /// Binds UDP and TCP to one port; port 0 takes one that is free for both.
    pub async fn bind(address: SocketAddr) -> io::Result<DnsSockets> {
        const TRIES: usize = 16;
        let mut tries = if address.port() == 0 { TRIES } else { 1 };
        loop {
            tries -= 1;
            let udp = UdpSocket::bind(address).await?;
            let bound = udp.local_addr()?;
            match TcpListener::bind(bound).await {
                Ok(tcp) => return Ok(DnsSockets { address: bound, udp, tcp }),
                // The port that is free for UDP need not be free for TCP.
                Err(error) if tries == 0 => return Err(error),
                Err(_) => {}
            }
        }
    }
}

/// Parses a zone's name as people write it, with or without the dot at its end.
pub fn parse_zone(text: &str) -> Result<Name, String> {
    let mut name = Name::from_ascii(text).map_err(|error| format!("`{text}` is no DNS name: {error}"))?;
    name.set_fqdn(true);
    if name.is_root() {
        return Err("the root is not ours to answer for".to_owned());
    }
    Ok(name.to_lowercase())
}

impl DnsServer {
    pub fn start(sockets: DnsSockets, zone: Name, client: RegistryClient) -> DnsServer {
        let zone = Arc::new(Zone::new(zone, Mirror::start(client)));
        let (counts, stop) = (Arc::new(Counts::default()), CancellationToken::new());
        let DnsSockets { address, udp, tcp } = sockets;
        let udp = tokio::spawn({
            let (zone, counts, stop) = (zone.clone(), counts.clone(), stop.clone());
            async move {
                if let Some(Err(error)) = stop.run_until_cancelled(udp::serve(udp, &zone, &counts)).await {
                    error!(%error, "dns over udp ended");
                }
            }
        });
        let tcp = tokio::spawn({
            let (zone, counts, stop) = (zone.clone(), counts.clone(), stop.clone());
            async move { tcp::serve(tcp, zone, counts, stop).await }
        });
        DnsServer { address, zone, counts, stop, tasks: Mutex::new(vec![udp, tcp]) }
    }

    pub async fn stop(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of the tasks panics"));
        for task in tasks {
            if let Err(error) = task.await {
                error!(%error, "a task of the dns server");
            }
        }
    }

    pub fn expose(&self, exposition: &mut Exposition) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        exposition.counter(QUERIES, &[("over", "udp")], count(&self.counts.udp));
        exposition.counter(QUERIES, &[("over", "tcp")], count(&self.counts.tcp));
        exposition.counter(MALFORMED, &[], count(&self.counts.malformed));
        exposition.counter(CONNECTIONS_REFUSED, &[], count(&self.counts.connections_refused));
    }

    /// The revision of the registry's copy from which the server answers.
    pub fn revision(&self) -> u64 {
        self.zone.revision()
    }
}
