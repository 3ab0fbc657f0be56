use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const PAGE_BYTES: u64 = 4096;
type Page = [u8; PAGE_BYTES as usize];

/// A file's bytes. Pages that are not there are holes; a copy shares its pages until one of the two is written.
#[derive(Clone, Default)]
pub(super) struct Contents {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Contents {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_BYTES
    }

    /// What writing or allocating a range would add to [`Contents::allocated_bytes`].
    pub(super) fn missing_bytes(&self, offset: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let (first, end) = (offset / PAGE_BYTES, (offset + bytes).div_ceil(PAGE_BYTES));
        (end - first - self.pages.range(first..end).count() as u64) * PAGE_BYTES
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
            self.pages.retain(|page, _| *page < len.div_ceil(PAGE_BYTES));
            let (last, rest) = (len / PAGE_BYTES, (len % PAGE_BYTES) as usize);
            if rest > 0 && self.pages.contains_key(&last) {
                self.page(last)[rest..].fill(0);
            }
        }
        self.len = len;
    }

    pub(super) fn allocate(&mut self, bytes: u64) {
        let zeros = Arc::new([0; PAGE_BYTES as usize]);
        for page in 0..bytes.div_ceil(PAGE_BYTES) {
            self.pages.entry(page).or_insert_with(|| zeros.clone());
        }
        self.len = self.len.max(bytes);
    }

    pub(super) fn punch_hole(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(self.len);
        let mut at = offset;
        while at < end {
            let (page, start) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let step = (PAGE_BYTES - start as u64).min(end - at);
            if step == PAGE_BYTES {
                self.pages.remove(&page);
            } else if self.pages.contains_key(&page) {
                self.page(page)[start..start + step as usize].fill(0);
            }
            at += step;
        }
    }

    fn page(&mut self, page: u64) -> &mut Page {
        Arc::make_mut(self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize])))
    }
}
