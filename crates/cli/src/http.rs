//! The HTTP port of a process: metrics for Prometheus, whether it is up and ready, and the registry. It has
//! no authentication. Who reaches it may read and change the registry, as whoever reaches gRPC may, and
//! nothing else; only pages of a browser may not (`registry::http`).

use crate::metrics_page::MetricsPage;
use crate::open_files;
use crate::presence::expose_dns;
use crate::process_metrics;
use crate::role::Role;
use crate::roles::Roles;
use crate::server::Service;
use anyhow::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::BoxFuture;
use httpd::{BodyMemory, Counters, Limits, Plain, Port, Recent, RequestId};
use metrics::Exposition;
use registry::RegistryClient;
use registry::dns::DnsServer;
use registry::http::Hosts;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The most connections, for metrics, health checks and long polls: there are fewer clients than a gateway
/// has, each with a few connections.
const CONNECTIONS_MAX: usize = 4096;
const CONNECTIONS_PER_ADDRESS_MAX: usize = 1024;

/// The most bytes of pages of metrics that callers have not taken yet, of one address half of that: of half a
/// megabyte each with two hundred groups.
const PAGES_BYTES_MAX: usize = 32 << 20;

/// The time for which the answer of `/readyz` is given to others who ask: anybody may, and each question is
/// one to OM and to datanodes where there is a gateway.
const READY_FOR: Duration = Duration::from_secs(1);

/// The HTTP port of a process, answering from its start to its end.
pub(crate) struct Http {
    pub(crate) address: SocketAddr,
    watched: Arc<Watched>,
    service: Service,
}

/// The readiness of the process: its servers, asked how they are.
#[derive(Clone)]
struct Readiness {
    /// The number of servers that do not run yet, or no more.
    missing: usize,
    roles: Vec<(Role, Result<(), String>)>,
}

impl Readiness {
    fn is_ready(&self) -> bool {
        self.missing == 0 && self.roles.iter().all(|(_, readiness)| readiness.is_ok())
    }
}

/// The servers of the process.
struct Watched {
    /// The number of servers that there will be; until then the process is starting.
    servers: usize,
    /// Weak: a request under way must not keep open what is being stopped.
    roles: Mutex<Vec<Weak<Roles>>>,
    dns: Mutex<Option<Weak<DnsServer>>>,
    /// HTTP ports of the process by their names, this one included.
    ports: Mutex<Vec<(&'static str, Arc<Counters>)>>,
    /// The client through which the registry is asked, once a server runs.
    registry: registry::http::Slot,
    metrics: MetricsPage,
    /// The memory for pages of metrics that callers have not taken yet.
    pages: BodyMemory,
    /// The last answer of `/readyz`.
    readiness: Recent<Readiness>,
}

impl Http {
    pub(crate) async fn start(
        address: SocketAddr,
        flag: &str,
        servers: usize,
        hosts: Hosts,
    ) -> anyhow::Result<Http> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("listen on {address} ({flag})"))?;
        let address = listener.local_addr().context("ask for the bound address")?;
        let (roles, dns, registry) = (Mutex::default(), Mutex::default(), registry::http::Slot::default());
        let counters = Arc::new(Counters::default());
        let ports = Mutex::new(vec![("http", counters.clone())]);
        let metrics_page = MetricsPage::default();
        let watched = Arc::new(Watched {
            servers,
            roles,
            dns,
            ports,
            registry: registry.clone(),
            metrics: metrics_page,
            pages: BodyMemory::new(PAGES_BYTES_MAX, counters.clone()),
            readiness: Recent::new(READY_FOR),
        });
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .with_state(watched.clone())
            .merge(registry::http::router(registry, hosts, &counters));
        let limits = Limits {
            connections_max: CONNECTIONS_MAX.min(open_files::part(open_files::OF_HTTP)),
            connections_per_address_max: CONNECTIONS_PER_ADDRESS_MAX,
            ..Limits::default()
        };
        let port = Port {
            name: "http",
            router,
            limits: Arc::new(limits),
            counters,
            document,
            request_id_header: HeaderName::from_static("x-request-id"),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(httpd::serve(listener, port, Plain, stop.clone()));
        Ok(Http { address, watched, service: Service { stop, task } })
    }

    /// Notes a server that runs from now on.
    pub(crate) fn watch(&self, roles: &Arc<Roles>) {
        self.watched.roles.lock().expect("no holder panics").push(Arc::downgrade(roles));
    }

    /// Has the registry asked through this client from now on; of several servers in one process, the first
    /// one's will do.
    pub(crate) fn serve_registry(&self, client: RegistryClient) {
        let _ = self.watched.registry.set(client);
    }

