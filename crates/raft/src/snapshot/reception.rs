use crate::snapshot::counters::count;
use crate::snapshot::manifest::{Manifest, Piece};
use crate::snapshot::store::{Partial, SnapshotStore};
use crate::snapshot::stored::{Permits, Received, files_dir};
use bytes::Bytes;
use disk::{File, is_full};
use proto::{Code, Failure};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that stay free beside a received snapshot: its state is a little larger than its files while it is
/// opened.
const FREE_BYTES_MIN: u64 = 64 << 20;

const BEGIN: Piece = Piece { file: 0, number: 0 };

/// The receiving end of a snapshot on its disk. Dropped, it stays where it is and goes on from there when the
/// same snapshot is offered again; after a restart too.
pub(crate) struct Reception {
    store: Arc<SnapshotStore>,
    /// `None` once the snapshot is complete.
    partial: Option<Partial>,
    /// The first piece that is not written yet: all before it are.
    cursor: Piece,
    open: Option<(u32, Arc<dyn File>)>,
    /// `None` once the snapshot is complete.
    permits: Option<Permits>,
}

/// The reason why a snapshot is not received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("another snapshot is being received")]
    Busy,
    #[error("a snapshot of {needed_bytes} bytes does not fit: {free_bytes} are free")]
    DiskFull { needed_bytes: u64, free_bytes: u64 },
    #[error("the disk became full while a snapshot was received")]
    DiskBecameFull,
    #[error("{0:?} came damaged again and again")]
    Damaged(Piece),
    #[error("a message is above the limit of {} bytes", proto::MESSAGE_BYTES_MAX)]
    TooLarge,
    #[error("{0}")]
    DamagedOffer(String),
    #[error("{0}")]
    Refused(String),
    #[error("receive a snapshot: {0}")]
    Io(io::Error),
    #[error("the sender is gone, or follows another leader")]
    Gone,
}

impl From<io::Error> for ReceiveError {
    fn from(error: io::Error) -> Self {
        if is_full(&error) { ReceiveError::DiskBecameFull } else { ReceiveError::Io(error) }
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let code = match &error {
            ReceiveError::Busy => Code::Busy,
            ReceiveError::DiskFull { .. } | ReceiveError::DiskBecameFull => Code::DiskFull,
            ReceiveError::Damaged(_) | ReceiveError::DamagedOffer(_) => Code::Corrupt,
            ReceiveError::TooLarge => Code::TooLarge,
            ReceiveError::Refused(_) => Code::Invalid,
            ReceiveError::Io(_) => Code::DiskFailed,
            ReceiveError::Gone => Code::Unavailable,
        };
        Failure::new(code, error.to_string())
    }
}

/// A piece that is not what the manifest says.
#[derive(Debug)]
pub(crate) struct Mismatch;

impl Reception {
    /// Begins, or goes on where an earlier attempt at the same snapshot ended.
    pub(crate) async fn begin(
        store: &Arc<SnapshotStore>,
        manifest: Manifest,
        encoded: Bytes,
    ) -> Result<Reception, ReceiveError> {
        let busy = |_| ReceiveError::Busy;
        let only_one = store.receiving.clone().try_acquire_owned().map_err(busy)?;
        let few = store.limits.receptions.clone().try_acquire_owned().map_err(busy)?;
        let partial = match store.take_partial() {
            Some(partial) if partial.encoded == encoded => partial,
            other => {
                if let Some(other) = other {
                    store.discard(other.dir);
                    store.sweep().await;
                }
                begin_check_space(store, &manifest).await?;
                store.begin_partial(manifest, encoded).await?
            }
        };
        count(&store.counters.receives_begun);
        // From here on it is given back when this future is dropped.
        let mut reception = Reception {
            store: store.clone(),
            cursor: partial.cursor.unwrap_or(BEGIN),
            partial: Some(partial),
            open: None,
            permits: Some(Permits { _only_one: only_one, _few: few }),
        };
        if reception.partial().cursor.is_none() {
            reception.cursor = reception.find_cursor().await?;
        }
        // The first files may be empty.
        reception.cursor = reception.at_or_after(reception.cursor);
        let bytes = reception.manifest().bytes();
        store.counters.receiving_bytes.store(bytes, Ordering::Relaxed);
        reception.count();
        Ok(reception)
    }

    fn partial(&self) -> &Partial {
        self.partial.as_ref().expect("taken only when it is complete")
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.partial().manifest
    }

    /// The first piece that is missing; past the last one when none is.
    pub(crate) fn cursor(&self) -> Piece {
        self.cursor
    }

