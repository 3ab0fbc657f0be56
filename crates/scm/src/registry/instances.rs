//! Instances that register themselves.

use super::datanodes::DATANODE;
use super::expiry::holder_of;
use super::health::{apart_clock, differ, health, with_clock, with_connectivity};
use super::leases::{Leases, TooLate};
use super::limits::{self, check_asked, check_checks, check_instance, check_label};
use crate::clock_apart::ClockApart;
use crate::leader::Leader;
use crate::tables::Tables;
use proto::registry::registry_command::Command;
use proto::registry::*;
use proto::{Code, Failure};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// The most instances in one answer.
const PAGE_MAX: usize = 1000;
/// The bytes at which a page ends: well below the message limit.
const PAGE_BYTES_MAX: usize = 4 << 20;

pub(super) const CONNECTED: &str = "its lease is renewed";

pub(super) async fn register(
    leader: &Leader,
    request: RegisterInstanceRequest,
) -> Result<RegisterInstanceResponse, Failure> {
    let instance = request.instance.ok_or_else(|| Failure::invalid("no instance is given"))?;
    check_instance(&instance)?;
    check_not_derived(&instance.service)?;
    let checks = with_own(leader, instance.checks, request.clock_ms);
    let instance = Instance { checks: checks.clone(), ..instance };
    let (service, id) = (instance.service.clone(), instance.id.clone());
    let command = PutInstanceCommand { instance: Some(instance), instances_max: limits::INSTANCES_MAX };
    let reply = leader.propose_registry(Command::PutInstance(command)).await?;
    info!(service, id, "registered an instance");
    log_clock(&service, &id, &checks);
    Ok(RegisterInstanceResponse { lease: reply.revision, revision: reply.revision })
}

pub(super) async fn renew(leader: &Leader, request: RenewInstanceRequest) -> Result<(), Failure> {
    let RenewInstanceRequest { name, lease, checks, clock_ms } = request;
    let name = name.unwrap_or_default();
    check_checks(&checks)?;
    let checks = with_own(leader, checks, clock_ms);
    let may_write = leader.tables.read(|tables| {
        leader.leases(|leases| renew_held(tables, leases, &name, lease, &checks, Instant::now()))
    })?;
    leader.confirm().await?;
    let was_apart = leader
        .tables
        .read(|tables| find(tables, &name, lease).map(|known| apart_clock(&known.checks).is_some()))?;
    if may_write {
        if !was_apart {
            log_clock(&name.service, &name.id, &checks);
        }
        let command = SetChecksCommand { name: Some(name), lease, checks };
        leader.propose_registry(Command::SetChecks(command)).await?;
    }
    Ok(())
}

/// The checks of an instance that speaks, together with all that SCM says of it.
fn with_own(leader: &Leader, checks: Vec<Check>, clock_ms: u64) -> Vec<Check> {
    let checks = match clock_ms {
        0 => checks,
        theirs => with_clock(checks, ClockApart::of(theirs, leader.clock.now_ms())),
    };
    with_connectivity(checks, Health::Passing, CONNECTED)
}

fn log_clock(service: &str, id: &str, checks: &[Check]) {
    if let Some(apart) = apart_clock(checks) {
        warn!(service, id, problem = apart.output, "clocks are apart");
    }
}

/// Renews a lease in one step under both locks. Answers whether the checks are news that may be written.
fn renew_held(
    tables: &Tables,
    leases: &mut Leases,
    name: &InstanceName,
    lease: u64,
    checks: &[Check],
    now: Instant,
) -> Result<bool, Failure> {
    let instance = find(tables, name, lease)?;
    check_not_derived(&name.service)?;
    leases.check_complete()?;
    let (holder, ttl) = (holder_of(name), Duration::from_millis(instance.ttl_ms));
    let is_renewed = leases.renew(holder.clone(), lease, ttl, now);
    is_renewed.map_err(|TooLate| {
        let message = format!("instance {} of {} is being given up", name.id, name.service);
        Failure::new(Code::NotFound, message)
    })?;
    Ok(differ(&instance.checks, checks) && leases.may_write_checks(&holder, now))
}

/// The instance of the very registration that is renewed.
fn find<'a>(tables: &'a Tables, name: &InstanceName, lease: u64) -> Result<&'a Instance, Failure> {
    let found = tables.directory().instance(&name.service, &name.id);
    found.filter(|instance| instance.lease == lease).ok_or_else(|| {
        let message = format!("there is no instance {} of {} with this lease", name.id, name.service);
        Failure::new(Code::NotFound, message)
    })
}

