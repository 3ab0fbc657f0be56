use super::args::{ContainerCommand, ContainerListArgs};
use super::keys;
use super::scm::Scm;
use super::words;
use crate::answer::Answer;
use crate::table::{Cell, Tone, human_bytes, table};
use anyhow::bail;
use proto::scm::{
    AcceptContainerLossRequest, AcceptContainerLossResponse, CloseContainerRequest, ClusterStatus,
    ContainerInfo, ContainerState, ContainerTrouble, DropReplicaRequest, GetClusterStatusRequest,
    ListContainersRequest, ReplicaInfo, SettledContainer,
};
use serde_json::{Value, json};

pub(super) async fn run(scm: &mut Scm, command: ContainerCommand) -> anyhow::Result<Answer> {
    match command {
        ContainerCommand::List(args) => list(scm, args).await,
        ContainerCommand::Info { container } => info(scm, container).await,
        ContainerCommand::Close { container } => close(scm, container).await,
        ContainerCommand::Drop { container, node, accept_loss: true } => {
            drop_replica(scm, container, node).await
        }
        ContainerCommand::Drop { container, node, accept_loss: false } => {
            let shown = info(scm, container).await?;
            let note = format!(
                "\nnothing was changed; repeat with --accept-loss to delete the replica on node {node}, with what only it has \
                 (one that is good, or that SCM repairs by itself, is kept)\n"
            );
            Ok(Answer::new(shown.text + &note, shown.json))
        }
        ContainerCommand::AcceptLoss { container, keep, keep_nothing } => {
            accept_loss(scm, container, keep, keep_nothing).await
        }
        ContainerCommand::Report => report(scm).await,
        ContainerCommand::Keys { container, limit } => keys::of_container(scm, container, limit).await,
    }
}

async fn list(scm: &mut Scm, args: ContainerListArgs) -> anyhow::Result<Answer> {
    let state = args.state.map_or(ContainerState::Unspecified, ContainerState::from);
    let trouble = args.trouble.map_or(ContainerTrouble::Unspecified, ContainerTrouble::from);
    let request = ListContainersRequest {
        after: args.after,
        limit: args.limit,
        pipeline: args.pipeline.unwrap_or_default(),
        node: args.node.unwrap_or_default(),
        state: state as i32,
        trouble: trouble as i32,
        container: 0,
        adopted: args.adopted,
        numbers_only: false,
    };
    let answer = scm.look(async |client| client.list_containers(request).await).await?;
    let rows: Vec<_> = answer.containers.iter().map(row).collect();
    let mut text = table(HEADINGS, &rows);
    if answer.more {
        let last = answer.containers.last().map_or(args.after, |container| container.container);
        text += &format!("more follow: --after {last}, or a larger --limit\n");
    }
    let list: Vec<_> = answer.containers.iter().map(to_json).collect();
    Ok(Answer::new(text, json!({ "containers": list, "more": answer.more })))
}

async fn info(scm: &mut Scm, number: u64) -> anyhow::Result<Answer> {
    let request = ListContainersRequest { container: number, ..ListContainersRequest::default() };
    let answer = scm.look(async |client| client.list_containers(request).await).await?;
    let Some(container) = answer.containers.iter().find(|container| container.container == number) else {
        bail!("there is no container {number}");
    };
    Ok(shown(container))
}

pub(super) fn shown(container: &ContainerInfo) -> Answer {
    let mut text = table(HEADINGS, &[row(container)]);
    text += "\n";
    let headings = [
        "NODE",
        "ADDRESS",
        "NODE IS",
        "REPLICA",
        "LAST RECORD",
        "BLOCKS",
        "DISCARDED",
        "ON DISK",
        "HASH",
        "REMARKS",
    ];
    text += &table(headings, &container.replicas.iter().map(replica_row).collect::<Vec<_>>());
    Answer::new(text, to_json(container))
}

