//! The identity of the replica that a disk has of a group: the file `replicas/<group>`,
//! docs/format/replica.md. Little-endian.
//!
//! ```text
//! offset size field
//!      0    4 magic    "FLri"
//!      4    1 version  1
//!      5    1 state    bits 0 and 1 origin: 1 first member, 2 joined; bit 2 in use;
//!                      bits 4 and 5 end: 0 none, 1 retired, 2 being removed, 3 removed
//!      6    1 reset    1 while a forced reset is under way, else 0
//!      7    1 member   1 once a committed membership has had the replica; else 0
//!      8    8 group
//!     16    8 replica
//!     24    4 count    of lost replicas
//!     28  8×n lost     those that a forced reset gave up
//!   28+8n    4 crc      CRC32C of all before
//! ```

use crate::log::room_wait::RoomWait;
use bytes::{Buf, BufMut};
use disk::{Disk, RecordFile, may_be_repeated};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use types::{GroupId, ReplicaId};

pub(crate) const DIR: &str = "replicas";
/// The interval at which a full disk is tried again.
const ROOM_RETRY: Duration = Duration::from_millis(200);
/// The fields between the version and the lost replicas.
const FIELDS_BYTES: usize = 3 + 8 + 8 + 4;
/// The most lost replicas that are remembered: groups have a handful of members, and are reset once in years.
pub(crate) const LOST_MAX: usize = 1024;
const FILE: RecordFile = RecordFile::of_fields(b"FLri", 1, FIELDS_BYTES + 8 * LOST_MAX);

/// The record that a disk has of its replica of a group: where it comes from, whether it was used, how it
/// ended. Each of these says its own, and none takes another's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) group: GroupId,
    pub(crate) replica: ReplicaId,
    pub(crate) origin: Origin,
    /// Whether the replica may have promised something: an empty log is then one that was lost. Never taken
    /// back.
    pub(crate) is_used: bool,
    pub(crate) end: Option<End>,
    /// Whether a forced reset was begun: the end of the log says whether it was done
    /// ([`crate::replica::begun_reset`]).
    pub(crate) is_resetting: bool,
    /// Whether a committed membership has had the replica: one without it is then from after its time.
    pub(crate) was_member: bool,
    /// Replicas that a forced reset gave up. They may still exist, and must not be listened to.
    pub(crate) lost: Vec<ReplicaId>,
}

/// Persisted: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Origin {
    /// One of the group's first members: its log begins with them.
    First = 1,
    /// A replica that came later: its log begins with what a leader sent.
    Joined = 2,
}

/// Persisted: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum End {
    /// The replica is no member of the group any more, and never votes or appends again; its log is there.
    Retired = 1,
    /// The replica's files are being deleted; a crash may have left some.
    Removing = 2,
    /// The replica's files are gone, and its id is spent.
    Removed = 3,
}

const ORIGIN_BITS: u8 = 0b11;
const USED_BIT: u8 = 0b100;
const END_SHIFT: u32 = 4;

impl Identity {
    /// The identity of a replica that has promised nothing yet.
    pub(crate) fn new(group: GroupId, replica: ReplicaId, origin: Origin) -> Identity {
        Identity {
            group,
            replica,
            origin,
            is_used: false,
            end: None,
            is_resetting: false,
            was_member: origin == Origin::First,
            lost: Vec::new(),
        }
    }

    /// The identity of a replica of which nothing is known but that it was here, and so may have promised
    /// anything.
    pub(crate) fn unknown(group: GroupId, replica: ReplicaId) -> Identity {
        Identity { is_used: true, ..Identity::new(group, replica, Origin::First) }
    }

    /// Reads the identity of a group's replica; `None` when the disk never had one.
    pub(crate) async fn read(disk: &Arc<dyn Disk>, group: GroupId) -> io::Result<Option<Identity>> {
        let decode = |fields: &[u8]| match Identity::decode(fields)? {
            identity if identity.group == group => Ok(identity),
            other => Err(format!("it belongs to {}", other.group)),
        };
        Ok(FILE.read(&**disk, &path(group), decode).await?)
    }

    /// Writes the identity, durably on return; a crash before leaves the old file or the new one.
    pub(crate) async fn write(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        disk.create_dir_all(DIR).await?;
        FILE.write(&**disk, &path(self.group), &self.encode()).await
    }

