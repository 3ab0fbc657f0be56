//! Files of a backup: the user's own, and private, as names of objects are nobody else's business.
#![allow(clippy::disallowed_methods)]

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Makes a private directory; one that is there stays as it is.
pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Returns the names of what is in a directory, sorted; names that are no text too, as far as they can be
/// shown.
pub(super) fn list(path: &Path) -> io::Result<Vec<String>> {
    let names = std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.sort_unstable();
    Ok(names)
}

/// Makes a new, private file.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)
}
