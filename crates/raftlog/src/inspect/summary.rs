use super::{Damage, Evidence, Item, SeenRecord, SegmentScan, Verdict, verdict};
use std::fmt;
use std::io;
use types::{LogId, Term};

/// A summary of what one whole segment holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSummary {
    pub records: u64,
    /// The bytes of the whole records.
    pub record_bytes: u64,
    pub file_bytes: u64,
    pub unused_bytes: u64,
    pub first: Option<LogId>,
    pub last: Option<SeenRecord>,
    pub terms: Option<(Term, Term)>,
    pub damage: Vec<Damage>,
    /// The former contents of a recycled file: they stand behind the end of the log and are none of its
    /// damage.
    pub old_bytes: Option<Damage>,
}

impl SegmentSummary {
    pub async fn of(scan: &mut SegmentScan) -> io::Result<SegmentSummary> {
        let mut summary = SegmentSummary { file_bytes: scan.file_bytes(), ..SegmentSummary::default() };
        while let Some(item) = scan.next().await? {
            summary.add(item);
        }
        Ok(summary)
    }

    pub fn add(&mut self, item: Item) {
        match item {
            Item::Damage(damage) if damage.is_old_bytes() => self.old_bytes = Some(damage),
            Item::Damage(damage) => self.damage.push(damage),
            Item::Unused { bytes, .. } => self.unused_bytes = bytes,
            Item::Record(record) => {
                self.records += 1;
                self.record_bytes += record.bytes;
                self.first.get_or_insert(record.id);
                let term = record.id.term;
                let (lowest, highest) = self.terms.unwrap_or((term, term));
                self.terms = Some((lowest.min(term), highest.max(term)));
                self.last = Some(record);
            }
        }
    }

    /// Tells damage from old bytes by what is known beside the file; `end` is where a start would cut it.
    pub fn settle(&mut self, evidence: Evidence<'_>, end: Option<u64>) {
        let rolls = self.last.as_ref().is_some_and(SeenRecord::rolls);
        // Something that was durable should stand there.
        let is_missed = |old: &mut Damage| {
            let verdict = verdict(old, evidence);
            !rolls && matches!(verdict, Verdict::Refused { .. } | Verdict::OpensWithoutEntry { .. })
        };
        self.damage.extend(self.old_bytes.take_if(is_missed));
        if let Some(last) = self.damage.pop_if(|last| Some(last.offset) == end && last.may_be_old_bytes()) {
            self.old_bytes = Some(last);
        }
    }

    /// The number of entries that the records around damage say are missing, and whether there may be more.
    pub fn entries_lost(&self) -> (u64, bool) {
        let lost = self.damage.iter().map(Damage::entries_lost);
        let known = lost.clone().flatten().fold(0, u64::saturating_add);
        (known, lost.into_iter().any(|lost| lost.is_none()))
    }
}

impl fmt::Display for SegmentSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records, {} of {} bytes", self.records, self.record_bytes, self.file_bytes)?;
        if let (Some(first), Some(last), Some((from, to))) = (self.first, &self.last, self.terms) {
            write!(f, ", index {}..={}, term {from}..={to}", first.index, last.id.index)?;
        }
        if let Some(owner) = self.last.as_ref().filter(|last| last.rolls()).and_then(|last| last.roll_to) {
            write!(f, ", goes on in owner {:016x}", owner.0)?;
        }
        if self.unused_bytes > 0 {
            write!(f, ", {} bytes unused", self.unused_bytes)?;
        }
        if let Some(old) = &self.old_bytes {
            write!(f, ", {} old bytes of a recycled file", old.bytes())?;
        }
        match (self.damage.len(), self.entries_lost()) {
            (0, _) => write!(f, ", whole"),
            (places, (0, _)) => write!(f, ", DAMAGED in {places} place(s)"),
            (places, (lost, more)) => {
                let at_least = if more { "at least " } else { "" };
                write!(f, ", DAMAGED in {places} place(s), {at_least}{lost} entries lost")
            }
        }
    }
}
