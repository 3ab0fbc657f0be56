//! Advice for a group that has lost a majority. Nothing here acts on it: the survivor's process must be
//! stopped, and only a person can know that the others never come back.

use super::args::RaftCommand;
use super::om_groups;
use super::scm::Scm;
use super::views::{self, View};
use crate::answer::Answer;
use anyhow::{Context, bail};
use proto::scm::{ListOmsResponse, NodeState, OmGroupInfo, OmMember, ScmMember, ScmReplica};
use serde_json::json;

pub(super) async fn run(scm: &mut Scm, command: RaftCommand) -> anyhow::Result<Answer> {
    let RaftCommand::ResetMembership { group } = command;
    match (group.as_str(), group.strip_prefix("pipeline-")) {
        ("scm", _) => advise(&views::of_each(scm).await),
        (_, Some(pipeline)) => bail!(
            "pipelines are never reset: SCM closes one that has no leader, and copies its containers from what is left; \
             `flotilla admin pipeline close {pipeline}` has it do so now"
        ),
        ("om", _) => advise_names(&om_groups::oms(scm).await?, None),
        (_, None) if group.starts_with("om-") => {
            let number = group.trim_start_matches("om-").parse();
            advise_names(&om_groups::oms(scm).await?, Some(number.context("the number after om-")?))
        }
        _ => bail!(
            "`{group}` is no group that this can help with: scm, om (all groups of names), or a pipeline like pipeline-3"
        ),
    }
}

/// The steps for one group of names, or for all that have lost a majority.
fn advise_names(listed: &ListOmsResponse, wanted: Option<u64>) -> anyhow::Result<Answer> {
    let number = |group: &OmGroupInfo| group.group.as_ref().map_or(0, |group| group.group);
    let meant = listed.groups.iter().filter(|group| wanted.is_none_or(|wanted| number(group) == wanted));
    let down: Vec<&OmGroupInfo> = meant.filter(|group| group.leader_om == 0).collect();
    if down.is_empty() {
        bail!(
            "every group that you mean has a leader, or is not there: there is nothing to reset (`flotilla admin om groups`)"
        );
    }
    let (mut text, mut list) = (String::new(), Vec::new());
    for group in down {
        let (number, said) = (number(group), super::om::groups_text(std::slice::from_ref(group)));
        let members = group.group.iter().flat_map(|group| &group.members);
        let members: Vec<&OmMember> = members.collect();
        let report = |member: &OmMember| {
            let told = group.replicas.iter().find(|told| told.member.as_ref() == Some(member))?;
            let runs = told.om_state() == NodeState::NodeHealthy;
            told.report.as_ref().filter(|report| runs && report.why.is_empty())
        };
        let there: Vec<&OmMember> =
            members.iter().copied().filter(|member| report(member).is_some()).collect();
        let newest = |member: &&OmMember| report(member).map(|report| (report.last_index, report.term));
        let Some(survivor) = there.iter().copied().max_by_key(newest) else {
            bail!(
                "no member of group {number} is heard of: start one of them first; one whose directory is whole can be made the only member\n\n{said}"
            );
        };
        if there.len() > members.len() / 2 {
            bail!(
                "{} of {} members of group {number} are heard of, which is a majority: they elect a leader by themselves; their logs say what keeps them\n\n{said}",
                there.len(),
                members.len()
            );
        }
        let lost: Vec<&OmMember> = members.into_iter().filter(|member| *member != survivor).collect();
        let named: String = lost.iter().map(|lost| format!(" --lost {}", lost.replica)).collect();
        let command = format!(
            "flotilla debug unsafe-reset-membership META --group om-{number}{named} --reason \"WHY\""
        );
        let who = |member: &OmMember| match member.address.as_str() {
            "" => format!("OM {}", member.om),
            address => format!("OM {} ({address})", member.om),
        };
        let others = lost.iter().map(|lost| who(lost)).collect::<Vec<_>>().join(", ");
        let (survivor, om) = (who(survivor), survivor.om);
        text += &format!(
            "{said}
Only OM {om} of group {number} is heard of; one of {others} must come back with its directory for a majority. Names can neither be read nor changed until then.

Only if they are lost FOR GOOD (docs/forced-recovery.md says what is given up), make {survivor} the only member:
  1. Nothing may run at {others}: the next steps refuse while something answers there.
  2. On {survivor}: stop the server.
  3. There, look, which changes nothing (META is what its --meta says):
       {command}
  4. The same with --yes.
  5. Start the server there again; `flotilla admin om groups` shows that it leads, alone.
  6. Start two others with an EMPTY --meta, never with their old ones. SCM makes them members by itself.
"
        );
        let lost: Vec<u64> = lost.iter().map(|lost| lost.replica).collect();
        list.push(json!({ "group": number, "survivor": om, "lost": lost, "command": command }));
    }
    Ok(Answer::new(text, json!(list)))
}

