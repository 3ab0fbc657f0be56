//! The verdict of an error on a replica: only wrong bytes, or a medium that cannot give them back, may
//! condemn one. What a process lacks for a moment (open files, memory) must not: it would condemn every
//! replica that is looked at meanwhile.

use disk::{OpenDiskError, ReadFault};
use proto::Failure;
use raftlog::ReadError;
use std::error::Error;
use std::io;
use tokio::task::JoinError;

/// Whether a look at a container that ended with this failure has found it bad. Whatever reads says in its
/// type why it could not; what remains was read, and is not what it must be.
pub(crate) fn condemns(failure: &anyhow::Error) -> bool {
    failure.chain().find_map(of_cause).unwrap_or(true)
}

fn of_cause(cause: &(dyn Error + 'static)) -> Option<bool> {
    if let Some(read) = cause.downcast_ref::<ReadError>() {
        return Some(read.condemns());
    }
    if let Some(error) = cause.downcast_ref::<io::Error>() {
        return Some(ReadFault::of(error) == ReadFault::Medium);
    }
    if let Some(error) = cause.downcast_ref::<rocksdb::Error>() {
        return Some(of_index(error));
    }
    // A step that was cut short says nothing of the bytes, nor does a `Failure`, which is only somebody's
    // answer.
    (cause.is::<JoinError>() || cause.is::<Failure>()).then_some(false)
}

/// Whether an error of the index condemns. RocksDB has the system's error in its words alone.
fn of_index(error: &rocksdb::Error) -> bool {
    match error.kind() {
        rocksdb::ErrorKind::Corruption => true,
        rocksdb::ErrorKind::IOError => ReadFault::in_words(error.as_ref()) == ReadFault::Medium,
        _ => false,
    }
}

/// Whether what could not be opened may be well: the process ran out of something.
pub(crate) fn is_shortage(failure: &anyhow::Error) -> bool {
    failure.chain().any(|cause| {
        let of_system = cause.downcast_ref::<io::Error>().map(ReadFault::of);
        let of_index =
            cause.downcast_ref::<rocksdb::Error>().map(|error| ReadFault::in_words(error.as_ref()));
        let of_disk = cause.downcast_ref::<OpenDiskError>().and_then(|error| match error {
            OpenDiskError::Io { why, .. } | OpenDiskError::NoRing { why, .. } => Some(ReadFault::of(why)),
            _ => None,
        });
        of_system.or(of_index).or(of_disk) == Some(ReadFault::Shortage)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    const EINTR: i32 = 4;
    const EIO: i32 = 5;
    const ENOMEM: i32 = 12;
    const EMFILE: i32 = 24;

    #[test]
    fn what_could_not_be_read_for_a_moment_condemns_nothing() {
        let check = |failure: anyhow::Error, expect: bool| {
            let failure = failure.context("look at a container");
            assert_eq!(condemns(&failure), expect, "{failure:#}");
        };
        let system = |code| anyhow::Error::from(io::Error::from_raw_os_error(code));
        check(system(EIO), true);
        for passing in [EMFILE, ENOMEM, EINTR] {
            check(system(passing), false);
            assert!(is_shortage(&system(passing).context("open")));
        }
        let disk = |code| OpenDiskError::Io { path: "d".into(), why: io::Error::from_raw_os_error(code) };
        assert!(is_shortage(&disk(EMFILE).into()));
        assert!(!is_shortage(&disk(EIO).into()) && !is_shortage(&system(EIO)));
        let read = |fault| ReadError::Io { file: "f".to_owned(), fault, why: String::new() };
        check(read(ReadFault::Medium).into(), true);
        check(read(ReadFault::Shortage).into(), false);
        check(read(ReadFault::Other).into(), false);
        let damaged = ReadError::Damaged { file: "f".to_owned(), offset: 0, why: String::new() };
        check(damaged.into(), true);
        check(anyhow!("block 1/2 has 1 of 2 chunks"), true);
        check(Failure::internal("somebody else says").into(), false);
        let undecodable: anyhow::Result<()> = Err(anyhow!("a measure of 3 bytes is none"));
        check(undecodable.context("read the index").unwrap_err(), true);
    }
}
