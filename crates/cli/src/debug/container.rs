use super::found::{Found, print};
use crate::table::table;
use datanode::offline::{
    ContainerVerdict, DamagedContainer, Finding, ListedContainer, OfflineDisk, RebuildOptions, RebuildReport,
    RebuiltLog, RebuiltPipeline, VerifyReport,
};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use types::ContainerId;

const HEADINGS: [&str; 9] = [
    "CONTAINER",
    "STATE",
    "PIPELINE",
    "BLOCKS",
    "PAYLOAD BYTES",
    "SEGMENTS",
    "SEGMENT BYTES",
    "HOLE BYTES",
    "HEALTH",
];

pub(super) async fn list(data_dir: &Path, as_json: bool) -> anyhow::Result<Found> {
    let containers = open(data_dir).await?.list().await?;
    if as_json {
        let lines: String = containers.iter().map(|it| format!("{}\n", listed_json(it))).collect();
        print(&lines)?;
    } else {
        let rows: Vec<_> = containers.iter().map(listed_row).collect();
        print(&table(HEADINGS, &rows))?;
    }
    Ok(Found::damaged(containers.iter().any(|it| it.unhealthy.is_some())))
}

fn listed_row(it: &ListedContainer) -> [String; HEADINGS.len()] {
    let indexed = it.indexed;
    let number = |of: Option<u64>| of.map_or("-".to_owned(), |number| number.to_string());
    [
        it.container.to_string(),
        state(it).to_owned(),
        number(indexed.map(|indexed| indexed.pipeline.0)),
        number(indexed.map(|indexed| indexed.blocks)),
        number(indexed.map(|indexed| indexed.payload_bytes)),
        it.segments.to_string(),
        it.segment_bytes.to_string(),
        it.hole_bytes.to_string(),
        it.unhealthy.as_ref().map_or("ok".to_owned(), |why| format!("UNHEALTHY: {why}")),
    ]
}

fn state(listed: &ListedContainer) -> &'static str {
    match listed.indexed {
        None => "UNKNOWN",
        Some(indexed) => indexed.state,
    }
}

fn listed_json(it: &ListedContainer) -> Value {
    json!({
        "container": it.container.0,
        "state": state(it),
        "pipeline": it.indexed.map(|indexed| indexed.pipeline.0),
        "blocks": it.indexed.map(|indexed| indexed.blocks),
        "chunks": it.indexed.map(|indexed| indexed.chunks),
        "payload_bytes": it.indexed.map(|indexed| indexed.payload_bytes),
        "segments": it.segments,
        "segment_bytes": it.segment_bytes,
        "hole_bytes": it.hole_bytes,
        "unhealthy": it.unhealthy,
    })
}

pub(super) async fn verify(
    data_dir: &Path,
    only: Option<ContainerId>,
    as_json: bool,
) -> anyhow::Result<Found> {
    let report = open(data_dir).await?.verify(only).await?;
    if let Some(only) = only.filter(|only| !report.containers.contains_key(only)) {
        anyhow::bail!("there is no container {only} in {}", data_dir.display());
    }
    print(&if as_json { verified_json(&report) } else { verified_text(&report) })?;
    Ok(Found::damaged(!report.is_whole()))
}

fn verified_text(report: &VerifyReport) -> String {
    let mut text = String::new();
    for (container, verdict) in &report.containers {
        let ContainerVerdict { records, record_bytes, discarded, hole_bytes, .. } = verdict;
        let pipeline = verdict.pipeline.map_or("no pipeline".to_owned(), |it| format!("pipeline {it}"));
        let said = if verdict.is_whole() { "whole" } else { "DAMAGED" };
        let _ = write!(
            text,
            "container {container} of {pipeline}: {said}, {records} records, {record_bytes} bytes"
        );
        if *discarded > 0 {
            let _ = write!(text, ", {discarded} of them without a body, {hole_bytes} bytes of holes");
        }
        text.push('\n');
        if let Some(hash) = &verdict.hash {
            let _ = writeln!(text, "  hash of live records {hash}");
        }
        if let Some(why) = &verdict.unhealthy {
            let _ = writeln!(text, "  marked UNHEALTHY: {why}");
        }
        verdict.notes.iter().for_each(|note| text += &format!("  note: {note}\n"));
        verdict.findings.iter().for_each(|finding| text += &format!("  {}\n", finding_text(finding)));
        if verdict.findings_untold > 0 {
            let _ = writeln!(text, "  and {} findings more", verdict.findings_untold);
        }
    }
    report.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
    report.findings.iter().for_each(|finding| text += &format!("{}\n", finding_text(finding)));
    let damaged = report.containers.values().filter(|verdict| !verdict.is_whole()).count();
    let _ = writeln!(text, "{} containers, {damaged} damaged", report.containers.len());
    text
}

