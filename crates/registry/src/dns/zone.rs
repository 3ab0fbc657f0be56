use crate::json::health;
use crate::mirror::Mirror;
use hickory_proto::rr::rdata::{A, AAAA, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use proto::registry::{Health, Instance};
use rand::seq::SliceRandom;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// The time for which resolvers may keep an answer, or remember that there is none. For a client it adds to
/// the time that a lease takes to end.
const TTL_SECONDS: u32 = 1;
/// The most records of one answer: more than anybody tries, less than a TCP message holds.
const RECORDS_MAX: usize = 256;
/// A copy that has not heard of SCM for this long is not worth answering from.
const AGE_MAX: Duration = Duration::from_secs(600);

/// The names below a zone, as the registry has them at this moment:
///
/// ```text
/// SERVICE.service.ZONE             A, AAAA, SRV   healthy instances
/// ID.SERVICE.service.ZONE          A, AAAA, SRV   one instance, if it is healthy
/// _NAME._tcp.SERVICE.service.ZONE  SRV            their addresses of this name
/// ```
pub(super) struct Zone {
    name: Name,
    mirror: Mirror,
}

/// The answer that there is to a question.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// The name exists; there may be no records of the type.
    Records {
        answers: Vec<Record>,
        additionals: Vec<Record>,
    },
    NoSuchName,
    /// The name is not below this zone.
    Foreign,
    /// SCM has not been heard of for too long.
    Unknown,
}

/// The meaning of a name.
enum Meaning<'a> {
    /// A name that exists because there are names below it.
    Branch,
    Service {
        service: &'a str,
    },
    Instance {
        service: &'a str,
        id: &'a str,
    },
    Port {
        service: &'a str,
        port: &'a str,
    },
    Nothing,
}

impl Zone {
    pub(super) fn new(name: Name, mirror: Mirror) -> Zone {
        Zone { name, mirror }
    }

    pub(super) fn revision(&self) -> u64 {
        self.mirror.revision()
    }

    pub(super) fn find(&self, name: &Name, wanted: RecordType) -> Found {
        if !self.name.zone_of(name) {
            return Found::Foreign;
        }
        let Some(labels) = self.labels_below(name) else { return Found::NoSuchName };
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let meaning = meaning(&labels);
        let has_age = self.mirror.age().is_some_and(|age| age <= AGE_MAX);
        let is_about_instances = !matches!(meaning, Meaning::Branch | Meaning::Nothing);
        if is_about_instances && !has_age {
            return Found::Unknown;
        }
        match meaning {
            Meaning::Nothing => Found::NoSuchName,
            Meaning::Branch if labels.is_empty() && wanted == RecordType::SOA => {
                Found::Records { answers: vec![self.soa()], additionals: Vec::new() }
            }
            Meaning::Branch => no_records(),
            Meaning::Service { service } => self.of_service(name, service, wanted, |_| true, None),
            Meaning::Port { service, port } => {
                self.of_service(name, service, wanted, |it| it.addresses.contains_key(port), Some(port))
            }
            Meaning::Instance { service, id } => {
                let is_there = self.mirror.service(service, |instances| instances.contains_key(id));
                match is_there {
                    Some(true) => self.of_service(name, service, wanted, |it| it.id == id, None),
                    _ => Found::NoSuchName,
                }
            }
        }
    }

    /// The SOA record, for answers without other records: who says that there are none, and for how long that
    /// holds.
    pub(super) fn soa(&self) -> Record {
        let host = |label: &str| self.name.prepend_label(label).unwrap_or_else(|_| self.name.clone());
        // RFC 1982 wants serials to grow modulo 2^32, which this does.
        let serial = self.mirror.revision() as u32;
        let soa = SOA::new(host("ns"), host("hostmaster"), serial, 60, 60, 600, TTL_SECONDS);
        Record::from_rdata(self.name.clone(), TTL_SECONDS, RData::SOA(soa))
    }

    /// The labels of `name` in front of the zone's, in lower case; `None` where one is no text, as in no name
    /// of ours.
    fn labels_below(&self, name: &Name) -> Option<Vec<String>> {
        // Counted by hand: `num_labels` leaves out a `*` in front, which here is a label like another.
        let count = name.iter().count() - self.name.iter().count();
        let text = |label: &[u8]| std::str::from_utf8(label).ok().map(str::to_ascii_lowercase);
        name.iter().take(count).map(text).collect()
    }

