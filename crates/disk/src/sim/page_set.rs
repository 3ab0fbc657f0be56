use std::collections::BTreeMap;
use std::ops::Range;

pub(super) const PAGE_BYTES: u64 = 4096;

/// A set of pages, kept as disjoint ranges that do not touch: small however large the files are.
#[derive(Clone, Default)]
pub(super) struct PageSet {
    /// The ranges: the first page of each, with the page after its last.
    ranges: BTreeMap<u64, u64>,
    pages: u64,
}

impl PageSet {
    pub(super) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    pub(super) fn insert(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let touching = self.ranges.range(..=pages.end).rev().take_while(|(_, end)| **end >= pages.start);
        let touching: Vec<_> = touching.map(|(start, end)| *start..*end).collect();
        let mut joined = pages;
        for range in touching {
            self.ranges.remove(&range.start);
            self.pages -= range.end - range.start;
            joined = joined.start.min(range.start)..joined.end.max(range.end);
        }
        self.pages += joined.end - joined.start;
        self.ranges.insert(joined.start, joined.end);
    }

    pub(super) fn remove(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        for range in self.overlapping(&pages).collect::<Vec<_>>() {
            self.ranges.remove(&range.start);
            self.pages -= range.end - range.start;
            self.insert(range.start..pages.start.max(range.start).min(range.end));
            self.insert(pages.end.min(range.end).max(range.start)..range.end);
        }
    }

    /// The number of the pages that are in the set.
    pub(super) fn count(&self, pages: &Range<u64>) -> u64 {
        self.overlapping(pages).map(|range| range.end.min(pages.end) - range.start.max(pages.start)).sum()
    }

    fn overlapping(&self, pages: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (pages.start, pages.end);
        let below_end = self.ranges.range(..end).rev();
        below_end.take_while(move |(_, last)| **last > start).map(|(first, last)| *first..*last)
    }
}

/// The pages that a range of bytes touches.
pub(super) fn pages_of(offset: u64, bytes: u64) -> Range<u64> {
    if bytes == 0 { 0..0 } else { offset / PAGE_BYTES..offset.saturating_add(bytes).div_ceil(PAGE_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_the_set_that_it_says() {
        for seed in 0..50 {
            let (mut random, mut set, mut model) = (Random::new(seed), PageSet::default(), BTreeSet::new());
            for step in 0..100 {
                let start = random.below(50);
                let pages = start..start + random.below(12);
                if random.one_in(2) {
                    set.insert(pages.clone());
                    model.extend(pages.clone());
                } else {
                    set.remove(pages.clone());
                    model.retain(|page| !pages.contains(page));
                }
                let asked = random.below(30)..30 + random.below(40);
                let context = format!("seed {seed}, step {step}: {:?}", set.ranges);
                assert_eq!(set.bytes(), model.len() as u64 * PAGE_BYTES, "{context}");
                assert_eq!(set.count(&asked), model.range(asked.clone()).count() as u64, "{context}");
                let disjoint = set.ranges.iter().zip(set.ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0);
                assert!(disjoint, "{context}");
            }
        }
    }
}
