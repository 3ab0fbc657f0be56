//! `flotilla sh`: what the namespace has above keys, with Ozone's words.

use crate::answer::Answer;
use crate::args::{ClusterArgs, ShArgs, ShCommand, VolumeCommand};
use crate::table::table;
use client::{Client, ClientOptions};
use proto::om::{ListBucketsRequest, Volume};
use serde_json::{Value, json};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The time for which a client goes on trying: somebody waits at a terminal.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: ShArgs) -> anyhow::Result<u8> {
    let ShArgs { cluster: ClusterArgs { scm, .. }, looks, command: ShCommand::Volume(command) } = args;
    let options =
        ClientOptions { scm, write_deadline: PATIENCE, read_deadline: PATIENCE, ..ClientOptions::default() };
    let client = Client::connect(options);
    let only_looks = matches!(command, VolumeCommand::List | VolumeCommand::Info { .. });
    looks.show(only_looks, async || volume(&client, &command).await).await
}

async fn volume(client: &Client, command: &VolumeCommand) -> anyhow::Result<Answer> {
    match command {
        VolumeCommand::Create { volume } => {
            let made = client.create_volume(volume).await?;
            Ok(Answer::new(format!("volume {} is made\n", made.name), to_json(&made)))
        }
        VolumeCommand::List => {
            let all = client.list_volumes().await?;
            let rows: Vec<[String; 2]> = all.iter().map(|it| [it.name.clone(), created(it)]).collect();
            let json = all.iter().map(to_json).collect();
            Ok(Answer::new(table(["VOLUME", "CREATED"], &rows), json))
        }
        VolumeCommand::Info { volume } => {
            let found = client.head_volume(volume).await?;
            let buckets = buckets(client, volume).await?;
            let row = [found.name.clone(), created(&found), buckets.to_string()];
            let mut json = to_json(&found);
            json["buckets"] = json!(buckets);
            Ok(Answer::new(table(["VOLUME", "CREATED", "BUCKETS"], &[row]), json))
        }
        VolumeCommand::Delete { volume } => {
            client.delete_volume(volume).await?;
            Ok(Answer::new(format!("volume {volume} is deleted\n"), json!({ "deleted": volume })))
        }
    }
}

async fn buckets(client: &Client, volume: &str) -> anyhow::Result<usize> {
    let (mut count, mut after) = (0, String::new());
    loop {
        let request =
            ListBucketsRequest { volume: volume.to_owned(), after, ..ListBucketsRequest::default() };
        let page = client.list_buckets(request).await?;
        count += page.buckets.len();
        after = page.buckets.last().map(|last| last.name.clone()).unwrap_or_default();
        if !page.truncated {
            return Ok(count);
        }
    }
}

/// The time at which a volume was made; `None` for the volume that is there without being made.
fn created_at(volume: &Volume) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp((volume.created_ms / 1000) as i64).ok();
    at.filter(|_| volume.created_ms != 0)?.format(&Rfc3339).ok()
}

fn created(volume: &Volume) -> String {
    created_at(volume).unwrap_or_else(|| "-".to_owned())
}

fn to_json(volume: &Volume) -> Value {
    json!({ "volume": volume.name, "created": created_at(volume) })
}
