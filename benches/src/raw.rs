use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The limit to compare with: three files, as three replicas, each written from its own thread with `count`
/// payloads, one fdatasync after every `per_sync` of them; nothing is checksummed, sent or indexed. Files are
/// preallocated, as our segments are.
pub fn raw_append(dir: &Path, payload_bytes: usize, count: u64, per_sync: u64) -> Duration {
    let payload = vec![0x5au8; payload_bytes];
    let mut files = Vec::new();
    for replica in 0..3 {
        let path = dir.join(format!("raw-{replica}"));
        let file =
            OpenOptions::new().create(true).truncate(true).write(true).open(path).expect("create a file");
        file.set_len(payload_bytes as u64 * count).expect("extend it");
        file.sync_all().expect("sync it");
        files.push(file);
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                for n in 0..count {
                    file.write_all_at(&payload, n * payload_bytes as u64).expect("write");
                    if (n + 1) % per_sync == 0 {
                        file.sync_data().expect("fdatasync");
                    }
                }
                file.sync_data().expect("fdatasync");
            });
        }
    });
    started.elapsed()
}
