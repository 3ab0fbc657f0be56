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

/// Pieces read ahead of the network.
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

    /// Opens at once, so that a missing file is known before anything is written; reads from a thread of its own.
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

/// A local file being written; it has its name only once it is whole.
pub(super) struct Output {
    file: std::fs::File,
    partial: PathBuf,
    path: PathBuf,
    kept: bool,
}

impl Output {
    pub(super) fn create(path: &Path) -> io::Result<Output> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push("._COPYING_");
        let partial = path.with_file_name(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&partial)?;
        Ok(Output { file, partial, path: path.to_owned(), kept: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        std::fs::rename(&self.partial, &self.path)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}
