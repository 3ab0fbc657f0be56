use crate::small_file::{create_dir_all_durably, sync_dir};
use std::fs;
use std::io;
use std::path::Path;

/// Makes `to` a directory with the files of `from`, durably: a second name for files that `is_immutable`
/// names, a copy of the others. `to` is made anew, `from` has no directories in it.
pub fn link_dir(from: &Path, to: &Path, is_immutable: impl Fn(&str) -> bool) -> io::Result<()> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    create_dir_all_durably(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        let (source, target) = (from.join(&name), to.join(&name));
        if name.to_str().is_some_and(&is_immutable) {
            fs::hard_link(source, target)?;
        } else {
            fs::copy(source, &target)?;
            fs::File::open(target)?.sync_all()?;
        }
    }
    sync_dir(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn immutable_files_are_shared_and_the_others_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("a/to"));
        for (path, contents) in [("from/1.sst", "table"), ("from/CURRENT", "pointer"), ("a/to/old", "left")] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }
        link_dir(&from, &to, |name| name.ends_with(".sst")).unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&from.join("1.sst")), inode(&to.join("1.sst")));
        assert_ne!(inode(&from.join("CURRENT")), inode(&to.join("CURRENT")));
        assert_eq!(fs::read(to.join("CURRENT")).unwrap(), b"pointer");
        assert!(!to.join("old").exists());
    }
}
