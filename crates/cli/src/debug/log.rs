use super::args::{PlaceArgs, RangeArgs};
use super::found::{Found, print};
use super::json;
use super::local::{self, LocalDirectory};
use super::segment::{dump_scan, explained, old_bytes};
use crate::output::complain;
use anyhow::Context;
use raftlog::inspect::{
    DataDirectory, InspectError, KnownLog, LogReport, OwnerReport, SegmentName, SegmentScan,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;
use types::{GroupId, PipelineId};

struct Place {
    directory: DataDirectory,
    groups: Vec<String>,
}

async fn place(args: &PlaceArgs) -> anyhow::Result<Place> {
    let directory = DataDirectory::new(Arc::new(LocalDirectory::new(&args.data_dir)?));
    let groups = match &args.group {
        Some(group) => vec![group.clone()],
        None => directory.groups().await?,
    };
    Ok(Place { directory, groups })
}

/// A log as far as the name of its group tells.
fn known(group: &str) -> Option<KnownLog> {
    let (id, is_metadata) = if group == "scm" {
        (GroupId::SCM, true)
    } else if let Some(number) = group.strip_prefix("om-") {
        (GroupId::om(number.parse().ok()?), true)
    } else {
        (GroupId::pipeline(PipelineId(group.strip_prefix("pipeline-")?.parse().ok()?)), false)
    };
    let owners_dir = if is_metadata { format!("meta/{group}") } else { "containers".to_owned() };
    (id.number >> 56 == 0).then(|| KnownLog { log: id.to_u64(), owners_dir })
}

pub(super) async fn verify(args: &PlaceArgs, as_json: bool) -> anyhow::Result<Found> {
    let Place { directory, mut groups } = place(args).await?;
    let here = directory.groups().await?;
    if args.group.is_none() {
        let lost = directory.metadata_without_log().await?;
        groups.extend(lost.into_iter().filter(|group| !here.contains(group)));
    }
    let (mut found, mut damaged, mut unseen) = (Found::Whole, 0, 0);
    for group in &groups {
        match directory.log(group, known(group).as_ref()).await {
            // The log is missing where one should be: it is not only asked for by a name that nothing has.
            Err(InspectError::NoSuchLog { .. }) if args.group.is_none() || here.contains(group) => {
                damaged += 1;
                found = found.max(Found::damaged(true));
                print(&without_hard_state(group, as_json))?;
            }
            Err(error) => {
                complain(&format!("flotilla: {error}"));
                unseen += 1;
                found = Found::NotSeen;
            }
            Ok(report) => {
                damaged += u32::from(report.is_damaged());
                found = found.max(Found::damaged(report.is_damaged()));
                print(&if as_json { format!("{}\n", report_json(&report)) } else { report_text(&report) })?;
            }
        }
    }
    if args.group.is_none() {
        for orphan in directory.orphans().await? {
            found = found.max(Found::damaged(orphan.is_damaged()));
            let owner = orphan.owner.0;
            print(&if as_json {
                format!("{}\n", json!({ "orphan": owner, "owner": owner_json(&orphan) }))
            } else {
                format!(
                    "owner {owner:016x} of a log without a hard state here. Closed containers of pipelines that are gone are; \
                     if its pipeline is not closed, its votes are lost and this replica must not come back:\n{}",
                    owner_text(&orphan)
                )
            })?;
        }
    }
    if !as_json {
        let unseen = if unseen > 0 { format!(", {unseen} not seen") } else { String::new() };
        print(&format!("{} logs, {damaged} damaged{unseen}\n", groups.len()))?;
    }
    Ok(found)
}

fn without_hard_state(group: &str, as_json: bool) -> String {
    let start =
        format!("does not open: groups/{group}/hard-state is missing, and with it the votes of this replica");
    if as_json {
        format!("{}\n", json!({ "log": group, "damaged": true, "start": start }))
    } else {
        format!("log {group}: DAMAGED\n  start: {start}\n")
    }
}

fn report_text(report: &LogReport) -> String {
    let mut text =
        format!("log {}: {}\n", report.group, if report.is_damaged() { "DAMAGED" } else { "whole" });
    let _ = writeln!(text, "  start: {}", report.opening);
    for line in report.hard_state.to_string().lines() {
        let _ = writeln!(text, "  hard state {line}");
    }
    for owner in &report.owners {
        text += &owner_text(owner);
    }
    text
}

fn owner_text(owner: &OwnerReport) -> String {
    let mut text = String::new();
    for segment in &owner.segments {
        let _ = writeln!(text, "  {}: {}", segment.path, segment.summary);
        if let Some(found) = segment.renamed {
            let _ = writeln!(text, "    RENAMED: its records say {found}");
        }
        if let Some(was) = segment.recycled {
            let _ = writeln!(
                text,
                "    a recycled file without a record of its own yet: it holds old ones of {was}"
            );
        }
        text += &old_bytes(&segment.summary, "    ");
        for (damage, verdict) in segment.damage() {
            text += &explained(damage, verdict, "    ");
        }
    }
    for problem in &owner.problems {
        let _ = writeln!(text, "  DAMAGED: {problem}");
    }
    text
}

fn report_json(report: &LogReport) -> Value {
    let owners: Vec<_> = report.owners.iter().map(owner_json).collect();
    json!({
        "log": report.group,
        "damaged": report.is_damaged(),
        "start": report.opening.to_string(),
        "hard_state": report.hard_state.to_string().lines().collect::<Vec<_>>(),
        "owners": owners,
    })
}

fn owner_json(owner: &OwnerReport) -> Value {
    let segments: Vec<_> = owner
        .segments
        .iter()
        .map(|segment| {
            let damage = segment.damage().map(|(damage, verdict)| json::damage(damage, Some(verdict)));
            let mut value = json::summary(&segment.path, &segment.summary, damage.collect());
            value["recycled"] = segment.recycled.map(|was| was.to_string()).into();
            value["renamed"] = segment.renamed.map(|found| found.to_string()).into();
            value
        })
        .collect();
    json!({ "owner": owner.owner.0, "segments": segments, "problems": owner.problems })
}

pub(super) async fn dump(args: &PlaceArgs, range: RangeArgs, as_json: bool) -> anyhow::Result<Found> {
    let Place { directory, groups } = place(args).await?;
    let mut found = Found::Whole;
    for group in &groups {
        let paths = match directory.segments(group, known(group).as_ref()).await {
            Ok(paths) => paths,
            Err(error) => {
                complain(&format!("flotilla: {error}"));
                found = Found::NotSeen;
                continue;
            }
        };
        for path in paths {
            match dump_segment(args, &path, range, as_json).await {
                Ok(dumped) => found = found.max(dumped),
                Err(error) => {
                    complain(&format!("flotilla: {error:#}"));
                    found = Found::NotSeen;
                }
            }
        }
    }
    Ok(found)
}

async fn dump_segment(
    args: &PlaceArgs,
    path: &str,
    range: RangeArgs,
    as_json: bool,
) -> anyhow::Result<Found> {
    let file = local::open(&args.data_dir.join(path))?;
    let mut scan =
        SegmentScan::new(file, SegmentName::of_path(path)).await.with_context(|| format!("read {path}"))?;
    dump_scan(path, &mut scan, range, as_json).await
}
