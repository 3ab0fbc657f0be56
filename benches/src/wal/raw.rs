use super::appenders::append_in_threads;
use super::contender::{Appended, Case, Contender, Limits, payload};
use disk::{Disk, RealDisk};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The bytes that are overwritten again and again, all files together.
const OVERWRITTEN_BYTES: u64 = 512 << 20;

/// The limit: a file and a thread for each log, `window` payloads written with one call and one fdatasync; no
/// checksum, no header, no copy, nobody to notify.
pub(super) struct Raw {
    case: Case,
    root: PathBuf,
    space: FileSpace,
    /// A window of payloads.
    batch: Vec<u8>,
    files: Vec<File>,
    syncs: u64,
}

/// The file system's knowledge of the blocks that are written to.
enum FileSpace {
    /// The blocks are allocated and never written, as new segments are: each sync also commits to the journal
    /// that they are written now.
    Preallocated { file_bytes: u64 },
    /// The blocks were written before: nothing but data goes to the device. What a log could do at most if
    /// its space were recycled.
    Overwritten { file_bytes: u64 },
}

impl Raw {
    pub(super) fn preallocated(case: Case, limits: Limits, root: &Path) -> Raw {
        let budget = limits.payload_bytes.div_ceil(case.logs as u64);
        // The threads share the budget and are not equally fast: one that reaches the end of its file begins
        // again.
        let file_bytes = (2 * budget).next_multiple_of((case.payload_bytes * case.window) as u64);
        Raw::new(case, root, FileSpace::Preallocated { file_bytes })
    }

    pub(super) fn overwriting(case: Case, root: &Path) -> Raw {
        let batch_bytes = (case.payload_bytes * case.window) as u64;
        let file_bytes = (OVERWRITTEN_BYTES / case.logs as u64).next_multiple_of(batch_bytes);
        Raw::new(case, root, FileSpace::Overwritten { file_bytes })
    }

    fn new(case: Case, root: &Path, space: FileSpace) -> Raw {
        let batch = payload(case.payload_bytes).repeat(case.window);
        let mut raw = Raw { case, root: root.to_owned(), space, batch, files: Vec::new(), syncs: 0 };
        raw.create_files();
        raw
    }

    fn create_files(&mut self) {
        // The files that had these blocks before go first.
        self.files.clear();
        let _ = std::fs::remove_dir_all(&self.root);
        match self.space {
            FileSpace::Preallocated { file_bytes } => self.preallocate(file_bytes),
            FileSpace::Overwritten { file_bytes } => {
                std::fs::create_dir_all(&self.root).expect("create a directory");
                for log in 0..self.case.logs {
                    self.fill(&self.root.join(log.to_string()), file_bytes);
                }
            }
        }
        let open = |log: usize| {
            OpenOptions::new().write(true).open(self.root.join(log.to_string())).expect("open a raw file")
        };
        self.files = (0..self.case.logs).map(open).collect();
    }

    fn preallocate(&self, file_bytes: u64) {
        let disk = RealDisk::open(&self.root, 0).expect("open a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("start tokio");
        runtime.block_on(async {
            for log in 0..self.case.logs {
                let file = disk.open(&log.to_string(), true).await.expect("create a raw file");
                file.preallocate(file_bytes).await.expect("preallocate it");
                file.sync_data().await.expect("sync its length");
            }
        });
    }

    /// Fills a file in pieces of the size that is written later: the kernel counts what is written in units
    /// of how the page cache was filled.
    fn fill(&self, path: &Path, bytes: u64) {
        let mut file = File::create(path).expect("create a raw file");
        for _ in 0..bytes / self.batch.len() as u64 {
            file.write_all(&self.batch).expect("fill it");
        }
        file.sync_all().expect("sync it");
    }
}

impl Contender for Raw {
    fn append(&mut self, limits: Limits) -> Appended {
        let (FileSpace::Preallocated { file_bytes } | FileSpace::Overwritten { file_bytes }) = self.space;
        let batch = &self.batch;
        let mut appenders: Vec<_> = self
            .files
            .iter()
            .map(|file| {
                let mut offset = 0;
                move || {
                    if offset == file_bytes {
                        offset = 0;
                    }
                    file.write_all_at(batch, offset).expect("write");
                    offset += batch.len() as u64;
                    file.sync_data().expect("fdatasync");
                }
            })
            .collect();
        let appended = append_in_threads(self.case, limits, &mut appenders);
        self.syncs += appended.latencies.len() as u64;
        appended
    }

    fn syncs(&self) -> u64 {
        self.syncs
    }

    fn reclaim(&mut self) {
        if let FileSpace::Preallocated { .. } = self.space {
            self.create_files();
        }
    }
}
