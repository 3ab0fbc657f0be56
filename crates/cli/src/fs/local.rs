//! The user's own files: the one place of the command line that opens them.
#![allow(clippy::disallowed_methods)]

use bytes::Bytes;
use futures::Stream;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

const READ_BYTES: usize = 1 << 20;

/// The most pieces that are read ahead of the network.
const READ_AHEAD: usize = 4;

/// Standard input for `-`, else a file.
pub(super) enum Input {
    Stdin,
    File(PathBuf),
}

impl Input {
    pub(super) fn of(path: &str) -> Input {
        if path == "-" { Input::Stdin } else { Input::File(path.into()) }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self, Input::File(path) if path.is_dir())
    }

    /// Opens the input at once, so that a missing file is known before anything is written; reads from a
    /// thread of its own.
    pub(super) fn stream(self) -> io::Result<impl Stream<Item = io::Result<Bytes>>> {
        let mut reader: Box<dyn Read + Send> = match self {
            Input::Stdin => Box::new(io::stdin()),
            Input::File(path) => Box::new(std::fs::File::open(path)?),
        };
        let (sender, receiver) = mpsc::channel(READ_AHEAD);
        tokio::task::spawn_blocking(move || {
            loop {
                let mut piece = Vec::with_capacity(READ_BYTES);
                let result = reader.by_ref().take(READ_BYTES as u64).read_to_end(&mut piece);
                if let Ok(0) = result {
                    return;
                }
                let broken = result.is_err();
                if sender.blocking_send(result.map(|_| Bytes::from(piece))).is_err() || broken {
                    return;
                }
            }
        });
        Ok(ReceiverStream::new(receiver))
    }
}

/// A local file being written. A regular one has its name only once it is whole; a device or a pipe gets the
/// bytes as they come, and is not replaced.
pub(super) struct Output {
    file: std::fs::File,
    unfinished: Option<Unfinished>,
}

/// A file under another name until it is whole; removed when it never is.
struct Unfinished {
    partial: PathBuf,
    path: PathBuf,
    kept: bool,
}

impl Output {
    pub(super) fn create(path: &Path) -> io::Result<Output> {
        // A link stays a link: what it names is written.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if std::fs::metadata(&path).is_ok_and(|target| !target.is_file()) {
            return Ok(Output { file: OpenOptions::new().write(true).open(&path)?, unfinished: None });
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push("._COPYING_");
        let partial = path.with_file_name(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&partial)?;
        Ok(Output { file, unfinished: Some(Unfinished { partial, path, kept: false }) })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    pub(super) fn finish(self) -> io::Result<()> {
        if let Some(mut unfinished) = self.unfinished {
            std::fs::rename(&unfinished.partial, &unfinished.path)?;
            unfinished.kept = true;
        }
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_written_and_stay_pipes() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        let mut output = Output::create(&link).unwrap();
        output.write(b"bytes").unwrap();
        output.finish().unwrap();
        assert_eq!(reader.join().unwrap(), b"bytes");
        assert!(!std::fs::metadata(&pipe).unwrap().is_file());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else was made");
    }

    #[test]
    fn files_appear_when_whole_and_links_stay_links() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&path, b"old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut output = Output::create(&link).unwrap();
        output.write(b"new").unwrap();
        drop(output);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let mut output = Output::create(&link).unwrap();
        output.write(b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }
}
