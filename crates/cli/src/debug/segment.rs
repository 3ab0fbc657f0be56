use super::args::RangeArgs;
use super::found::{Found, print};
use super::json;
use super::local::{self, LocalDirectory};
use anyhow::Context;
use raftlog::inspect::{
    Damage, DataDirectory, Evidence, HardStateSlot, Item, SegmentName, SegmentScan, SegmentSummary,
    Surroundings, Verdict, read_hard_state, verdict,
};
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// The bytes of a piece, about, in which lines are printed.
const PRINT_BYTES: usize = 64 << 10;

async fn scan(path: &Path) -> anyhow::Result<(String, SegmentScan)> {
    let name = path.display().to_string();
    let named = path.canonicalize().ok().and_then(|path| SegmentName::of_path(path.to_str()?));
    let scan = SegmentScan::new(local::open(path)?, named).await.with_context(|| format!("read {name}"))?;
    Ok((name, scan))
}

pub(super) async fn dump(path: &Path, range: RangeArgs, as_json: bool) -> anyhow::Result<Found> {
    let (name, mut scan) = scan(path).await?;
    dump_scan(&name, &mut scan, range, as_json).await
}

pub(super) async fn dump_scan(
    name: &str,
    scan: &mut SegmentScan,
    range: RangeArgs,
    as_json: bool,
) -> anyhow::Result<Found> {
    let mut text = String::new();
    let mut found = Found::Whole;
    if !as_json {
        text += &heading(name, scan);
    }
    while let Some(item) = scan.next().await.with_context(|| format!("read {name}"))? {
        let (offset, index) = match &item {
            Item::Record(record) => (record.offset, Some(record.id.index)),
            Item::Damage(damage) => (damage.offset, damage.index),
            Item::Unused { offset, .. } => (*offset, None),
        };
        let is_past = |index: types::LogIndex| index.0 >= range.to_index;
        if offset >= range.to_offset || matches!(item, Item::Record(_)) && index.is_some_and(is_past) {
            break;
        }
        if offset < range.from_offset || index.is_some_and(|index| index.0 < range.from_index) {
            continue;
        }
        found = found.max(Found::damaged(matches!(&item, Item::Damage(damage) if !damage.is_old_bytes())));
        let meta = match &item {
            Item::Record(record) if range.hex => {
                Some(scan.meta(record).await.with_context(|| format!("read {name}"))?)
            }
            _ => None,
        };
        let meta = meta.as_deref();
        let line = if as_json { json::item(name, &item, meta).to_string() } else { line(&item, meta) };
        text += &line;
        text.push('\n');
        if text.len() >= PRINT_BYTES {
            print(&std::mem::take(&mut text))?;
        }
    }
    print(&text)?;
    Ok(found)
}

fn line(item: &Item, meta: Option<&[u8]>) -> String {
    match item {
        Item::Record(record) => match meta {
            Some(meta) => format!("{record} ok meta {}", json::hex(meta)),
            None => format!("{record} ok"),
        },
        Item::Damage(damage) => damage.to_string(),
        Item::Unused { offset, bytes } => format!("offset {offset} unused {bytes} bytes"),
    }
}

/// A heading: what the file is, and where its name and its records say different things.
fn heading(name: &str, scan: &SegmentScan) -> String {
    let mut text = match (scan.found, scan.log) {
        (Some(found), Some(log)) => format!("{name}: {found} of log {log}\n"),
        _ if scan.file_bytes() == 0 => format!("{name}: empty\n"),
        _ => format!("{name}: no record of a segment is in it\n"),
    };
    if let (true, Some(named)) = (scan.is_renamed(), scan.named) {
        let _ = writeln!(text, "  RENAMED: the file's name says {named}");
    }
    text
}

pub(super) async fn verify(path: &Path, as_json: bool) -> anyhow::Result<Found> {
    let (name, mut scan) = scan(path).await?;
    let summary = SegmentSummary::of(&mut scan).await.with_context(|| format!("read {name}"))?;
    if as_json {
        let damage = summary.damage.iter().map(|damage| json::damage(damage, None)).collect();
        let mut value = json::summary(&name, &summary, damage);
        value["renamed"] = scan.is_renamed().into();
        print(&format!("{value}\n"))?;
    } else {
        let mut text = format!("{}  {summary}\n", heading(&name, &scan));
        text += &old_bytes(&summary, "  ");
        for damage in &summary.damage {
            let _ = writeln!(text, "  {damage}");
        }
        print(&text)?;
    }
    Ok(Found::damaged(scan.is_renamed() || !summary.damage.is_empty()))
}

