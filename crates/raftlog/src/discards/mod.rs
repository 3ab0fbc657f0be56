//! Discards: bodies of an owner's records that were given up (docs/format/discarded.md). They are listed in a
//! file beside the segments, durably, before a row or a byte goes because of it.

mod block;
mod list;
mod record;

pub use list::{Discards, DiscardsSum};
pub use record::{Discard, Discarded, HOLE_BLOCK_BYTES};

use crate::read::read_error;
use crate::scan::ScanError;
use crate::segment::{SegmentId, owner_dir};
use crate::space::KnownList;
use crate::{LogSpace, Place, ReadError};
use block::{encode_block, in_blocks};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::MutexGuard;
use types::{LogIndex, OwnerId};

pub(crate) const FILE_NAME: &str = "discarded";
/// The most bytes of the file: 4.7 million records are listed, and then no more. A container of 2 GiB has
/// half a million records of 4 KiB, 28 MiB here. A longer file is none of ours.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The most holes of one operation of a disk: one of its threads is busy with them for as long.
const HOLES_AT_ONCE: usize = 16;

impl LogSpace {
    /// The list of an owner's records whose bodies were given up, as it is read now.
    pub async fn discards(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        let known = self.known_list(owner); // before it is read: it only becomes longer
        let discards = Discards::read(&**self.disk(), owners_dir, owner).await?;
        discards.check_reaches(owners_dir, known.bytes)?;
        Ok(discards)
    }

    /// Notes that an owner's list had so many bytes when somebody read it to its end.
    pub fn expect_discards(&self, owner: OwnerId, list_bytes: u64) {
        let mut known = self.known_lists();
        let known = known.entry(owner).or_default();
        known.bytes = known.bytes.max(list_bytes);
    }

    /// [`LogSpace::settled_discards`], as the disk has the list now: what was settled before may be damaged
    /// since, and the page cache goes on showing what was there.
    pub async fn discards_of_disk(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        self.known_lists().entry(owner).or_default().is_settled = false;
        self.settled_discards(owners_dir, owner).await
    }

    /// The bytes that an owner's list has at least.
    pub fn expected_list_bytes(&self, owner: OwnerId) -> u64 {
        self.known_list(owner).bytes
    }

    fn known_list(&self, owner: OwnerId) -> KnownList {
        self.known_lists().get(&owner).copied().unwrap_or_default()
    }

