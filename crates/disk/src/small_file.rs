use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Replaces `path` by `contents` so that a crash leaves the old file or the new one, never a mixture: for
/// small files next to the data (credentials, settings). Creates missing parents. Not for two writers of one
/// file at the same time.
pub fn write_file_durably(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_durably(path, contents, |temporary| {
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(temporary)
    })
}

/// [`write_file_durably`] for secrets: only the owner can read the file, from its first byte on.
pub fn write_private_file_durably(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_durably(path, contents, |temporary| {
        // What a crash left may be readable, or open in somebody's hands.
        match fs::remove_file(temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(temporary)
    })
}

fn write_durably(
    path: &Path,
    contents: &[u8],
    create: impl FnOnce(&Path) -> io::Result<fs::File>,
) -> io::Result<()> {
    let invalid =
        || io::Error::new(io::ErrorKind::InvalidInput, format!("`{}` names no file", path.display()));
    let parent = match path.parent().ok_or_else(invalid)? {
        empty if empty.as_os_str().is_empty() => Path::new("."),
        parent => parent,
    };
    create_dir_all_durably(parent)?;
    let mut temporary = path.file_name().ok_or_else(invalid)?.to_owned();
    temporary.push(".tmp");
    let temporary = parent.join(temporary);
    let mut file = create(&temporary)?;
    file.write_all(contents)?;
    // The contents are synced before the rename: else a crash could leave the new name with nothing behind
    // it.
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_dir(parent)
}

/// Reads a whole small file; `None` when it does not exist.
pub fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(contents) => Ok(Some(contents)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The mode of files: what is stored here is for the process that stores it.
pub(crate) const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

pub(crate) fn private_directory() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.mode(DIRECTORY_MODE);
    builder
}

/// Creates a directory and its missing parents; each name is durable on return.
pub(crate) fn create_dir_all_durably(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    create_dir_all_durably(parent)?;
    match private_directory().create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(error) => return Err(error),
    }
    sync_dir(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_whole_and_parents_created() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/credentials");
        assert_eq!(read_file(&path).unwrap(), None);
        write_file_durably(&path, b"one").unwrap();
        write_file_durably(&path, b"two!").unwrap();
        assert_eq!(read_file(&path).unwrap().unwrap(), b"two!");
        let names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["credentials"], "nothing temporary stays");
    }

    #[test]
    fn secrets_are_for_their_owner_whatever_was_there_before() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        fs::write(&path, b"old").unwrap();
        fs::write(dir.path().join("credentials.tmp"), b"half").unwrap();
        write_private_file_durably(&path, b"secret").unwrap();
        assert_eq!(read_file(&path).unwrap().unwrap(), b"secret");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_a_crash_left_of_a_write_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings");
        write_file_durably(&path, b"old").unwrap();
        fs::write(dir.path().join("settings.tmp"), b"a longer half-written file").unwrap();
        assert_eq!(read_file(&path).unwrap().unwrap(), b"old");
        write_file_durably(&path, b"new").unwrap();
        assert_eq!(read_file(&path).unwrap().unwrap(), b"new");
    }
}
