//! The measure of a closed container, found by reading its segments: what it takes, its hash. A cache that is
//! computed again where it is missing; deleting blocks changes all of it. Where the container ends is in its
//! record.

use super::{Index, keys};
use anyhow::{Context, ensure};
use bytes::{Buf, BufMut};
use raftlog::DiscardsSum;
use rocksdb::{Direction, IteratorMode, WriteBatch};
use types::{ContainerId, LogId, LogIndex, Term};

const VERSION: u8 = 6;
const HASHED: u8 = 1;
const COPIED: u8 = 2;
/// The record has more than how long the list of discarded bodies is.
const MEASURED: u8 = 4;
const HASH_BYTES: usize = 32;
const FLAGS_AT: usize = 1;
/// The bytes before the terms.
const BYTES: usize = 1 + 1 + USE_BYTES + HASH_BYTES + FACTS_BYTES;
const USE_BYTES: usize = 8 + 8 + 4 + 5 * 8;
const FACTS_BYTES: usize = 8 + 4;
const TERM_BYTES: usize = 8 + 8 + 8 + 4;
const REPEAT_BYTES: usize = 8;

/// The terms of the entries that a container has: those of one index are the same on two replicas only if
/// they are of one term and of one leader, and then all before them are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The first entry that stands in the container.
    pub first: LogIndex,
    /// The end of each term; none as long as nobody has read the container.
    pub ends: Vec<TermEnd>,
}

/// The records of a term that stand in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TermEnd {
    pub last: LogId,
    pub mark: Option<Mark>,
}

/// The last record that a replica knows to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    Read(TermEnd),
    /// The replica is damaged before it: its term is not known, and taken for that of the replica's last
    /// record.
    Unread(LogId),
}

impl Committed {
    pub(crate) fn end(self) -> TermEnd {
        match self {
            Committed::Read(end) => end,
            Committed::Unread(last) => TermEnd { last, mark: None },
        }
    }
}

/// The first record of a term that has a body. A term has one leader, unless a disk came back with the votes
/// of another day: then this tells the records of the two apart. Each block has a nonce of its writer, so two
/// leaders have one record only of a chunk that was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub at: LogIndex,
    /// The checksum of all that stands before the record's body.
    pub crc: u32,
}

impl Terms {
    /// Takes in the next record; `mark` makes the mark of one that may be the first of its term with a body.
    pub(crate) fn push(&mut self, id: LogId, mark: impl FnOnce() -> Option<Mark>) {
        match self.ends.last_mut() {
            Some(end) if end.last.term == id.term => {
                *end = TermEnd { last: id, mark: end.mark.or_else(mark) };
            }
            Some(_) => self.ends.push(TermEnd { last: id, mark: mark() }),
            None => *self = Terms { first: id.index, ends: vec![TermEnd { last: id, mark: mark() }] },
        }
    }

    /// The last entry that the container has up to an index, and the mark of its term up to there.
    pub(crate) fn last_to(&self, index: LogIndex) -> Option<TermEnd> {
        let last = *self.ends.last()?;
        let end = self.ends.iter().find(|end| index <= end.last.index);
        let here = end.map_or(last, |end| TermEnd {
            last: LogId { index, ..end.last },
            mark: end.mark.filter(|mark| mark.at <= index),
        });
        (index >= self.first).then_some(here)
    }
}

/// The facts that are found out from all records of a container together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub terms: Terms,
    /// Entries that look like the first chunk of a block and began none. Few: writers that sent it again.
    pub repeats: Vec<LogIndex>,
}

impl Facts {
    pub(crate) fn put(&self, at: &mut Vec<u8>) {
        let Terms { first, ends } = &self.terms;
        at.put_u64_le(first.0);
        at.put_u32_le(ends.len() as u32);
        for end in ends {
            at.put_u64_le(end.last.term.0);
            at.put_u64_le(end.last.index.0);
            at.put_u64_le(end.mark.map_or(0, |mark| mark.at.0));
            at.put_u32_le(end.mark.map_or(0, |mark| mark.crc));
        }
        self.repeats.iter().for_each(|index| at.put_u64_le(index.0));
    }

