//! Metrics of the registry for Prometheus: every member tells what it has applied, the leader also what it
//! did.

use super::health::health;
use crate::leader::Leader;
use crate::state_machine::SharedTables;
use ::metrics::{Exposition, Metric};
use proto::registry::Health;
use std::collections::BTreeMap;

const INSTANCES: Metric =
    Metric { name: "flotilla_registry_instances", help: "Registered instances by service and health." };
const REVISION: Metric =
    Metric { name: "flotilla_registry_revision", help: "The last change that is applied here." };
const KEYS: Metric = Metric { name: "flotilla_registry_keys", help: "Keys of the key-value space." };
const KEY_BYTES: Metric =
    Metric { name: "flotilla_registry_key_bytes", help: "Bytes of all keys and values." };
const WAITING: Metric =
    Metric { name: "flotilla_registry_waiting", help: "Watches and long polls that wait for a change." };
const WAITS_REFUSED: Metric = Metric {
    name: "flotilla_registry_waits_refused_total",
    help: "Watches and long polls turned away because too many wait.",
};
const RENEWALS: Metric =
    Metric { name: "flotilla_registry_renewals_total", help: "Renewals of leases, of instances and keys." };
const CONFIRMATIONS: Metric = Metric {
    name: "flotilla_registry_confirmations_total",
    help: "Rounds of messages in which a majority confirmed the leader to renewals, or did not.",
};
const LAPSED: Metric = Metric {
    name: "flotilla_registry_lapsed_total",
    help: "Instances that became critical because they did not renew.",
};
const EXPIRED: Metric = Metric {
    name: "flotilla_registry_expired_total",
    help: "Instances and keys removed because nobody renewed them.",
};

pub(crate) fn expose(tables: &SharedTables, leader: Option<&Leader>, exposition: &mut Exposition) {
    tables.read(|tables| {
        let directory = tables.directory();
        exposition.gauge(REVISION, &[], tables.revision());
        exposition.gauge(KEYS, &[], directory.keys_count());
        exposition.gauge(KEY_BYTES, &[], directory.key_bytes());
        let mut instances: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
        for instance in directory.instances() {
            let counts = instances.entry(&instance.service).or_default();
            match health(&instance.checks) {
                Health::Passing => counts[0] += 1,
                Health::Warning | Health::Unspecified => counts[1] += 1,
                Health::Critical => counts[2] += 1,
            }
        }
        for (service, counts) in instances {
            for (health, count) in ["passing", "warning", "critical"].into_iter().zip(counts) {
                exposition.gauge(INSTANCES, &[("service", service), ("health", health)], count);
            }
        }
    });
    let waits = tables.feed().counts();
    exposition.gauge(WAITING, &[], waits.pending as u64);
    exposition.counter(WAITS_REFUSED, &[], waits.full);
    let Some(leader) = leader else { return };
    let counts = leader.leases(|leases| leases.counts);
    exposition.counter(RENEWALS, &[], counts.renewals);
    exposition.counter(CONFIRMATIONS, &[], leader.confirmations.rounds());
    exposition.counter(LAPSED, &[], counts.instances_lapsed);
    exposition.counter(EXPIRED, &[("what", "instance")], counts.instances_expired);
    exposition.counter(EXPIRED, &[("what", "key")], counts.keys_expired);
}
