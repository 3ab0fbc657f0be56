use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// An ext4 of its own in a file, which a drill can fill or have turn read-only. Unmounted with the drill.
pub(crate) struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// `None` where this process may not mount (it takes root and a free loop device), with the reason
    /// printed.
    pub(crate) fn mount(bytes: u64) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let image = dir.path().join("image");
        let file = std::fs::File::create(&image).expect("create an image");
        file.set_len(bytes).expect("extend it");
        let disk = SmallDisk { dir };
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

    /// As after an error that the kernel does not trust the file system after: reads go on, writes fail, also
    /// of open files.
    pub(crate) fn turn_read_only(&self) {
        run("mount", &["-o", "remount,abort", path(&self.root())]).expect("abort the file system");
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
