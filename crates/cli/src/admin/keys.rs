//! The keys that have blocks in a container, and the places of the blocks of a key.

use super::bucket::connect;
use super::om_groups::{number, oms};
use super::scm::Scm;
use super::words;
use crate::answer::Answer;
use crate::table::{human_bytes, table};
use anyhow::Context;
use client::{Client, S3_VOLUME};
use proto::datanode::BlockName;
use proto::om::{ContainerKey, Key, ListContainerKeysRequest};
use proto::scm::{ContainerInfo, ListContainersRequest};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Answers with the keys and parts that have blocks in a container, of all groups of names.
pub(super) async fn of_container(scm: &mut Scm, container: u64, limit: u32) -> anyhow::Result<Answer> {
    let groups = oms(scm).await?.groups;
    let client = connect(&scm.addresses().join(","));
    let (mut all, limit) = (Vec::new(), limit as usize);
    let mut has_more = false;
    for group in groups.iter().map(number) {
        has_more |= of_group(&client, group, container, limit, &mut all)
            .await
            .with_context(|| format!("group {group} of names"))?;
    }
    let row = |key: &ContainerKey| [bucket(key), what(key), local(key).to_string(), human_bytes(key.bytes)];
    let mut text = table(["BUCKET", "KEY", "BLOCK", "BYTES"], &all.iter().map(row).collect::<Vec<_>>());
    if has_more {
        text += "there are more: a larger --limit shows them\n";
    }
    let list: Vec<Value> = all.iter().map(key_to_json).collect();
    Ok(Answer::new(text, json!({ "container": container, "keys": list, "more": has_more })))
}

/// Adds a group's keys with blocks in a container to `all`, up to `limit`. Returns whether there are more.
async fn of_group(
    client: &Client,
    group: u64,
    container: u64,
    limit: usize,
    all: &mut Vec<ContainerKey>,
) -> anyhow::Result<bool> {
    let mut request = ListContainerKeysRequest { group, container, ..Default::default() };
    loop {
        let page = client.container_keys(request.clone()).await?;
        let room = limit.saturating_sub(all.len());
        let has_more = page.keys.len() > room;
        all.extend(page.keys.into_iter().take(room));
        if has_more || !page.truncated {
            return Ok(has_more);
        }
        request.after = page.next_after;
    }
}

pub(super) fn bucket(key: &ContainerKey) -> String {
    match key.bucket_name.is_empty() {
        true => format!("(number {})", key.bucket),
        false => key.bucket_name.clone(),
    }
}

pub(super) fn what(key: &ContainerKey) -> String {
    match key.upload.is_empty() {
        true => String::from_utf8_lossy(&key.key).into_owned(),
        false => format!("(part {} of upload {})", key.part, key.upload),
    }
}

pub(super) fn local(key: &ContainerKey) -> u64 {
    key.block.as_ref().map_or(0, |block| block.local)
}

pub(super) fn key_to_json(key: &ContainerKey) -> Value {
    let is_part = !key.upload.is_empty();
    json!({
        "bucket": key.bucket_name,
        "bucket_number": key.bucket,
        "key": (!is_part).then(|| String::from_utf8_lossy(&key.key)),
        "upload": is_part.then_some(&key.upload),
        "part": is_part.then_some(key.part),
        "block": local(key),
        "bytes": key.bytes,
    })
}

/// Answers where the bytes of a key are.
pub(super) async fn explain(scm: &mut Scm, path: &str) -> anyhow::Result<Answer> {
    let (bucket, name) = path.split_once('/').context("a key is written BUCKET/KEY")?;
    let client = connect(&scm.addresses().join(","));
    let key = client.lookup(S3_VOLUME, bucket, name.as_bytes()).await?;
    let blocks = key.pieces.iter().filter_map(|piece| piece.block.as_ref());
    let numbers: BTreeSet<u64> = blocks.map(|block| block.container).collect();
    let mut containers = BTreeMap::new();
    for number in numbers {
        containers.insert(number, container(scm, number).await?);
    }
    Ok(explained(path, &key, &containers))
}

/// Asks SCM for a container; `None`: SCM does not know it.
async fn container(scm: &mut Scm, number: u64) -> anyhow::Result<Option<ContainerInfo>> {
    let request = ListContainersRequest { container: number, ..ListContainersRequest::default() };
    let answer = scm.look(async |client| client.list_containers(request).await).await?;
    Ok(answer.containers.into_iter().find(|container| container.container == number))
}

fn explained(path: &str, key: &Key, containers: &BTreeMap<u64, Option<ContainerInfo>>) -> Answer {
    let mut text =
        format!("{path}: {}, etag {}, {} pieces\n", human_bytes(key.size), key.etag, key.pieces.len());
    let (mut rows, mut list, mut at) = (Vec::new(), Vec::new(), 0);
    for piece in &key.pieces {
        let block = piece.block.clone().unwrap_or_default();
        let (state, nodes) = place(&block, containers);
        let told: Vec<String> = nodes.iter().map(u64::to_string).collect();
        rows.push([
            at.to_string(),
            human_bytes(piece.length),
            block.container.to_string(),
            block.local.to_string(),
            state.to_owned(),
            told.join(","),
        ]);
        list.push(json!({
            "at": at,
            "bytes": piece.length,
            "container": block.container,
            "block": block.local,
            "offset_in_block": piece.offset,
            "container_is": state,
            "nodes": nodes,
        }));
        at += piece.length;
    }
    text += &table(["AT", "BYTES", "CONTAINER", "BLOCK", "CONTAINER IS", "NODES"], &rows);
    Answer::new(text, json!({ "path": path, "bytes": key.size, "etag": key.etag, "pieces": list }))
}

/// The state of a block's container, and the nodes that have a replica of it.
fn place(block: &BlockName, containers: &BTreeMap<u64, Option<ContainerInfo>>) -> (&'static str, Vec<u64>) {
    let Some(Some(info)) = containers.get(&block.container) else { return ("unknown", Vec::new()) };
    let nodes = info.replicas.iter().filter_map(|replica| Some(replica.node.as_ref()?.node));
    (words::container_state(info.state()).0, nodes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::om::BlockPiece;
    use proto::scm::{ContainerState, NodeAddress, ReplicaInfo};

    #[test]
    fn a_key_is_told_piece_by_piece() {
        let piece = |container, length| BlockPiece {
            block: Some(BlockName { container, local: 9, ..BlockName::default() }),
            length,
            ..BlockPiece::default()
        };
        let key = Key { size: 30, pieces: vec![piece(7, 10), piece(8, 20)], ..Key::default() };
        let node = |node| ReplicaInfo {
            node: Some(NodeAddress { node, ..NodeAddress::default() }),
            ..ReplicaInfo::default()
        };
        let known = ContainerInfo {
            container: 7,
            state: ContainerState::ContainerClosed.into(),
            replicas: vec![node(1), node(3)],
            ..ContainerInfo::default()
        };
        let answer = explained("b/k", &key, &BTreeMap::from([(7, Some(known)), (8, None)]));
        let pieces = &answer.json["pieces"];
        assert_eq!((&pieces[0]["nodes"], &pieces[1]["nodes"]), (&json!([1, 3]), &json!([])));
        assert_eq!((&pieces[0]["at"], &pieces[1]["at"]), (&json!(0), &json!(10)));
        assert_eq!(pieces[1]["container_is"], "unknown");
        assert!(answer.text.contains("1,3"), "{}", answer.text);
    }
}
