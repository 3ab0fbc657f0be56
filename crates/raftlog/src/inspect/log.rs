use super::rehearsal::{Change, Rehearsal};
use super::{
    Damage, Directory, Evidence, HardStateFault, HardStateFile, HardStateSlot, SegmentName, SegmentScan,
    SegmentSummary, Verdict, read_hard_state, verdict,
};
use crate::hard_state::FILE_NAME;
use crate::recovery::recover;
use crate::segment::{SegmentId, owner_dir};
use crate::{Compacted, Discards, LogSpec, OpenError};
use disk::Disk;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId};

/// Directories of a data directory, docs/format/data-directory.md.
const GROUPS_DIR: &str = "groups";
const CONTAINERS_DIR: &str = "containers";
const METADATA_DIR: &str = "meta";

/// The most bytes of a file `compacted`; a longer one is none.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The number of looks at a log that somebody writes to before damage is believed.
const LOOKS_MAX: usize = 3;

#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("there is no log `{group}`: no {GROUPS_DIR}/{group}/{FILE_NAME} (logs here: {here})")]
    NoSuchLog { group: String, here: String },
    #[error("read {path}: {source}")]
    Io { path: String, source: io::Error },
}

/// The logs of a data directory.
pub struct DataDirectory {
    source: Arc<dyn Directory>,
    /// The one owner whose segments are looked at, if not all are.
    only: Option<OwnerId>,
}

/// All that is known of a log beside its files: see [`LogSpec`].
#[derive(Clone, Debug)]
pub struct KnownLog {
    pub log: u64,
    pub owners_dir: String,
}

/// The surroundings of a segment in its data directory.
#[derive(Debug)]
pub struct Surroundings {
    pub group: String,
    pub slot: HardStateSlot,
    pub opening: Opening,
    pub later: Option<(u32, LogIndex)>,
    /// The offset at which a start would cut the segment's file; 0 also when it would remove it.
    pub end: Option<u64>,
}

impl Surroundings {
    /// Whether a file whose name is not that of its records is a recycled one without a record of its own
    /// yet.
    pub fn is_unused_spare(&self) -> bool {
        self.end == Some(0)
    }

    pub fn evidence(&self) -> Evidence<'_> {
        let opens = Some(matches!(self.opening, Opening::Opens { .. }));
        Evidence { hard_state: Some(&self.slot), later: self.later, is_looked: true, opens }
    }
}

/// Everything there is to say of one log.
#[derive(Debug)]
pub struct LogReport {
    pub group: String,
    pub hard_state: HardStateFile,
    pub opening: Opening,
    pub owners: Vec<OwnerReport>,
}

/// The outcome of a start of the log, as a rehearsal of its recovery tells it.
#[derive(Debug)]
pub enum Opening {
    Opens {
        first: Option<LogId>,
        last: Option<LogId>,
        /// The changes it would make to the files.
        changes: Vec<Change>,
    },
    Refused(OpenError),
    /// Neither slot of the hard state says which log this is.
    NoHardState,
}

impl Opening {
    fn changes(&self) -> &[Change] {
        match self {
            Opening::Opens { changes, .. } => changes,
            Opening::Refused(_) | Opening::NoHardState => &[],
        }
    }

    /// The offset at which a start would cut a file in the end, 0 when it would remove it.
    fn end(&self, path: &str) -> Option<u64> {
        let mut cuts = self.changes().iter().rev().filter_map(Change::cut);
        cuts.find(|(file, _)| *file == path).map(|(_, to)| to)
    }
}

/// The rehearsed end of a log's opening, and the files that the rehearsal looked at.
struct Rehearsed {
    opening: Opening,
    used: BTreeSet<String>,
}

impl Rehearsed {
    fn uses(&self, owners_dir: &str, owner: OwnerId) -> bool {
        let prefix = format!("{}/", owner_dir(owners_dir, owner));
        self.used.iter().any(|path| path.starts_with(&prefix))
    }
}

/// The log whose records an owner's segments hold.
enum Holds {
    /// The log of the records that say that they belong there.
    RecordsOf(u64),
    /// Only records of another place, as a recycled file has before its first one.
    Misplaced(u64),
    Nothing,
}

