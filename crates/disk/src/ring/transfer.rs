//! Transfers: what is asked of the kernel, and what to ask next, as it may transfer less than it was asked
//! to.

use crate::direct::{DataFile, Part};
use crate::syscalls;
use bytes::Bytes;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

/// One question to the kernel, with all that it needs until it has answered.
#[derive(Debug)]
pub(super) enum Round {
    /// As many of the part's buffers as one call takes; if those are all, nothing comes after it, and it is
    /// wanted, then a sync.
    Write {
        part: Part,
        after: VecDeque<Part>,
        sync: bool,
    },
    Sync {
        file: Arc<File>,
    },
    /// What the buffer, which has room for it and is not zeroed, lacks of so many bytes. The kernel's side
    /// lengthens it by what was read.
    Read {
        file: Arc<File>,
        offset: u64,
        bytes: usize,
        buffer: Vec<u8>,
    },
}

/// Bytes or a negative error number, as system calls answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) first: i32,
    /// The answer of the sync that was to follow a write.
    pub(super) sync: Option<i32>,
}

#[derive(Debug)]
pub(super) enum Next {
    Ask(Round),
    /// The bytes that were read; none for all else.
    Done(Bytes),
    Failed(Step, io::Error),
    /// Nothing was asked of the kernel.
    Refused(io::Error),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write,
    Sync,
    Read,
}

impl Next {
    pub(super) fn write(file: &DataFile, offset: u64, buffers: Vec<Bytes>, sync: bool) -> Next {
        match syscalls::to_offset(offset) {
            Ok(_) => Next::write_parts(&file.file, file.parts(offset, buffers).into(), sync),
            Err(error) => Next::Refused(error),
        }
    }

    fn write_parts(file: &Arc<File>, mut parts: VecDeque<Part>, sync: bool) -> Next {
        match (parts.pop_front(), sync) {
            (Some(part), _) => Next::Ask(Round::Write { part, after: parts, sync }),
            (None, true) => Next::Ask(Round::Sync { file: file.clone() }),
            (None, false) => Next::Done(Bytes::new()),
        }
    }

    pub(super) fn read(file: Arc<File>, offset: u64, bytes: usize) -> Next {
        if let Err(error) = syscalls::to_offset(offset) {
            return Next::Refused(error);
        }
        if bytes == 0 {
            return Next::Done(Bytes::new());
        }
        Next::Ask(Round::Read { file, offset, bytes, buffer: Vec::with_capacity(bytes) })
    }
}

impl Round {
    pub(super) fn next(self, answer: Answer) -> Next {
        match self {
            Round::Write { part, after, sync } => next_of_write(part, after, sync, answer),
            Round::Sync { file } => match judge_sync(answer.first) {
                Ok(_) => Next::Done(Bytes::new()),
                Err(None) => Next::Ask(Round::Sync { file }),
                Err(Some(error)) => Next::Failed(Step::Sync, error),
            },
            Round::Read { file, offset, bytes, buffer } => match judge(answer.first) {
                Ok(read) if read == 0 || buffer.len() == bytes => Next::Done(buffer.into()),
                Ok(_) | Err(None) => Next::Ask(Round::Read { file, offset, bytes, buffer }),
                Err(Some(error)) => Next::Failed(Step::Read, error),
            },
        }
    }
}

fn next_of_write(mut part: Part, after: VecDeque<Part>, sync: bool, answer: Answer) -> Next {
    // First: a sync that failed has lost data, whatever became of the write.
    let synced = match answer.sync.map(judge_sync) {
        Some(Err(Some(error))) => return Next::Failed(Step::Sync, error),
        Some(Ok(_)) => true,
        Some(Err(None)) | None => false,
    };
    let written = match judge(answer.first) {
        Ok(0) => return Next::Failed(Step::Write, io::ErrorKind::WriteZero.into()),
        Ok(written) => written,
        Err(None) => 0,
        Err(Some(error)) => match part.instead.take() {
            Some(instead) if is_refusal(&error) => {
                part.file = instead.take(&error);
                0
            }
            _ => return Next::Failed(Step::Write, error),
        },
    };
    advance(&mut part.buffers, written);
    part.offset += written as u64;
    if !part.buffers.is_empty() {
        return Next::Ask(Round::Write { part, after, sync });
    }
    match Next::write_parts(&part.file, after, sync) {
        Next::Ask(Round::Sync { .. }) if synced => Next::Done(Bytes::new()),
        next => next,
    }
}