    /// Reads an identity as [`Identity::read`] does, or `None` where it is damaged: for who ends the replica
    /// and needs nothing that damage hides.
    pub(crate) async fn read_unless_damaged(
        disk: &Arc<dyn Disk>,
        group: GroupId,
    ) -> io::Result<Option<Identity>> {
        match Identity::read(disk, group).await {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%group, %error, "the file that says whose replica this is is damaged");
                Ok(None)
            }
            read => read,
        }
    }

    /// The identity of the same replica, further on its way out.
    pub(crate) fn ended(self, end: End) -> Identity {
        assert!(
            self.end <= Some(end),
            "replica {} of {} would go from {:?} back to {end:?}",
            self.replica,
            self.group,
            self.end
        );
        Identity { end: Some(end), ..self }
    }

    /// Whether another replica may begin in this one's place.
    pub(crate) fn makes_place(&self, for_another: ReplicaId) -> bool {
        self.end == Some(End::Removed) && self.replica != for_another
    }

    /// Whether the replica's files are gone, or on their way out.
    pub(crate) fn is_being_removed(&self) -> bool {
        self.end >= Some(End::Removing)
    }

    /// Writes, durably on return, that from now on an empty log is one that was lost. Written after the log's
    /// first content is durable (else a crash in between would look like a loss) and before anybody is told
    /// of it.
    pub(crate) async fn into_use(self, disk: &Arc<dyn Disk>) -> io::Result<Identity> {
        if self.is_used {
            return Ok(self);
        }
        let used = Identity { is_used: true, ..self };
        used.write(disk).await?;
        Ok(used)
    }

    /// Writes what [`Identity::into_use`] does, for a group that runs.
    pub(crate) async fn note_use(&self, disk: &Arc<dyn Disk>, room_wait: &RoomWait) -> io::Result<()> {
        Identity { is_used: true, ..self.clone() }.write_with_room(disk, room_wait).await
    }

    /// Writes the identity, and waits while the disk is full: that stops no replica that runs, as with what
    /// it appends.
    async fn write_with_room(&self, disk: &Arc<dyn Disk>, room_wait: &RoomWait) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let full = match self.write(disk).await {
                Err(error) if may_be_repeated(&error) => error,
                result => return result,
            };
            if std::mem::take(&mut is_first) {
                tracing::warn!(group = %self.group, error = %full, "the group waits for room to note whose replica this is");
            }
            if room_wait.lasts() {
                tokio::time::sleep(ROOM_RETRY).await;
            }
            if !room_wait.lasts() {
                return Err(full);
            }
        }
    }

    /// Notes durably that a committed membership has had the replica that is here. By then it is in use:
    /// nobody else writes the file.
    pub(crate) async fn note_member(
        disk: &Arc<dyn Disk>,
        group: GroupId,
        room_wait: &RoomWait,
    ) -> io::Result<()> {
        match Identity::read(disk, group).await? {
            Some(identity) if !identity.was_member => {
                let noted = Identity { was_member: true, ..identity };
                noted.write_with_room(disk, room_wait).await
            }
            Some(_) | None => Ok(()),
        }
    }

    fn state(&self) -> u8 {
        let end = self.end.map_or(0, |end| end as u8);
        self.origin as u8 | if self.is_used { USED_BIT } else { 0 } | end << END_SHIFT
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIELDS_BYTES + 8 * self.lost.len());
        out.put_u8(self.state());
        out.put_u8(self.is_resetting.into());
        out.put_u8(self.was_member.into());
        out.put_u64_le(self.group.to_u64());
        out.put_u64_le(self.replica.0);
        out.put_u32_le(u32::try_from(self.lost.len()).expect("LOST_MAX fits"));
        for replica in &self.lost {
            out.put_u64_le(replica.0);
        }
        out
    }

    fn decode(mut fields: &[u8]) -> Result<Identity, String> {
        if fields.len() < FIELDS_BYTES {
            return Err(format!("its fields have only {} bytes", fields.len()));
        }
        let state = fields.get_u8();
        let (is_resetting, was_member) = (fields.get_u8() != 0, fields.get_u8() != 0);
        let group = GroupId::try_from(fields.get_u64_le()).map_err(|error| error.to_string())?;
        let replica = ReplicaId(fields.get_u64_le());
        let (origin, is_used, end) = decode_state(state)?;
        // A first member always was in a committed membership; a file from before this was noted says no.
        let was_member = was_member || origin == Origin::First;
        let count = fields.get_u32_le() as usize;
        if fields.len() != 8 * count {
            return Err(format!("it counts {count} lost replicas in {} bytes", fields.len()));
        }
        let lost = (0..count).map(|_| ReplicaId(fields.get_u64_le())).collect();
        Ok(Identity { group, replica, origin, is_used, end, is_resetting, was_member, lost })
    }
}