pub(super) async fn deregister(
    leader: &Leader,
    request: DeregisterInstanceRequest,
) -> Result<DeregisterInstanceResponse, Failure> {
    let name = request.name.unwrap_or_default();
    check_label("service", &name.service)?;
    check_label("id", &name.id)?;
    check_not_derived(&name.service)?;
    info!(service = name.service, id = name.id, "deregister an instance");
    let command = RemoveInstanceCommand { name: Some(name), lease: 0, expired: false };
    let reply = leader.propose_registry(Command::RemoveInstance(command)).await?;
    Ok(DeregisterInstanceResponse { revision: reply.revision })
}

fn check_not_derived(service: &str) -> Result<(), Failure> {
    if service == DATANODE {
        return Err(Failure::invalid(format!("instances of `{DATANODE}` are SCM's to register")));
    }
    Ok(())
}

pub(super) fn services(tables: &Tables) -> ListServicesResponse {
    let mut services: BTreeMap<&str, ServiceSummary> = BTreeMap::new();
    for instance in tables.directory().instances() {
        let summary = services.entry(&instance.service).or_insert_with(|| ServiceSummary {
            service: instance.service.clone(),
            ..ServiceSummary::default()
        });
        match health(&instance.checks) {
            Health::Passing => summary.passing += 1,
            Health::Warning | Health::Unspecified => summary.warning += 1,
            Health::Critical => summary.critical += 1,
        }
    }
    ListServicesResponse { revision: tables.revision(), services: services.into_values().collect() }
}

pub(super) fn check_list(request: &ListInstancesRequest) -> Result<(), Failure> {
    check_asked(&request.service)?;
    match &request.from {
        Some(from) if !request.service.is_empty() && from.service != request.service => {
            let message =
                format!("a list of `{}` does not go on at one of `{}`", request.service, from.service);
            Err(Failure::invalid(message))
        }
        _ => Ok(()),
    }
}

/// A page of instances: it ends where it has as many as are asked for, or where their bytes pass the limit.
pub(super) fn list(tables: &Tables, request: &ListInstancesRequest) -> ListInstancesResponse {
    let from = request.from.clone().unwrap_or_default();
    let limit = match request.limit as usize {
        0 => PAGE_MAX,
        limit => limit.min(PAGE_MAX),
    };
    let service = request.service.as_str();
    let first = if from.service.is_empty() { service } else { &from.service };
    let wanted = tables.directory().instances_from(first, &from.id);
    let wanted = wanted.take_while(|instance| service.is_empty() || instance.service == service);
    let mut response = ListInstancesResponse { revision: tables.revision(), ..Default::default() };
    let mut bytes = 0;
    for instance in wanted {
        if response.instances.len() >= limit || bytes > PAGE_BYTES_MAX {
            let (service, id) = (instance.service.clone(), instance.id.clone());
            response.next = Some(InstanceName { service, id });
            break;
        }
        bytes += prost::Message::encoded_len(instance);
        response.instances.push(instance.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::TablesMut;

    #[test]
    fn pages_are_bounded_and_miss_nobody() {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        // Puts 400 instances of 20 KiB, and 2 500 small ones.
        for (service, count, bytes) in [("big", 400, 20 << 10), ("small", 2500, 0)] {
            for number in 0..count {
                let metadata = [("x".to_owned(), "y".repeat(bytes))].into();
                let (service, id) = (service.to_owned(), format!("i{number:04}"));
                change.put_instance(Instance { service, id, metadata, ..Instance::default() });
            }
        }
        let pages = |service: &str, limit: u32| {
            let service = service.to_owned();
            let mut request = ListInstancesRequest { service, limit, ..ListInstancesRequest::default() };
            let mut pages = Vec::new();
            loop {
                let page = list(&tables, &request);
                assert!(prost::Message::encoded_len(&page) < PAGE_BYTES_MAX + (64 << 10));
                pages.push(page.instances.len());
                match page.next {
                    Some(next) => request.from = Some(next),
                    None => return pages,
                }
            }
        };
        assert_eq!(pages("small", 0), [1000, 1000, 500]);
        assert_eq!(pages("small", 900), [900, 900, 700]);
        assert_eq!(pages("nobody", 0), [0]);
        let big = pages("big", 0);
        assert!(big.len() == 2 && big.iter().sum::<usize>() == 400, "{big:?}");
        assert_eq!(pages("", 0).iter().sum::<usize>(), 2900);
        let service = "small".to_owned();
        let from = Some(InstanceName { service: "big".to_owned(), id: String::new() });
        let astray = ListInstancesRequest { service, from, ..ListInstancesRequest::default() };
        assert_eq!(check_list(&astray).unwrap_err().code, Code::Invalid);
    }
}
