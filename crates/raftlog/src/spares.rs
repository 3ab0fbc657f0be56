//! Spares: files of deleted segments that the next segments of any log on the disk take over by rename. Their
//! blocks are allocated and written already, so that a sync of a record has no metadata to write with it:
//! docs/adr/0004-recycled-segments.md.
//!
//! What stood in a spare stands behind the records of its new segment until that is finished and cut. Three
//! rules keep it from being taken for records of the log:
//! * Only *finished* segments become spares (a later one of their owner exists): they are their records, all
//!   of one segment and one log, and nothing else. Never one that truncation or recovery removed.
//! * No spare goes where it was. Owner and segment number stand in each record, so nothing in it fits its new
//!   place.
//! * A spare is known to the process that made it; the next one removes what it finds. A crash between the
//!   syncs of a rename's two directories may leave a file with both names, and a spare that is a segment in
//!   use must not be taken.

use crate::segment::{SegmentId, owner_dir};
use disk::{Disk, is_full};
use planted::Bug;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OnceCell;

const DIR: &str = "spares";

pub(crate) struct Spares {
    disk: Arc<dyn Disk>,
    kept: Mutex<Kept>,
    swept: OnceCell<()>,
    dir_created: OnceCell<()>,
}

#[derive(Default)]
struct Kept {
    spares: Vec<Spare>,
    /// Files to be removed that a deletion left which failed or was given up on the way.
    doomed: Vec<Spare>,
    /// The bytes of all of these, and of those that are on their way here.
    bytes: u64,
    next_number: u64,
}

pub(crate) struct Spare {
    number: u64,
    bytes: u64,
    /// The segment that the file was.
    was: SegmentId,
}

/// Segments taken out of their owner's directory. Not kept, they are doomed.
#[must_use = "to be kept once nobody reads them under their old names"]
pub(crate) struct Collected<'a> {
    from: &'a Spares,
    spares: Vec<Spare>,
}

impl Drop for Collected<'_> {
    fn drop(&mut self) {
        self.from.lock().doomed.append(&mut self.spares);
    }
}

impl Spare {
    fn path(&self) -> String {
        format!("{DIR}/{:08x}", self.number)
    }
}

impl Spares {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Spares {
        Spares { disk, kept: Mutex::default(), swept: OnceCell::new(), dir_created: OnceCell::new() }
    }

    /// Space that all spares together take.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Removes what an earlier process left, the first time it is called. So the directory of spares need
    /// never be synced.
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
    ) -> io::Result<Collected<'_>> {
        self.sweep().await?;
        let mut collected = Collected { from: self, spares: Vec::new() };
        for id in segments {
            let path = id.path(owners_dir);
            if self.set_aside(*id, &path, bytes_max, &mut collected).await? {
                continue;
            }
            match self.disk.remove_file(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {} // gone, now or by another deletion
            }
        }
        if let Some(id) = segments.first() {
            self.disk.sync_dir(&owner_dir(owners_dir, id.owner)).await?;
        }
        Ok(collected)
    }

    /// Renames a segment to a spare; false when it is to be removed instead, because there is no room for it,
    /// or because the file system has no space for the name, or somebody removed the directory: then the file
    /// itself gives space.
    async fn set_aside(
        &self,
        id: SegmentId,
        path: &str,
        bytes_max: u64,
        collected: &mut Collected<'_>,
    ) -> io::Result<bool> {
        if self.bytes() >= bytes_max {
            return Ok(false);
        }
        let bytes = match self.disk.open(path, false).await {
            Ok(file) => file.len().await?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let Some(spare) = self.reserve(id, bytes, bytes_max) else { return Ok(false) };
        let to = spare.path();
        // From here on whoever gives up leaves the file to be removed.
        collected.spares.push(spare);
        let created = || self.disk.create_dir_all(DIR);
        let renamed = match self.dir_created.get_or_try_init(created).await {
            Ok(_) => self.disk.rename(path, &to).await,
            Err(error) => Err(error),
        };
        let Err(error) = renamed else { return Ok(true) };
        if let Some(spare) = collected.spares.pop() {
            self.lock().bytes -= spare.bytes;
        }
        if error.kind() == io::ErrorKind::NotFound || is_full(&error) { Ok(false) } else { Err(error) }
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

    /// Lets these spares be taken from now on: nobody reads them under their old names any more.
    pub(crate) fn keep(&self, mut collected: Collected<'_>) {
        let spares = std::mem::take(&mut collected.spares);
        self.lock().spares.extend(spares);
    }

    /// Makes a spare the file of a segment that has none; false when there is none that may go there. The
    /// caller syncs the segment's directory before it writes.
    pub(crate) async fn take(&self, id: SegmentId, owners_dir: &str) -> io::Result<bool> {
        while let Some(spare) = self.pick(id) {
            match self.disk.rename(&spare.path(), &id.path(owners_dir)).await {
                Ok(()) => {
                    self.lock().bytes -= spare.bytes;
                    return Ok(true);
                }
                // Somebody made room by hand.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.lock().bytes -= spare.bytes,
                Err(error) => {
                    self.lock().spares.push(spare);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    fn pick(&self, id: SegmentId) -> Option<Spare> {
        let mut kept = self.lock();
        let fits = |spare: &Spare| spare.was != id || planted::has(Bug::CarelessSpares);
        let at = kept.spares.iter().rposition(fits)?;
        Some(kept.spares.remove(at))
    }

    /// Removes all spares, as somebody needs their space; answers how much that was.
    pub(crate) async fn give_back(&self) -> io::Result<u64> {
        {
            let kept = &mut *self.lock();
            kept.doomed.append(&mut kept.spares);
        }
        self.remove_doomed().await
    }

    /// Removes what a deletion that was given up has left.
    pub(crate) async fn remove_doomed(&self) -> io::Result<u64> {
        let mut removed_bytes = 0;
        loop {
            let Some(spare) = self.lock().doomed.pop() else { return Ok(removed_bytes) };
            match self.disk.remove_file(&spare.path()).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.lock().doomed.push(spare);
                    return Err(error);
                }
                _ => {}
            }
            self.lock().bytes -= spare.bytes;
            removed_bytes += spare.bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no holder of the spares panics")
    }
}
