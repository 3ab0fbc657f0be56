use super::args::ResetArgs;
use super::found::print;
use crate::output::complain;
use anyhow::{Context, anyhow, bail};
use disk::{Disk, RealDisk};
use raft::{Asked, Member, OfflineReplica, ResetError, ResetPlan, check_lost};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use types::{Clock, GroupId, OwnerId, ReplicaId, SystemClock};

/// Exit status when the group was not reset.
pub(super) const REFUSED: u8 = 1;

pub(super) async fn run(args: ResetArgs) -> ExitCode {
    match reset(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("flotilla: {error:#}"));
            ExitCode::from(REFUSED)
        }
    }
}

async fn reset(args: ResetArgs) -> anyhow::Result<()> {
    let group = metadata_group(&args.group)?;
    let (disk, cluster) = open_disk(&args.data_dir)?;
    let spec = log_spec(group, &disk).await?;
    // Two small entries are all that is written: a disk that is full for its server is not full for them.
    let options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() };
    let replica = OfflineReplica::open(group, &LogSpace::new(disk, options), spec).await?;
    let lost: BTreeSet<ReplicaId> = args.lost.iter().copied().map(ReplicaId).collect();
    let now_ms = SystemClock.now_ms();
    let plan = match replica.plan(&lost, now_ms) {
        Ok(plan) => plan,
        Err(error) => {
            replica.close().await;
            return Err(in_words(error));
        }
    };
    print(&describe(&plan))?;
    let asked = plan.ask(&cluster, &args.ask).await;
    print(&describe_answers(&asked))?;
    if let Err(error) = check_lost(&asked)
        && !args.even_if_alive
    {
        replica.close().await;
        return Err(in_words(error));
    }
    if !args.yes {
        replica.close().await;
        return print("nobody was given up; repeat with --yes to do it\n");
    }
    replica.reset(&plan, now_ms, &args.reason).await?;
    print(&format!("{group} has one member: replica {}\n", plan.survivor.replica))
}

/// Puts a refusal into words: one that is due to the flags is said in flags, to be copied.
fn in_words(error: ResetError) -> anyhow::Error {
    match error {
        ResetError::QuorumIsLeft { left, voters } => {
            let sets: Vec<_> = voters.iter().map(|set| format!("[{}]", joined(set))).collect();
            anyhow!(
                "replicas [{}] would be left, a majority of the voters {}: they need no reset, start them; if some of \
                 them are lost for good too, name all but the one here with --lost",
                joined(&left),
                sets.join(" and ")
            )
        }
        ResetError::OthersDiffer { others, named } => anyhow!(
            "the members beside the one here are [{}], not [{}]: all of them must be given up, with {}",
            joined(&others),
            joined(&named),
            others.iter().map(|replica| format!("--lost {replica}")).collect::<Vec<_>>().join(" ")
        ),
        ResetError::MayLive { in_doubt } => anyhow!(
            "said to be lost for good, but may live: {}; stop it for good first, so that connections to it are refused; or if \
             nobody can start it again, say so with --even-if-alive",
            in_doubt.iter().map(doubted).collect::<Vec<_>>().join("; ")
        ),
        other => other.into(),
    }
}

fn joined(replicas: &[ReplicaId]) -> String {
    replicas.iter().map(ReplicaId::to_string).collect::<Vec<_>>().join(", ")
}

fn metadata_group(name: &str) -> anyhow::Result<GroupId> {
    let number = name.strip_prefix("om-").and_then(|number| number.parse().ok());
    match (name, number) {
        ("scm", _) => Ok(GroupId::SCM),
        (_, Some(number)) if format!("om-{number}") == name => Ok(GroupId::om(number)),
        _ => bail!("`{name}` is no metadata group: those are scm, om-0, om-1, ..."),
    }
}

/// Opens a data directory, and takes its lock, which a running node holds. Also returns the cluster that the
/// directory belongs to, empty where it has joined none.
fn open_disk(data_dir: &Path) -> anyhow::Result<(Arc<dyn Disk>, String)> {
    let said = data_dir.display();
    let Some(stamp) = RealDisk::peek(data_dir).with_context(|| format!("look at {said}"))? else {
        bail!("{said} is no data directory: there is no {said}/VERSION");
    };
    let disk = RealDisk::open(data_dir, stamp.node_uuid).with_context(|| format!("open {said}"))?;
    Ok((Arc::new(disk), stamp.cluster))
}

/// The place of a group's log. The log exists, so its first owner does not matter.
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

fn doubted(asked: &Asked) -> String {
    format!("{} ({})", named(&asked.member), asked.answer)
}

fn named(member: &Member) -> String {
    // OMs are numbered by themselves, and people know them by that number.
    let node = match member.node.om_number() {
        0 => format!("node {}", member.node),
        om => format!("OM {om}"),
    };
    format!("replica {} on {node} at {}", member.replica, member.address)
}
