//! Where the bytes are, and what of them goes.

use super::args::{SpaceCommand, SwitchCommand};
use super::bucket::connect;
use super::scm::Scm;
use super::{container, unused, words};
use crate::answer::Answer;
use crate::table::{Cell, human_bytes, table};
use proto::om::{GetSweepResponse, UnusedTotals};
use proto::scm::{
    ContainerSpace, DiskReport, DiskState, ExplainSpaceRequest, GetSpaceRequest, SetSwitchesRequest,
    SpaceOfContainers, SpaceOfDisk, SpaceOfReplicas, SpaceStatus, SpaceWaiting,
};
use serde_json::{Value, json};
use types::{Clock, SystemClock};

pub(super) async fn run(scm: &mut Scm, command: Option<SpaceCommand>) -> anyhow::Result<Answer> {
    match command {
        None => {
            let (space, names) = (look(scm).await?, Names::ask(scm).await);
            Ok(answer(&space, &names))
        }
        Some(SpaceCommand::Explain { container }) => explain(scm, container).await,
    }
}

/// Sets the switch of reclaiming, if asked to, and answers how it stands and what waits.
pub(super) async fn reclaim(scm: &mut Scm, command: SwitchCommand) -> anyhow::Result<Answer> {
    let set = |on| SetSwitchesRequest { reclaim: Some(on), ..SetSwitchesRequest::default() };
    match command {
        SwitchCommand::Start => drop(scm.change(async |client| client.set_switches(set(true)).await).await?),
        SwitchCommand::Stop => drop(scm.change(async |client| client.set_switches(set(false)).await).await?),
        SwitchCommand::Status => {}
    }
    let space = look(scm).await?;
    let text = is_on(&space) + &gone(&space) + &waiting(&space.waiting);
    Ok(Answer::new(text, reclaim_to_json(&space)))
}

/// The answers of the groups of names about what is deleted and not gone, and about what no name has.
#[derive(Default)]
struct Names {
    totals: UnusedTotals,
    /// The time at which the oldest of it was deleted; 0: there is none.
    oldest_ms: u64,
    sweep: Option<GetSweepResponse>,
    /// Who did not answer, and why: what it would have said is not in the sums.
    silent: Vec<String>,
}

impl Names {
    async fn ask(scm: &mut Scm) -> Names {
        let client = connect(&scm.addresses().join(","));
        let (groups, sweep) = (unused::ask_all(scm).await, client.sweep(0).await);
        let mut names = Names::default();
        match groups {
            Ok(groups) => groups.into_iter().for_each(|said| names.add(said)),
            Err(why) => names.silent.push(format!("groups of names: {why:#}")),
        }
        match sweep {
            Ok(sweep) => names.sweep = Some(sweep),
            Err(failure) => names.silent.push(format!("the sweep: {failure}")),
        }
        names
    }

    fn add(&mut self, (group, said): unused::Said) {
        let said = match said {
            Ok(said) => said,
            Err(why) => return self.silent.push(format!("group {group} of names: {why}")),
        };
        let totals = said.totals.unwrap_or_default();
        self.totals.deleted_pieces += totals.deleted_pieces;
        self.totals.deleted_bytes += totals.deleted_bytes;
        self.totals.unused_blocks += totals.unused_blocks;
        self.totals.unused_bytes += totals.unused_bytes;
        let times = [self.oldest_ms, said.oldest_ms].into_iter().filter(|&ms| ms != 0);
        self.oldest_ms = times.min().unwrap_or_default();
    }

