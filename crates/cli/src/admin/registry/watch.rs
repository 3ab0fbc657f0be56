use super::{connect, kv, refused};
use crate::output;
use anyhow::Context;
use proto::registry::event::Change;
use proto::registry::watch_request::What;
use proto::registry::{Event, WatchRequest};
use proto::{Code, Failure};
use registry::{RegistryClient, event_to_json, health, health_word};
use std::time::Duration;

/// The pause before a watch that broke is opened again.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Watch {
    pub(super) what: What,
    pub(super) from: u64,
    pub(super) count: Option<u64>,
}

/// Prints each change as a line, until Ctrl-C or until there were enough. A stream that breaks goes on where
/// it was.
pub(crate) async fn watch(scm: &str, mut watch: Watch, as_json: bool) -> anyhow::Result<()> {
    let client = connect(scm)?;
    while watch.count != Some(0) {
        let failure = match watch_once(&client, &mut watch, as_json).await? {
            Some(failure) => failure,
            None => break,
        };
        if failure.code == Code::Compacted {
            return Err(refused(failure));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Prints the changes of one stream. Returns why it broke; `None` when there were enough changes.
async fn watch_once(
    client: &RegistryClient,
    watch: &mut Watch,
    as_json: bool,
) -> anyhow::Result<Option<Failure>> {
    let request = WatchRequest { from: watch.from, what: Some(watch.what.clone()) };
    let mut told = client.watch(request).await.map_err(refused)?;
    loop {
        let message = match told.stream.message().await {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(Failure::new(Code::Unavailable, "the watch ended")),
            Err(status) => Err(status.into()),
        };
        let message = match message {
            Ok(message) => message,
            Err(failure) => {
                client.broke(&told.address, &failure);
                return Ok(Some(failure));
            }
        };
        for event in &message.events {
            let line = if as_json { format!("{}\n", event_to_json(event)) } else { line(event) };
            output::print(&line).context("write to standard output")?;
            if let Some(count) = &mut watch.count {
                *count -= 1;
                if *count == 0 {
                    return Ok(None);
                }
            }
        }
        watch.from = message.revision + 1;
    }
}

fn line(event: &Event) -> String {
    let gone = if event.expired { "expired" } else { "deleted" };
    let what = match &event.change {
        Some(Change::Key(entry)) => format!("put      {}  {}", entry.key, kv::shown(&entry.value)),
        Some(Change::KeyGone(key)) => format!("{gone}  {key}"),
        Some(Change::Instance(instance)) => {
            let health = health_word(health(instance));
            format!("{health:8} {} {}", instance.service, instance.id)
        }
        Some(Change::InstanceGone(name)) => format!("{gone}  {} {}", name.service, name.id),
        None => "a change that this version does not know".to_owned(),
    };
    format!("{}  {what}\n", event.revision)
}