/// One owner's segments.
#[derive(Debug)]
pub struct OwnerReport {
    pub owner: OwnerId,
    pub segments: Vec<SegmentReport>,
    /// The problems between segments.
    pub problems: Vec<String>,
}

#[derive(Debug)]
pub struct SegmentReport {
    pub segment: u32,
    pub path: String,
    /// The name that its records say it should have, where that is not the name it has.
    pub renamed: Option<SegmentName>,
    /// The former name of a recycled file that has no record of its own yet. The summary is that of an unused
    /// file.
    pub recycled: Option<SegmentName>,
    pub log: Option<u64>,
    pub summary: SegmentSummary,
    /// The verdict on each damage of the summary.
    pub verdicts: Vec<Verdict>,
    /// The offset at which a start would cut the file.
    end: Option<u64>,
}

impl LogReport {
    /// Whether a person must look: a log that was merely killed is not damaged.
    pub fn is_damaged(&self) -> bool {
        let flipped = |fault: &HardStateFault| {
            matches!(fault, HardStateFault::Checksum { flipped: Some(_), .. } | HardStateFault::Unknown)
        };
        !matches!(self.opening, Opening::Opens { .. })
            || self.hard_state.slots.iter().any(|slot| slot.as_ref().is_err_and(flipped))
            || self.owners.iter().any(OwnerReport::is_damaged)
    }
}

impl OwnerReport {
    pub fn is_damaged(&self) -> bool {
        !self.problems.is_empty() || self.segments.iter().any(SegmentReport::is_damaged)
    }
}

impl SegmentReport {
    pub fn is_damaged(&self) -> bool {
        let is_tail = |verdict: &Verdict| matches!(verdict, Verdict::Cut { .. } | Verdict::Trimmed);
        self.renamed.is_some()
            || self.verdicts.len() < self.summary.damage.len()
            || !self.verdicts.iter().all(is_tail)
    }

    /// Each damage with what a start would make of it.
    pub fn damage(&self) -> impl Iterator<Item = (&Damage, &Verdict)> {
        self.summary.damage.iter().zip(&self.verdicts)
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opening::Opens { first, last, changes } => {
                match (first, last) {
                    (Some(first), Some(last)) => {
                        write!(f, "opens with entries {}..={}", first.index, last.index)?
                    }
                    _ => write!(f, "opens without entries")?,
                }
                changes.iter().try_for_each(|change| write!(f, "; would {change}"))
            }
            Opening::Refused(error) => write!(f, "does not open: {error}"),
            Opening::NoHardState => write!(f, "does not open: neither slot holds a whole hard state"),
        }
    }
}

impl DataDirectory {
    pub fn new(source: Arc<dyn Directory>) -> DataDirectory {
        DataDirectory { source, only: None }
    }

    /// Limits reports to this owner's segments; how a log opens is still found out from all of it.
    pub fn only(self, owner: OwnerId) -> DataDirectory {
        DataDirectory { only: Some(owner), ..self }
    }

    fn is_asked_for(&self, owner: OwnerId) -> bool {
        self.only.is_none_or(|only| only == owner)
    }

    /// Names of the groups that have a log, sorted.
    pub async fn groups(&self) -> Result<Vec<String>, InspectError> {
        let mut groups = self.list(GROUPS_DIR).await?;
        groups.sort();
        Ok(groups)
    }

    /// Metadata groups whose segments are here and whose hard state is not: a start refuses to begin an empty
    /// log over them.
    pub async fn metadata_without_log(&self) -> Result<Vec<String>, InspectError> {
        let mut lost = Vec::new();
        for group in self.list(METADATA_DIR).await? {
            let owners = self.owners_in(&format!("{METADATA_DIR}/{group}")).await?;
            let hard_state = self.hard_state(&group).await;
            if !owners.is_empty() && matches!(hard_state, Err(InspectError::NoSuchLog { .. })) {
                lost.push(group);
            }
        }
        lost.sort();
        Ok(lost)
    }

    /// Looks at one log whole: hard state, every checksum of every segment, and what recovery would do. When
    /// a server writes meanwhile, what looks like damage may be a look at two moments: it is looked at again.
    /// Without `known` the hard state is believed.
    pub async fn log(&self, group: &str, known: Option<&KnownLog>) -> Result<LogReport, InspectError> {
        let mut looks = 1;
        loop {
            let report = self.look(group, known).await?;
            let settled = !report.is_damaged() || looks == LOOKS_MAX;
            if settled || self.hard_state(group).await? == report.hard_state {
                return Ok(report);
            }
            looks += 1;
        }
    }