/// The file system, or the device, does not write around the cache, or not so.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// `Err(None)` when nothing took place and the same is to be asked again: the call was interrupted, or the
/// kernel gave it up because of the one before it.
fn judge(result: i32) -> Result<usize, Option<io::Error>> {
    match usize::try_from(result) {
        Ok(count) => Ok(count),
        Err(_) if [libc::EINTR, libc::EAGAIN, libc::ECANCELED].contains(&-result) => Err(None),
        Err(_) => Err(Some(io::Error::from_raw_os_error(-result))),
    }
}

/// A failed sync is never tried again; one that was interrupted, or not begun, has not failed.
fn judge_sync(result: i32) -> Result<usize, Option<io::Error>> {
    if result == -libc::EAGAIN { Err(Some(io::Error::from_raw_os_error(-result))) } else { judge(result) }
}

/// Drops the first `bytes` bytes, which are there.
fn advance(buffers: &mut Vec<Bytes>, mut bytes: usize) {
    let mut whole = 0;
    for buffer in &mut *buffers {
        let step = bytes.min(buffer.len());
        let _ = buffer.split_to(step);
        bytes -= step;
        if !buffer.is_empty() {
            break;
        }
        whole += 1;
    }
    assert_eq!(bytes, 0, "the kernel wrote more than it was given");
    buffers.drain(..whole);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    fn write(sync: bool) -> Round {
        let buffers = vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")];
        let file = DataFile::new(tempfile::tempfile().unwrap(), Arc::default());
        let Next::Ask(round) = Next::write(&file, 100, buffers, sync) else { panic!("there is work") };
        round
    }

    fn answer(first: i32, sync: impl Into<Option<i32>>) -> Answer {
        Answer { first, sync: sync.into() }
    }

    /// The next question, or the outcome, in words.
    fn told(next: Next) -> String {
        match next {
            Next::Ask(Round::Write { part, sync, .. }) => {
                let bytes = String::from_utf8(part.buffers.concat()).unwrap();
                format!("write {bytes} at {}, sync {sync}", part.offset)
            }
            Next::Ask(Round::Sync { .. }) => "sync".to_owned(),
            Next::Ask(Round::Read { buffer, .. }) => format!("read after {}", buffer.len()),
            Next::Done(bytes) => format!("done {}", bytes.len()),
            Next::Refused(error) => format!("refused {:?}", error.kind()),
            Next::Failed(step, error) => format!("{step:?} {:?}", error.kind()),
        }
    }

    #[test]
    fn what_was_not_written_is_written_next_and_synced_after_it() {
        let check = |sync, answer, expected: &str| assert_eq!(told(write(sync).next(answer)), expected);
        check(false, answer(7, None), "done 0");
        check(false, answer(3, None), "write defg at 103, sync false");
        check(false, answer(4, None), "write efg at 104, sync false");
        check(true, answer(7, 0), "done 0");
        check(true, answer(7, -libc::ECANCELED), "sync");
        check(true, answer(7, None), "sync");
        check(true, answer(1, -libc::ECANCELED), "write bcdefg at 101, sync true");
        check(true, answer(1, 0), "write bcdefg at 101, sync true");
        check(true, answer(-libc::EINTR, -libc::ECANCELED), "write abcdefg at 100, sync true");
        check(false, answer(-libc::EAGAIN, None), "write abcdefg at 100, sync false");
    }

    #[test]
    fn errors_name_what_failed() {
        let check = |sync, answer, expected: &str| assert_eq!(told(write(sync).next(answer)), expected);
        check(true, answer(-libc::ENOSPC, -libc::ECANCELED), "Write StorageFull");
        check(true, answer(-libc::ENOSPC, -libc::EIO), "Sync Uncategorized");
        check(true, answer(7, -libc::EIO), "Sync Uncategorized");
        check(true, answer(2, -libc::EIO), "Sync Uncategorized");
        check(false, answer(0, None), "Write WriteZero");
        let sync = |first| told(Round::Sync { file: file() }.next(answer(first, None)));
        assert_eq!(
            (sync(0), sync(-libc::EIO), sync(-libc::EINTR)),
            ("done 0".into(), "Sync Uncategorized".into(), "sync".into())
        );
    }

    #[test]
    fn reads_end_at_the_end_of_the_file_only() {
        let read = |before: i32, first: i32| {
            let buffer = vec![0; (before + first.max(0)) as usize];
            told(Round::Read { file: file(), offset: 5, bytes: 10, buffer }.next(answer(first, None)))
        };
        assert_eq!(read(0, 10), "done 10");
        assert_eq!(read(0, 4), "read after 4");
        assert_eq!(read(4, 6), "done 10");
        assert_eq!(read(4, 0), "done 4");
        assert_eq!(read(4, -libc::EINTR), "read after 4");
        assert_eq!(read(4, -libc::EIO), "Read Uncategorized");
    }
}