    /// The records of a service's healthy instances for which `wanted_instance` is true, in an order of
    /// chance.
    fn of_service(
        &self,
        name: &Name,
        service: &str,
        wanted: RecordType,
        wanted_instance: impl Fn(&Instance) -> bool,
        port: Option<&str>,
    ) -> Found {
        let healthy = self.mirror.service(service, |instances| {
            let is_healthy = |instance: &&Instance| health(instance) != Health::Critical;
            let healthy = instances.values().filter(|instance| wanted_instance(instance)).filter(is_healthy);
            healthy.cloned().collect::<Vec<Instance>>()
        });
        let Some(mut healthy) = healthy else { return Found::NoSuchName };
        healthy.shuffle(&mut rand::rng());
        healthy.truncate(RECORDS_MAX);
        let (mut answers, mut additionals) = (Vec::new(), Vec::new());
        match wanted {
            RecordType::SRV => {
                for instance in &healthy {
                    let target = self.instance_name(instance);
                    let targets = srv_targets(instance, port, &target);
                    let needs_address = targets.iter().any(|srv| srv.target == target);
                    answers.extend(targets.into_iter().map(|srv| record(name, RData::SRV(srv))));
                    if needs_address {
                        additionals.extend(ips(instance).into_iter().map(|ip| record(&target, ip_data(ip))));
                    }
                }
            }
            RecordType::A | RecordType::AAAA | RecordType::ANY if port.is_none() => {
                let all: BTreeSet<IpAddr> = healthy.iter().flat_map(ips).collect();
                let of_type = all.into_iter().filter(|ip| match wanted {
                    RecordType::A => ip.is_ipv4(),
                    RecordType::AAAA => ip.is_ipv6(),
                    _ => true,
                });
                let mut of_type: Vec<IpAddr> = of_type.collect();
                of_type.shuffle(&mut rand::rng());
                answers.extend(of_type.into_iter().map(|ip| record(name, ip_data(ip))));
            }
            _ => {}
        }
        answers.truncate(RECORDS_MAX);
        additionals.truncate(RECORDS_MAX);
        Found::Records { answers, additionals }
    }

    fn instance_name(&self, instance: &Instance) -> Name {
        let labels = ["service", &instance.service, &instance.id];
        let prepended = labels.iter().try_fold(self.name.clone(), |name, label| name.prepend_label(*label));
        // This fails only where the zone's own name is nearly as long as a name can be.
        prepended.unwrap_or_else(|_| self.name.clone())
    }
}

fn no_records() -> Found {
    Found::Records { answers: Vec::new(), additionals: Vec::new() }
}

fn meaning<'a>(labels: &[&'a str]) -> Meaning<'a> {
    match *labels {
        [] | ["service"] => Meaning::Branch,
        [service, "service"] => Meaning::Service { service },
        ["_tcp", service, "service"] => Meaning::Service { service },
        [port, "_tcp", service, "service"] => match port.strip_prefix('_') {
            Some(port) => Meaning::Port { service, port },
            None => Meaning::Nothing,
        },
        [id, service, "service"] => Meaning::Instance { service, id },
        _ => Meaning::Nothing,
    }
}

fn record(name: &Name, data: RData) -> Record {
    Record::from_rdata(name.clone(), TTL_SECONDS, data)
}

fn ip_data(ip: IpAddr) -> RData {
    match ip {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    }
}

/// The different IP addresses of an instance.
fn ips(instance: &Instance) -> BTreeSet<IpAddr> {
    let hosts = instance.addresses.values().filter_map(|address| host_and_port(address));
    hosts.filter_map(|(host, _)| host.parse().ok()).collect()
}

/// The targets at which an instance is to be found: the address called `port`; without one its `primary`
/// address, or all it has.
fn srv_targets(instance: &Instance, port: Option<&str>, name: &Name) -> Vec<SRV> {
    let primary = instance.metadata.get("primary").map(String::as_str);
    let wanted = port.or(primary.filter(|primary| instance.addresses.contains_key(*primary)));
    let addresses = instance.addresses.iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
    let target = |(host, port): (&str, u16)| {
        // A host that has a name is the target; a host that is an IP address is found under the instance's
        // name.
        let target = match host.parse::<IpAddr>() {
            Ok(_) => name.clone(),
            Err(_) => host_name(host)?,
        };
        Some(SRV::new(1, 1, port, target))
    };
    addresses.filter_map(|(_, address)| host_and_port(address)).filter_map(target).collect()
}

fn host_name(host: &str) -> Option<Name> {
    let mut name = Name::from_ascii(host).ok()?;
    name.set_fqdn(true);
    Some(name)
}

fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use proto::registry::Check;

    pub(crate) fn instance(service: &str, id: &str, addresses: &[(&str, &str)], health: Health) -> Instance {
        let checks = vec![Check { name: "c".into(), health: health as i32, output: String::new() }];
        let addresses = addresses.iter().map(|(name, at)| (name.to_string(), at.to_string())).collect();
        Instance { service: service.into(), id: id.into(), addresses, checks, ..Instance::default() }
    }

    pub(crate) fn zone_of(instances: Vec<Instance>) -> Zone {
        Zone::new(crate::dns::parse_zone("flotilla").unwrap(), Mirror::of(instances))
    }

    pub(crate) fn zone() -> Zone {
        zone_of(vec![
            instance("web", "a", &[("http", "10.0.0.1:80"), ("admin", "10.0.0.1:81")], Health::Passing),
            instance("web", "b", &[("http", "[fd00::2]:80")], Health::Warning),
            instance("web", "c", &[("http", "10.0.0.3:80")], Health::Critical),
            instance("web", "d", &[("http", "d.example.com:80")], Health::Passing),
            instance("down", "a", &[("http", "10.0.0.9:80")], Health::Critical),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::testing::zone;
    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    /// Answers and additional records as text, sorted.
    fn found(text: &str, wanted: RecordType) -> Option<(Vec<String>, Vec<String>)> {
        let text_of = |records: Vec<Record>| {
            let mut texts: Vec<String> =
                records.into_iter().map(|record| format!("{} {}", record.name, record.data)).collect();
            texts.sort();
            texts
        };
        match zone().find(&name(text), wanted) {
            Found::Records { answers, additionals } => Some((text_of(answers), text_of(additionals))),
            Found::NoSuchName => None,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn answers(text: &str, wanted: RecordType) -> Option<Vec<String>> {
        found(text, wanted).map(|(answers, _)| answers)
    }

    fn lines(lines: &[&str]) -> Option<Vec<String>> {
        Some(lines.iter().map(|line| line.to_string()).collect())
    }

    #[tokio::test]
    async fn healthy_instances_have_addresses() {
        let web = "web.service.flotilla.";
        assert_eq!(answers(web, RecordType::A), lines(&["web.service.flotilla. 10.0.0.1"]));
        assert_eq!(answers(web, RecordType::AAAA), lines(&["web.service.flotilla. fd00::2"]));
        assert_eq!(
            answers("A.Web.SERVICE.flotilla.", RecordType::A),
            lines(&["A.Web.SERVICE.flotilla. 10.0.0.1"])
        );
        assert_eq!(answers("c.web.service.flotilla.", RecordType::A), lines(&[]), "critical: no records");
        assert_eq!(answers("down.service.flotilla.", RecordType::A), lines(&[]));
        assert_eq!(answers(web, RecordType::TXT), lines(&[]));
    }

    #[tokio::test]
    async fn services_say_where_their_ports_are() {
        let (srv, more) = found("_http._tcp.web.service.flotilla.", RecordType::SRV).unwrap();
        let at = "_http._tcp.web.service.flotilla. 1 1 80";
        let expect = ["a.web.service.flotilla.", "b.web.service.flotilla.", "d.example.com."];
        assert_eq!(srv, expect.map(|target| format!("{at} {target}")));
        assert_eq!(more, ["a.web.service.flotilla. 10.0.0.1", "b.web.service.flotilla. fd00::2"]);
        let of_a = answers("a.web.service.flotilla.", RecordType::SRV).unwrap();
        assert_eq!(of_a.len(), 2, "both of its ports: {of_a:?}");
        assert_eq!(answers("_ssh._tcp.web.service.flotilla.", RecordType::SRV), lines(&[]));
        assert_eq!(answers("_http._tcp.web.service.flotilla.", RecordType::A), lines(&[]));
    }

    #[tokio::test]
    async fn a_primary_address_is_the_one_that_is_meant() {
        let mut instance = testing::instance(
            "s3gw",
            "g",
            &[("grpc", "10.0.0.1:7400"), ("s3", "10.0.0.1:9000")],
            Health::Passing,
        );
        instance.metadata.insert("primary".into(), "s3".into());
        let zone = testing::zone_of(vec![instance]);
        let Found::Records { answers, .. } = zone.find(&name("s3gw.service.flotilla."), RecordType::SRV)
        else {
            panic!("it is there");
        };
        let ports = answers.iter().map(|record| match &record.data {
            RData::SRV(srv) => srv.port,
            other => panic!("{other}"),
        });
        assert_eq!(ports.collect::<Vec<_>>(), [9000]);
    }

    #[tokio::test]
    async fn what_does_not_exist_is_told_from_what_has_no_records() {
        let nothing = ["x.flotilla.", "x.service.flotilla.", "z.web.service.flotilla.", "a.b.c.d.flotilla."];
        let stars =
            ["*.flotilla.", "*.service.flotilla.", "*.web.service.flotilla.", "*.a.web.service.flotilla."];
        for nothing in nothing.into_iter().chain(stars) {
            for wanted in [RecordType::A, RecordType::SOA, RecordType::SRV, RecordType::ANY] {
                assert_eq!(answers(nothing, wanted), None, "{nothing} {wanted}");
            }
        }
        for branch in ["flotilla.", "service.flotilla.", "_tcp.web.service.flotilla."] {
            assert!(answers(branch, RecordType::MX).unwrap().is_empty(), "{branch}");
        }
        assert_eq!(answers("flotilla.", RecordType::SOA).unwrap().len(), 1);
        assert_eq!(zone().find(&name("example.com."), RecordType::A), Found::Foreign);
        assert_eq!(zone().find(&name("notflotilla."), RecordType::A), Found::Foreign);
    }
}