/// The note on what a recycled file held before, if it did.
pub(super) fn old_bytes(summary: &SegmentSummary, indent: &str) -> String {
    summary
        .old_bytes
        .as_ref()
        .map_or_else(String::new, |old| format!("{indent}{}\n", old.told_as_old_bytes()))
}

/// Knowledge about a segment that is not in its file.
struct BesideFile {
    given: Option<HardStateSlot>,
    around: Option<Surroundings>,
}

impl BesideFile {
    /// Looks for the data directory that the file is in, unless a hard state is given.
    async fn of(path: &Path, hard_state: Option<&Path>, scan: &SegmentScan) -> anyhow::Result<BesideFile> {
        if let Some(hard_state) = hard_state {
            let name = hard_state.display();
            let file =
                read_hard_state(local::open(hard_state)?).await.with_context(|| format!("read {name}"))?;
            let newest = file.newest().copied();
            let slot = newest.with_context(|| format!("neither slot of {name} holds a whole hard state"))?;
            if let Some(log) = scan.log.filter(|log| *log != slot.log) {
                anyhow::bail!("{name} is of log {}, {} holds records of log {log}", slot.log, path.display());
            }
            return Ok(BesideFile { given: Some(slot), around: None });
        }
        let nothing = BesideFile { given: None, around: None };
        let Some((directory, owners_dir)) = LocalDirectory::around(path) else { return Ok(nothing) };
        let around = DataDirectory::new(Arc::new(directory)).around(&owners_dir, scan).await?;
        Ok(BesideFile { around, ..nothing })
    }

    fn evidence(&self) -> Evidence<'_> {
        match &self.around {
            Some(around) => around.evidence(),
            None => Evidence { hard_state: self.given.as_ref(), ..Evidence::default() },
        }
    }

    fn told(&self) -> String {
        match (&self.around, &self.given) {
            (Some(around), _) => format!("  log {}: a start {}\n", around.group, around.opening),
            (None, Some(slot)) => format!("  hard state: {slot}\n"),
            (None, None) => {
                "  no hard state is known: what a start would do depends on it (--hard-state FILE)\n".into()
            }
        }
    }
}

pub(super) async fn explain(path: &Path, hard_state: Option<&Path>, as_json: bool) -> anyhow::Result<Found> {
    let (name, mut scan) = scan(path).await?;
    let known = BesideFile::of(path, hard_state, &scan).await?;
    let mut summary = SegmentSummary::of(&mut scan).await.with_context(|| format!("read {name}"))?;
    summary.settle(known.evidence(), known.around.as_ref().and_then(|around| around.end));
    let is_spare = scan.is_renamed() && known.around.as_ref().is_some_and(Surroundings::is_unused_spare);
    let damage = summary.damage.iter().map(|damage| (damage, verdict(damage, known.evidence())));
    if as_json {
        let damage = damage.map(|(damage, verdict)| json::damage(damage, Some(&verdict))).collect();
        let mut value = json::summary(&name, &summary, damage);
        value["renamed"] = (scan.is_renamed() && !is_spare).into();
        value["unused_spare"] = is_spare.into();
        print(&format!("{value}\n"))?;
    } else {
        let mut text = format!("{}  {summary}\n", heading(&name, &scan));
        text += &known.told();
        if is_spare {
            text +=
                "  a recycled file without a record of its own yet: these are old ones of another segment\n";
        }
        text += &old_bytes(&summary, "  ");
        for (damage, verdict) in damage {
            text += &explained(damage, &verdict, "  ");
        }
        print(&text)?;
    }
    Ok(Found::damaged(!is_spare && (scan.is_renamed() || !summary.damage.is_empty())))
}

/// One damage with all that is known of it.
pub(super) fn explained(damage: &Damage, verdict: &Verdict, indent: &str) -> String {
    let mut text = format!("{indent}{damage}\n");
    for clue in &damage.clues {
        let _ = writeln!(text, "{indent}  {clue}");
    }
    let _ = match damage.next_index {
        Some(next) => {
            writeln!(text, "{indent}  the next record, entry {next}, begins at byte {}", damage.end)
        }
        None => writeln!(text, "{indent}  no record of this segment follows; it ends at byte {}", damage.end),
    };
    let _ = writeln!(text, "{indent}  start: {verdict}");
    text
}
