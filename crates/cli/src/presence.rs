//! A server as others see it: its roles in the registry, and the registry over HTTP and DNS for those who ask
//! here.

use crate::admin::FREE_PERCENT_WARNING;
use crate::http::Http;
use crate::output::printable;
use crate::role::Role;
use crate::roles::Roles;
use crate::version::VERSION;
use anyhow::Context;
use disk::Space;
use metrics::Exposition;
use proto::registry::{Check, Health};
use raftlog::LogSpace;
use registry::dns::{DnsServer, DnsSockets};
use registry::{Registrar, Registration, RegistryClient, label_of_address};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use types::SystemClock;

/// The time to live of a lease: a process that was killed is critical after it. It is long enough for two
/// lost renewals, short enough that clients who met it notice little.
const LEASE_TTL: Duration = Duration::from_secs(5);
/// The most entries, seconds of writing, that a replica may have left to apply; one with more is behind.
const LAG_ENTRIES_MAX: u64 = 10_000;
/// The time for which a disk is asked how much room it has.
const ROOM_WAIT: Duration = Duration::from_secs(1);

/// The presence of one server; datanodes are in the registry by their heartbeats.
pub(crate) struct Presence {
    registrars: Vec<Registrar>,
    dns: Option<Arc<DnsServer>>,
}

/// The addresses at which this server's roles are reached.
pub(crate) struct Reached<'a> {
    pub rpc: &'a str,
    pub s3: Option<SocketAddr>,
}

impl Presence {
    /// Registers the server's roles, and answers DNS where that is asked for. `scm`: where SCM is, as a list
    /// of addresses.
    pub(crate) fn start(
        scm: &str,
        roles: &Arc<Roles>,
        reached: &Reached<'_>,
        http: &Http,
        dns: Option<(DnsSockets, &str)>,
    ) -> anyhow::Result<Presence> {
        http.serve_registry(RegistryClient::new(scm).context("addresses of SCM")?);
        // Clients of their own: what strangers ask over HTTP takes no turn of what keeps this process in the
        // registry.
        let mut registrars = Vec::new();
        for role in [Role::Scm, Role::Om, Role::S3] {
            let Some(registration) = registration(role, roles, reached, http.address) else { continue };
            let client = RegistryClient::new(scm).context("addresses of SCM")?;
            // An SCM of another cluster has nothing to say of this role's health.
            if let Some(cluster) = roles.cluster_of(role) {
                client.know(&cluster);
            }
            // Weak: a check must not keep open what is being stopped.
            let roles = Arc::downgrade(roles);
            let checks = move || {
                let checked = checks(role, roles.clone());
                Box::pin(checked) as std::pin::Pin<Box<dyn Future<Output = Vec<Check>> + Send>>
            };
            let clock = Arc::new(SystemClock);
            registrars.push(Registrar::start(client, registration, clock, checks));
        }
        let dns = dns.map(|(sockets, zone)| {
            let zone = registry::dns::parse_zone(zone).map_err(|why| anyhow::anyhow!("--dns-zone: {why}"))?;
            let client = RegistryClient::new(scm).context("addresses of SCM")?;
            anyhow::Ok(Arc::new(DnsServer::start(sockets, zone, client)))
        });
        let dns = dns.transpose()?;
        if let Some(dns) = &dns {
            http.watch_dns(dns);
        }
        Ok(Presence { registrars, dns })
    }

    /// Leaves the registry: nobody new is sent here. DNS goes on until [`Presence::stop`].
    pub(crate) async fn leave(&mut self) {
        let registrars = std::mem::take(&mut self.registrars);
        futures::future::join_all(registrars.into_iter().map(Registrar::stop)).await;
    }

    pub(crate) async fn stop(mut self) {
        self.leave().await;
        if let Some(dns) = self.dns.take() {
            dns.stop().await;
        }
    }
}

/// Shows the counters of DNS, while it runs.
pub(crate) fn expose_dns(dns: &Weak<DnsServer>, exposition: &mut Exposition) {
    if let Some(dns) = dns.upgrade() {
        dns.expose(exposition);
    }
}