    fn shown(&self) -> String {
        let row = |what: &str, blocks: u64, bytes: u64, waits_for: &str| -> [Cell; 4] {
            [what.into(), blocks.to_string().into(), human_bytes(bytes).into(), waits_for.into()]
        };
        let UnusedTotals { deleted_pieces, deleted_bytes, unused_blocks, unused_bytes, .. } = self.totals;
        let mut rows = vec![
            row("deleted", deleted_pieces, deleted_bytes, "--reclaim-after"),
            row("unused", unused_blocks, unused_bytes, "SCM, as above, or to be asked about"),
        ];
        if let Some(sweep) = &self.sweep {
            let orphaned =
                "nothing: found by the sweep since its leader was started, and deleted like the rest";
            rows.push(row("orphaned", sweep.orphans, sweep.orphan_bytes, orphaned));
        }
        let mut text = format!("\n{}", table(["OF NAMES", "BLOCKS", "BYTES", "WAIT FOR"], &rows));
        if self.oldest_ms != 0 {
            let age = unused::since(self.oldest_ms, SystemClock.now_ms());
            text += &format!("the oldest of them was deleted {age} ago (admin om unused)\n");
        }
        self.silent.iter().for_each(|why| text += &format!("not in these sums: {why}\n"));
        text
    }

    fn to_json(&self) -> Value {
        json!({
            "deleted_pieces": self.totals.deleted_pieces,
            "deleted_bytes": self.totals.deleted_bytes,
            "unused_blocks": self.totals.unused_blocks,
            "unused_bytes": self.totals.unused_bytes,
            "oldest_ms": (self.oldest_ms != 0).then_some(self.oldest_ms),
            "orphans": self.sweep.as_ref().map(|sweep| sweep.orphans),
            "orphan_bytes": self.sweep.as_ref().map(|sweep| sweep.orphan_bytes),
            "silent": self.silent,
        })
    }
}

async fn look(scm: &mut Scm) -> anyhow::Result<SpaceStatus> {
    scm.look(async |client| client.get_space(GetSpaceRequest {}).await).await
}

fn answer(space: &SpaceStatus, names: &Names) -> Answer {
    let headings = ["CONTAINERS", "COUNT", "REPLICAS", "LIVE", "DISCARDED", "HOLES", "DEAD", "ON DISK"];
    let rows: Vec<_> = space.containers.iter().map(state_row).collect();
    let mut text = table(headings, &rows) + "\n";
    let headings = [
        "NODE",
        "DISK",
        "REPLICAS",
        "LIVE",
        "DISCARDED",
        "HOLES",
        "DEAD",
        "ON DISK",
        "FREE",
        "CAPACITY",
        "NOW",
    ];
    text += &table(headings, &space.disks.iter().map(disk_row).collect::<Vec<_>>());
    text += "\n";
    text += &(is_on(space) + &gone(space) + &dead(space) + &waiting(&space.waiting));
    text += &names.shown();
    let containers: Vec<_> = space.containers.iter().map(state_to_json).collect();
    let disks: Vec<_> = space.disks.iter().map(disk_to_json).collect();
    let json = json!({
        "containers": containers,
        "disks": disks,
        "reclaim": reclaim_to_json(space),
        "names": names.to_json(),
    });
    Answer::new(text, json)
}

fn is_on(space: &SpaceStatus) -> String {
    let SpaceStatus { reclaim_stopped, safe_mode, .. } = *space;
    match (reclaim_stopped, safe_mode) {
        (true, _) => {
            "what nobody names stays: an operator has stopped that (admin reclaim start)\n".to_owned()
        }
        (false, true) => "what nobody names stays until safe mode ends\n".to_owned(),
        (false, false) => "what nobody names is given back\n".to_owned(),
    }
}

fn gone(space: &SpaceStatus) -> String {
    format!(
        "{} blocks are gone from all replicas since this SCM leads, {} a second in the last minute; {} containers were \
         emptied and deleted; {} blocks are known to SCM one by one\n",
        space.blocks_gone, space.blocks_gone_per_second, space.containers_emptied, space.blocks_remembered
    )
}

/// The words on what is discarded and still takes room: heads, and bodies that no hole can give back.
fn dead(space: &SpaceStatus) -> String {
    let of_disks = space.disks.iter().filter_map(|disk| disk.space);
    let bytes: u64 = of_disks.map(|space| space.dead_bytes).sum();
    if bytes == 0 {
        return String::new();
    }
    format!("{} of what was discarded wait for compaction (DEAD)\n", human_bytes(bytes))
}