    /// Decodes facts from all of `value`.
    pub(crate) fn get(mut value: &[u8]) -> anyhow::Result<Facts> {
        let bytes = value.len();
        ensure!(bytes >= FACTS_BYTES, "{bytes} bytes say nothing of a container's terms");
        let (first, count) = (LogIndex(value.get_u64_le()), value.get_u32_le() as usize);
        let terms_bytes = count.saturating_mul(TERM_BYTES);
        let is_whole = value.len() >= terms_bytes && (value.len() - terms_bytes).is_multiple_of(REPEAT_BYTES);
        ensure!(is_whole, "{bytes} bytes are not those of {count} terms");
        let (ends, repeats) = value.split_at(terms_bytes);
        let end = |mut end: &[u8]| {
            let last = LogId { term: Term(end.get_u64_le()), index: LogIndex(end.get_u64_le()) };
            let mark = Mark { at: LogIndex(end.get_u64_le()), crc: end.get_u32_le() };
            // A group's entry 0 names its members.
            TermEnd { last, mark: Some(mark).filter(|mark| mark.at > LogIndex(0)) }
        };
        let terms = Terms { first, ends: ends.chunks_exact(TERM_BYTES).map(end).collect() };
        let repeats = repeats.chunks_exact(REPEAT_BYTES).map(|mut repeat| LogIndex(repeat.get_u64_le()));
        Ok(Facts { terms, repeats: repeats.collect() })
    }
}

/// The room that a container's files take on its disk, and what was given up of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUse {
    /// The lengths of the files, but for the holes of deleted blocks.
    pub bytes: u64,
    /// The bytes of the list of discarded bodies, and the first segment that counts: while neither changes,
    /// `discards` is the list's sum.
    pub list_bytes: u64,
    pub first_segment: u32,
    pub discards: DiscardsSum,
}

impl DiskUse {
    fn put(&self, at: &mut Vec<u8>) {
        let DiskUse { bytes, list_bytes, first_segment, discards } = *self;
        let DiscardsSum { blocks, digest, body_bytes, hole_bytes, dead_bytes } = discards;
        at.put_u64_le(bytes);
        at.put_u64_le(list_bytes);
        at.put_u32_le(first_segment);
        [blocks, digest, body_bytes, hole_bytes, dead_bytes].iter().for_each(|field| at.put_u64_le(*field));
    }

    fn get(value: &mut &[u8]) -> DiskUse {
        let (bytes, list_bytes) = (value.get_u64_le(), value.get_u64_le());
        let first_segment = value.get_u32_le();
        let discards = DiscardsSum {
            blocks: value.get_u64_le(),
            digest: value.get_u64_le(),
            body_bytes: value.get_u64_le(),
            hole_bytes: value.get_u64_le(),
            dead_bytes: value.get_u64_le(),
        };
        DiskUse { bytes, list_bytes, first_segment, discards }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measure {
    pub used: DiskUse,
    /// Whether the replica came from another node, and not from a log of this disk.
    pub copied: bool,
    /// The hash of docs/format/container-hash.md; `None` until it is computed.
    pub hash: Option<[u8; HASH_BYTES]>,
    /// The facts that are found with the hash.
    pub facts: Facts,
}

impl Measure {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Facts { terms, repeats } = &self.facts;
        let rest = terms.ends.len() * TERM_BYTES + repeats.len() * REPEAT_BYTES;
        let mut at = Vec::with_capacity(BYTES + rest);
        at.put_u8(VERSION);
        let hashed = if self.hash.is_some() { HASHED } else { 0 };
        at.put_u8(MEASURED | hashed | if self.copied { COPIED } else { 0 });
        self.used.put(&mut at);
        at.put_slice(&self.hash.unwrap_or_default());
        self.facts.put(&mut at);
        at
    }

    /// Decodes a measure; `None` for one of an older version, and where blocks have been deleted since: it is
    /// found out again.
    fn decode(mut value: &[u8]) -> anyhow::Result<Option<Measure>> {
        let bytes = value.len();
        ensure!(bytes > 0, "a measure of no bytes is none");
        let version = value.get_u8();
        ensure!(version <= VERSION, "the version {version} of a measure is unknown");
        if version < VERSION {
            return Ok(None);
        }
        ensure!(bytes >= BYTES, "a measure of {bytes} bytes is none");
        let flags = value.get_u8();
        ensure!(flags & !(HASHED | COPIED | MEASURED) == 0, "unknown flags {flags:#04x} in a measure");
        if flags & MEASURED == 0 {
            return Ok(None);
        }
        let used = DiskUse::get(&mut value);
        let (hash, value) = value.split_at(HASH_BYTES);
        let hash = (flags & HASHED != 0).then(|| hash.try_into().expect("it has 32 bytes"));
        let facts = Facts::get(value).context("decode a measure")?;
        Ok(Some(Measure { used, copied: flags & COPIED != 0, hash, facts }))
    }
}

/// The record of a container that nobody has measured since blocks of it were deleted: its list of discarded
/// bodies is as long as this. It is durable when their rows are gone, so a list that ends before is damaged.
pub(super) fn unmeasured(list_bytes: u64) -> Vec<u8> {
    let mut value =
        Measure { used: DiskUse { list_bytes, ..DiskUse::default() }, ..Measure::default() }.encode();
    value[FLAGS_AT] = 0;
    value
}

/// The length of the list that a record of this version tells of.
fn list_bytes(value: &[u8]) -> anyhow::Result<u64> {
    let is_known = value.len() >= BYTES && value[0] == VERSION;
    Ok(if is_known { DiskUse::get(&mut &value[FLAGS_AT + 1..]).list_bytes } else { 0 })
}

impl Index {
    /// The bytes that a container's list of discarded bodies has at least.
    pub(crate) fn list_bytes(&self, container: ContainerId) -> anyhow::Result<u64> {
        Ok(self.get(&keys::measure(container), list_bytes)?.unwrap_or_default())
    }

