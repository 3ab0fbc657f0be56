use super::page_set::{PAGE_BYTES, PageSet, pages_of};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

type Page = [u8; PAGE_BYTES as usize];

/// A file's bytes. Pages that are not there are zeros; a copy shares its pages until one of the two is
/// written.
#[derive(Clone)]
pub(super) struct Contents {
    len: u64,
    /// The pages that take space: all of `pages`, and what was only allocated.
    allocated: PageSet,
    pages: BTreeMap<u64, Arc<Page>>,
    keeping: Keeping,
}

/// The part of a write that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    Contents,
    /// Lengths and space; reads give zeros. For simulations in time that write more than fits into memory.
    /// Files of at most 64 KiB are kept whole: programs read those again, hard states say.
    Lengths,
}

/// The most bytes of a file that is kept whole by [`Keeping::Lengths`].
pub(super) const SMALL_FILE_BYTES_MAX: u64 = 64 << 10;

impl Contents {
    pub(super) fn new(keeping: Keeping) -> Contents {
        Contents { len: 0, allocated: PageSet::default(), pages: BTreeMap::new(), keeping }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated.bytes()
    }

    /// The bytes that writing or allocating a range would add to [`Contents::allocated_bytes`].
    pub(super) fn missing_bytes(&self, offset: u64, bytes: u64) -> u64 {
        let pages = pages_of(offset, bytes);
        (pages.end - pages.start - self.allocated.count(&pages)) * PAGE_BYTES
    }

    pub(super) fn read(&self, offset: u64, bytes: usize) -> Bytes {
        let end = self.len.min(offset.saturating_add(bytes as u64));
        let mut out = vec![0; end.saturating_sub(offset) as usize];
        let mut at = offset;
        while at < end {
            let (page, start) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let step = (PAGE_BYTES - start as u64).min(end - at) as usize;
            if let Some(page) = self.pages.get(&page) {
                let to = (at - offset) as usize;
                out[to..to + step].copy_from_slice(&page[start..start + step]);
            }
            at += step as u64;
        }
        out.into()
    }

    /// Writes what lies inside the length; the length is metadata and changes by [`Contents::set_len`] alone.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = self.len.min(offset + bytes.len() as u64);
        self.allocated.insert(pages_of(offset, end.saturating_sub(offset)));
        if !self.keeps_pages() {
            return;
        }
        let mut at = offset;
        while at < end {
            let (page, start) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let step = (PAGE_BYTES - start as u64).min(end - at) as usize;
            let from = (at - offset) as usize;
            self.page(page)[start..start + step].copy_from_slice(&bytes[from..from + step]);
            at += step as u64;
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let pages = len.div_ceil(PAGE_BYTES);
            self.allocated.remove(pages..u64::MAX);
            self.pages.split_off(&pages);
            self.clear(len, pages * PAGE_BYTES);
        }
        self.len = len;
        self.forget_if_large();
    }

    pub(super) fn allocate(&mut self, bytes: u64) {
        self.allocated.insert(pages_of(0, bytes));
        self.len = self.len.max(bytes);
        self.forget_if_large();
    }

    fn keeps_pages(&self) -> bool {
        self.keeping == Keeping::Contents || self.len <= SMALL_FILE_BYTES_MAX
    }

    fn forget_if_large(&mut self) {
        if !self.keeps_pages() {
            self.pages.clear();
        }
    }

    pub(super) fn punch_hole(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(self.len);
        // The file system keeps pages that are punched in part.
        let whole = offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        if whole.is_empty() {
            return self.clear(offset, end);
        }
        self.clear(offset, whole.start * PAGE_BYTES);
        self.clear(whole.end * PAGE_BYTES, end);
        let mut after = self.pages.split_off(&whole.start);
        self.pages.append(&mut after.split_off(&whole.end));
        self.allocated.remove(whole);
    }

    /// Writes zeros where there are pages.
    fn clear(&mut self, offset: u64, end: u64) {
        let mut at = offset;
        while at < end {
            let (page, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let step = (PAGE_BYTES - start).min(end - at);
            if self.pages.contains_key(&page) {
                self.page(page)[start as usize..(start + step) as usize].fill(0);
            }
            at += step;
        }
    }

    fn page(&mut self, page: u64) -> &mut Page {
        Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize])))
    }
}
