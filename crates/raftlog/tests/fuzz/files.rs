//! A data directory at rest: the files of a simulated disk that nobody has open.

use bytes::Bytes;
use disk::Disk;
use disk::sim::SimDisk;
use std::collections::BTreeMap;

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

pub(crate) async fn files_of(disk: &SimDisk) -> Files {
    let mut files = Files::new();
    for (path, bytes) in disk.files() {
        let file = disk.open(&path, false).await.unwrap();
        files.insert(path, file.read_at(0, bytes as usize).await.unwrap().to_vec());
    }
    files
}

pub(crate) async fn disk_of(files: &Files) -> SimDisk {
    let disk = SimDisk::new(crate::world::sim(0, 0));
    for (path, bytes) in files {
        disk.create_dir_all(path.rsplit_once('/').unwrap().0).await.unwrap();
        let file = disk.open(path, true).await.unwrap();
        file.write_and_sync(0, vec![Bytes::copy_from_slice(bytes)]).await.unwrap();
    }
    disk
}

pub(crate) fn is_segment(path: &str) -> bool {
    path.ends_with(".seg")
}

pub(crate) fn is_index(path: &str) -> bool {
    path.ends_with(".idx")
}

/// The log, counted from 0, that a file belongs to: see `world::spec`.
pub(crate) fn log_of(path: &str) -> Option<u64> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["groups" | "meta", group, ..] => Some(group.strip_prefix("log-")?.parse::<u64>().ok()? - 1),
        ["containers", owner, _] => (u64::from_str_radix(owner, 16).ok()? / 1_000_000).checked_sub(1),
        _ => None,
    }
}
