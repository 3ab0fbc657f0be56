use crate::small_disk::{path, run};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The room that the memory behind the disk has beside its blocks.
const SPARE_BYTES: u64 = 16 << 20;
/// The unit in which a file system places files, and memory backs them.
const BLOCK_BYTES: u64 = 4096;

/// An ext4 of its own on a block device that fails writes when it is told to: the device is a file in a
/// memory of limited size, some of whose blocks are taken from it. What the kernel could not write it goes on
/// showing, as it does of every device.
pub(super) struct FlakyDisk {
    dir: TempDir,
}

impl FlakyDisk {
    /// `None` where this process may not mount, with the reason printed.
    pub(super) fn mount(bytes: u64) -> Option<FlakyDisk> {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let disk = FlakyDisk { dir };
        match disk.make(bytes) {
            Ok(()) => Some(disk),
            Err(why) => {
                println!("SKIPPED: this drill needs a block device that fails writes: {why}");
                None
            }
        }
    }

    fn make(&self, bytes: u64) -> Result<(), String> {
        for dir in [self.memory(), self.root()] {
            std::fs::create_dir(dir).expect("make a directory to mount at");
        }
        let size = format!("size={}", bytes + SPARE_BYTES);
        run("mount", &["-t", "tmpfs", "-o", &size, "flaky", path(&self.memory())])?;
        let image = std::fs::File::create(self.image()).expect("create an image");
        image.set_len(bytes).expect("extend it");
        run("mkfs.ext4", &["-q", "-F", "-m", "0", "-b", &BLOCK_BYTES.to_string(), path(&self.image())])?;
        // Every block is there, until it is taken away.
        run("fallocate", &["-l", &bytes.to_string(), path(&self.image())])?;
        self.attach()
    }

    fn attach(&self) -> Result<(), String> {
        run("mount", &["-o", "loop", path(&self.image()), path(&self.root())])?;
        // A request that is written in part is done, says the kernel's loop device. One of a single block is
        // written or not.
        let device = run("findmnt", &["--noheadings", "--output", "SOURCE", path(&self.root())])?;
        let name = device.trim().trim_start_matches("/dev/");
        let setting = format!("/sys/block/{name}/queue/max_sectors_kb");
        std::fs::write(&setting, (BLOCK_BYTES >> 10).to_string())
            .map_err(|error| format!("{setting}: {error}"))
    }

    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    fn memory(&self) -> PathBuf {
        self.dir.path().join("memory")
    }

    fn image(&self) -> PathBuf {
        self.memory().join("image")
    }

    fn ballast(&self) -> PathBuf {
        self.memory().join("ballast")
    }

    /// Writes behind what the segments there have fail from now on. What they have is as before, and so is
    /// the rest of the device. How many bytes that is.
    pub(super) fn fail_writes(&self) -> u64 {
        let mut bytes = 0;
        for segment in segments(&self.root()) {
            // A file that is being written back would take its blocks again.
            run("sync", &[path(&segment)]).expect("sync a segment");
            for (first, count) in unused(&segment) {
                let (offset, length) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
                let (at, long) = (offset.to_string(), length.to_string());
                let punched = run("fallocate", &["-p", "-o", &at, "-l", &long, path(&self.image())]);
                punched.expect("take blocks from the device");
                bytes += length;
            }
        }
        // What was freed must not be had again.
        let mut ballast = std::fs::File::create(self.ballast()).expect("create ballast");
        let zeros = vec![0; 64 << 10];
        while std::io::Write::write_all(&mut ballast, &zeros).is_ok() {}
        bytes
    }

    /// Writes work again. What was lost is lost, and the kernel still shows it.
    pub(super) fn mend(&self) {
        std::fs::remove_file(self.ballast()).expect("remove the ballast");
    }

    /// As a loss of power does: what the kernel has in memory is gone. Nobody may have a file open there.
    pub(super) fn forget(&self) {
        run("umount", &[path(&self.root())]).expect("unmount");
        self.attach().expect("mount again");
    }
}

impl Drop for FlakyDisk {
    fn drop(&mut self) {
        // Lazily: a process that is being reaped may still have files open. Where making it failed, nothing
        // may be mounted.
        for mounted in [self.root(), self.memory()] {
            let _ = run("umount", &["-l", path(&mounted)]);
        }
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("list it").path()) {
        match path.is_dir() {
            true => found.extend(segments(&path)),
            false if path.extension().is_some_and(|extension| extension == "seg") => found.push(path),
            false => {}
        }
    }
    found
}

/// The blocks of the device that belong to a segment behind its last record: the first of each stretch, and
/// how many they are.
fn unused(segment: &Path) -> Vec<(u64, u64)> {
    let used = used_bytes(segment).div_ceil(BLOCK_BYTES);
    // "   1:       16..    4095:      16400..     20479:   4080:             last,unwritten,eof"
    let listed = run("filefrag", &["-v", &format!("-b{BLOCK_BYTES}"), path(segment)]).expect("list extents");
    let extents = listed.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(1);
        let mut first = || fields.next()?.split("..").next()?.trim().parse::<u64>().ok();
        let (of_file, of_device) = (first()?, first()?);
        let count: u64 = fields.next()?.trim().parse().ok()?;
        let skipped = used.saturating_sub(of_file).min(count);
        (skipped < count).then_some((of_device + skipped, count - skipped))
    });
    extents.collect()
}

/// The length of a segment's records: all behind the last one is zero in a segment that was not used before.
fn used_bytes(segment: &Path) -> u64 {
    let bytes = std::fs::read(segment).expect("read a segment");
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}