fn waiting(waiting: &[SpaceWaiting]) -> String {
    if waiting.is_empty() {
        return "no group of names waits for SCM\n".to_owned();
    }
    let row = |waiting: &SpaceWaiting| -> [Cell; 7] {
        [
            words::cell(words::discard_state(waiting.state())),
            waiting.containers.to_string().into(),
            waiting.blocks.to_string().into(),
            human_bytes(waiting.bytes).into(),
            seconds(waiting.oldest_ms).into(),
            waiting.oldest_container.to_string().into(),
            words::discard_waits_for(waiting.state()).into(),
        ]
    };
    let headings = ["WAITING", "CONTAINERS", "BLOCKS", "BYTES", "OLDEST", "CONTAINER", "FOR"];
    format!("\n{}", table(headings, &waiting.iter().map(row).collect::<Vec<_>>()))
}

fn seconds(ms: u64) -> String {
    format!("{} s", ms / 1000)
}

fn state_row(of: &SpaceOfContainers) -> [Cell; 8] {
    let space = of.space.unwrap_or_default();
    [
        words::cell(words::container_state(of.state())),
        of.containers.to_string().into(),
        space.replicas.to_string().into(),
        human_bytes(space.live_bytes).into(),
        human_bytes(space.discarded_bytes).into(),
        human_bytes(space.hole_bytes).into(),
        human_bytes(space.dead_bytes).into(),
        human_bytes(space.disk_bytes).into(),
    ]
}

fn disk_row(of: &SpaceOfDisk) -> [Cell; 11] {
    let space = of.space.unwrap_or_default();
    let of_disk = |bytes: fn(&DiskReport) -> u64| match &of.report {
        Some(report) if report.state() != DiskState::Failed => human_bytes(bytes(report)),
        _ => "-".to_owned(),
    };
    [
        of.node.to_string().into(),
        proto::disk_id(&of.disk).map(|id| id.to_string()).unwrap_or_default().into(),
        space.replicas.to_string().into(),
        human_bytes(space.live_bytes).into(),
        human_bytes(space.discarded_bytes).into(),
        human_bytes(space.hole_bytes).into(),
        human_bytes(space.dead_bytes).into(),
        human_bytes(space.disk_bytes).into(),
        of_disk(|report| report.free_bytes).into(),
        of_disk(|report| report.capacity_bytes).into(),
        of.report.as_ref().map_or_else(String::new, gives_back).into(),
    ]
}

/// The words on what is given back on a disk.
fn gives_back(report: &DiskReport) -> String {
    let rate = match report.given_back_per_second {
        0 => String::new(),
        rate => format!("gives back {}/s", human_bytes(rate)),
    };
    let compacts = match report.compacting {
        0 => String::new(),
        container => format!("compacts container {container}"),
    };
    [rate, compacts].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(", ")
}

async fn explain(scm: &mut Scm, number: u64) -> anyhow::Result<Answer> {
    let request = ExplainSpaceRequest { container: number };
    let space = scm.look(async |client| client.explain_space(request).await).await?;
    let shown = container::shown(&space.info.clone().unwrap_or_default());
    let mut text = shown.text + "\n" + &explained(number, &space) + &dead_in(&space);
    let row = |asked: &proto::scm::SpaceAsked| -> [Cell; 5] {
        [
            format!("om-{}", asked.group).into(),
            asked.blocks.to_string().into(),
            human_bytes(asked.bytes).into(),
            seconds(asked.since_ms).into(),
            seconds(asked.last_ms).into(),
        ]
    };
    if !space.asked.is_empty() {
        let rows: Vec<_> = space.asked.iter().map(row).collect();
        text += &format!("\n{}", table(["GROUP", "BLOCKS", "BYTES", "SINCE", "ASKED LAST"], &rows));
    }
    Ok(Answer::new(text, explained_to_json(&space, shown.json)))
}

fn explained(number: u64, space: &ContainerSpace) -> String {
    if space.emptied {
        return format!("container {number} is deleted: nothing was left in it\n");
    }
    let Some(progress) = &space.progress else {
        return format!(
            "no group of names has asked SCM for blocks of container {number} to go: what was deleted in it waits where it is \
             filed, until it is old enough\n"
        );
    };
    let (word, _) = words::discard_state(progress.state());
    let mut text = format!("{word}: it waits for {}\n", words::discard_waits_for(progress.state()));
    match (progress.node, progress.why.as_str()) {
        (0, "") => {}
        (0, why) => text += &format!("{why}\n"),
        (node, "") => text += &format!("node {node}\n"),
        (node, why) => text += &format!("node {node}: {why}\n"),
    }
    text
}