    fn known_lists(&self) -> MutexGuard<'_, HashMap<OwnerId, KnownList>> {
        self.known_lists.lock().expect("no holder panics")
    }

    /// The list of [`LogSpace::discards`], but one that may be acted upon: it is durable, and it is the disk
    /// that says so. A process that was killed, or whose sync failed, may have left in memory what never
    /// reached it. What this process writes itself is durable, or ends the use of the disk.
    pub async fn settled_discards(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        if !self.known_list(owner).is_settled {
            match self.disk().open(&path(owners_dir, owner), false).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => {
                    opened?.settle().await?;
                    self.disk().sync_dir(&owner_dir(owners_dir, owner)).await?;
                }
            }
            self.known_lists().entry(owner).or_default().is_settled = true;
        }
        let discards = self.discards(owners_dir, owner).await?;
        // An owner that was deleted meanwhile has no list: who comes under its name later has its own.
        if let Some(known) = self.known_lists().get_mut(&owner) {
            known.bytes = known.bytes.max(discards.list_bytes());
        }
        Ok(discards)
    }

    /// Remembers, durably, that the bodies of these records are given up, each as its tag; what is remembered
    /// already is skipped. Changes none of them. Their heads are read: a record that is not there as said is
    /// an error, and then nothing is remembered. No log may write to the owner any more; one caller at a time
    /// for each owner.
    pub async fn remember_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        records: &[Discard],
    ) -> Result<Discards, ReadError> {
        let file = path(owners_dir, owner);
        let io_error = |error| read_error(file.clone(), 0, ScanError::Io(error));
        let mut discards = self.settled_discards(owners_dir, owner).await.map_err(io_error)?;
        let at = |place: &Place| (place.segment, place.offset);
        let meant: BTreeSet<(u32, u64)> = records.iter().map(|record| at(&record.place)).collect();
        let listed = discards.iter().map(|record| at(&record.place)).filter(|place| meant.contains(place));
        let listed: BTreeSet<(u32, u64)> = listed.collect();
        let mut fresh = Vec::new();
        for Discard { tag, name, place } in records {
            if !listed.contains(&at(place)) {
                let head = self.read_head(owners_dir, *place).await?;
                let meta_bytes = head.meta.len() as u32; // as it stood in the header
                let (tag, index, name) = (*tag, head.id.index, Some(*name));
                fresh.push(Discarded { tag, index, place: *place, meta_bytes, name });
            }
        }
        self.append_discards(owners_dir, &mut discards, &fresh).await.map_err(io_error)?;
        Ok(discards)
    }

    /// Remembers, durably, names of records that were given up before there were names: their heads are about
    /// to go. One caller at a time for each owner.
    pub async fn name_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        names: &BTreeMap<LogIndex, u128>,
    ) -> io::Result<()> {
        let mut discards = self.settled_discards(owners_dir, owner).await?;
        let nameless = discards.iter().filter(|record| record.name.is_none());
        let named = nameless.filter_map(|record| {
            let name = Some(*names.get(&record.index)?);
            Some(Discarded { name, ..record })
        });
        let fresh: Vec<Discarded> = named.collect();
        // What comes later in the list counts.
        self.append_discards(owners_dir, &mut discards, &fresh).await
    }

    /// Lists again, durably, what was given up while its owner was compacted, by the places that it has
    /// since, and punches its holes there. To be called when the copy counts, and before anything else is
    /// given up; doing it again changes nothing. One caller at a time for each owner.
    pub async fn move_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        place_now: impl Fn(&Place) -> Option<Place>,
    ) -> io::Result<()> {
        let mut discards = self.settled_discards(owners_dir, owner).await?;
        let gone = discards.iter().filter(|record| !discards.is_here(record));
        let moved = gone.filter_map(|record| Some(Discarded { place: place_now(&record.place)?, ..record }));
        let fresh: Vec<Discarded> = moved.collect();
        self.append_discards(owners_dir, &mut discards, &fresh).await?;
        self.punch_discards(owners_dir, &discards, |_| true).await
    }

    /// Punches the holes of the records with these tags, durably. Doing it again changes nothing.
    pub async fn punch_discards(
        &self,
        owners_dir: &str,
        discards: &Discards,
        is_meant: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let is_due = |record: &Discarded| discards.is_here(record) && is_meant(record.tag);
        let mut holes: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
        for record in discards.iter().filter(is_due).filter(|record| !record.hole().is_empty()) {
            holes.entry(record.place.segment).or_default().push(record.hole());
        }
        for (segment, holes) in holes {
            let id = SegmentId { owner: discards.owner(), segment };
            let file = self.disk().open(&id.path(owners_dir), false).await?;
            for at_once in holes.chunks(HOLES_AT_ONCE) {
                file.punch_holes(at_once.to_vec()).await?;
            }
            file.sync_data().await?;
        }
        Ok(())
    }

    async fn append_discards(
        &self,
        owners_dir: &str,
        discards: &mut Discards,
        fresh: &[Discarded],
    ) -> io::Result<()> {
        if fresh.is_empty() {
            return Ok(());
        }
        let (mut crc, mut blocks) = (discards.crc(), Vec::new());
        for records in in_blocks(fresh) {
            let block;
            (block, crc) = encode_block(discards.owner(), crc, records);
            blocks.push(block);
        }
        let bytes: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        if discards.list_bytes() + bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("{FILE_NAME} would pass {FILE_BYTES_MAX} bytes")));
        }
        let file = self.disk().open(&path(owners_dir, discards.owner()), true).await?;
        // The file may end with what a crash left of a block that nobody acted upon.
        file.set_len(discards.list_bytes()).await?;
        file.write_and_sync(discards.list_bytes(), blocks).await?;
        self.disk().sync_dir(&owner_dir(owners_dir, discards.owner())).await?;
        discards.append(fresh, bytes, crc);
        self.expect_discards(discards.owner(), discards.list_bytes());
        Ok(())
    }
}

pub(crate) fn path(owners_dir: &str, owner: OwnerId) -> String {
    format!("{}/{FILE_NAME}", owner_dir(owners_dir, owner))
}

