use super::args::ResetArgs;
use super::print;
use anyhow::{Context, bail};
use disk::{Disk, RealDisk};
use raft::{Member, OfflineReplica, ResetError, ResetPlan};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use types::{Clock, GroupId, OwnerId, ReplicaId, SystemClock};

/// Exit status when the group was not reset.
const REFUSED: u8 = 1;

pub(super) async fn run(args: ResetArgs) -> ExitCode {
    match reset(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flotilla: {error:#}");
            ExitCode::from(REFUSED)
        }
    }
}

async fn reset(args: ResetArgs) -> anyhow::Result<()> {
    let group = metadata_group(&args.group)?;
    let disk = open_disk(&args.data_dir)?;
    let spec = log_spec(group, &disk).await?;
    let space = LogSpace::new(disk, LogSpaceOptions::default());
    let replica = OfflineReplica::open(group, &space, spec).await?;
    let lost: BTreeSet<ReplicaId> = args.lost.iter().copied().map(ReplicaId).collect();
    let plan = match replica.plan(&lost) {
        Ok(plan) => plan,
        Err(error) => {
            replica.close().await;
            return Err(error.into());
        }
    };
    print(&describe(&plan))?;
    let alive = plan.alive(&args.ask).await;
    if !alive.is_empty() && !args.even_if_alive {
        replica.close().await;
        return Err(ResetError::Alive { alive }.into());
    }
    if !args.yes {
        replica.close().await;
        return print("nothing was changed; repeat with --yes to do it\n");
    }
    replica.reset(&plan, SystemClock.now_ms(), &args.reason).await?;
    print(&format!("{group} has one member: replica {}\n", plan.survivor.replica))
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

fn named(member: &Member) -> String {
    format!("replica {} on node {} at {}", member.replica, member.node, member.address)
}