async fn drop_replica(scm: &mut Scm, container: u64, node: u64) -> anyhow::Result<Answer> {
    let request = DropReplicaRequest { container, node };
    scm.change(async |client| client.drop_replica(request).await).await?;
    let text = format!("container {container}: node {node} is told to delete its replica\n");
    Ok(Answer::new(text, json!({ "container": container, "node": node, "asked": true })))
}

async fn accept_loss(
    scm: &mut Scm,
    container: u64,
    keep: Option<u64>,
    keep_nothing: bool,
) -> anyhow::Result<Answer> {
    let accept = keep.is_some() || keep_nothing;
    let request = AcceptContainerLossRequest { container, accept, keep_node: keep.unwrap_or_default() };
    let left = scm.change(async |client| client.accept_container_loss(request).await).await?;
    let AcceptContainerLossResponse { node, container: after } = left;
    let SettledContainer { last_term, last_index, .. } = after.unwrap_or_default();
    let text = match (node, accept) {
        (0, false) => "nothing is left of it; nothing was changed, repeat with --keep-nothing to let it count as deleted\n".to_owned(),
        (0, true) => "it counts as deleted; whose data was in it is told by its keys (container keys)\n".to_owned(),
        (_, false) => format!(
            "node {node} has it up to entry {last_index} of term {last_term}; nothing was changed, repeat with --keep {node} to \
             make it that\n"
        ),
        (_, true) => format!(
            "it ends with entry {last_index} of term {last_term}, as node {node} has it; copies are made where they lack\n"
        ),
    };
    let json = json!({
        "container": container,
        "node": (node != 0).then_some(node),
        "kept": node != 0,
        "last_term": last_term,
        "last_index": last_index,
        "done": accept,
    });
    Ok(Answer::new(format!("container {container}: {text}"), json))
}

async fn close(scm: &mut Scm, container: u64) -> anyhow::Result<Answer> {
    let request = CloseContainerRequest { container };
    scm.change(async |client| client.close_container(request).await).await?;
    let text = format!("the pipeline of container {container} was asked to go on to the next one\n");
    Ok(Answer::new(text, json!({ "container": container })))
}

async fn report(scm: &mut Scm) -> anyhow::Result<Answer> {
    let status = scm.look(async |client| client.get_cluster_status(GetClusterStatusRequest {}).await).await?;
    let counts = counts(&status);
    let rows: Vec<[Cell; 2]> = counts
        .iter()
        .map(|&(name, count, tone)| {
            let tone = if count == 0 { Tone::Plain } else { tone };
            [name.into(), Cell::toned(count.to_string(), tone)]
        })
        .collect();
    let json: serde_json::Map<String, Value> =
        counts.iter().map(|(name, count, _)| (name.replace('-', "_"), json!(count))).collect();
    Ok(Answer::new(table(["CONTAINERS", "COUNT"], &rows), Value::Object(json)))
}

