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
    /// A write of as many of the part's buffers as one call takes; and the sync that is to follow, where
    /// those are all and no part comes after.
    Write {
        part: Part,
        after: VecDeque<Part>,
        durable: Durable,
    },
    Sync {
        file: Arc<File>,
    },
    /// A read of what the buffer lacks of `bytes` bytes, for which it has room that is not zeroed. The
    /// kernel's side lengthens the buffer by what was read.
    Read {
        file: Arc<File>,
        offset: u64,
        bytes: usize,
        buffer: Vec<u8>,
    },
}

/// The way in which what is written becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durable {
    No,
    /// The write is a synchronous one, which answers once, and covers its own bytes alone.
    ByItself,
    /// A sync follows, and covers all of the file.
    BySync,
}

/// The kernel's answer to a round: bytes or a negative error number, as system calls answer.
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
    /// The operation was refused before anything was asked of the kernel.
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
        if let Err(error) = syscalls::to_offset(offset) {
            return Next::Refused(error);
        }
        let parts = file.parts(offset, buffers);
        let durable = match sync {
            false => {
                file.note_unsynced();
                Durable::No
            }
            true if parts.len() == 1 && file.is_synced() => Durable::ByItself,
            true => Durable::BySync,
        };
        Next::write_parts(&file.file, parts.into(), durable)
    }

    fn write_parts(file: &Arc<File>, mut parts: VecDeque<Part>, durable: Durable) -> Next {
        match (parts.pop_front(), durable) {
            (Some(part), _) => Next::Ask(Round::Write { part, after: parts, durable }),
            (None, Durable::BySync) => Next::Ask(Round::Sync { file: file.clone() }),
            (None, Durable::No | Durable::ByItself) => Next::Done(Bytes::new()),
        }
    }

    pub(super) fn read(file: Arc<File>, offset: u64, bytes: usize, begun: Vec<u8>) -> Next {
        if let Err(error) = syscalls::to_offset(offset) {
            return Next::Refused(error);
        }
        if bytes == 0 {
            return Next::Done(Bytes::new());
        }
        let mut buffer = begun;
        buffer.reserve_exact(bytes.saturating_sub(buffer.len()));
        Next::Ask(Round::Read { file, offset, bytes, buffer })
    }
}

impl Round {
    pub(super) fn next(self, answer: Answer) -> Next {
        match self {
            Round::Write { part, after, durable } => next_of_write(part, after, durable, answer),
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

fn next_of_write(mut part: Part, after: VecDeque<Part>, mut durable: Durable, answer: Answer) -> Next {
    // The sync is looked at first: one that failed has lost data, whatever became of the write.
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
            // The bytes of a synchronous write are written anew, with a sync apart that shows which of the
            // two failed.
            _ if durable == Durable::ByItself && is_clean(&error) => {
                durable = Durable::BySync;
                0
            }
            // What failed was perhaps a flush of the device, with what others had in its cache.
            _ if durable == Durable::ByItself => return Next::Failed(Step::Sync, error),
            _ => return Next::Failed(Step::Write, error),
        },
    };
    advance(&mut part.buffers, written);
    part.offset += written as u64;
    if !part.buffers.is_empty() {
        return Next::Ask(Round::Write { part, after, durable });
    }
    match Next::write_parts(&part.file, after, durable) {
        Next::Ask(Round::Sync { .. }) if synced => Next::Done(Bytes::new()),
        next => next,
    }
}

/// Whether the kernel may have refused a write before it began. With any other error a synchronous write may
/// have lost what was accepted before, like a sync that fails.
fn is_clean(error: &io::Error) -> bool {
    let clean = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOMEM];
    error.raw_os_error().is_some_and(|code| clean.contains(&code))
}

/// Whether the file system, or the device, does not write around the cache, or not so.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// The count or the error that the kernel answered. `Err(None)`: nothing took place and the same is to be
/// asked again, as the call was interrupted, or the kernel gave it up because of the one before it.
fn judge(result: i32) -> Result<usize, Option<io::Error>> {
    match usize::try_from(result) {
        Ok(count) => Ok(count),
        Err(_) if [libc::EINTR, libc::EAGAIN, libc::ECANCELED].contains(&-result) => Err(None),
        Err(_) => Err(Some(io::Error::from_raw_os_error(-result))),
    }
}

