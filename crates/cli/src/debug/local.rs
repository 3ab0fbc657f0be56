use anyhow::{Context, bail};
use disk::{File, IoFuture, open_read_only};
use raftlog::inspect::Directory;
use std::future::ready;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A data directory that is read file by file, without its lock.
pub(super) struct LocalDirectory {
    root: PathBuf,
}

impl LocalDirectory {
    pub(super) fn new(root: &Path) -> anyhow::Result<LocalDirectory> {
        let said = root.display();
        match root.metadata() {
            Err(error) => return Err(error).with_context(|| format!("look at {said}")),
            Ok(metadata) if !metadata.is_dir() => {
                bail!("{said} is a file; `flotilla debug segment verify` looks at files")
            }
            Ok(_) => {}
        }
        if !root.join("groups").is_dir() {
            bail!("{said} is no data directory with logs: there is no {said}/groups");
        }
        Ok(LocalDirectory { root: root.to_owned() })
    }

    /// The data directory that a segment's file is in, and the file's owners' directory in it.
    pub(super) fn around(file: &Path) -> Option<(LocalDirectory, String)> {
        let owners_dir = file.canonicalize().ok()?.parent()?.parent()?.to_owned();
        let root = owners_dir.ancestors().skip(1).find(|dir| dir.join("groups").is_dir())?;
        let inside = owners_dir.strip_prefix(root).ok()?.to_str()?.to_owned();
        Some((LocalDirectory { root: root.to_owned() }, inside))
    }
}

impl Directory for LocalDirectory {
    fn open(&self, path: &str) -> IoFuture<Arc<dyn File>> {
        Box::pin(ready(open_read_only(&self.root.join(path))))
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        Box::pin(ready(list(&self.root.join(path))))
    }
}

fn list(path: &Path) -> io::Result<Vec<String>> {
    match std::fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        // Names that are no text are none of ours.
        Ok(entries) => entries
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect(),
    }
}

pub(super) fn open(path: &Path) -> anyhow::Result<Arc<dyn File>> {
    match open_read_only(path) {
        Err(error) if error.kind() == ErrorKind::IsADirectory => {
            bail!("{} is a directory; `flotilla debug log verify` looks at data directories", path.display())
        }
        opened => opened.with_context(|| format!("open {}", path.display())),
    }
}
