//! Tests of what everything above relies on, of any [`Disk`]; and of a real data directory's stamp and lock.

#![allow(clippy::disallowed_methods)] // tests damage files behind the disk's back
#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

extern crate flotilla_disk as disk;

use disk::DiskIo;

/// The ways to reach a real disk that this machine has.
fn real_io() -> Vec<DiskIo> {
    let dir = tempfile::tempdir().unwrap();
    match disk::RealDisk::open_with(dir.path(), 1, DiskIo::Uring) {
        Ok(_) => vec![DiskIo::Threads, DiskIo::Uring],
        Err(error @ disk::OpenDiskError::NoRing { .. }) => {
            eprintln!("io_uring is not tested: {error}");
            vec![DiskIo::Threads]
        }
        Err(error) => panic!("{error}"),
    }
}

#[path = "disk/conformance.rs"]
mod conformance;
#[path = "disk/data_directory.rs"]
mod data_directory;
#[path = "disk/simulated.rs"]
mod simulated;
#[path = "disk/timed.rs"]
mod timed;
