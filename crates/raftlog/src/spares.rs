//! Spares: files of deleted segments that the next segments of any log on the disk take over by rename. Their blocks
//! are allocated and written already, so that a sync of a record has no metadata to write with it:
//! docs/adr/0004-recycled-segments.md.
//!
//! What stood in a spare stands behind the records of its new segment until that is finished and cut. Three rules keep
//! it from being taken for records of the log:
//! * Only *finished* segments become spares (a later one of their owner exists): they are their records, all of one
//!   segment and one log, and nothing else. Never one that truncation or recovery removed.
//! * No spare goes where it was. Owner and segment number stand in each record, so nothing in it fits its new place.
//! * A spare is known to the process that made it; the next one removes what it finds. A crash between the syncs of a
//!   rename's two directories may leave a file with both names, and a spare that is a segment in use must not be taken.

use crate::segment::{SegmentId, owner_dir};
use disk::Disk;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OnceCell;

const DIR: &str = "spares";

pub(crate) struct Spares {
    disk: Arc<dyn Disk>,
    /// Spares are kept wherever they come from, and go also where they were: what the crash suite must find.
    planted_careless: bool,
    kept: Mutex<Kept>,
    swept: OnceCell<()>,
    dir_created: OnceCell<()>,
}

#[derive(Default)]
struct Kept {
    spares: Vec<Spare>,
    /// Of the spares, and of those that are on their way here.
    bytes: u64,
    next_number: u64,
}

pub(crate) struct Spare {
    number: u64,
    bytes: u64,
    /// The segment it was.
    was: SegmentId,
}

impl Spare {
    fn path(&self) -> String {
        format!("{DIR}/{:08x}", self.number)
    }
}

impl Spares {
    pub(crate) fn new(disk: Arc<dyn Disk>, planted_careless: bool) -> Spares {
        Spares {
            disk,
            planted_careless,
            kept: Mutex::default(),
            swept: OnceCell::new(),
            dir_created: OnceCell::new(),
        }
    }

    /// What all spares together take.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    pub(crate) fn planted_careless(&self) -> bool {
        self.planted_careless
    }

    /// Removes what an earlier process left, the first time it is called. So the directory of spares need never be synced.
    pub(crate) async fn sweep(&self) -> io::Result<()> {
        let sweep = || async {
            for name in self.disk.list(DIR).await? {
                self.disk.remove_file(&format!("{DIR}/{name}")).await?;
            }
            Ok(())
        };
        self.swept.get_or_try_init(sweep).await.map(drop)
    }

    /// Takes segments of one owner out of its directory, durably: some become spares once they are
    /// [kept](Spares::keep), up to `bytes_max` with those that are there, the others are removed.
    pub(crate) async fn collect(
        &self,
        owners_dir: &str,
        segments: &[SegmentId],
        bytes_max: u64,
    ) -> io::Result<Vec<Spare>> {
        self.sweep().await?;
        let mut collected = Vec::new();
        for id in segments {
            match self.collect_one(*id, &id.path(owners_dir), bytes_max).await {
                Ok(spare) => collected.extend(spare),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // deleted twice
                Err(error) => return Err(error),
            }
        }
        if let Some(id) = segments.first() {
            self.disk.sync_dir(&owner_dir(owners_dir, id.owner)).await?;
        }
        Ok(collected)
    }

    async fn collect_one(&self, id: SegmentId, path: &str, bytes_max: u64) -> io::Result<Option<Spare>> {
        let spare = self.set_aside(id, path, bytes_max).await?;
        if spare.is_none() {
            self.disk.remove_file(path).await?;
        }
        Ok(spare)
    }

    /// Renames a segment to a spare; `None` when there is no room for it.
    async fn set_aside(&self, id: SegmentId, path: &str, bytes_max: u64) -> io::Result<Option<Spare>> {
        if self.bytes() >= bytes_max {
            return Ok(None);
        }
        let bytes = self.disk.open(path, false).await?.len().await?;
        let Some(spare) = self.reserve(id, bytes, bytes_max) else { return Ok(None) };
        let created = || self.disk.create_dir_all(DIR);
        let renamed = match self.dir_created.get_or_try_init(created).await {
            Ok(_) => self.disk.rename(path, &spare.path()).await,
            Err(error) => Err(error),
        };
        match renamed {
            Ok(()) => Ok(Some(spare)),
            Err(error) => {
                self.lock().bytes -= spare.bytes;
                // A name may need space in its directory; then the file itself is what gives some.
                if error.kind() == io::ErrorKind::StorageFull { Ok(None) } else { Err(error) }
            }
        }
    }

    fn reserve(&self, was: SegmentId, bytes: u64, bytes_max: u64) -> Option<Spare> {
        let mut kept = self.lock();
        if bytes == 0 || kept.bytes + bytes > bytes_max {
            return None;
        }
        kept.bytes += bytes;
        kept.next_number += 1;
        Some(Spare { number: kept.next_number, bytes, was })
    }

    /// From now on they may be taken. Nobody reads them under their old names any more.
    pub(crate) fn keep(&self, collected: Vec<Spare>) {
        self.lock().spares.extend(collected);
    }

    /// Makes a spare the file of a segment that has none; false when there is none that may go there. The caller syncs
    /// the segment's directory before it writes.
    pub(crate) async fn take(&self, id: SegmentId, owners_dir: &str) -> io::Result<bool> {
        let Some(spare) = self.pick(id) else { return Ok(false) };
        if let Err(error) = self.disk.rename(&spare.path(), &id.path(owners_dir)).await {
            self.keep(vec![spare]);
            return Err(error);
        }
        self.lock().bytes -= spare.bytes;
        Ok(true)
    }

    fn pick(&self, id: SegmentId) -> Option<Spare> {
        let mut kept = self.lock();
        let fits = |spare: &Spare| spare.was != id || self.planted_careless;
        let at = kept.spares.iter().rposition(fits)?;
        Some(kept.spares.remove(at))
    }

    /// Removes all spares, as somebody needs their space: how much that was.
    pub(crate) async fn give_back(&self) -> io::Result<u64> {
        let spares = std::mem::take(&mut self.lock().spares);
        let mut given_back = 0;
        for spare in spares {
            self.disk.remove_file(&spare.path()).await?;
            self.lock().bytes -= spare.bytes;
            given_back += spare.bytes;
        }
        Ok(given_back)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no holder of the spares panics")
    }
}