    /// Shows the metrics of another HTTP port of the process here.
    pub(crate) fn watch_port(&self, name: &'static str, counters: Arc<Counters>) {
        self.watched.ports.lock().expect("no holder panics").push((name, counters));
    }

    pub(crate) fn watch_dns(&self, dns: &Arc<DnsServer>) {
        *self.watched.dns.lock().expect("no holder panics") = Some(Arc::downgrade(dns));
    }

    /// Asks all roles, and says which cannot do their work, and why.
    pub(crate) fn status(&self) -> impl Fn() -> BoxFuture<'static, String> + Send + Sync + use<> {
        let watched = self.watched.clone();
        move || {
            let watched = watched.clone();
            Box::pin(async move { status_of(&watched.readiness().await) })
        }
    }

    pub(crate) async fn stop(self) {
        self.service.drain(crate::server::RPC_DRAIN_MAX).await;
    }
}

impl Watched {
    fn running(&self) -> Vec<Arc<Roles>> {
        self.roles.lock().expect("no holder panics").iter().filter_map(Weak::upgrade).collect()
    }

    fn metrics_page(&self) -> String {
        let mut exposition = Exposition::default();
        process_metrics::expose(&mut exposition);
        for roles in self.running() {
            roles.expose(&mut exposition);
        }
        exposition.scope(&[]);
        for (name, counters) in &*self.ports.lock().expect("no holder panics") {
            counters.expose(name, &mut exposition);
        }
        if let Some(dns) = &*self.dns.lock().expect("no holder panics") {
            expose_dns(dns, &mut exposition);
        }
        exposition.finish()
    }

    async fn readiness(&self) -> Readiness {
        let running = self.running();
        let mut roles = Vec::new();
        for server in &running {
            roles.extend(server.readiness().await);
        }
        Readiness { missing: self.servers.saturating_sub(running.len()), roles }
    }
}

fn document(_code: &str, message: &str, _id: RequestId) -> (&'static str, String) {
    ("text/plain; charset=utf-8", format!("{message}\n"))
}

/// Answers the page of metrics, in room that is kept until the caller has taken it.
async fn metrics(State(watched): State<Arc<Watched>>, request: Request) -> Response {
    let mut room = watched.pages.room(request.extensions().get());
    let shown = watched.clone();
    let Some(page) = watched.metrics.get(move || shown.metrics_page()).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    match room.hold(page.len()) {
        Ok(()) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], room.of(page)).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// Answers 200 when all roles can do their work, else 503; the text says which cannot, and why.
async fn readyz(State(watched): State<Arc<Watched>>) -> Response {
    let asked = watched.clone();
    match watched.readiness.get(|| async move { asked.readiness().await }).await {
        Some(readiness) => readyz_answer(&readiness).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn readyz_answer(readiness: &Readiness) -> (StatusCode, String) {
    let mut text = String::new();
    if readiness.missing > 0 {
        text.push_str("starting or stopping\n");
    }
    for (role, readiness) in &readiness.roles {
        let word = readiness.as_ref().map_or_else(|why| format!("not ready: {why}"), |()| "ready".to_owned());
        text.push_str(&format!("{}: {word}\n", role.name()));
    }
    let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text)
}

/// The readiness in a line, of what is not as it should be.
fn status_of(readiness: &Readiness) -> String {
    if readiness.is_ready() {
        return "ready".to_owned();
    }
    if readiness.missing > 0 {
        return "starting or stopping".to_owned();
    }
    let unready =
        readiness.roles.iter().filter_map(|(role, readiness)| Some((role, readiness.as_ref().err()?)));
    unready.map(|(role, why)| format!("{}: not ready: {why}", role.name())).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_role_that_is_not_ready_is_named_and_makes_the_process_unready() {
        let check = |missing, roles: &[(Role, Result<(), String>)], status: u16, text: &str, line: &str| {
            let readiness = Readiness { missing, roles: roles.to_vec() };
            assert_eq!(readyz_answer(&readiness), (StatusCode::from_u16(status).unwrap(), text.to_owned()));
            assert_eq!(status_of(&readiness), line);
        };
        let roles = [(Role::Om, Ok(())), (Role::S3, Err("no pipeline".to_owned()))];
        check(0, &roles, 503, "om: ready\ns3: not ready: no pipeline\n", "s3: not ready: no pipeline");
        check(0, &roles[..1], 200, "om: ready\n", "ready");
        check(1, &roles[..1], 503, "starting or stopping\nom: ready\n", "starting or stopping");
    }
}