/// The answer to a sync, judged: a failed sync is never tried again; one that was interrupted, or not begun,
/// has not failed.
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
    use super::Durable::{ByItself, BySync, No};
    use super::*;

    fn file() -> Arc<File> {
        Arc::new(tempfile::tempfile().unwrap())
    }

    fn write(durable: Durable) -> Round {
        let buffers = vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")];
        let file = DataFile::new(tempfile::tempfile().unwrap(), Arc::default());
        let parts = file.parts(100, buffers).into();
        let Next::Ask(round) = Next::write_parts(&file.file, parts, durable) else { panic!("there is work") };
        round
    }

    fn answer(first: i32, sync: impl Into<Option<i32>>) -> Answer {
        Answer { first, sync: sync.into() }
    }

    /// The next question, or the outcome, in words.
    fn told(next: Next) -> String {
        match next {
            Next::Ask(Round::Write { part, durable, .. }) => {
                let bytes = String::from_utf8(part.buffers.concat()).unwrap();
                format!("write {bytes} at {}, {durable:?}", part.offset)
            }
            Next::Ask(Round::Sync { .. }) => "sync".to_owned(),
            Next::Ask(Round::Read { buffer, .. }) => format!("read after {}", buffer.len()),
            Next::Done(bytes) => format!("done {}", bytes.len()),
            Next::Refused(error) => format!("refused {:?}", error.kind()),
            Next::Failed(step, error) => format!("{step:?} {:?}", error.kind()),
        }
    }

    #[test]
    fn what_was_not_written_is_written_next_and_made_durable_as_the_rest() {
        let check = |durable, answer, expected: &str| {
            assert_eq!(told(write(durable).next(answer)), expected);
        };
        check(No, answer(7, None), "done 0");
        check(No, answer(3, None), "write defg at 103, No");
        check(No, answer(4, None), "write efg at 104, No");
        check(No, answer(-libc::EAGAIN, None), "write abcdefg at 100, No");
        check(BySync, answer(7, 0), "done 0");
        check(BySync, answer(7, -libc::ECANCELED), "sync");
        check(BySync, answer(7, None), "sync");
        check(BySync, answer(1, -libc::ECANCELED), "write bcdefg at 101, BySync");
        check(BySync, answer(1, 0), "write bcdefg at 101, BySync");
        check(BySync, answer(-libc::EINTR, -libc::ECANCELED), "write abcdefg at 100, BySync");
        check(ByItself, answer(7, None), "done 0");
        check(ByItself, answer(4, None), "write efg at 104, ByItself");
        check(ByItself, answer(-libc::EINTR, None), "write abcdefg at 100, ByItself");
    }

    #[test]
    fn a_write_covers_its_own_bytes_only_where_no_others_of_the_file_wait_for_a_sync() {
        let durable = |file: &DataFile, offset, sync| match Next::write(
            file,
            offset,
            vec![Bytes::from(vec![1; 100 << 10])],
            sync,
        ) {
            Next::Ask(Round::Write { durable, .. }) => durable,
            other => panic!("{other:?}"),
        };
        let file = DataFile::new(tempfile::tempfile().unwrap(), Arc::default());
        assert_eq!(durable(&file, 0, true), ByItself);
        // What goes around the page cache has a part on each side that does not.
        let parts = file.parts(100, vec![Bytes::from(vec![1; 100 << 10])]).len();
        assert_eq!(durable(&file, 100, true), if parts == 1 { ByItself } else { BySync });
        assert_eq!(durable(&file, 0, false), No);
        assert_eq!(durable(&file, 0, true), BySync);
    }

    /// Whoever wrote into such a file may have been killed before his sync.
    #[tokio::test]
    async fn a_file_that_has_something_when_it_is_opened_is_synced_whole_once() {
        let durable = |file: &DataFile| match Next::write(file, 0, vec![Bytes::from_static(b"abc")], true) {
            Next::Ask(Round::Write { durable, .. }) => durable,
            other => panic!("{other:?}"),
        };
        let left = tempfile::tempfile().unwrap();
        left.set_len(1).unwrap();
        let file = DataFile::new(left, Arc::default());
        let failed = file.synced(Box::pin(async { Err(io::Error::from_raw_os_error(libc::EIO)) })).await;
        assert!(failed.is_err() && durable(&file) == BySync);
        file.synced(Box::pin(async { Ok(()) })).await.unwrap();
        assert_eq!(durable(&file), ByItself);
        file.note_unsynced();
        file.synced(Box::pin(async { Ok(()) })).await.unwrap();
        assert_eq!(durable(&file), BySync, "who writes without a sync does so again");
    }

    #[test]
    fn errors_name_what_failed() {
        let check = |durable, answer, expected: &str| {
            assert_eq!(told(write(durable).next(answer)), expected);
        };
        check(BySync, answer(-libc::ENOSPC, -libc::ECANCELED), "Write StorageFull");
        check(BySync, answer(-libc::ENOSPC, -libc::EIO), "Sync Uncategorized");
        check(BySync, answer(7, -libc::EIO), "Sync Uncategorized");
        check(BySync, answer(2, -libc::EIO), "Sync Uncategorized");
        check(No, answer(0, None), "Write WriteZero");
        for lost in [libc::EIO, libc::ENODATA, libc::EREMOTEIO, libc::EILSEQ, libc::ENOLINK] {
            check(ByItself, answer(-lost, None), "Sync Uncategorized");
        }
        check(ByItself, answer(-libc::ETIMEDOUT, None), "Sync TimedOut");
        for refused in [libc::ENOSPC, libc::EFBIG, libc::EOPNOTSUPP] {
            check(ByItself, answer(-refused, None), "write abcdefg at 100, BySync");
        }
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
        assert_eq!(told(Next::read(file(), 5, 10, vec![0; 3])), "read after 3");
        assert_eq!(read(0, 10), "done 10");
        assert_eq!(read(0, 4), "read after 4");
        assert_eq!(read(4, 6), "done 10");
        assert_eq!(read(4, 0), "done 4");
        assert_eq!(read(4, -libc::EINTR), "read after 4");
        assert_eq!(read(4, -libc::EIO), "Read Uncategorized");
    }
}