fn decode_state(state: u8) -> Result<(Origin, bool, Option<End>), String> {
    // Files from when an end took the place of what the replica was: it may have been used.
    let of_old = |end| Ok((Origin::First, true, Some(end)));
    match state {
        3 => return of_old(End::Removing),
        4 => return of_old(End::Removed),
        7 => return of_old(End::Retired),
        _ => {}
    }
    let newer = || format!("a newer version wrote its state {state}");
    let origin = match state & ORIGIN_BITS {
        1 => Origin::First,
        2 => Origin::Joined,
        _ => return Err(newer()),
    };
    let end = match state >> END_SHIFT {
        0 => None,
        1 => Some(End::Retired),
        2 => Some(End::Removing),
        3 => Some(End::Removed),
        _ => return Err(newer()),
    };
    match state & (1 << (END_SHIFT - 1)) {
        0 => Ok((origin, state & USED_BIT != 0, end)),
        _ => Err(newer()),
    }
}

fn path(group: GroupId) -> String {
    format!("{DIR}/{group}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::sim::{SimDisk, SimOptions};

    /// Bytes written by the first version. A failure here means that old data directories cannot be read.
    #[test]
    fn a_replica_keeps_its_bytes_and_damage_is_found() {
        let identity = Identity { lost: vec![ReplicaId(5)], ..joined() };
        let encode = |identity: &Identity| FILE.encode(&identity.encode());
        let decode = |bytes: &[u8]| FILE.decode(bytes).and_then(Identity::decode);
        let bytes = encode(&identity);
        let fields = b"FLri\x01\x02\0\0\x07\0\0\0\0\0\0\x02\x2c\x01\0\0\0\0\0\0\x01\0\0\0\x05\0\0\0\0\0\0\0";
        assert_eq!(bytes[..36], *fields);
        assert_eq!(decode(&bytes), Ok(identity.clone()));
        let member = Identity { was_member: true, ..identity.clone() };
        assert_eq!(encode(&member)[..8], *b"FLri\x01\x02\0\x01");
        assert_eq!(decode(&encode(&member)), Ok(member));
        let resetting = Identity { is_resetting: true, ..identity };
        assert_eq!(encode(&resetting)[6], 1);
        assert_eq!(decode(&encode(&resetting)), Ok(resetting));
        let states = [(joined(), 0x02), (used(joined()), 0x06), (used(first()), 0x05), (first(), 0x01)];
        for (identity, state) in states {
            for (end, bits) in [(None, 0), (Some(End::Retired), 0x10), (Some(End::Removing), 0x20)] {
                let identity = Identity { end, ..identity.clone() };
                assert_eq!(encode(&identity)[5], state | bits);
                assert_eq!(decode(&encode(&identity)), Ok(identity));
            }
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    /// Old files, in which an end took the place of what the replica was.
    #[test]
    fn an_end_as_it_was_written_before_is_that_of_one_that_may_have_been_used() {
        for (state, end) in [(3, End::Removing), (4, End::Removed), (7, End::Retired)] {
            let fields = [&[state, 0, 0][..], &joined().encode()[3..]].concat();
            let expected = Identity::unknown(GroupId::om(7), ReplicaId(300)).ended(end);
            assert_eq!(Identity::decode(&fields), Ok(expected), "{state}");
        }
        for newer in [0, 8, 9, 0x41, 0x33, 0xff] {
            let fields = [&[newer, 0, 0][..], &joined().encode()[3..]].concat();
            let why = Identity::decode(&fields).expect_err("a state of tomorrow");
            assert!(why.contains("a newer version"), "{newer}: {why}");
        }
    }

    fn joined() -> Identity {
        Identity::new(GroupId::om(7), ReplicaId(300), Origin::Joined)
    }

    fn first() -> Identity {
        Identity { origin: Origin::First, was_member: true, ..joined() }
    }

    fn used(identity: Identity) -> Identity {
        Identity { is_used: true, ..identity }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_runs_notes_its_use_when_a_full_disk_has_room_again() {
        let sim = SimDisk::new(SimOptions::default());
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let (identity, room_wait) = (joined(), RoomWait::default());
        room_wait.begin();
        sim.set_free_bytes(0);
        let mut noting = std::pin::pin!(identity.note_use(&disk, &room_wait));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut noting).await.is_err(), "it waits");
        sim.set_free_bytes(1 << 20);
        noting.await.expect("there is room");
        let noted = Identity::read(&disk, identity.group).await.expect("it is read").expect("it is there");
        assert_eq!(noted, used(joined()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_room_ends_with_the_group_and_writes_nothing_afterwards() {
        let sim = SimDisk::new(SimOptions::default());
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        let (identity, room_wait) = (joined(), RoomWait::default());
        room_wait.begin();
        sim.set_free_bytes(0);
        let mut noting = std::pin::pin!(identity.note_use(&disk, &room_wait));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut noting).await.is_err(), "it waits");
        room_wait.end();
        sim.set_free_bytes(1 << 20);
        let error = noting.await.expect_err("its group is closed");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(Identity::read(&disk, identity.group).await.expect("it is read").is_none());
    }
}
