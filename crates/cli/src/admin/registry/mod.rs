//! `flotilla admin registry`.

mod kv;
mod watch;

use super::args::{AdminCommand, KvCommand, RegistryCommand};
use super::words;
use crate::answer::Answer;
use crate::table::{Cell, Tone, table};
use anyhow::Context;
use proto::registry::watch_request::What;
use proto::registry::{Health, Instance, Reading};
use proto::{Code, Failure};
use registry::{RegistryClient, health, instance_to_json};
use serde_json::json;
pub(super) use watch::{Watch, watch};

/// The exit code, which scripts tell apart from a failure, when a comparison failed: somebody else was
/// faster.
const COMPARISON_FAILED: u8 = 3;
/// The exit code when what was asked for does not exist.
const NOT_THERE: u8 = 4;

/// An answer with which the registry refused.
#[derive(Debug, thiserror::Error)]
#[error("the registry refused: {0}")]
struct Refused(Failure);

/// The exit code of an error that is not just a failure.
pub(crate) fn exit_code(error: &anyhow::Error) -> Option<u8> {
    match error.downcast_ref::<Refused>()?.0.code {
        Code::PreconditionFailed => Some(COMPARISON_FAILED),
        Code::NotFound => Some(NOT_THERE),
        _ => None,
    }
}

fn refused(failure: Failure) -> anyhow::Error {
    Refused(failure).into()
}

fn connect(scm: &str) -> anyhow::Result<RegistryClient> {
    RegistryClient::new(scm).context("--scm")
}

/// The watch of a command that goes on until Ctrl-C.
pub(super) fn watch_of(command: &AdminCommand) -> Option<Watch> {
    let AdminCommand::Registry(command) = command else { return None };
    let (what, args) = match command {
        RegistryCommand::Watch { service, watch } => {
            (What::Service(service.clone().unwrap_or_default()), watch)
        }
        RegistryCommand::Kv(KvCommand::Watch { prefix, watch }) => (What::KeyPrefix(prefix.clone()), watch),
        _ => return None,
    };
    Some(Watch { what, from: args.from, count: args.count })
}

pub(super) async fn run(scm: &str, command: RegistryCommand) -> anyhow::Result<Answer> {
    let client = connect(scm)?;
    match command {
        RegistryCommand::Services => services(&client).await,
        RegistryCommand::Instances { service, passing } => {
            instances(&client, &service.unwrap_or_default(), passing).await
        }
        RegistryCommand::Kv(command) => kv::run(&client, command).await,
        RegistryCommand::Watch { .. } => anyhow::bail!("a watch is no answer"),
    }
}

async fn services(client: &RegistryClient) -> anyhow::Result<Answer> {
    let listed = client.services(Reading::default()).await.map_err(refused)?;
    let count = |count: u64, tone| Cell::toned(count.to_string(), if count > 0 { tone } else { Tone::Plain });
    let rows: Vec<[Cell; 4]> = listed
        .services
        .iter()
        .map(|summary| {
            [
                summary.service.as_str().into(),
                count(summary.passing, Tone::Good),
                count(summary.warning, Tone::Warning),
                count(summary.critical, Tone::Bad),
            ]
        })
        .collect();
    let services = listed.services.iter().map(|summary| {
        json!({
            "service": summary.service,
            "passing": summary.passing,
            "warning": summary.warning,
            "critical": summary.critical,
        })
    });
    let json = json!({ "revision": listed.revision, "services": services.collect::<Vec<_>>() });
    Ok(Answer::new(table(["SERVICE", "PASSING", "WARNING", "CRITICAL"], &rows), json))
}

async fn instances(client: &RegistryClient, service: &str, passing: bool) -> anyhow::Result<Answer> {
    let listed = client.instances(service).await.map_err(refused)?;
    let wanted = |instance: &&Instance| !passing || health(instance) == Health::Passing;
    let instances: Vec<&Instance> = listed.instances.iter().filter(wanted).collect();
    let rows: Vec<[Cell; 5]> = instances.iter().map(|instance| row(instance)).collect();
    let text = table(["SERVICE", "ID", "HEALTH", "ADDRESSES", "TROUBLE"], &rows);
    let all: Vec<_> = instances.into_iter().map(instance_to_json).collect();
    Ok(Answer::new(text, json!({ "revision": listed.revision, "instances": all })))
}

fn row(instance: &Instance) -> [Cell; 5] {
    let addresses: Vec<String> =
        instance.addresses.iter().map(|(name, address)| format!("{name}={address}")).collect();
    let troubles = instance.checks.iter().filter(|check| check.health() != Health::Passing);
    let troubles: Vec<String> = troubles.map(|check| format!("{}: {}", check.name, check.output)).collect();
    [
        instance.service.as_str().into(),
        instance.id.as_str().into(),
        words::cell(words::health(health(instance))),
        addresses.join(" ").into(),
        troubles.join("; ").into(),
    ]
}