fn advise(views: &[View]) -> anyhow::Result<Answer> {
    let told = views::told(views);
    let replicas = || views.iter().filter_map(|view| view.replica().map(|replica| (view, replica)));
    if let Some((view, _)) = replicas().find(|(_, replica)| replica.role == "leader") {
        bail!("SCM has a leader, at {}: there is nothing to reset\n\n{told}", view.address);
    }
    let newest = |(_, replica): &(&View, &ScmReplica)| (replica.last_term, replica.last_index);
    let Some((at, survivor)) =
        replicas().filter(|(_, replica)| is_voter(replica, replica.replica)).max_by_key(newest)
    else {
        bail!(
            "no member of SCM answers: start one of them first; one whose disk is whole can be made the only member\n\n{told}"
        );
    };
    let voters: Vec<&ScmMember> = survivor.members.iter().filter(|member| member.is_voter).collect();
    let there =
        voters.iter().filter(|voter| replicas().any(|(_, replica)| replica.replica == voter.replica)).count();
    if there > voters.len() / 2 {
        bail!(
            "{there} of {} members answer, which is a majority: they elect a leader by themselves; their logs say what keeps them\n\n{told}",
            voters.len()
        );
    }
    let lost: Vec<u64> =
        voters.iter().map(|voter| voter.replica).filter(|voter| *voter != survivor.replica).collect();
    let data_dir = at.said.as_ref().map_or("", |said| said.data_dir.as_str());
    let named: String = lost.iter().map(|lost| format!(" --lost {lost}")).collect();
    let command =
        format!("flotilla debug unsafe-reset-membership {data_dir} --group scm{named} --reason \"WHY\"");
    let others: Vec<&str> = voters
        .iter()
        .filter(|voter| lost.contains(&voter.replica))
        .map(|voter| voter.address.as_str())
        .collect();
    let (address, others) = (&at.address, others.join(", "));
    let text = format!(
        "{told}
{there} of {} members of SCM answers; {others} must come back for a majority. Data can be read and written meanwhile, but nothing is
repaired and no node can join. If you can bring one of them back with its disk, do that: nothing is lost then.

Only if they are lost FOR GOOD (docs/forced-recovery.md says what is given up), make the one at {address} the only member:
  1. Nothing may run at {others}: the next steps refuse while something answers there.
  2. On {address}: stop the server.
  3. There, look, which changes nothing:
       {command}
  4. The same with --yes.
  5. Start the server there again; `flotilla admin scm roles` shows one leader.
  6. Start the others with an EMPTY --meta, never with their old ones. They join by themselves.
",
        voters.len()
    );
    let json = json!({ "survivor": address, "replica": survivor.replica, "lost": lost, "command": command });
    Ok(Answer::new(text, json))
}

fn is_voter(of: &ScmReplica, replica: u64) -> bool {
    of.members.iter().any(|member| member.replica == replica && member.is_voter)
}
