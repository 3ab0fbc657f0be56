use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The limit to compare with: three processes at the same time, each writing `count` payloads to a file of
/// its own whose space is allocated, `per_sync` with one call and one fdatasync. Nothing is checksummed,
/// sent, or read.
///
/// Each process is this program, called with `raw-writer` and the rest: see [`raw_writer`].
pub fn raw_processes(dir: &Path, payload_bytes: usize, count: u64, per_sync: u64) -> Duration {
    let program = std::env::current_exe().expect("know where this bench is");
    let started = Instant::now();
    let children: Vec<_> = (1..=3)
        .map(|n| {
            let mut command = Command::new(&program);
            command.arg("raw-writer").arg(dir.join(format!("raw-{n}")));
            command.args([payload_bytes as u64, count, per_sync.max(1)].map(|number| number.to_string()));
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start a raw writer")
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().expect("wait for a raw writer");
        assert!(output.status.success(), "a raw writer ended with {}", output.status);
    }
    started.elapsed()
}

/// Does what the arguments after `raw-writer` say, if they are there: for the `main` of a bench.
pub fn raw_writer() -> bool {
    let args: Vec<String> = std::env::args().collect();
    let [_, verb, path, payload_bytes, count, per_sync] = &args[..] else { return false };
    if verb != "raw-writer" {
        return false;
    }
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let (payload_bytes, count, per_sync) = (number(payload_bytes), number(count), number(per_sync));
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path).expect("create a file");
    file.set_len(payload_bytes * count).expect("extend it");
    file.sync_all().expect("sync it");
    let batch = vec![0x5au8; (payload_bytes * per_sync) as usize];
    let mut written = 0;
    while written < count {
        let now = per_sync.min(count - written);
        let bytes = &batch[..(payload_bytes * now) as usize];
        file.write_all_at(bytes, written * payload_bytes).expect("write");
        file.sync_data().expect("fdatasync");
        written += now;
    }
    true
}