#[cfg(test)]
mod testing {
    use super::Discarded;
    use crate::Place;
    use types::{LogIndex, OwnerId};

    pub(super) fn record(tag: u64, offset: u64, body_bytes: u32) -> Discarded {
        let place = Place { owner: OwnerId(0x11), segment: 0x22, offset, body_bytes };
        Discarded { tag, index: LogIndex(offset + 1), place, meta_bytes: 0x33, name: Some(0x66) }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::record;
    use super::*;
    use bytes::Bytes;
    use disk::Disk;
    use std::sync::Arc;

    /// The list's sync fails, and the page cache goes on showing what may never have reached the disk.
    #[tokio::test]
    async fn a_list_that_is_acted_upon_is_there_after_a_loss_of_power() {
        let owner = OwnerId(0x11);
        let mut found = Vec::new();
        for seed in 0..20 {
            let options = disk::sim::SimOptions { seed, ..Default::default() };
            let first = disk::sim::SimDisk::new(options);
            let space = LogSpace::new(Arc::new(first.clone()), Default::default());
            space.disk().create_dir_all(&owner_dir("owners", owner)).await.unwrap();
            space.disk().sync_dir("owners").await.unwrap();
            let mut none = Discards::none(owner);
            first.fail_sync_from(first.steps());
            let list = space.append_discards("owners", &mut none, &[record(0x44, 0x48, 0x55)]).await;
            assert!(list.is_err());
            let second = first.kill(options);
            let space = LogSpace::new(Arc::new(second.clone()), Default::default());
            let told = space.settled_discards("owners", owner).await.unwrap();
            let third = second.lose_power(disk::sim::Loss::AllUnsynced, options);
            let kept = Discards::read(&third, "owners", owner).await.unwrap();
            assert_eq!(told.tags(), kept.tags(), "seed {seed}");
            found.push(told.is_empty());
        }
        assert!(found.contains(&true) && found.contains(&false), "{found:?}");
    }

    /// A flipped bit ends a list as a torn tail does. What was acted upon is no such tail: it is not cut off.
    #[tokio::test]
    async fn a_list_that_ends_before_it_did_is_damaged() {
        let owner = OwnerId(0x11);
        let disk: Arc<dyn Disk> = Arc::new(disk::sim::SimDisk::new(Default::default()));
        let space = LogSpace::new(disk.clone(), Default::default());
        disk.create_dir_all(&owner_dir("owners", owner)).await.unwrap();
        let mut list = space.settled_discards("owners", owner).await.unwrap();
        space.append_discards("owners", &mut list, &[record(1, 0, 9)]).await.unwrap();
        let first_bytes = list.list_bytes();
        space.append_discards("owners", &mut list, &[record(2, 800, 9)]).await.unwrap();
        let is_damaged = |read: io::Result<Discards>| {
            read.is_err_and(|error| disk::ReadFault::of(&error) == disk::ReadFault::Medium)
        };
        for (byte, is_told) in [(0, true), (first_bytes + 60, true), (list.list_bytes(), false)] {
            let file = disk.open(&path("owners", owner), false).await.unwrap();
            let before = file.read_at(0, list.list_bytes() as usize).await.unwrap();
            file.write_and_sync(byte, vec![Bytes::from_static(&[0x55])]).await.unwrap();
            assert_eq!(is_damaged(space.discards("owners", owner).await), is_told, "byte {byte}");
            assert_eq!(is_damaged(space.settled_discards("owners", owner).await), is_told, "byte {byte}");
            // Another process knows what it was told by who had read the list.
            let next = LogSpace::new(disk.clone(), Default::default());
            assert!(next.settled_discards("owners", owner).await.is_ok());
            let next = LogSpace::new(disk.clone(), Default::default());
            next.expect_discards(owner, list.list_bytes());
            assert_eq!(is_damaged(next.settled_discards("owners", owner).await), is_told, "byte {byte}");
            file.write_and_sync(0, vec![before]).await.unwrap();
        }
        space.delete_owner("owners", owner).await.unwrap();
        disk.create_dir_all(&owner_dir("owners", owner)).await.unwrap();
        assert!(
            space.settled_discards("owners", owner).await.unwrap().is_empty(),
            "another of the same name"
        );
    }
}