    /// Owners in `containers` whose log has no hard state here: closed containers of logs that were removed,
    /// or of one whose hard state is lost.
    pub async fn orphans(&self) -> Result<Vec<OwnerReport>, InspectError> {
        let mut logs = Vec::new();
        for group in self.groups().await? {
            match self.hard_state(&group).await {
                Ok(file) => logs.extend(file.newest().map(|slot| slot.log)),
                Err(InspectError::NoSuchLog { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut orphans = Vec::new();
        for owner in self.owners_in(CONTAINERS_DIR).await? {
            if !self.is_asked_for(owner) {
                continue;
            }
            let is_here = match self.holds(CONTAINERS_DIR, owner).await? {
                Holds::RecordsOf(log) => logs.contains(&log),
                Holds::Misplaced(log) if logs.contains(&log) => true,
                Holds::Misplaced(_) | Holds::Nothing => {
                    self.user(CONTAINERS_DIR, owner, None).await?.is_some()
                }
            };
            if !is_here {
                orphans.push(self.owner(CONTAINERS_DIR, owner, None, Evidence::default()).await?);
            }
        }
        Ok(orphans)
    }

    /// Paths of a log's segments, in the order of its records.
    pub async fn segments(&self, group: &str, known: Option<&KnownLog>) -> Result<Vec<String>, InspectError> {
        let hard_state = self.hard_state(group).await?;
        let log = match (known, hard_state.newest()) {
            (Some(known), _) => known.log,
            (None, Some(slot)) => slot.log,
            (None, None) => return Ok(Vec::new()),
        };
        let known = self.known(group, known, log).await?;
        let first_owner = hard_state.newest().map_or(OwnerId(0), |slot| slot.start_owner);
        let rehearsed = self.rehearse(group, &known, first_owner).await;
        let mut paths = Vec::new();
        for owner in self.owners_of(group, &known, &rehearsed).await? {
            let segments = self.segments_of(&known.owners_dir, owner).await?;
            paths.extend(segments.iter().map(|id| id.path(&known.owners_dir)));
        }
        Ok(paths)
    }

    /// All that is known here of the log that a segment of this directory belongs to: the slot of its hard
    /// state that counts, how its opening was rehearsed to end, and where the owner goes on. A file that is
    /// not named as its records say belongs to the log that uses it, if one does. `None` when no log has that
    /// number.
    pub async fn around(
        &self,
        owners_dir: &str,
        scan: &SegmentScan,
    ) -> Result<Option<Surroundings>, InspectError> {
        let (Some(name), Some(mut log)) = (scan.named, scan.log) else { return Ok(None) };
        if scan.is_renamed() {
            log = self.user(owners_dir, name.owner, None).await?.unwrap_or(log);
        }
        for group in self.groups().await? {
            let Ok(hard_state) = self.hard_state(&group).await else { continue };
            let Some(slot) = hard_state.newest().copied().filter(|slot| slot.log == log) else { continue };
            let known = KnownLog { log, owners_dir: owners_dir.to_owned() };
            let opening = self.rehearse(&group, &known, slot.start_owner).await.opening;
            let path = SegmentId { owner: name.owner, segment: name.segment }.path(owners_dir);
            let end = opening.end(&path);
            let mut later = None;
            for id in self.segments_of(owners_dir, name.owner).await? {
                if id.segment > name.segment
                    && let Some(mut scan) = self.scan(owners_dir, id).await?
                    && scan.log == Some(log)
                    && let Some(first) = scan.first().await.map_err(io_error(&id.path(owners_dir)))?
                {
                    later = Some((id.segment, first));
                    break;
                }
            }
            return Ok(Some(Surroundings { group, slot, opening, later, end }));
        }
        Ok(None)
    }

    async fn hard_state(&self, group: &str) -> Result<HardStateFile, InspectError> {
        let path = format!("{GROUPS_DIR}/{group}/{FILE_NAME}");
        match self.source.open(&path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let here = self.groups().await?.join(", ");
                Err(InspectError::NoSuchLog { group: group.to_owned(), here })
            }
            opened => read_hard_state(opened.map_err(io_error(&path))?).await.map_err(io_error(&path)),
        }
    }

    async fn look(&self, group: &str, known: Option<&KnownLog>) -> Result<LogReport, InspectError> {
        // The hard state is read before the segments: what it says is durable must then be in them.
        let hard_state = self.hard_state(group).await?;
        let Some(slot) = hard_state.newest().copied() else {
            let (group, opening, owners) = (group.to_owned(), Opening::NoHardState, Vec::new());
            return Ok(LogReport { group, hard_state, opening, owners });
        };
        let known = self.known(group, known, slot.log).await?;
        let rehearsed = self.rehearse(group, &known, slot.start_owner).await;
        let mut owners = Vec::new();
        for owner in self.owners_of(group, &known, &rehearsed).await? {
            if !self.is_asked_for(owner) {
                continue;
            }
            let opens = Some(matches!(rehearsed.opening, Opening::Opens { .. }));
            let evidence = Evidence { hard_state: Some(&slot), later: None, is_looked: true, opens };
            let of = Some((known.log, &rehearsed.opening));
            owners.push(self.owner(&known.owners_dir, owner, of, evidence).await?);
        }
        check_rolls(&mut owners);
        Ok(LogReport { group: group.to_owned(), hard_state, opening: rehearsed.opening, owners })
    }

    async fn known(&self, group: &str, known: Option<&KnownLog>, log: u64) -> Result<KnownLog, InspectError> {
        if let Some(known) = known {
            return Ok(known.clone());
        }
        let metadata_dir = format!("{METADATA_DIR}/{group}");
        let is_metadata = !self.list(&metadata_dir).await?.is_empty();
        Ok(KnownLog { log, owners_dir: if is_metadata { metadata_dir } else { CONTAINERS_DIR.to_owned() } })
    }

    async fn owners_of(
        &self,
        group: &str,
        known: &KnownLog,
        rehearsed: &Rehearsed,
    ) -> Result<Vec<OwnerId>, InspectError> {
        let dir = &known.owners_dir;
        let mut owners = Vec::new();
        for owner in self.owners_in(dir).await? {
            let is_shared = known.owners_dir == CONTAINERS_DIR;
            let is_ours = !is_shared
                || match self.holds(dir, owner).await? {
                    Holds::RecordsOf(log) => log == known.log,
                    _ if rehearsed.uses(dir, owner) => true,
                    Holds::Nothing => false,
                    Holds::Misplaced(log) => {
                        log == known.log && self.user(dir, owner, Some(group)).await?.is_none()
                    }
                };
            if is_ours {
                owners.push(owner);
            }
        }
        Ok(owners)
    }

    /// The log, of all but one group, whose start would look at an owner's files. It costs a rehearsal of
    /// each, so it is asked only where the files themselves do not say.
    async fn user(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        except: Option<&str>,
    ) -> Result<Option<u64>, InspectError> {
        for group in self.groups().await?.into_iter().filter(|group| Some(group.as_str()) != except) {
            let Ok(hard_state) = self.hard_state(&group).await else { continue };
            let Some(slot) = hard_state.newest().copied() else { continue };
            let known = self.known(&group, None, slot.log).await?;
            if known.owners_dir == owners_dir
                && self.rehearse(&group, &known, slot.start_owner).await.uses(owners_dir, owner)
            {
                return Ok(Some(slot.log));
            }
        }
        Ok(None)
    }

    async fn rehearse(&self, group: &str, known: &KnownLog, first_owner: OwnerId) -> Rehearsed {
        let dir = format!("{GROUPS_DIR}/{group}");
        let spec = LogSpec { log: known.log, dir, owners_dir: known.owners_dir.clone(), first_owner };
        rehearse(self.source.clone(), &spec).await
    }

    async fn owners_in(&self, owners_dir: &str) -> Result<Vec<OwnerId>, InspectError> {
        let names = self.list(owners_dir).await?;
        let owner = |name: &String| u64::from_str_radix(name, 16).ok().filter(|_| name.len() == 16);
        let mut owners: Vec<_> = names.iter().filter_map(owner).map(OwnerId).collect();
        owners.sort();
        Ok(owners)
    }

    /// The segments of an owner, without those that a compaction left, or has not finished: a start removes
    /// them.
    async fn segments_of(&self, owners_dir: &str, owner: OwnerId) -> Result<Vec<SegmentId>, InspectError> {
        let names = self.list(&owner_dir(owners_dir, owner)).await?;
        let compacted = self.compacted(owners_dir, owner).await?.unwrap_or(Compacted::NEVER);
        let numbers = names.iter().filter_map(|name| SegmentId::parse_number(name));
        let mut numbers: Vec<_> = numbers.filter(|number| compacted.segments.contains(number)).collect();
        numbers.sort_unstable();
        Ok(numbers.into_iter().map(|segment| SegmentId { owner, segment }).collect())
    }

    /// The log whose records an owner's segments hold, by the first whose records say that they belong there:
    /// somebody may have put a file of another log in the way.
    async fn holds(&self, owners_dir: &str, owner: OwnerId) -> Result<Holds, InspectError> {
        let mut holds = Holds::Nothing;
        for id in self.segments_of(owners_dir, owner).await? {
            let Some(scan) = self.scan(owners_dir, id).await? else { continue };
            match (scan.log, &holds) {
                (Some(log), _) if !scan.is_renamed() => return Ok(Holds::RecordsOf(log)),
                (Some(log), Holds::Nothing) => holds = Holds::Misplaced(log),
                _ => {}
            }
        }
        Ok(holds)
    }

    /// Begins the scan of a segment; `None` for one that is gone meanwhile.
    async fn scan(&self, owners_dir: &str, id: SegmentId) -> Result<Option<SegmentScan>, InspectError> {
        let path = id.path(owners_dir);
        let name = SegmentName { owner: id.owner, segment: id.segment };
        match self.source.open(&path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => {
                let file = opened.map_err(io_error(&path))?;
                let mut scan = SegmentScan::new(file, Some(name)).await.map_err(io_error(&path))?;
                scan.discards = self.discards(owners_dir, id.owner).await?;
                Ok(Some(scan))
            }
        }
    }

    async fn discards(&self, owners_dir: &str, owner: OwnerId) -> Result<Discards, InspectError> {
        let path = crate::discards::path(owners_dir, owner);
        let discards = match self.source.open(&path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Discards::none(owner),
            opened => {
                let file = opened.map_err(io_error(&path))?;
                Discards::read_file(file, owner).await.map_err(io_error(&path))?
            }
        };
        let compacted = self.compacted(owners_dir, owner).await?;
        Ok(discards.after(compacted.unwrap_or(Compacted::NEVER)))
    }

    /// The file that says what is left of an owner, or the damage in it. All segments count then.
    async fn compacted(
        &self,
        owners_dir: &str,
        owner: OwnerId,
    ) -> Result<Result<Compacted, String>, InspectError> {
        let path = crate::compacted::path(owners_dir, owner);
        let read = async {
            let file = self.source.open(&path).await?;
            file.read_at(0, file.len().await?.min(FILE_BYTES_MAX) as usize).await
        };
        match read.await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ok(Compacted::NEVER)),
            Err(error) => Err(io_error(&path)(error)),
            Ok(bytes) => Ok(Compacted::decode_file(owner, &bytes).map_err(|why| format!("{path}: {why}"))),
        }
    }

    async fn owner(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        of: Option<(u64, &Opening)>,
        evidence: Evidence<'_>,
    ) -> Result<OwnerReport, InspectError> {
        let problems = self.compacted(owners_dir, owner).await?.err().into_iter().collect();
        let mut report = OwnerReport { owner, segments: Vec::new(), problems };
        for id in self.segments_of(owners_dir, owner).await? {
            let Some(mut scan) = self.scan(owners_dir, id).await? else { continue };
            let path = id.path(owners_dir);
            let mut summary = SegmentSummary::of(&mut scan).await.map_err(io_error(&path))?;
            let (mut renamed, mut recycled) = (scan.found.filter(|_| scan.is_renamed()), None);
            let end = of.and_then(|(_, opening)| opening.end(&path));
            if renamed.is_some() && end == Some(0) {
                recycled = renamed.take();
                let (file_bytes, unused_bytes) = (summary.file_bytes, summary.file_bytes);
                summary = SegmentSummary { file_bytes, unused_bytes, ..SegmentSummary::default() };
            }
            if let (Some((expected, _)), Some(found)) = (of, scan.log)
                && recycled.is_none()
                && expected != found
            {
                report.problems.push(format!("{path} holds records of log {found}, not of log {expected}"));
            }
            let verdicts = Vec::new();
            let segment = id.segment;
            let log = scan.log.filter(|_| recycled.is_none());
            report.segments.push(SegmentReport {
                segment,
                path,
                renamed,
                recycled,
                log,
                summary,
                verdicts,
                end,
            });
        }
        report.judge(evidence);
        report.check_segments(&self.discards(owners_dir, owner).await?);
        Ok(report)
    }

    async fn list(&self, path: &str) -> Result<Vec<String>, InspectError> {
        self.source.list(path).await.map_err(io_error(path))
    }
}

impl OwnerReport {
    fn judge(&mut self, evidence: Evidence<'_>) {
        let mut later = None;
        for segment in self.segments.iter_mut().rev() {
            let evidence = Evidence { later, ..evidence };
            segment.summary.settle(evidence, segment.end);
            segment.verdicts = segment.summary.damage.iter().map(|it| verdict(it, evidence)).collect();
            // A first record that is damaged in its body alone says as much.
            let first_damage = segment.summary.damage.first().filter(|damage| damage.offset == 0);
            let first = match first_damage {
                None => segment.summary.first.map(|first| first.index),
                Some(damage) => damage.index.filter(|_| damage.fault.is_in_body()),
            };
            if let Some(first) = first {
                later = Some((segment.segment, first));
            }
        }
    }

