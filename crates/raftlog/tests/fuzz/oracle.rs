//! An oracle of what a damaged directory may answer. Everything in it was acknowledged and the process was
//! idle, so the durable mark of each hard state is exact: a log is refused with an error that names its
//! place, or it is whole, or readers of an entry are told that it is damaged. What is silently different is a
//! finding.

use crate::directory::Outcomes;
use crate::files::{Files, files_of, is_segment, log_of};
use crate::model::{Model, Stored};
use crate::wire::{Slot, newest_slot};
use crate::world::World;
use disk::Disk;
use disk::sim::SimDisk;
use raftlog::inspect::{DataDirectory, InspectError, KnownLog, Opening, ReadOnly};
use raftlog::{Entry, Log, LogSpace, LogSpec, LogState, OpenError, Place, ReadError};
use std::collections::BTreeSet;
use std::sync::Arc;
use types::LogIndex;

pub(crate) struct Oracle<'a> {
    /// The logs as they were.
    pub(crate) world: &'a World,
    /// The files, and what became of them.
    pub(crate) files: &'a Files,
    pub(crate) touched: &'a BTreeSet<String>,
    pub(crate) is_forged: bool,
}

/// Everything one log answers.
#[derive(Debug, PartialEq)]
enum Answer {
    Refused(String),
    Open { state: LogState, entries: Vec<Result<Entry, String>> },
}

pub(crate) async fn check(
    oracle: &Oracle<'_>,
    disk: &SimDisk,
    seen: Arc<dyn Disk>,
    outcomes: &mut Outcomes,
) -> Result<(), String> {
    let inspected = DataDirectory::new(Arc::new(ReadOnly(seen.clone())));
    inspected.orphans().await.map_err(|error| format!("orphans: {error}"))?;
    for (nth, driver) in oracle.world.drivers.iter().enumerate() {
        let (spec, model) = (&driver.spec, &driver.history.now);
        let explain = |why: String| format!("log {}: {why}", spec.log);
        let before = files_of(disk).await;
        let known = KnownLog { log: spec.log, owners_dir: spec.owners_dir.clone() };
        let report = inspected.log(&format!("log-{}", spec.log), Some(&known)).await;
        if before != files_of(disk).await {
            return Err(explain("looking at it changed its files".to_owned()));
        }
        let space = LogSpace::new(seen.clone(), oracle.world.options.clone());
        let first = open(&space, spec).await.map_err(explain)?;
        let again =
            open(&LogSpace::new(seen.clone(), oracle.world.options.clone()), spec).await.map_err(explain)?;
        if first != again {
            return Err(explain(format!("opened twice, it answers {first:?} and then {again:?}")));
        }
        match &first {
            Answer::Refused(_) => outcomes.refused += 1,
            Answer::Open { entries, .. } => {
                outcomes.opened += 1;
                outcomes.entries_refused += entries.iter().filter(|entry| entry.is_err()).count() as u64;
            }
        }
        check_report(report, &first, oracle.is_forged).map_err(explain)?;
        let is_touched = oracle.touched.iter().any(|path| log_of(path) == Some(nth as u64));
        if !is_touched {
            untouched(&first, model).map_err(explain)?;
        } else if !oracle.is_forged {
            damaged(oracle, spec, model, &first).map_err(explain)?;
        }
        if !oracle.is_forged {
            by_place(&space, spec, model, is_touched).await.map_err(explain)?;
        }
    }
    Ok(())
}

/// Opens, reads everything and closes.
async fn open(space: &Arc<LogSpace>, spec: &LogSpec) -> Result<Answer, String> {
    let log = match space.open(spec.clone()).await {
        Ok(log) => log,
        Err(error @ (OpenError::Io { .. } | OpenError::Unreadable { .. })) => {
            return Err(format!("the disk is good, but: {error}"));
        }
        Err(error) => {
            let text = error.to_string();
            return match error {
                OpenError::Damaged { file, .. } if file.is_empty() => Err(format!("no place in: {text}")),
                _ => Ok(Answer::Refused(text)),
            };
        }
    };
    let state = log.state();
    let entries = read(&log, state).await;
    log.close().await;
    Ok(Answer::Open { state, entries: entries? })
}

async fn read(log: &Log, state: LogState) -> Result<Vec<Result<Entry, String>>, String> {
    let first = state.purged.map_or(0, |id| id.index.0.saturating_add(1));
    let Some(last) = state.last.map(|id| id.index.0) else { return Ok(Vec::new()) };
    let mut entries = Vec::new();
    // Entries of a log that nothing was purged of may begin anywhere.
    let first = match log.read(LogIndex(first)..LogIndex(first.saturating_add(1)), 1).await {
        Err(ReadError::OutOfRange { first, .. }) => first.0,
        _ => first,
    };
    for index in first..last.saturating_add(1).max(first) {
        let range = LogIndex(index)..LogIndex(index.saturating_add(1));
        let entry = log.read(range.clone(), 1).await;
        if let (Ok(entries), Ok(metas)) = (&entry, log.read_meta(range, 1).await)
            && let (Some(entry), Some(meta)) = (entries.first(), metas.first())
            && (entry.id, &entry.meta, entry.kind, entry.roll_to)
                != (meta.id, &meta.meta, meta.kind, meta.roll_to)
        {
            return Err(format!("entry {:?} and its meta {:?} differ", entry.id, meta.id));
        }
        match entry {
            Ok(mut read) if read.len() == 1 => entries.push(Ok(read.remove(0))),
            Ok(read) => return Err(format!("{} entries were read at {index}", read.len())),
            Err(error @ ReadError::OutOfRange { .. }) => return Err(format!("a hole: {error}")),
            Err(error @ ReadError::Io { .. }) => return Err(format!("the disk is good, but: {error}")),
            Err(error) => entries.push(Err(error.to_string())),
        }
    }
    Ok(entries)
}

