//! Writes around the page cache. What a log takes is written once and mostly read much later, if ever;
//! copying megabytes of it into new pages of the cache is the greater part of what a large write costs.
//!
//! The kernel wants whole blocks of such a write, in memory and in the file. What is before the first and
//! behind the last whole block of a write goes through the cache. The kernel keeps the two ways in step where
//! writes of one file come one after another, as a log's do; with two under way at the same place (or in one
//! large page) it may give up, and call that an error of the disk.

use crate::IoFuture;
use bytes::Bytes;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The bytes of a block; devices with larger ones refuse, and are written to through the cache.
const BLOCK_BYTES: usize = 4096;
/// The least bytes in whole blocks with which a write is cheaper around the cache.
const DIRECT_BYTES_MIN: usize = 64 << 10;
/// The bytes of a piece of memory for whole blocks.
const PIECE_BYTES: usize = 256 << 10;
/// The most pieces that a disk keeps for the next write.
const PIECES_KEPT: usize = 8;

/// One disk's way around the cache.
#[derive(Default)]
pub(crate) struct Direct {
    /// Whether writes around the cache were refused.
    refused: AtomicBool,
    pieces: Mutex<Vec<Vec<u8>>>,
}

impl Direct {
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// A second handle to an open file.
    fn reopen(file: &File) -> Option<Arc<File>> {
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return None;
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path);
        opened.ok().map(Arc::new)
    }

    /// Memory that begins at a block.
    fn piece(self: &Arc<Direct>) -> Piece {
        let kept = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let memory = kept.unwrap_or_else(|| vec![0; PIECE_BYTES + BLOCK_BYTES]);
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        Piece { memory, start, filled: 0, home: self.clone() }
    }

    /// Copies whole blocks from the front of `buffers`.
    fn copy(self: &Arc<Direct>, buffers: &mut VecDeque<Bytes>, mut bytes: usize) -> Vec<Bytes> {
        let mut copies = Vec::with_capacity(bytes.div_ceil(PIECE_BYTES));
        while bytes > 0 {
            let mut piece = self.piece();
            while bytes > 0 && piece.filled < PIECE_BYTES {
                let front = buffers.front_mut().expect("there is as much as was counted");
                let step = front.len().min(bytes).min(PIECE_BYTES - piece.filled);
                piece.fill(&front.split_to(step));
                bytes -= step;
                if front.is_empty() {
                    buffers.pop_front();
                }
            }
            copies.push(Bytes::from_owner(piece));
        }
        copies
    }
}

struct Piece {
    memory: Vec<u8>,
    start: usize,
    filled: usize,
    home: Arc<Direct>,
}

impl Piece {
    fn fill(&mut self, bytes: &[u8]) {
        let at = self.start + self.filled;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.filled]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut kept = self.home.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < PIECES_KEPT {
            kept.push(std::mem::take(&mut self.memory));
        }
    }
}

/// An open file, and the way around the cache once a large write went there.
pub(crate) struct DataFile {
    pub(crate) file: Arc<File>,
    direct: Arc<Direct>,
    around: OnceLock<Option<Arc<File>>>,
    /// Whether something is written into the file now and again that only a sync of all of it makes durable.
    has_unsynced: AtomicBool,
    /// Whether the file had something when it was opened that was not synced since: whoever wrote that may
    /// have been killed before his sync.
    has_earlier: Arc<AtomicBool>,
}

/// One of the writes that a write is made of.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) buffers: Vec<Bytes>,
    /// The way through the cache that a part which goes around it takes if the kernel refuses that.
    pub(crate) instead: Option<Instead>,
}

#[derive(Clone)]
pub(crate) struct Instead {
    pub(crate) file: Arc<File>,
    direct: Arc<Direct>,
}

impl Instead {
    /// The file to write to after a refusal; no other write around the cache is tried any more.
    pub(crate) fn take(self, error: &io::Error) -> Arc<File> {
        tracing::warn!(%error, "a write around the page cache was refused; all go through it from here on");
        self.direct.refuse();
        self.file
    }
}

impl std::fmt::Debug for Instead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("through the cache")
    }
}

impl DataFile {
    pub(crate) fn new(file: File, direct: Arc<Direct>) -> DataFile {
        let is_empty = file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        DataFile {
            file: Arc::new(file),
            direct,
            around: OnceLock::new(),
            has_unsynced: AtomicBool::new(false),
            has_earlier: Arc::new(AtomicBool::new(!is_empty)),
        }
    }

    /// Notes a write without a sync. The note stays when the file is synced: who writes so once does so
    /// again.
    pub(crate) fn note_unsynced(&self) {
        self.has_unsynced.store(true, Ordering::Relaxed);
    }

