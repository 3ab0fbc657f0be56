//! The registry's things as JSON: the same over HTTP and on the command line.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proto::registry::event::Change;
use proto::registry::{Check, Event, Health, Instance, KeyValue};
use serde_json::{Value, json};

/// The health of an instance: the worst of its checks. An instance without checks is well; a health that only
/// a newer version knows counts as a warning.
pub fn health(instance: &Instance) -> Health {
    let known = |check: &Check| match check.health() {
        Health::Unspecified => Health::Warning,
        health => health,
    };
    instance.checks.iter().map(known).max().unwrap_or(Health::Passing)
}

pub fn health_word(health: Health) -> &'static str {
    match health {
        Health::Passing => "passing",
        Health::Warning => "warning",
        Health::Critical => "critical",
        Health::Unspecified => "unknown",
    }
}

pub fn instance_to_json(instance: &Instance) -> Value {
    let checks = instance.checks.iter().map(
        |check| json!({ "name": check.name, "health": health_word(check.health()), "output": check.output }),
    );
    json!({
        "service": instance.service,
        "id": instance.id,
        "health": health_word(health(instance)),
        "addresses": instance.addresses,
        "metadata": instance.metadata,
        "checks": checks.collect::<Vec<_>>(),
        "ttl_ms": instance.ttl_ms,
        "lease": instance.lease,
        "create_revision": instance.create_revision,
        "mod_revision": instance.mod_revision,
    })
}

/// A key as JSON. Its value is in base64: it may be any bytes.
pub fn key_to_json(entry: &KeyValue) -> Value {
    json!({
        "key": entry.key,
        "value": STANDARD.encode(&entry.value),
        "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision,
        "version": entry.version,
        "ttl_ms": entry.ttl_ms,
    })
}

pub fn event_to_json(event: &Event) -> Value {
    let (what, value) = match &event.change {
        Some(Change::Instance(instance)) => ("instance", instance_to_json(instance)),
        Some(Change::InstanceGone(name)) => {
            ("instance_gone", json!({ "service": name.service, "id": name.id }))
        }
        Some(Change::Key(entry)) => ("key", key_to_json(entry)),
        Some(Change::KeyGone(key)) => ("key_gone", json!(key)),
        None => ("unknown", Value::Null),
    };
    json!({ "revision": event.revision, "expired": event.expired, what: value })
}
