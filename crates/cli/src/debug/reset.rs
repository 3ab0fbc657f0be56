use super::args::ResetArgs;
use super::print;
use super::refusal::{Refusal, named};
use anyhow::{Context, bail};
use disk::{Disk, RealDisk};
use raft::{Asked, Member, OfflineReplica, ResetAnswer, ResetError, ResetPlan};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use types::{Clock, GroupId, LogId, OwnerId, ReplicaId, SystemClock};

/// Exit status when the group was not reset.
const REFUSED: u8 = 1;

/// What was found out on the way, whatever became of it.
#[derive(Default)]
struct Findings {
    plan: Option<ResetPlan>,
    asked: Vec<Asked>,
}

pub(super) async fn run(args: ResetArgs, as_json: bool) -> ExitCode {
    let mut found = Findings::default();
    let refusal = reset(&args, as_json, &mut found).await.err();
    if let Some(refusal) = &refusal {
        eprintln!("flotilla: {refusal}");
    }
    if as_json {
        let value = in_json(&args, &found, refusal.as_ref());
        if let Err(error) = print(&format!("{value}\n")) {
            eprintln!("flotilla: {error:#}");
            return ExitCode::from(REFUSED);
        }
    }
    if refusal.is_some() { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS }
}

async fn reset(args: &ResetArgs, as_json: bool, found: &mut Findings) -> Result<(), Refusal> {
    let say = |text: &str| if as_json { Ok(()) } else { print(text) };
    let group = metadata_group(&args.group)?;
    let disk = open_disk(&args.data_dir)?;
    let spec = log_spec(group, &disk).await?;
    // Two small entries are all that is written: a disk that is full for its server is not full for them.
    let options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() };
    let replica = OfflineReplica::open(group, &LogSpace::new(disk, options), spec).await?;
    let lost: BTreeSet<ReplicaId> = args.lost.iter().copied().map(ReplicaId).collect();
    let plan = match replica.plan(&lost) {
        Ok(plan) => found.plan.insert(plan),
        Err(error) => {
            replica.close().await;
            return Err(error.into());
        }
    };
    say(&describe(plan))?;
    found.asked = plan.ask(&args.ask).await;
    say(&describe_answers(&found.asked))?;
    let there = found.asked.iter().filter(|asked| asked.answer == ResetAnswer::IsThere);
    let alive: Vec<Member> = there.map(|asked| asked.member.clone()).collect();
    if !alive.is_empty() && !args.even_if_alive {
        replica.close().await;
        return Err(ResetError::Alive { alive }.into());
    }
    if !args.yes {
        replica.close().await;
        say("not reset: this is what it would do; repeat with --yes to do it\n")?;
        return Ok(());
    }
    replica.reset(plan, SystemClock.now_ms(), &args.reason).await.map_err(Refusal::cut_short)?;
    say(&format!("{group} has one member: replica {}\n", plan.survivor.replica))?;
    Ok(())
}

fn in_json(args: &ResetArgs, found: &Findings, refusal: Option<&Refusal>) -> Value {
    let answers = found.asked.iter().map(|asked| {
        let code = match &asked.answer {
            ResetAnswer::NotReached { .. } => "not_reached",
            ResetAnswer::NotThere => "not_there",
            ResetAnswer::DidNotAnswer => "did_not_answer",
            ResetAnswer::IsThere => "is_there",
        };
        json!({ "replica": asked.member.replica.0, "answer": code, "text": asked.answer.to_string() })
    });
    json!({
        "group": args.group,
        "plan": found.plan.as_ref().map(plan_in_json),
        "asked": answers.collect::<Vec<_>>(),
        "possible": refusal.is_none(),
        "done": refusal.is_none() && args.yes,
        "refused": refusal.map(Refusal::in_json),
    })
}

fn plan_in_json(plan: &ResetPlan) -> Value {
    let id = |id: LogId| json!({ "term": id.term.0, "index": id.index.0 });
    let member = |member: &Member| {
        json!({
            "replica": member.replica.0,
            "node": member.node.0,
            "address": member.address,
            "voter": plan.members.is_voter(member.replica),
        })
    };
    json!({
        "survivor": member(&plan.survivor),
        "lost": plan.lost.iter().map(member).collect::<Vec<_>>(),
        "last": id(plan.last),
        "committed": plan.committed.map(id),
        "new_term": plan.term.0,
    })
}

fn metadata_group(name: &str) -> anyhow::Result<GroupId> {
    let number = name.strip_prefix("om-").and_then(|number| number.parse().ok());
    match (name, number) {
        ("scm", _) => Ok(GroupId::SCM),
        (_, Some(number)) if format!("om-{number}") == name => Ok(GroupId::om(number)),
        _ => bail!("`{name}` is no metadata group: those are scm, om-0, om-1, ..."),
    }
}

/// Takes the directory's lock, which a running node holds.
fn open_disk(data_dir: &Path) -> anyhow::Result<Arc<dyn Disk>> {
    let said = data_dir.display();
    let Some(stamp) = RealDisk::peek(data_dir).with_context(|| format!("look at {said}"))? else {
        bail!("{said} is no data directory: there is no {said}/VERSION");
    };
    let disk = RealDisk::open(data_dir, stamp.node_uuid).with_context(|| format!("open {said}"))?;
    Ok(Arc::new(disk))
}

/// Where a group's log is. It exists, so its first owner does not matter.
async fn log_spec(group: GroupId, disk: &Arc<dyn Disk>) -> anyhow::Result<LogSpec> {
    let dir = format!("groups/{group}");
    if disk.list(&dir).await.context("look for the log")?.is_empty() {
        bail!("there is no log of {group} here");
    }
    let meta_dir = format!("meta/{group}");
    let has_own = !disk.list(&meta_dir).await.context("look for the log's segments")?.is_empty();
    let owners_dir = if has_own { meta_dir } else { "containers".to_owned() };
    Ok(LogSpec { log: group.to_u64(), dir, owners_dir, first_owner: OwnerId(0) })
}

fn describe(plan: &ResetPlan) -> String {
    let ResetPlan { group, survivor, members, lost, last, committed, term } = plan;
    let mut text = format!("group {group}\n");
    let mut line = |key: &str, value: String| text.push_str(&format!("  {key:<10} {value}\n"));
    line("survivor", named(survivor));
    for member in lost {
        let kind = if members.is_voter(member.replica) { "voter" } else { "learner" };
        line("lost", format!("{}, {kind}", named(member)));
    }
    line("last entry", format!("{} of term {}", last.index, last.term));
    let unsure = match committed {
        Some(committed) if committed.index >= last.index => "none".to_owned(),
        Some(committed) => format!("{} to {}", committed.index.next(), last.index),
        None => format!("all up to {}", last.index),
    };
    line("uncertain", format!("{unsure} (entries not known to have been committed; they will be)"));
    line("may be gone", format!("whatever the lost members acknowledged after {}", last.index));
    line("new term", term.to_string());
    text
}

fn describe_answers(asked: &[Asked]) -> String {
    let line =
        |asked: &Asked| format!("  {:<10} replica {}: {}\n", "asked", asked.member.replica, asked.answer);
    asked.iter().map(line).collect()
}