fn finding_text(finding: &Finding) -> String {
    format!("{}: {}", finding.kind.name(), finding.what)
}

fn verified_json(report: &VerifyReport) -> String {
    let findings = |findings: &[Finding]| -> Vec<Value> {
        findings.iter().map(|it| json!({ "kind": it.kind.name(), "what": it.what })).collect()
    };
    let mut text = String::new();
    for (container, verdict) in &report.containers {
        let value = json!({
            "container": container.0,
            "pipeline": verdict.pipeline.map(|pipeline| pipeline.0),
            "whole": verdict.is_whole(),
            "records": verdict.records,
            "record_bytes": verdict.record_bytes,
            "discarded": verdict.discarded,
            "hole_bytes": verdict.hole_bytes,
            "hash": verdict.hash,
            "unhealthy": verdict.unhealthy,
            "notes": verdict.notes,
            "findings": findings(&verdict.findings),
            "findings_untold": verdict.findings_untold,
        });
        let _ = writeln!(text, "{value}");
    }
    let all = json!({
        "whole": report.is_whole(),
        "containers": report.containers.len(),
        "notes": report.notes,
        "findings": findings(&report.findings),
    });
    let _ = writeln!(text, "{all}");
    text
}

pub(super) async fn rebuild(data_dir: &Path, accept_loss: bool, as_json: bool) -> anyhow::Result<Found> {
    let report = open(data_dir).await?.rebuild(RebuildOptions { accept_loss }).await?;
    print(&if as_json { rebuilt_json(&report) } else { rebuilt_text(&report) })?;
    Ok(Found::damaged(!report.is_whole()))
}

fn rebuilt_text(report: &RebuildReport) -> String {
    let mut text = String::new();
    for RebuiltPipeline { pipeline, containers, applied, stopped, damaged, log } in &report.pipelines {
        let applied = applied.map_or("no entry".to_owned(), |index| format!("entries up to {index}"));
        let _ = writeln!(text, "pipeline {pipeline}: {} containers, {applied}", containers.len());
        let log = match log {
            RebuiltLog::Opens => "a start opens it, and applies what else is committed",
            RebuiltLog::WithoutSpec => {
                "its spec is not beside its log: it opens when SCM orders it again; its containers can be read before"
            }
            RebuiltLog::Gone => {
                "its log is gone. Where the pipeline was closed and let go of, its containers can be read; else its votes are \
                 lost, this replica must not come back, and its containers say so: SCM counts them in no decision"
            }
        };
        let _ = writeln!(text, "  {log}");
        if let Some(why) = stopped {
            let _ = writeln!(text, "  LOST: committed entries after these are not in the index: {why}");
        }
        for DamagedContainer { container, why, .. } in damaged {
            let _ = writeln!(
                text,
                "  DAMAGED: container {container} is marked unhealthy, and has what could be read of it: {why}"
            );
        }
    }
    for container in &report.nobodys {
        let _ = writeln!(text, "container {container}: no whole record is in it");
    }
    for (container, why) in &report.lost {
        let _ = writeln!(text, "LOST: of container {container} nothing can be read, nor whose it was: {why}");
    }
    text += "the index was replaced\n";
    text
}

fn rebuilt_json(report: &RebuildReport) -> String {
    let mut text = String::new();
    for RebuiltPipeline { pipeline, containers, applied, stopped, damaged, log } in &report.pipelines {
        let log = match log {
            RebuiltLog::Opens => "opens",
            RebuiltLog::WithoutSpec => "without-spec",
            RebuiltLog::Gone => "gone",
        };
        let containers: Vec<_> = containers.iter().map(|container| container.0).collect();
        let value = json!({
            "pipeline": pipeline.0,
            "containers": containers,
            "applied": applied.map(|index| index.0),
            "lost": stopped,
            "damaged": damaged.iter().map(|it| json!({"container": it.container.0, "why": it.why})).collect::<Vec<_>>(),
            "log": log,
        });
        let _ = writeln!(text, "{value}");
    }
    let nobodys: Vec<_> = report.nobodys.iter().map(|container| container.0).collect();
    let lost = report.lost.iter();
    let lost: Vec<_> = lost.map(|(container, why)| json!({"container": container.0, "why": why})).collect();
    let rest = json!({ "whole": report.is_whole(), "without_records": nobodys, "lost": lost });
    let _ = writeln!(text, "{rest}");
    text
}

async fn open(data_dir: &Path) -> anyhow::Result<OfflineDisk> {
    let data_dir = data_dir.to_owned();
    tokio::task::spawn_blocking(move || OfflineDisk::open(&data_dir)).await?
}
