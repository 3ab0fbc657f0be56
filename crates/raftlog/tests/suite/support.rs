use bytes::Bytes;
use disk::RealDisk;
use raftlog::{Entry, Log, LogSpace, LogSpaceOptions, LogSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Payload, Term};

/// A data directory in a temporary place.
pub(crate) struct Machine {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) options: LogSpaceOptions,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine {
            dir: tempfile::tempdir().unwrap(),
            options: LogSpaceOptions { reserve_bytes: 0, ..Default::default() },
        }
    }

    pub(crate) fn small_segments(segment_bytes_max: u64) -> Machine {
        let mut machine = Machine::new();
        machine.options.segment_bytes_max = segment_bytes_max;
        machine
    }

    /// Everything a log reads comes from the disk.
    pub(crate) fn without_cache(mut self) -> Machine {
        (self.options.cache_bytes_per_log_max, self.options.cache_bytes_max) = (0, 0);
        self
    }

    pub(crate) fn start(&self) -> Arc<LogSpace> {
        let disk = RealDisk::open(&self.dir.path().join("disk"), 1).unwrap();
        LogSpace::new(Arc::new(disk), self.options.clone())
    }

    /// Starts on the same directory once the process before has let go of it.
    pub(crate) async fn start_again(&self) -> Arc<LogSpace> {
        let patience = std::time::Duration::from_secs(60);
        let disk = RealDisk::open_once_free(&self.dir.path().join("disk"), 1, patience).await.unwrap();
        LogSpace::new(Arc::new(disk), self.options.clone())
    }

    pub(crate) fn segment(&self, owner: u64, segment: u32) -> PathBuf {
        self.dir.path().join(format!("disk/containers/{owner:016x}/{segment:08x}.seg"))
    }

    pub(crate) fn segment_index(&self, owner: u64, segment: u32) -> PathBuf {
        self.segment(owner, segment).with_extension("idx")
    }

    pub(crate) fn hard_state(&self, log: u64) -> PathBuf {
        self.dir.path().join(format!("disk/groups/log-{log}/hard-state"))
    }
}

pub(crate) fn spec(log: u64) -> LogSpec {
    LogSpec {
        log,
        dir: format!("groups/log-{log}"),
        owners_dir: "containers".into(),
        first_owner: OwnerId(log * 1000),
    }
}

pub(crate) fn id(term: u64, index: u64) -> LogId {
    LogId { term: Term(term), index: LogIndex(index) }
}

/// An entry whose contents follow from its id and length.
pub(crate) fn entry(term: u64, index: u64, body_bytes: usize) -> Entry {
    let body: Vec<u8> = (0..body_bytes).map(|n| (n as u64 * 31 + index * 7 + term) as u8).collect();
    Entry {
        id: id(term, index),
        kind: (index % 3) as u8,
        meta: Bytes::from(format!("meta of {term}/{index}")),
        body: Payload::checksummed(Bytes::from(body)),
        roll_to: None,
    }
}

pub(crate) fn entries(term: u64, range: std::ops::Range<u64>, body_bytes: usize) -> Vec<Entry> {
    range.map(|index| entry(term, index, body_bytes)).collect()
}

pub(crate) async fn append(log: &Log, entries: Vec<Entry>) {
    log.append(entries).unwrap().durable().await.unwrap();
}

pub(crate) async fn read_all(log: &Log) -> Vec<Entry> {
    let state = log.state();
    let first = state.purged.map_or(0, |purged| purged.index.0 + 1);
    let end = state.last.map_or(0, |last| last.index.0 + 1);
    let mut entries: Vec<Entry> = Vec::new();
    while first + (entries.len() as u64) < end {
        let from = LogIndex(first + entries.len() as u64);
        entries.extend(log.read(from..LogIndex(end), 1 << 20).await.unwrap());
    }
    entries
}

pub(crate) fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for item in std::fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let target = to.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            copy_tree(&item.path(), &target);
        } else {
            std::fs::copy(item.path(), target).unwrap();
        }
    }
}