fn counts(status: &ClusterStatus) -> [(&'static str, u64, Tone); 14] {
    [
        ("all", status.containers, Tone::Plain),
        ("open", status.containers_open, Tone::Plain),
        ("undecided", status.undecided, Tone::Warning),
        ("quasi-closed", status.quasi_closed, Tone::Bad),
        ("missing", status.missing, Tone::Bad),
        ("under-replicated", status.under_replicated, Tone::Warning),
        ("over-replicated", status.over_replicated, Tone::Plain),
        ("mis-replicated", status.mis_replicated, Tone::Warning),
        ("unhealthy", status.unhealthy, Tone::Bad),
        ("different", status.different, Tone::Bad),
        ("ahead", status.ahead, Tone::Bad),
        ("diverged", status.diverged, Tone::Bad),
        ("adopted", status.adopted, Tone::Warning),
        ("unknown-replicas", status.unknown_replicas, Tone::Bad),
    ]
}

const HEADINGS: [&str; 7] = ["CONTAINER", "PIPELINE", "STATE", "NODES", "BLOCKS", "BYTES", "TROUBLES"];

fn row(container: &ContainerInfo) -> [Cell; 7] {
    let nodes: Vec<String> = container.replicas.iter().map(|replica| node(replica).to_string()).collect();
    let troubles: Vec<_> = container.troubles().map(words::trouble).collect();
    let tone = match troubles.iter().any(|(_, tone)| *tone == Tone::Bad) {
        true => Tone::Bad,
        false => Tone::Warning,
    };
    let adopted = container.adopted.then_some("adopted");
    let troubles: Vec<&str> = troubles.iter().map(|(word, _)| *word).chain(adopted).collect();
    [
        container.container.to_string().into(),
        container.pipeline.to_string().into(),
        words::cell(words::container_state(container.state())),
        nodes.join(",").into(),
        container.blocks.to_string().into(),
        human_bytes(container.payload_bytes).into(),
        Cell::toned(troubles.join(","), tone),
    ]
}

fn node(replica: &ReplicaInfo) -> u64 {
    replica.node.as_ref().map_or(0, |node| node.node)
}

fn replica_row(info: &ReplicaInfo) -> [Cell; 10] {
    /// Enough of a hash to see whether two are equal.
    const HASH_CHARS: usize = 12;
    let replica = info.replica.clone().unwrap_or_default();
    let (state, duty) = (words::node_state(info.node_state()), words::node_duty(info.duty()));
    let last = match replica.last_index {
        0 => "-".to_owned(),
        index => format!("{} in term {}", index, replica.last_term),
    };
    let mut remarks = Vec::new();
    if !replica.unhealthy.is_empty() {
        remarks.push(replica.unhealthy.as_str());
    }
    if info.disk_lost {
        remarks.push("its disk is lost");
    }
    if replica.released {
        remarks.push("released");
    }
    [
        node(info).to_string().into(),
        info.node.as_ref().map_or(String::new(), |node| node.address.clone()).into(),
        Cell::toned(format!("{}, {}", state.0, duty.0), state.1),
        words::cell(words::replica_state(replica.state())),
        last.into(),
        replica.blocks.to_string().into(),
        replica.discarded_blocks.to_string().into(),
        human_bytes(replica.disk_bytes).into(),
        replica.hash.chars().take(HASH_CHARS).collect::<String>().into(),
        remarks.join("; ").into(),
    ]
}

fn to_json(container: &ContainerInfo) -> Value {
    let replicas: Vec<_> = container.replicas.iter().map(replica_to_json).collect();
    let troubles: Vec<_> = container.troubles().map(|trouble| words::trouble(trouble).0).collect();
    json!({
        "container": container.container,
        "pipeline": container.pipeline,
        "state": words::container_state(container.state()).0,
        "blocks": container.blocks,
        "payload_bytes": container.payload_bytes,
        "hash": (!container.hash.is_empty()).then_some(&container.hash),
        "troubles": troubles,
        "adopted": container.adopted,
        "replicas": replicas,
    })
}

fn replica_to_json(info: &ReplicaInfo) -> Value {
    let replica = info.replica.clone().unwrap_or_default();
    json!({
        "node": node(info),
        "address": info.node.as_ref().map(|node| &node.address),
        "node_state": words::node_state(info.node_state()).0,
        "duty": words::node_duty(info.duty()).0,
        "state": words::replica_state(replica.state()).0,
        "disk": proto::disk_id(&replica.disk).map(|id| id.to_string()).unwrap_or_default(),
        "last_term": replica.last_term,
        "last_index": replica.last_index,
        "blocks": replica.blocks,
        "payload_bytes": replica.payload_bytes,
        "disk_bytes": replica.disk_bytes,
        "discarded_blocks": replica.discarded_blocks,
        "discarded_bytes": replica.discarded_bytes,
        "hole_bytes": replica.hole_bytes,
        "dead_bytes": replica.dead_bytes,
        "hash": (!replica.hash.is_empty()).then_some(&replica.hash),
        "unhealthy": (!replica.unhealthy.is_empty()).then_some(&replica.unhealthy),
        "released": replica.released,
        "disk_lost": info.disk_lost,
    })
}
