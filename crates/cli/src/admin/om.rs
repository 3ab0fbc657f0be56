//! OMs, and the groups of names that are on them.

use super::args::{OmBackupArgs, OmBackupCommand, OmCommand, OmGroupCommand};
use super::om_groups::{number, oms};
use super::scm::Scm;
use super::{om_backup, om_restore, sweep, unsettled, unused, uploads, words};
use crate::answer::Answer;
use crate::output;
use crate::table::{Cell, Tone, table};
use anyhow::{Context, bail};
use proto::scm::{
    CreateOmGroupRequest, GiveUpOmGroupRequest, ListOmsResponse, NodeDuty, NodeState, OmGroupInfo, OmInfo,
    OmReplicaInfo, OmReplicaReport, SetOmDutyRequest, TransferOmLeaderRequest,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// The pause between two questions of `--wait`.
const PAUSE: Duration = Duration::from_secs(1);
/// The time within which another OM must lead. For as long SCM asks the leader with each of its heartbeats.
const TRANSFER_MAX: Duration = Duration::from_secs(15);
/// The time within which a new group must serve. One OM begins it at its next heartbeat.
const BEGIN_MAX: Duration = Duration::from_secs(15);
const TRANSFER_PAUSE: Duration = Duration::from_millis(200);

pub(super) async fn run(scm: &mut Scm, command: OmCommand) -> anyhow::Result<Answer> {
    match command {
        OmCommand::Roles => Ok(roles(&oms(scm).await?)),
        OmCommand::Groups => Ok(groups(&oms(scm).await?.groups)),
        OmCommand::Group(OmGroupCommand::Create) => create_group(scm).await,
        OmCommand::Transfer { group, to } => transfer(scm, group, to.unwrap_or_default()).await,
        OmCommand::Decommission { om, wait } => {
            let until = wait.then_some(NodeDuty::NodeDecommissioned);
            set_duty(scm, om, NodeDuty::NodeDecommissioning, until).await
        }
        OmCommand::Recommission { om } => set_duty(scm, om, NodeDuty::NodeInService, None).await,
        OmCommand::GiveUp { group, accept_loss } => give_up(scm, group, accept_loss).await,
        OmCommand::Unused => unused::run(scm).await,
        OmCommand::Unsettled => unsettled::run(scm).await,
        OmCommand::Lost => sweep::lost(scm).await,
        OmCommand::Uploads { bucket, older_than, abort } => {
            let older_than = older_than.unwrap_or_default();
            uploads::run(&scm.addresses().join(","), bucket, older_than, abort).await
        }
        OmCommand::Backup(OmBackupArgs { command: Some(OmBackupCommand::Verify { dir }), .. }) => {
            om_backup::verify(&dir)
        }
        OmCommand::Backup(OmBackupArgs { dir, .. }) => {
            om_backup::run(scm, &dir.context("a directory is needed")?).await
        }
        OmCommand::Restore { dir, yes_i_lose_what_was_written_since } => {
            om_restore::run(scm, &dir, yes_i_lose_what_was_written_since).await
        }
    }
}

fn roles(listed: &ListOmsResponse) -> Answer {
    let rows: Vec<_> = listed.oms.iter().map(|om| row(om, &listed.groups)).collect();
    let mut text = table(HEADINGS, &rows);
    for om in listed.oms.iter().filter(|om| !om.problem.is_empty()) {
        text += &format!("\nOM {}: {}\n", om.om, om.problem);
    }
    let list: Vec<_> = listed.oms.iter().map(|om| om_to_json(om, &listed.groups)).collect();
    Answer::new(text, json!(list))
}

fn groups(groups: &[OmGroupInfo]) -> Answer {
    let list: Vec<_> = groups.iter().map(group_to_json).collect();
    Answer::new(groups_text(groups), json!(list))
}

pub(super) fn groups_text(groups: &[OmGroupInfo]) -> String {
    let rows: Vec<_> = groups.iter().flat_map(group_rows).collect();
    let headings = ["GROUP", "LEADER", "OM", "REPLICA", "ROLE", "APPLIED", "KEYS", "ADDRESS"];
    let mut text = table(headings, &rows);
    for group in groups.iter().filter(|group| !group.problem.is_empty()) {
        text += &format!("\ngroup {}: {}\n", number(group), group.problem);
    }
    text
}

/// Makes a group of names. Returns when it serves, or says why it does not.
async fn create_group(scm: &mut Scm) -> anyhow::Result<Answer> {
    let made = scm.change(async |client| client.create_om_group(CreateOmGroupRequest {}).await).await?.group;
    let give_up = Instant::now() + BEGIN_MAX;
    loop {
        let mut groups_now = oms(scm).await?.groups;
        groups_now.retain(|other| number(other) == made);
        if groups_now.first().is_some_and(|group| !group.is_down) {
            return Ok(groups(&groups_now));
        }
        if Instant::now() >= give_up {
            let why = groups_now.first().map_or("", |group| &group.problem);
            bail!("group {made} is made, and does not serve after {BEGIN_MAX:?}: {why}");
        }
        tokio::time::sleep(TRANSFER_PAUSE).await;
    }
}

/// Moves the leader of a group. Returns when another OM leads.
async fn transfer(scm: &mut Scm, group: u64, om: u64) -> anyhow::Result<Answer> {
    let request = TransferOmLeaderRequest { group, om };
    let wanted = scm.change(async |client| client.transfer_om_leader(request).await).await?.om;
    let give_up = Instant::now() + TRANSFER_MAX;
    loop {
        let mut groups_now = oms(scm).await?.groups;
        groups_now.retain(|other| number(other) == group);
        let leader = groups_now.first().map_or(0, |now| now.leader_om);
        if leader == wanted {
            return Ok(groups(&groups_now));
        }
        if Instant::now() >= give_up {
            bail!(
                "OM {wanted} does not lead group {group} after {TRANSFER_MAX:?}: OM {leader} does, whose log says why"
            );
        }
        tokio::time::sleep(TRANSFER_PAUSE).await;
    }
}

async fn set_duty(scm: &mut Scm, om: u64, duty: NodeDuty, until: Option<NodeDuty>) -> anyhow::Result<Answer> {
    let request = SetOmDutyRequest { om, duty: duty as i32 };
    scm.change(async |client| client.set_om_duty(request).await).await?;
    let mut said = String::new();
    loop {
        let listed = oms(scm).await?;
        let seen = listed.oms.iter().find(|other| other.om == om).with_context(|| format!("no OM {om}"))?;
        let seen_duty = match seen.duty() {
            NodeDuty::Unspecified => NodeDuty::NodeInService,
            seen => seen,
        };
        match until {
            Some(until) if seen_duty != until => {
                // Somebody else may have decided otherwise meanwhile; waiting on would never end.
                if seen_duty != duty {
                    bail!("OM {om} is {} meanwhile", words::node_duty(seen_duty).0);
                }
                let ill = listed.groups.iter().filter(|group| !group.problem.is_empty());
                let waits: String =
                    ill.map(|group| format!("group {}: {}\n", number(group), group.problem)).collect();
                if waits != said {
                    waits.lines().for_each(output::complain);
                    said = waits;
                }
                tokio::time::sleep(PAUSE).await;
            }
            _ => {
                let text = format!("OM {om} is {}\n", words::node_duty(seen_duty).0);
                return Ok(Answer::new(text, om_to_json(seen, &listed.groups)));
            }
        }
    }
}

async fn give_up(scm: &mut Scm, group: u64, accept_loss: bool) -> anyhow::Result<Answer> {
    let listed = oms(scm).await?;
    let shown: Vec<_> = listed.groups.into_iter().filter(|other| number(other) == group).collect();
    if shown.is_empty() {
        bail!("there is no group {group} of names");
    }
    if !accept_loss {
        let answer = groups(&shown);
        let text = format!(
            "{}\nWith --accept-loss the names of group {group} are forgotten, and it is begun anew, empty.\n",
            answer.text
        );
        return Ok(Answer { text, ..answer });
    }
    scm.change(async |client| client.give_up_om_group(GiveUpOmGroupRequest { group }).await).await?;
    Ok(Answer::new(format!("group {group} is given up\n"), json!({ "given_up": group })))
}

const HEADINGS: [&str; 7] = ["OM", "STATE", "DUTY", "HEARD", "REPLICAS", "LEADS", "ADDRESS"];

fn row(om: &OmInfo, groups: &[OmGroupInfo]) -> [Cell; 7] {
    let replicas: Vec<_> = replicas_of(om, groups).map(|(group, _)| group.to_string()).collect();
    let replicas = if replicas.is_empty() { "-".to_owned() } else { replicas.join(",") };
    [
        om.om.to_string().into(),
        words::cell(words::node_state(om.state())),
        words::cell(words::node_duty(om.duty())),
        format!("{:.1} s ago", om.last_heartbeat_age_ms as f64 / 1000.0).into(),
        replicas.into(),
        om.leaders.to_string().into(),
        om.address.clone().into(),
    ]
}

fn replicas_of<'a>(
    om: &'a OmInfo,
    groups: &'a [OmGroupInfo],
) -> impl Iterator<Item = (u64, &'a OmReplicaInfo)> {
    groups
        .iter()
        .flat_map(|group| group.replicas.iter().map(move |replica| (number(group), replica)))
        .filter(|(_, replica)| replica.member.as_ref().is_some_and(|member| member.om == om.om))
}

