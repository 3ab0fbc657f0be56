//! SCM's own members.

use super::args::ScmCommand;
use super::scm::Scm;
use super::views;
use crate::answer::Answer;
use crate::table::{Cell, Tone, table};
use anyhow::bail;
use proto::scm::{
    ListScmMembersRequest, ListScmMembersResponse, RemoveScmMemberRequest, ScmMember,
    TransferScmLeaderRequest,
};
use serde_json::{Value, json};
use std::time::Duration;

/// The time for which a leader is looked for: longer than an election. Who asks for the members wants to be
/// told soon that none of them leads, and what each says of itself.
pub(super) const ROLES_PATIENCE: Duration = Duration::from_secs(7);

/// The most entries that a member lacks in a cluster at work, because they are on their way; more is worth a
/// look.
pub(super) const BEHIND_USUALLY: u64 = 1000;

pub(super) async fn run(scm: &mut Scm, command: ScmCommand) -> anyhow::Result<Answer> {
    match command {
        ScmCommand::Roles => roles(scm).await,
        ScmCommand::Transfer { to } => transfer(scm, to.unwrap_or_default()).await,
        ScmCommand::Remove { address } => remove(scm, address).await,
    }
}

async fn roles(scm: &mut Scm) -> anyhow::Result<Answer> {
    let answer = scm
        .look_within(ROLES_PATIENCE, async |client| client.list_scm_members(ListScmMembersRequest {}).await)
        .await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let each = views::told(&views::of_each(scm).await);
            bail!("SCM has no leader that answers: {error:#}\n\n{each}");
        }
    };
    let rows: Vec<_> = answer.members.iter().map(row).collect();
    let ListScmMembersResponse { cluster, term, members } = &answer;
    let text = format!("cluster {cluster}, term {term}\n\n");
    let members: Vec<_> = members.iter().map(to_json).collect();
    let json = json!({ "cluster": cluster, "term": term, "members": members });
    Ok(Answer::new(text + &table(["ADDRESS", "ROLE", "REPLICA", "BEHIND"], &rows), json))
}

async fn transfer(scm: &mut Scm, address: String) -> anyhow::Result<Answer> {
    let request = TransferScmLeaderRequest { address };
    scm.change(async |client| client.transfer_scm_leader(request.clone()).await).await?;
    roles(scm).await
}

async fn remove(scm: &mut Scm, address: String) -> anyhow::Result<Answer> {
    let request = RemoveScmMemberRequest { address };
    scm.change(async |client| client.remove_scm_member(request.clone()).await).await?;
    roles(scm).await
}

fn role(member: &ScmMember) -> (&'static str, Tone) {
    match (member.is_leader, member.is_voter) {
        (true, _) => ("leader", Tone::Good),
        (false, true) => ("follower", Tone::Plain),
        (false, false) => ("joining", Tone::Warning),
    }
}

fn row(member: &ScmMember) -> [Cell; 4] {
    let (word, tone) = role(member);
    let lag = if member.behind > BEHIND_USUALLY { Tone::Warning } else { Tone::Plain };
    [
        member.address.clone().into(),
        Cell::toned(word, tone),
        member.replica.to_string().into(),
        Cell::toned(format!("{} entries", member.behind), lag),
    ]
}

fn to_json(member: &ScmMember) -> Value {
    json!({
        "address": member.address,
        "role": role(member).0,
        "replica": member.replica,
        "behind": member.behind,
    })
}