/// The inspect tool says beforehand what opening then does.
fn check_report(
    report: Result<raftlog::inspect::LogReport, InspectError>,
    answer: &Answer,
    is_forged: bool,
) -> Result<(), String> {
    let report = match report {
        Err(InspectError::NoSuchLog { .. }) => return Ok(()),
        Err(error) => return Err(format!("inspecting it: {error}")),
        Ok(report) => report,
    };
    match (&report.opening, answer) {
        (Opening::NoHardState, Answer::Refused(_)) => Ok(()),
        (Opening::Refused(foretold), Answer::Refused(error)) if foretold.to_string() == *error => Ok(()),
        (Opening::Opens { last, .. }, Answer::Open { state, entries })
            if *last == state.last.filter(|_| !entries.is_empty()) =>
        {
            let unreadable = entries.iter().find_map(|entry| entry.as_ref().err());
            // A segment and its index may each be whole and say different things, when somebody forged one.
            match unreadable.filter(|_| !report.is_damaged() && !is_forged) {
                Some(why) => Err(format!("inspected as whole, but {why}")),
                None => Ok(()),
            }
        }
        (foretold, answer) => Err(format!("inspected as `{foretold}`, but it answers {answer:?}")),
    }
}

fn untouched(answer: &Answer, model: &Model) -> Result<(), String> {
    match answer {
        Answer::Refused(why) => Err(format!("nothing was done to it, but: {why}")),
        Answer::Open { state, entries } => {
            let same =
                state.last == model.last() && state.hard_state == model.vote && state.purged == model.purged;
            let stored = model.entries.values().map(|stored| Ok(stored.entry.clone()));
            if !same || !entries.iter().cloned().eq(stored) {
                return Err(format!("nothing was done to it, but it answers {answer:?}"));
            }
            Ok(())
        }
    }
}

fn damaged(oracle: &Oracle<'_>, spec: &LogSpec, model: &Model, answer: &Answer) -> Result<(), String> {
    let Answer::Open { state, entries } = answer else { return Ok(()) };
    let path = format!("{}/hard-state", spec.dir);
    let Some(file) = oracle.files.get(&path) else {
        // A log exists once its hard state does: without it, and without segments, there is none.
        let first_owner = format!("{}/{:016x}/", spec.owners_dir, spec.first_owner.0);
        let has_segments = oracle.files.keys().any(|path| path.starts_with(&first_owner) && is_segment(path));
        return if has_segments { Err("it opens without its hard state".to_owned()) } else { Ok(()) };
    };
    let Some(slot) = newest_slot(file).filter(|slot| slot.log == spec.log) else {
        return Err("it opens with a hard state of no log, or another".to_owned());
    };
    promises(state, &slot, model)?;
    if let Some((owner, segment)) = slot.begun.filter(|begun| *begun >= slot.start) {
        let begun = format!("{}/{owner:016x}/{segment:08x}.seg", spec.owners_dir);
        if !oracle.files.contains_key(&begun) {
            return Err(format!("it opens without {begun}, which it had begun"));
        }
    }
    // Both the newest slot and the tail may be damaged: then what the older slot says is durable is there.
    let durable = slot.durable.map(|(_, index)| index).max(slot.purged.map(|(_, index)| index));
    if state.last.map(|id| id.index.0) < durable {
        return Err(format!("it ends at {:?}, but {durable:?} was durable", state.last));
    }
    if state.last.map(|id| id.index) > model.last().map(|id| id.index) {
        return Err(format!("it ends at {:?}, but had no more than {:?}", state.last, model.last()));
    }
    let known: Vec<&Stored> = model.forgotten.iter().chain(model.entries.values()).collect();
    for entry in entries.iter().flatten() {
        if !known.iter().any(|stored| stored.entry == *entry) {
            return Err(format!("entry {:?} was never written so", entry.id));
        }
    }
    Ok(())
}

/// Vote and purged are what the hard state says, and that is what was promised last.
fn promises(state: &LogState, slot: &Slot, model: &Model) -> Result<(), String> {
    let vote = state.hard_state.map(|vote| (vote.vote_term, vote.vote_replica, vote.vote_committed));
    let purged = state.purged.map(|id| (id.term.0, id.index.0));
    if (vote, purged) != (slot.vote, slot.purged) {
        return Err(format!("vote {vote:?} and purged {purged:?} are not those of {slot:?}"));
    }
    if state.hard_state != model.vote {
        return Err(format!("vote {vote:?} was promised as {:?}", model.vote));
    }
    if state.purged != model.purged {
        return Err(format!("purged {purged:?} was promised as {:?}", model.purged));
    }
    Ok(())
}

/// Bodies by place: right, or a typed error.
async fn by_place(
    space: &Arc<LogSpace>,
    spec: &LogSpec,
    model: &Model,
    is_touched: bool,
) -> Result<(), String> {
    let is_deleted = |place: &Place| {
        model.deleted_before.is_some_and(|(owner, segment)| place.owner == owner && place.segment < segment)
    };
    let stored = model.forgotten.iter().chain(model.entries.values());
    for stored in stored.filter(|stored| !is_deleted(&stored.place)) {
        let range = 0..stored.place.body_bytes;
        match space.read_body(&spec.owners_dir, stored.place, range).await {
            Ok(pieces) if pieces.bytes == *stored.entry.body.bytes() => {}
            Ok(_) => return Err(format!("wrong bytes at {:?}", stored.place)),
            Err(ReadError::Damaged { .. } | ReadError::NotFound { .. }) if is_touched => {}
            Err(error) => return Err(format!("{:?}: {error}", stored.place)),
        }
    }
    Ok(())
}