    /// Notes that all of the file is synced, once a sync that begins now has succeeded.
    pub(crate) fn synced(&self, sync: IoFuture<()>) -> IoFuture<()> {
        if !self.has_earlier.load(Ordering::Relaxed) {
            return sync;
        }
        let has_earlier = self.has_earlier.clone();
        Box::pin(async move {
            sync.await?;
            has_earlier.store(false, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Whether all that is in the file was made durable by whoever wrote it.
    pub(crate) fn is_synced(&self) -> bool {
        !self.has_unsynced.load(Ordering::Relaxed) && !self.has_earlier.load(Ordering::Relaxed)
    }

    /// The parts of a write, in the order in which they are written; none of them is empty.
    pub(crate) fn parts(&self, offset: u64, mut buffers: Vec<Bytes>) -> Vec<Part> {
        buffers.retain(|buffer| !buffer.is_empty());
        let bytes: usize = buffers.iter().map(Bytes::len).sum();
        let head = (BLOCK_BYTES - offset as usize % BLOCK_BYTES) % BLOCK_BYTES;
        let whole = bytes.saturating_sub(head) / BLOCK_BYTES * BLOCK_BYTES;
        let part = |offset, buffers: Vec<Bytes>| {
            let file = self.file.clone();
            (!buffers.is_empty()).then_some(Part { file, offset, buffers, instead: None })
        };
        let around = if whole < DIRECT_BYTES_MIN { None } else { self.around() };
        let Some(around) = around else { return part(offset, buffers).into_iter().collect() };
        let mut rest = VecDeque::from(buffers);
        let before = take(&mut rest, head);
        let blocks = self.direct.copy(&mut rest, whole);
        let instead = Some(Instead { file: self.file.clone(), direct: self.direct.clone() });
        let middle = Part { file: around, offset: offset + head as u64, buffers: blocks, instead };
        let after = part(offset + (head + whole) as u64, rest.into());
        [Some(middle), part(offset, before), after].into_iter().flatten().collect()
    }

    fn around(&self) -> Option<Arc<File>> {
        if self.direct.refused.load(Ordering::Relaxed) {
            return None;
        }
        self.around.get_or_init(|| Direct::reopen(&self.file)).clone()
    }
}

/// Takes the first `bytes` bytes, which are there.
fn take(buffers: &mut VecDeque<Bytes>, mut bytes: usize) -> Vec<Bytes> {
    let mut taken = Vec::new();
    while bytes > 0 {
        let front = buffers.front_mut().expect("there is as much as was counted");
        let step = front.len().min(bytes);
        taken.push(front.split_to(step));
        bytes -= step;
        if front.is_empty() {
            buffers.pop_front();
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_file() -> DataFile {
        DataFile::new(tempfile::tempfile().unwrap(), Arc::default())
    }

    /// The offset of each part, its bytes, and whether it goes around the cache.
    fn parts(file: &DataFile, offset: u64, sizes: &[usize]) -> Vec<(u64, usize, bool)> {
        let mut number = 0u8;
        let mut buffer = |bytes: &usize| -> Bytes {
            (0..*bytes)
                .map(|_| {
                    number = number.wrapping_add(1);
                    number
                })
                .collect()
        };
        let buffers: Vec<Bytes> = sizes.iter().map(&mut buffer).collect();
        let whole = buffers.concat();
        let mut parts = file.parts(offset, buffers);
        let told = parts.iter().map(|part| {
            let bytes = part.buffers.iter().map(Bytes::len).sum();
            let around = part.instead.is_some();
            let is_aligned = |buffer: &Bytes| {
                buffer.as_ptr().addr().is_multiple_of(BLOCK_BYTES) && buffer.len().is_multiple_of(BLOCK_BYTES)
            };
            assert!(!around || part.offset.is_multiple_of(BLOCK_BYTES as u64));
            assert!(!around || part.buffers.iter().all(is_aligned));
            (part.offset, bytes, around)
        });
        let told = told.collect();
        parts.sort_by_key(|part| part.offset);
        let together: Vec<u8> = parts.iter().flat_map(|part| part.buffers.concat()).collect();
        assert!(together == whole);
        told
    }

    #[test]
    fn whole_blocks_of_large_writes_go_around_the_cache() {
        let file = data_file();
        if file.around().is_none() {
            return eprintln!("not tested, this file system has no O_DIRECT");
        }
        let large = DIRECT_BYTES_MIN;
        assert_eq!(parts(&file, 0, &[]), []);
        assert_eq!(parts(&file, 100, &[0, 50, 0]), [(100, 50, false)]);
        assert_eq!(parts(&file, 0, &[large - 1]), [(0, large - 1, false)]);
        assert_eq!(parts(&file, 8192, &[large]), [(8192, large, true)]);
        assert_eq!(
            parts(&file, 4000, &[50, large, 46]),
            [(4096, large, true), (4000, 96, false)],
            "what is around the cache is written first"
        );
        assert_eq!(
            parts(&file, 4000, &[1 << 20, 10]),
            [(4096, 255 * BLOCK_BYTES, true), (4000, 96, false), (4096 + 255 * 4096, 4010, false)]
        );
        file.direct.refuse();
        assert_eq!(parts(&file, 0, &[large]), [(0, large, false)]);
    }

    #[test]
    fn memory_is_used_again_and_not_kept_without_end() {
        let file = data_file();
        let sizes = vec![PIECE_BYTES; 2 * PIECES_KEPT];
        drop(parts(&file, 0, &sizes));
        let kept = |file: &DataFile| file.direct.pieces.lock().unwrap().len();
        let expected = if file.around().is_some() { PIECES_KEPT } else { 0 };
        assert_eq!(kept(&file), expected);
        drop(parts(&file, 0, &sizes));
        assert_eq!(kept(&file), expected);
    }
}
