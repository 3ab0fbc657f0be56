use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What python3 does to have a file system stop as if its machine had lost power: the ioctl EXT4_IOC_SHUTDOWN,
/// without a flush of the journal.
const STOP: &str =
    "import fcntl, os, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, b'\\2\\0\\0\\0')";
/// Processes that were just killed may have files open for a moment.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(30);

/// An ext4 of its own in a file, which a drill can fill or have turn read-only. Unmounted with the drill.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// `None` where this process may not mount (it takes root and a free loop device), with the reason
    /// printed.
    pub(crate) fn mount(bytes: u64) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let disk = SmallDisk { dir };
        let image = disk.image();
        let file = std::fs::File::create(&image).expect("create an image");
        file.set_len(bytes).expect("extend it");
        std::fs::create_dir(disk.root()).expect("make a directory to mount at");
        // None of it is reserved for root, who runs this.
        let made = run("mkfs.ext4", &["-q", "-F", "-m", "0", path(&image)]);
        let mounted = made.and_then(|_| run("mount", &["-o", "loop", path(&image), path(&disk.root())]));
        match mounted {
            Ok(_) => Some(disk),
            Err(why) => {
                println!("SKIPPED: this drill needs a file system of its own: {why}");
                None
            }
        }
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("mounted")
    }

    /// Takes all that is free but for so many bytes, and again what somebody has given back since the last
    /// time.
    pub(crate) fn fill_but(&self, left_bytes: u64) {
        let ballast = std::fs::File::options().create(true).append(true).open(self.ballast());
        let mut ballast = ballast.expect("create ballast");
        let zeros = vec![0; 1 << 20];
        while ballast.write_all(&zeros).is_ok() {}
        let bytes = ballast.metadata().expect("ask for its size").len();
        ballast.set_len(bytes.saturating_sub(left_bytes)).expect("give some back");
    }

    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.ballast()).expect("remove the ballast");
    }

    fn ballast(&self) -> PathBuf {
        self.root().join("ballast")
    }

    /// Has it hang: what is written or synced waits, until the answer is dropped. What is in memory can be
    /// read. `None` where this process may not, with the reason printed.
    pub(crate) fn freeze(&self) -> Option<Frozen<'_>> {
        let frozen = run("fsfreeze", &["-f", path(&self.root())]).map(|_| Frozen { disk: self });
        frozen.inspect_err(|why| println!("SKIPPED: this drill freezes a file system: {why}")).ok()
    }

    /// Takes its power away: what was not synced is lost, and whoever uses it gets errors until it is back.
    /// `None` where this process may not, with the reason printed.
    pub(crate) fn cut_power(&self) -> Option<Dark<'_>> {
        let cut = run("python3", &["-c", STOP, path(&self.root())]).map(|_| Dark { disk: self });
        cut.inspect_err(|why| println!("SKIPPED: this drill takes a disk's power away: {why}")).ok()
    }

    /// As after an error that the kernel does not trust the file system after: reads go on, writes fail, also
    /// of open files.
    pub(crate) fn turn_read_only(&self) {
        run("mount", &["-o", "remount,abort", path(&self.root())]).expect("abort the file system");
    }
}

/// A disk that has lost power.
pub(crate) struct Dark<'a> {
    disk: &'a SmallDisk,
}

impl Dark<'_> {
    /// Has it back with what was synced, once nobody has files of it open.
    pub(crate) fn power_on(self) {
        let (root, image) = (self.disk.root(), self.disk.image());
        let give_up = Instant::now() + UNMOUNTED_WITHIN;
        while let Err(why) = run("umount", &[path(&root)]) {
            assert!(Instant::now() < give_up, "{why}");
            std::thread::sleep(Duration::from_millis(50));
        }
        run("mount", &["-o", "loop", path(&image), path(&root)]).expect("mount it again");
    }
}

/// A disk that hangs.
pub(crate) struct Frozen<'a> {
    disk: &'a SmallDisk,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(why) = run("fsfreeze", &["-u", path(&self.disk.root())]) {
            eprintln!("{why}");
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is being reaped may still have files open.
        if let Err(why) = run("umount", &["-l", path(&self.root())]) {
            eprintln!("{why}");
        }
    }
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// Runs a program, and returns what it prints.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
