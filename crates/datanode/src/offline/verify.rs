//! Comparing a disk's segments with their checksums, and its index with its segments.

use super::OfflineDisk;
use super::install::{self, SCRATCH_DIR};
use super::replay::{
    ContainerContents, DamagedContainer, Replayed, Until, end_text, forget_let_go, is_let_go, replay,
};
use super::survey::{PipelineFiles, survey};
use crate::index::records::ContainerRecord;
use crate::index::{Index, keys};
use crate::layout::{GROUPS_DIR, OWNERS_DIR};
use crate::verdict::condemns;
use anyhow::Context;
use raftlog::inspect::{DataDirectory, InspectError, KnownLog, OwnerReport, ReadOnly, Verdict};
use raftlog::{Compacted, stray_segments};
use std::collections::{BTreeMap, BTreeSet};
use types::{BlockId, ContainerId, GroupId, LogIndex, OwnerId, PipelineId};

/// The most findings that are told of one container; past it they are only counted.
const FINDINGS_MAX: usize = 1000;

#[derive(Debug, Default)]
pub struct VerifyReport {
    pub containers: BTreeMap<ContainerId, ContainerVerdict>,
    /// Findings that concern no single container.
    pub findings: Vec<Finding>,
    /// Notes of what a start repairs by itself.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct ContainerVerdict {
    pub pipeline: Option<PipelineId>,
    pub records: u64,
    pub record_bytes: u64,
    /// Records whose bodies were given up, and what their holes gave back.
    pub discarded: u64,
    pub hole_bytes: u64,
    /// The hash of the live records, when all are whole and no more can come: equal on all replicas.
    pub hash: Option<String>,
    pub unhealthy: Option<String>,
    pub findings: Vec<Finding>,
    pub findings_untold: u64,
    pub notes: Vec<String>,
}

/// A thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// Damage to bytes in segments.
    Damage,
    /// A row that there must be by the segments, and that the index has not.
    MissingRow,
    /// A row of something that the segments do not have.
    ExtraRow,
    WrongRow,
    /// A loss of the index, or of a log, as a whole.
    Lost,
}

impl FindingKind {
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Damage => "damage",
            FindingKind::MissingRow => "missing-row",
            FindingKind::ExtraRow => "extra-row",
            FindingKind::WrongRow => "wrong-row",
            FindingKind::Lost => "lost",
        }
    }
}

impl VerifyReport {
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty() && self.containers.values().all(ContainerVerdict::is_whole)
    }

    fn of(&mut self, container: ContainerId) -> &mut ContainerVerdict {
        self.containers.entry(container).or_default()
    }

    fn find(&mut self, kind: FindingKind, what: String) {
        self.findings.push(Finding { kind, what });
    }
}

impl ContainerVerdict {
    pub fn is_whole(&self) -> bool {
        self.findings.is_empty()
    }

    fn find(&mut self, kind: FindingKind, what: String) {
        if self.findings.len() >= FINDINGS_MAX {
            self.findings_untold += 1;
        } else {
            self.findings.push(Finding { kind, what });
        }
    }
}

impl OfflineDisk {
    /// Checks every checksum and every row, of one container or of all. Changes neither segments nor index;
    /// what it compares with is built in a directory of its own and removed.
    pub async fn verify(&self, only: Option<ContainerId>) -> anyhow::Result<VerifyReport> {
        let index = self.index().await?;
        let mut report = VerifyReport::default();
        self.verify_segments(only, &mut report).await?;
        let expected = self.open_index(SCRATCH_DIR).await?;
        let verified = self.verify_index(only, index.as_ref(), &expected, &mut report).await;
        drop(expected);
        install::remove(&*self.real, SCRATCH_DIR).await?;
        verified?;
        // A hash of records that are damaged says nothing.
        for verdict in report.containers.values_mut() {
            if verdict.findings.iter().any(|finding| finding.kind == FindingKind::Damage) {
                verdict.hash = None;
            }
        }
        if let Some(only) = only {
            report.containers.retain(|container, _| *container == only);
        }
        Ok(report)
    }