/// The replicas of a group that are shown: members, and replicas that are to go, but for those of dead OMs,
/// which nobody can delete any more.
fn shown(group: &OmGroupInfo) -> impl Iterator<Item = &OmReplicaInfo> {
    group
        .replicas
        .iter()
        .filter(|replica| is_member(group, replica) || replica.om_state() != NodeState::NodeDead)
}

fn is_member(group: &OmGroupInfo, replica: &OmReplicaInfo) -> bool {
    let number = replica.member.as_ref().map(|member| member.replica);
    let members = group.group.iter().flat_map(|group| &group.members);
    members.map(|member| Some(member.replica)).any(|member| member == number)
}

fn group_rows(group: &OmGroupInfo) -> Vec<[Cell; 8]> {
    let leader = match group.leader_om {
        0 => Cell::toned("none", Tone::Bad),
        om => om.to_string().into(),
    };
    let rows = shown(group).enumerate().map(|(n, replica)| {
        let member = replica.member.clone().unwrap_or_default();
        let (first, led_by) = match n {
            0 => (number(group).to_string().into(), leader.clone()),
            _ => ("".into(), "".into()),
        };
        let said = |number: fn(&OmReplicaReport) -> Option<u64>| {
            replica.report.as_ref().and_then(number).map_or("-".to_owned(), |number| number.to_string())
        };
        [
            first,
            led_by,
            member.om.to_string().into(),
            member.replica.to_string().into(),
            words::cell(role(group, replica)),
            said(|said| Some(said.applied_index)).into(),
            said(|said| said.keys).into(),
            member.address.into(),
        ]
    });
    rows.collect()
}