/// The registration of a role; `None` for one that this server does not have, and for datanodes.
fn registration(role: Role, roles: &Roles, reached: &Reached<'_>, http: SocketAddr) -> Option<Registration> {
    let (service, primary, address) = match role {
        Role::Scm => ("scm", "grpc", roles.scm.as_ref().map(|_| reached.rpc.to_owned())?),
        Role::Om => ("om", "grpc", roles.om.as_ref().map(|_| reached.rpc.to_owned())?),
        Role::S3 => ("s3gw", "s3", reachable(reached.s3?, reached.rpc)),
        Role::Datanode => return None,
    };
    let addresses =
        [(primary.to_owned(), address.clone()), ("http".to_owned(), reachable(http, reached.rpc))];
    let metadata = [("version", VERSION), ("primary", primary)];
    Some(Registration {
        service: service.to_owned(),
        id: label_of_address(&address),
        addresses: BTreeMap::from(addresses),
        metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        ttl: LEASE_TTL,
    })
}

/// The address at which a port is reached: a port that listens everywhere is reached where gRPC is.
fn reachable(bound: SocketAddr, rpc: &str) -> String {
    match rpc.rsplit_once(':') {
        Some((host, _)) if bound.ip().is_unspecified() => format!("{host}:{}", bound.port()),
        _ => bound.to_string(),
    }
}

/// The checks with which a role says how it is.
async fn checks(role: Role, roles: Weak<Roles>) -> Vec<Check> {
    let Some(roles) = roles.upgrade() else {
        return vec![check("ready", Health::Critical, "it stops".to_owned())];
    };
    let mut checks = vec![match roles.role_readiness(role).await {
        Some(Err(why)) => check("ready", Health::Critical, why),
        Some(Ok(())) | None => check("ready", Health::Passing, "it does its work".to_owned()),
    }];
    let lag = match role {
        Role::Scm => roles.scm.as_ref().map(scm::Scm::lag),
        Role::Om => roles.om.as_ref().map(om::Om::lag),
        Role::Datanode | Role::S3 => None,
    };
    if let Some(lag) = lag {
        let health = if lag > LAG_ENTRIES_MAX { Health::Warning } else { Health::Passing };
        checks.push(check("raft", health, format!("{lag} entries to apply")));
    }
    if let (Role::Scm | Role::Om, Some((path, space))) = (role, &roles.meta) {
        checks.push(check_room(path, space).await);
    }
    checks
}

/// Whether the directory of OM or SCM has room: time for more is before it has none.
async fn check_room(path: &Path, space: &LogSpace) -> Check {
    let here = path.display();
    if let Err(error) = space.check_space(0) {
        return check("disk", Health::Critical, format!("{here}: {error}"));
    }
    // What hangs is told of elsewhere, and holds up no renewal.
    let asked = tokio::time::timeout(ROOM_WAIT, space.disk().space()).await;
    match asked {
        Ok(Ok(Space { capacity_bytes, free_bytes }))
            if free_bytes < capacity_bytes / 100 * FREE_PERCENT_WARNING =>
        {
            let what = format!("{here} has less than {FREE_PERCENT_WARNING} % free: {free_bytes} bytes");
            check("disk", Health::Warning, what)
        }
        _ => check("disk", Health::Passing, format!("{here} has room")),
    }
}

/// A check with words that SCM takes: none that could command a terminal, which a directory's name may have.
fn check(name: &str, health: Health, output: String) -> Check {
    Check { name: name.to_owned(), health: health as i32, output: printable(&output) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_port_that_listens_everywhere_is_reached_where_grpc_is() {
        let reachable = |bound: &str| super::reachable(bound.parse().unwrap(), "node1:7400");
        assert_eq!(reachable("0.0.0.0:9000"), "node1:9000");
        assert_eq!(reachable("[::]:9000"), "node1:9000");
        assert_eq!(reachable("10.0.0.1:9000"), "10.0.0.1:9000");
    }
}