    /// Checks that each segment goes on where the one before it ends.
    fn check_segments(&mut self, discards: &Discards) {
        for pair in self.segments.windows(2) {
            let [before, after] = pair else { continue };
            let (Some(last), Some(first)) = (&before.summary.last, after.summary.first) else { continue };
            let undamaged = before.summary.damage.is_empty() && after.summary.damage.is_empty();
            let goes_on = last.id.index < first.index && discards.are_gone(last.id.index.next()..first.index);
            if undamaged && !goes_on {
                let problem = format!(
                    "{} ends with entry {}, {} begins with entry {}",
                    before.path, last.id.index, after.path, first.index
                );
                self.problems.push(problem);
            }
            if last.rolls() {
                self.problems.push(format!("{} stands behind the roll that ends this owner", after.path));
            }
        }
    }
}

/// Checks that the entry after a roll is the first of the owner that the roll names.
fn check_rolls(owners: &mut [OwnerReport]) {
    let firsts: Vec<_> = owners
        .iter()
        .map(|owner| {
            let first = owner.segments.first().filter(|segment| segment.segment == 0);
            let whole = first.filter(|segment| segment.summary.damage.is_empty());
            (owner.owner, whole.and_then(|segment| segment.summary.first))
        })
        .collect();
    for owner in owners {
        let last = owner.segments.last().and_then(|segment| segment.summary.last.as_ref());
        let Some((next, roll)) =
            last.filter(|last| last.rolls()).and_then(|last| Some((last.roll_to?, last.id)))
        else {
            continue;
        };
        let first = firsts.iter().find(|(owner, _)| *owner == next).and_then(|(_, first)| *first);
        if let Some(first) = first
            && roll.index.0.checked_add(1) != Some(first.index.0)
        {
            let problem = format!(
                "entry {} rolls to owner {:016x}, which begins with entry {}",
                roll.index, next.0, first.index
            );
            owner.problems.push(problem);
        }
    }
}

async fn rehearse(source: Arc<dyn Directory>, spec: &LogSpec) -> Rehearsed {
    let rehearsal = Rehearsal::new(source);
    let disk: Arc<dyn Disk> = Arc::new(rehearsal.clone());
    let opening = match recover(&disk, spec).await {
        Err(error) => Opening::Refused(error),
        Ok(recovered) => {
            let index = recovered.opened.index;
            let first = index.get(index.first()).map(|located| located.id);
            let last = index.last().map(|located| located.id);
            Opening::Opens { first, last, changes: rehearsal.changes() }
        }
    };
    Rehearsed { opening, used: rehearsal.used() }
}

fn io_error(path: &str) -> impl FnOnce(io::Error) -> InspectError + '_ {
    |source| InspectError::Io { path: path.to_owned(), source }
}