    /// Checks every checksum of every record.
    async fn verify_segments(
        &self,
        only: Option<ContainerId>,
        report: &mut VerifyReport,
    ) -> anyhow::Result<()> {
        let mut directory = DataDirectory::new(std::sync::Arc::new(ReadOnly(self.disk())));
        if let Some(container) = only {
            directory = directory.only(OwnerId::from(container));
        }
        for group in directory.groups().await? {
            let Some(number) = group.strip_prefix("pipeline-").and_then(|number| number.parse().ok()) else {
                continue;
            };
            let log = GroupId::pipeline(PipelineId(number)).to_u64();
            let known = KnownLog { log, owners_dir: OWNERS_DIR.to_owned() };
            match directory.log(&group, Some(&known)).await {
                Ok(log) => {
                    if !matches!(log.opening, raftlog::inspect::Opening::Opens { .. }) {
                        report.find(FindingKind::Lost, format!("log {group} {}", log.opening));
                    }
                    log.owners.iter().for_each(|owner| take_damage(report, owner));
                }
                Err(InspectError::NoSuchLog { .. }) => {
                    let names = self.disk().list(&format!("{GROUPS_DIR}/{group}")).await?;
                    // A creation that a crash has divided leaves what was to be renamed: nobody has voted
                    // yet.
                    if names.iter().any(|name| !name.ends_with(".tmp")) {
                        report.find(
                            FindingKind::Lost,
                            format!("log {group} has no hard state: its votes are lost"),
                        );
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        for orphan in directory.orphans().await? {
            take_damage(report, &orphan);
        }
        Ok(())
    }

    /// Checks every row of the index against what the segments say.
    async fn verify_index(
        &self,
        only: Option<ContainerId>,
        index: Option<&Index>,
        expected: &Index,
        report: &mut VerifyReport,
    ) -> anyhow::Result<()> {
        let survey = survey(&self.disk()).await?;
        for container in &survey.nobodys {
            report.of(*container).notes.push("no whole record is in it".to_owned());
        }
        for (container, why) in &survey.unreadable {
            report.of(*container).find(FindingKind::Damage, why.clone());
        }
        for (&pipeline, files) in &survey.pipelines {
            let applied = match index {
                Some(index) => index.applied(pipeline)?.map(|applied| applied.id.index),
                None => None,
            };
            let let_go = is_let_go(&self.disk(), pipeline).await?;
            let until = match applied {
                Some(applied) => Until::Last(applied),
                None if let_go => Until::All,
                None => Until::Nothing,
            };
            let Replayed { containers, stopped, damaged, .. } =
                replay(&self.disk(), pipeline, files, expected, until).await?;
            for DamagedContainer { container, why, .. } in damaged {
                // What is damaged in segments is told with its place.
                if containers.iter().all(|contents| contents.container != container) {
                    report.of(container).find(FindingKind::Damage, why);
                }
            }
            if let Some(why) = stopped {
                let what = format!("pipeline {pipeline}: the index goes beyond what its segments say: {why}");
                report.find(FindingKind::Lost, what);
            }
            if let_go {
                forget_let_go(&self.disk(), pipeline, expected, index).await?;
            }
            note_position(report, pipeline, files, applied);
            for contents in &containers {
                take_contents(report.of(contents.container), pipeline, contents);
                if let Some(index) = index {
                    forget_discarded(index, expected, contents, report.of(contents.container))?;
                }
            }
        }
        let Some(index) = index else {
            let what = "the index is missing; `flotilla debug container rebuild` recreates it";
            report.find(FindingKind::Lost, what.to_owned());
            return Ok(());
        };
        for (container, why) in index.all_unhealthy()? {
            report.of(container).unhealthy = Some(why);
        }
        compare(index, expected, only, report)?;
        for container in report.containers.keys().copied().collect::<Vec<_>>() {
            match self.excuse_moves(container, report.of(container)).await {
                Err(failure) if condemns(&failure) => {
                    report.of(container).find(FindingKind::Damage, format!("{failure:#}"));
                }
                excused => excused?,
            }
        }
        Ok(())
    }

    /// Takes back what was found of rows that point to segments which a compaction has replaced, and not
    /// removed yet: the next start moves them.
    async fn excuse_moves(
        &self,
        container: ContainerId,
        verdict: &mut ContainerVerdict,
    ) -> anyhow::Result<()> {
        let owner = OwnerId::from(container);
        let strays = stray_segments(&*self.real, OWNERS_DIR, owner).await?;
        if strays.is_empty() {
            return Ok(());
        }
        let start = Compacted::read(&*self.real, OWNERS_DIR, owner).await?.segments.start;
        let what = "a compaction was cut short; the next start finishes it";
        verdict.notes.push(format!("{what} (segments {strays:08x?} are no part of it)"));
        let is_replaced = strays.iter().any(|stray| *stray < start);
        let is_place = |finding: &Finding| {
            finding.kind == FindingKind::WrongRow
                && !finding.what.contains(&format!("about container {container}"))
        };
        verdict.findings.retain(|finding| !(is_replaced && is_place(finding)));
        Ok(())
    }
}

/// Takes in what is damaged in an owner's segments; a tail that a start would cut is not.
fn take_damage(report: &mut VerifyReport, owner: &OwnerReport) {
    let verdict = report.of(ContainerId(owner.owner.0));
    for problem in &owner.problems {
        verdict.find(FindingKind::Damage, problem.clone());
    }
    for segment in &owner.segments {
        if let Some(renamed) = segment.renamed {
            let what = format!("{} holds the records of {renamed}", segment.path);
            verdict.find(FindingKind::Damage, what);
        }
        for (damage, start) in segment.damage() {
            if matches!(start, Verdict::Cut { .. } | Verdict::Trimmed) {
                verdict.notes.push(format!("{}: {damage}; start: {start}", segment.path));
                continue;
            }
            let clues: String = damage.clues.iter().map(|clue| format!("; {clue}")).collect();
            verdict.find(FindingKind::Damage, format!("{}: {damage}{clues}; start: {start}", segment.path));
        }
    }
}

fn take_contents(verdict: &mut ContainerVerdict, pipeline: PipelineId, contents: &ContainerContents) {
    verdict.pipeline = Some(pipeline);
    (verdict.records, verdict.record_bytes) = (contents.records, contents.record_bytes);
    verdict.discarded = contents.discards.iter().count() as u64;
    verdict.hole_bytes = contents.discards.hole_bytes();
    if contents.is_finished() {
        verdict.hash = Some(contents.hash.clone());
    } else {
        verdict.notes.push(format!("open: {}", end_text(contents)));
    }
}

fn note_position(
    report: &mut VerifyReport,
    pipeline: PipelineId,
    files: &PipelineFiles,
    applied: Option<LogIndex>,
) {
    let committed = files.hard_state.and_then(|slot| slot.committed).map(|id| id.index);
    if committed > applied {
        let number = |index: Option<LogIndex>| index.map_or("nothing".to_owned(), |it| it.to_string());
        report.notes.push(format!(
            "pipeline {pipeline}: the index has applied {}, {} is committed; a start applies the rest",
            number(applied),
            number(committed)
        ));
    }
}

/// Drops blocks whose deletion is finished from what is expected; those whose deletion was only begun still
/// have their rows.
fn forget_discarded(
    index: &Index,
    expected: &Index,
    contents: &ContainerContents,
    verdict: &mut ContainerVerdict,
) -> anyhow::Result<()> {
    let container = contents.container;
    let (mut gone, mut begun) = (BTreeSet::new(), BTreeSet::new());
    for local in contents.discards.iter().map(|record| record.tag) {
        let here = index.block_record(BlockId { container, local })?.is_some();
        if here { &mut begun } else { &mut gone }.insert(local);
    }
    if !begun.is_empty() {
        let count = begun.len();
        verdict.notes.push(format!("the deletion of {count} blocks was begun; the scrubber finishes it"));
    }
    expected.forget_blocks(container, gone, 0)?;
    Ok(())
}

/// Compares an index with the one that is expected, in the order of their keys.
fn compare(
    index: &Index,
    expected: &Index,
    only: Option<ContainerId>,
    report: &mut VerifyReport,
) -> anyhow::Result<()> {
    let (mut found, mut wanted) = (index.derived_rows(), expected.derived_rows());
    let (mut here, mut there) = (found.next().transpose()?, wanted.next().transpose()?);
    loop {
        let order = match (&here, &there) {
            (None, None) => return Ok(()),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((here, _)), Some((there, _))) => here.cmp(there),
        };
        let finding = match (order, &here, &there) {
            (std::cmp::Ordering::Less, Some((key, value)), _) => {
                let is_new = keys::container_of(key).is_some() && is_fresh_container(key, value);
                let is_known = is_new || is_nonce_of_deleted(index, key)?;
                (!is_known).then(|| (FindingKind::ExtraRow, key.clone(), String::new()))
            }
            (std::cmp::Ordering::Greater, _, Some((key, _))) => {
                Some((FindingKind::MissingRow, key.clone(), String::new()))
            }
            (_, Some((key, value)), Some((_, wanted))) => (!says_the_same(key, value, wanted))
                .then(|| (FindingKind::WrongRow, key.clone(), differences(key, value, wanted))),
            _ => None,
        };
        if let Some((kind, key, how)) = finding {
            tell(report, only, kind, &key, how);
        }
        if order.is_le() {
            here = found.next().transpose().context("go on with the index")?;
        }
        if order.is_ge() {
            there = wanted.next().transpose().context("go on with the rebuilt index")?;
        }
    }
}

fn tell(report: &mut VerifyReport, only: Option<ContainerId>, kind: FindingKind, key: &[u8], how: String) {
    let what = match kind {
        FindingKind::MissingRow => format!("the index misses {}", keys::describe(key)),
        FindingKind::ExtraRow => format!("the index has {}, the segments have not", keys::describe(key)),
        _ => format!("the index is wrong about {}: {how}", keys::describe(key)),
    };
    match keys::container_of(key) {
        Some(container) if only.is_none_or(|only| only == container) => report.of(container).find(kind, what),
        Some(_) => {}
        None => report.find(kind, what),
    }
}

/// Whether a row is the one that a pipeline has for its first container before anything is applied.
fn is_fresh_container(key: &[u8], value: &[u8]) -> bool {
    let Some(container) = keys::container_of(key) else { return false };
    let record = ContainerRecord::decode(value);
    key == keys::container(container)
        && record.is_ok_and(|record| record == ContainerRecord::opened(record.pipeline, ContainerId(0)))
}

fn says_the_same(key: &[u8], found: &[u8], wanted: &[u8]) -> bool {
    found == wanted || keys::is_container(key) && found == followed(found, wanted)
}

/// The row that is wanted for the one that was found, with the container that this followed: a container's
/// segments do not say which one that was, and it may have been deleted.
fn followed(found: &[u8], wanted: &[u8]) -> Vec<u8> {
    match (ContainerRecord::decode(found), ContainerRecord::decode(wanted)) {
        (Ok(found), Ok(wanted)) if wanted.previous == ContainerId(0) => {
            ContainerRecord { previous: found.previous, ..wanted }.encode().to_vec()
        }
        _ => wanted.to_vec(),
    }
}

/// Whether a key is that of a nonce whose container was deleted: nonces outlive a replica as long as its
/// pipeline looks them up.
fn is_nonce_of_deleted(index: &Index, key: &[u8]) -> anyhow::Result<bool> {
    match keys::container_of(key) {
        Some(container) if keys::is_nonce(key) => Ok(index.container(container)?.is_none()),
        _ => Ok(false),
    }
}

/// The differences between a row and what it should be, as far as it can be read.
fn differences(key: &[u8], found: &[u8], wanted: &[u8]) -> String {
    let text = |value: &[u8]| crate::index::records::describe(key, value);
    format!("it says {}, the segments say {}", text(found), text(wanted))
}