    /// [`Index::list_bytes`] of all containers.
    pub(crate) fn all_list_bytes(&self) -> anyhow::Result<Vec<(ContainerId, u64)>> {
        let start = keys::measure(ContainerId(0));
        let mut all = Vec::new();
        for row in self.db.rocks().iterator(IteratorMode::From(&start, Direction::Forward)) {
            let (key, value) = row.context("list how long lists of discarded bodies are")?;
            if key.first() != start.first() {
                break;
            }
            let id = keys::parse_id(&key).context("a key of no container among those of measures")?;
            all.push((ContainerId(id), list_bytes(&value)?));
        }
        Ok(all)
    }

    pub(crate) fn measure(&self, container: ContainerId) -> anyhow::Result<Option<Measure>> {
        Ok(self.get(&keys::measure(container), Measure::decode)?.flatten())
    }

    /// Saves the measure; it is not durable on return.
    pub(crate) fn save_measure(&self, container: ContainerId, measure: &Measure) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(keys::measure(container), measure.encode());
        self.db.write(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_6_is_laid_out_as_documented() {
        let last = LogId { term: Term(8), index: LogIndex(11) };
        let ends = vec![TermEnd { last, mark: Some(Mark { at: LogIndex(9), crc: 10 }) }];
        let terms = Terms { first: LogIndex(7), ends };
        let discards = DiscardsSum { blocks: 12, digest: 13, body_bytes: 14, hole_bytes: 15, dead_bytes: 16 };
        let measure = Measure {
            used: DiskUse { bytes: 4, list_bytes: 2, first_segment: 3, discards },
            copied: true,
            hash: Some([5; HASH_BYTES]),
            facts: Facts { terms, repeats: vec![LogIndex(6)] },
        };
        let mut bytes = vec![6, 7];
        [4u64, 2].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(3u32.to_le_bytes());
        (12..17u64).for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend([5; HASH_BYTES]);
        bytes.extend(7u64.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        [8u64, 11, 9].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(10u32.to_le_bytes());
        bytes.extend(6u64.to_le_bytes());
        assert_eq!(measure.encode(), bytes);
        assert_eq!(Measure::decode(&bytes).unwrap(), Some(measure));
        assert!(Measure::decode(&bytes[..20]).is_err());
        bytes[0] = 7;
        assert!(Measure::decode(&bytes).is_err(), "a later version");
        bytes[0] = 5;
        assert_eq!(Measure::decode(&bytes).unwrap(), None, "an older one");
        bytes[0] = 6;
        bytes[1] = 8;
        assert!(Measure::decode(&bytes).is_err(), "unknown flags");
        let unmeasured = unmeasured(9);
        assert_eq!((Measure::decode(&unmeasured).unwrap(), list_bytes(&unmeasured).unwrap()), (None, 9));
        assert_eq!(list_bytes(&bytes).unwrap(), 2);
        let none = Measure::default();
        assert_eq!(Measure::decode(&none.encode()).unwrap(), Some(none));
    }

    #[test]
    fn terms_say_what_stands_at_an_index() {
        let id = |term, index| LogId { term: Term(term), index: LogIndex(index) };
        let mut terms = Terms::default();
        assert_eq!(terms.last_to(LogIndex(9)), None);
        let mark = |at: u64| Some(Mark { at: LogIndex(at), crc: at as u32 });
        for (term, index) in [(1, 5), (1, 6), (3, 7), (3, 8), (3, 9)] {
            terms.push(id(term, index), || mark(index).filter(|_| index > 7));
        }
        let end = |last, mark| TermEnd { last, mark };
        let ends = vec![end(id(1, 6), None), end(id(3, 9), mark(8))];
        assert_eq!(terms, Terms { first: LogIndex(5), ends });
        let at = |index| terms.last_to(LogIndex(index));
        assert_eq!([at(4), at(5), at(6)], [None, Some(end(id(1, 5), None)), Some(end(id(1, 6), None))]);
        let third = [at(7), at(8), at(20)].map(Option::unwrap);
        assert_eq!(third, [end(id(3, 7), None), end(id(3, 8), mark(8)), end(id(3, 9), mark(8))]);
    }
}