    /// Finds the first piece that is missing. A crash may have taken any part of what was written: a piece is
    /// there when it agrees with its checksum.
    async fn find_cursor(&mut self) -> Result<Piece, ReceiveError> {
        let pieces: Vec<Piece> = self.manifest().pieces_from(BEGIN).collect();
        for piece in pieces {
            let (_, offset, bytes, crc) = self.manifest().look_up(piece).expect("a piece of the manifest");
            let data = self.file(piece.file).await?.read_at(offset, bytes).await?;
            if data.len() != bytes || crc32c::crc32c(&data) != crc {
                return Ok(piece);
            }
        }
        Ok(self.end())
    }

    fn at_or_after(&self, piece: Piece) -> Piece {
        self.manifest().pieces_from(piece).next().unwrap_or_else(|| self.end())
    }

    fn end(&self) -> Piece {
        Piece { file: self.manifest().files.len() as u32, number: 0 }
    }

    async fn file(&mut self, number: u32) -> io::Result<Arc<dyn File>> {
        if let Some((open, file)) = &self.open
            && *open == number
        {
            return Ok(file.clone());
        }
        let name = &self.manifest().files[number as usize].name;
        let path = format!("{}/{name}", files_dir(&self.partial().dir));
        let file = self.store.disk.open(&path, true).await?;
        self.open = Some((number, file.clone()));
        Ok(file)
    }

    /// Writes the piece at the cursor; not durable.
    pub(crate) async fn write(&mut self, data: Bytes) -> Result<Result<(), Mismatch>, ReceiveError> {
        let piece = self.cursor;
        let (_, offset, bytes, crc) = self.manifest().look_up(piece).expect("the cursor is at a piece");
        let received_bytes = data.len();
        let is_good = received_bytes == bytes && crc32c::crc32c(&data) == crc;
        if is_good {
            self.file(piece.file).await?.write_at(offset, vec![data]).await?;
        }
        // Counted right before what is left, with no wait in between: a look finds a good piece in one of the
        // two.
        self.store.counters.received_bytes.fetch_add(received_bytes as u64, Ordering::Relaxed);
        if !is_good {
            return Ok(Err(Mismatch));
        }
        self.cursor = self.at_or_after(Piece { number: piece.number + 1, ..piece });
        self.count();
        Ok(Ok(()))
    }

    fn count(&self) {
        let left = self.manifest().bytes_from(self.cursor);
        self.store.counters.receiving_left_bytes.store(left, Ordering::Relaxed);
    }

    /// Gives up what was received: the store's next sweep gives its space back.
    pub(crate) fn discard(mut self) {
        let partial = self.partial.take().expect("taken only when it is complete");
        self.store.discard(partial.dir);
    }

    /// A bug that the crash test must find: what was received counts although it is not durable.
    #[cfg(test)]
    pub(crate) fn finish_planted(self) -> Received {
        self.complete().expect("a manifest that was checked")
    }

    /// Makes everything durable. Called when the cursor is past the last piece.
    pub(crate) async fn finish(mut self) -> Result<Received, ReceiveError> {
        assert!(self.cursor == self.end(), "pieces are missing from {:?} on", self.cursor);
        // All files, also empty ones and those from before a restart, which the page cache alone may have.
        for number in 0..self.cursor.file {
            self.file(number).await?.sync_data().await?;
        }
        let dir = self.partial().dir.clone();
        self.store.disk.sync_dir(&files_dir(&dir)).await?;
        self.store.disk.sync_dir(&dir).await?;
        self.complete()
    }

    fn complete(mut self) -> Result<Received, ReceiveError> {
        let (partial, permits) = (self.partial.take(), self.permits.take());
        let (partial, permits) = partial.zip(permits).expect("taken only where this is consumed");
        let stored = self.store.complete(partial).map_err(ReceiveError::Refused)?;
        count(&self.store.counters.receives_finished);
        Ok(Received::new(stored, permits))
    }
}

async fn begin_check_space(store: &SnapshotStore, manifest: &Manifest) -> Result<(), ReceiveError> {
    let needed_bytes = manifest.bytes() + FREE_BYTES_MIN;
    let free_bytes = store.disk.space().await?.free_bytes;
    if free_bytes < needed_bytes {
        return Err(ReceiveError::DiskFull { needed_bytes, free_bytes });
    }
    Ok(())
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.store.counters.receiving_left_bytes.store(0, Ordering::Relaxed);
        self.store.counters.receiving_bytes.store(0, Ordering::Relaxed);
        if self.permits.is_some() {
            count(&self.store.counters.receives_failed);
        }
        if let Some(partial) = self.partial.take() {
            // Where a file could not be read, the cursor is looked for again.
            let cursor = Some(self.cursor).filter(|_| partial.cursor.is_some() || self.cursor != BEGIN);
            self.store.put_partial(Partial { cursor, ..partial });
        }
    }
}