/// The part of each replica that compactions would give back.
fn dead_in(space: &ContainerSpace) -> String {
    let replicas = space.info.iter().flat_map(|info| &info.replicas);
    let told = replicas.filter_map(|told| {
        let replica = told.replica.as_ref().filter(|replica| replica.dead_bytes > 0)?;
        let node = told.node.as_ref().map_or(0, |node| node.node);
        let percent = replica.dead_bytes.saturating_mul(100) / replica.disk_bytes.max(1);
        let (dead, all) = (human_bytes(replica.dead_bytes), human_bytes(replica.disk_bytes));
        Some(format!(
            "node {node}: {dead} of {all} ({percent} %) are discarded and wait for compaction, which needs as much \
             as --compact-above-percent says (50 by default), three fifths of it where nothing was deleted for a minute, \
             and three quarters of all where deletions do not pause\n"
        ))
    });
    told.collect()
}

fn replicas_to_json(space: Option<SpaceOfReplicas>) -> Value {
    let space = space.unwrap_or_default();
    json!({
        "replicas": space.replicas,
        "blocks": space.blocks,
        "live_bytes": space.live_bytes,
        "discarded_blocks": space.discarded_blocks,
        "discarded_bytes": space.discarded_bytes,
        "hole_bytes": space.hole_bytes,
        "dead_bytes": space.dead_bytes,
        "disk_bytes": space.disk_bytes,
    })
}

fn state_to_json(of: &SpaceOfContainers) -> Value {
    let state = words::container_state(of.state()).0;
    json!({ "state": state, "containers": of.containers, "space": replicas_to_json(of.space) })
}

fn disk_to_json(of: &SpaceOfDisk) -> Value {
    json!({
        "node": of.node,
        "disk": proto::disk_id(&of.disk).map(|id| id.to_string()).unwrap_or_default(),
        "space": replicas_to_json(of.space),
        "free_bytes": of.report.as_ref().map(|report| report.free_bytes),
        "capacity_bytes": of.report.as_ref().map(|report| report.capacity_bytes),
        "given_back_per_second": of.report.as_ref().map(|report| report.given_back_per_second),
        "compacting": of.report.as_ref().map(|report| report.compacting).filter(|container| *container != 0),
    })
}

fn reclaim_to_json(space: &SpaceStatus) -> Value {
    let waiting = |of: &SpaceWaiting| {
        json!({
            "state": words::discard_state(of.state()).0,
            "containers": of.containers,
            "blocks": of.blocks,
            "bytes": of.bytes,
            "oldest_ms": of.oldest_ms,
            "oldest_container": of.oldest_container,
        })
    };
    json!({
        "on": !space.reclaim_stopped,
        "safe_mode": space.safe_mode,
        "waiting": space.waiting.iter().map(waiting).collect::<Vec<_>>(),
        "blocks_remembered": space.blocks_remembered,
        "blocks_gone": space.blocks_gone,
        "blocks_gone_per_second": space.blocks_gone_per_second,
        "containers_emptied": space.containers_emptied,
    })
}

fn explained_to_json(space: &ContainerSpace, container: Value) -> Value {
    let progress = space.progress.as_ref().map(|progress| {
        json!({
            "state": words::discard_state(progress.state()).0,
            "why": (!progress.why.is_empty()).then_some(&progress.why),
            "node": (progress.node != 0).then_some(progress.node),
        })
    });
    let asked = space.asked.iter().map(|asked| {
        json!({
            "group": asked.group,
            "blocks": asked.blocks,
            "bytes": asked.bytes,
            "since_ms": asked.since_ms,
            "last_ms": asked.last_ms,
        })
    });
    json!({
        "container": container,
        "emptied": space.emptied,
        "progress": progress,
        "asked": asked.collect::<Vec<_>>(),
        "blocks_remembered": space.blocks_remembered,
    })
}