fn role(group: &OmGroupInfo, replica: &OmReplicaInfo) -> words::Word {
    let om = replica.member.as_ref().map_or(0, |member| member.om);
    match &replica.report {
        _ if !is_member(group, replica) => ("leaving", Tone::Warning),
        _ if replica.om_state() == NodeState::NodeDead => ("dead", Tone::Bad),
        _ if replica.om_state() == NodeState::NodeStale => ("silent", Tone::Warning),
        None => ("to be made", Tone::Warning),
        Some(said) if !said.why.is_empty() => ("stopped", Tone::Bad),
        Some(_) if om == group.leader_om => ("leader", Tone::Good),
        Some(said) if said.members.iter().any(|it| it.replica == said.replica && it.is_voter) => {
            ("follower", Tone::Plain)
        }
        Some(_) => ("joining", Tone::Warning),
    }
}

fn om_to_json(om: &OmInfo, groups: &[OmGroupInfo]) -> Value {
    let replicas: Vec<_> = replicas_of(om, groups).map(|(group, _)| group).collect();
    json!({
        "om": om.om,
        "address": om.address,
        "state": words::node_state(om.state()).0,
        "duty": words::node_duty(om.duty()).0,
        "last_heartbeat_age_ms": om.last_heartbeat_age_ms,
        "groups": replicas,
        "leaders": om.leaders,
        "version": om.version,
        "problem": om.problem,
    })
}

fn group_to_json(group: &OmGroupInfo) -> Value {
    let replicas = shown(group).map(|replica| {
        let member = replica.member.clone().unwrap_or_default();
        json!({
            "om": member.om,
            "replica": member.replica,
            "address": member.address,
            "role": role(group, replica).0,
            "applied_index": replica.report.as_ref().map(|said| said.applied_index),
            "keys": replica.report.as_ref().and_then(|said| said.keys),
            "why": replica.report.as_ref().map_or("", |said| said.why.as_str()),
        })
    });
    json!({
        "group": number(group),
        "is_founded": group.group.as_ref().is_some_and(|group| group.is_founded),
        "leader_om": (group.leader_om != 0).then_some(group.leader_om),
        "term": group.term,
        "is_down": group.is_down,
        "problem": group.problem,
        "replicas": replicas.collect::<Vec<_>>(),
    })
}
