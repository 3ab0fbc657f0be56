//! The identity of the replica that a disk has of a group: the file `replicas/<group>`,
//! docs/format/replica.md. Little-endian.
//!
//! ```text
//! offset size field
//!      0    4 magic    "FLri"
//!      4    1 version  1
//!      5    1 state    1 first member, 2 joined, 3 being removed, 4 removed, 5 first member in use, 6 joined in use, 7 retired
//!      6    1 reset    1 while a forced reset is under way, else 0
//!      7    1 member   1 once a committed membership has had the replica, where it joined; else 0
//!      8    8 group
//!     16    8 replica
//!     24    4 count    of lost replicas
//!     28  8×n lost     those that a forced reset gave up
//!   28+8n    4 crc      CRC32C of all before
//! ```

use crate::log::room_wait::RoomWait;
use crate::replica::record::ReplicaStage;
use bytes::{Buf, BufMut};
use disk::{Disk, RecordFile, is_full};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use types::{GroupId, ReplicaId};

pub(crate) const DIR: &str = "replicas";
/// The interval at which a full disk is tried again.
const ROOM_RETRY: Duration = Duration::from_millis(200);
/// The fields between the version and the lost replicas.
const FIELDS_BYTES: usize = 3 + 8 + 8 + 4;
/// Lost replicas remembered: groups have a handful of members, and are reset once in years.
pub(crate) const LOST_MAX: usize = 1024;
const FILE: RecordFile = RecordFile::of_fields(b"FLri", 1, FIELDS_BYTES + 8 * LOST_MAX);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) group: GroupId,
    pub(crate) replica: ReplicaId,
    pub(crate) state: IdentityState,
    /// A forced reset was begun: the end of the log says whether it was done
    /// ([`crate::replica::begun_reset`]).
    pub(crate) is_resetting: bool,
    /// A committed membership has had it: one without it is from after its time. Of those that joined; first
    /// members always had one. A file from before this was noted says no.
    pub(crate) was_member: bool,
    /// Replicas that a forced reset gave up. They may still exist, and must not be listened to.
    pub(crate) lost: Vec<ReplicaId>,
}

/// Persisted: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum IdentityState {
    /// One of the group's first members: its log begins with them. Until it is in use, it has promised
    /// nothing.
    First = 1,
    /// Came later: its log begins with what a leader sent. Until it is in use, it has promised nothing.
    Joined = 2,
    /// Its files are being deleted; a crash may have left some.
    Removing = 3,
    /// Its files are gone, and its id is spent.
    Removed = 4,
    /// A first member whose log has something. An empty one was lost.
    FirstInUse = 5,
    /// One that joined and has at least voted. A log without a vote was lost.
    JoinedInUse = 6,
    /// Its log is there, and no member of the group any more: it never votes or appends again.
    Retired = 7,
}

/// The replica of a group that a disk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaHere {
    pub replica: ReplicaId,
    /// A committed membership has had it: it is a member, or was removed.
    pub was_member: bool,
}

impl ReplicaHere {
    /// `None` also when it was removed from the disk.
    pub async fn of(group: GroupId, disk: &Arc<dyn Disk>) -> io::Result<Option<ReplicaHere>> {
        let Some(known) = Identity::read(disk, group).await? else { return Ok(None) };
        let is_first = matches!(known.state, IdentityState::First | IdentityState::FirstInUse);
        let here = ReplicaHere { replica: known.replica, was_member: is_first || known.was_member };
        Ok((!known.state.stage().is_being_removed()).then_some(here))
    }
}

impl Identity {
    pub(crate) fn new(group: GroupId, replica: ReplicaId, state: IdentityState) -> Identity {
        Identity { group, replica, state, is_resetting: false, was_member: false, lost: Vec::new() }
    }

    /// `None` when the disk never had a replica of the group.
    pub(crate) async fn read(disk: &Arc<dyn Disk>, group: GroupId) -> io::Result<Option<Identity>> {
        let decode = |fields: &[u8]| match Identity::decode(fields)? {
            identity if identity.group == group => Ok(identity),
            other => Err(format!("it belongs to {}", other.group)),
        };
        Ok(FILE.read(&**disk, &path(group), decode).await?)
    }

    /// Durable on return; a crash before leaves the old file or the new one.
    pub(crate) async fn write(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        disk.create_dir_all(DIR).await?;
        FILE.write(&**disk, &path(self.group), &self.encode()).await
    }

    /// [`Identity::read`], for who ends the replica and needs nothing that damage hides.
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

    /// The same replica in a later state.
    pub(crate) fn advanced(self, state: IdentityState) -> Identity {
        let (from, to) = (self.state.stage(), state.stage());
        assert!(
            from <= to,
            "replica {} of {} would go from {from:?} back to {to:?}",
            self.replica,
            self.group
        );
        Identity { state, ..self }
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.state.stage() == ReplicaStage::InUse
    }

    /// Writes, durably on return, that from now on an empty log is one that was lost. Written after the log's
    /// first content is durable (else a crash in between would look like a loss) and before anybody is told
    /// of it.
    pub(crate) async fn into_use(self, disk: &Arc<dyn Disk>) -> io::Result<Identity> {
        let used = self.clone().used();
        if used != self {
            used.write(disk).await?;
        }
        Ok(used)
    }

    /// [`Identity::into_use`], of a group that runs.
    pub(crate) async fn note_use(&self, disk: &Arc<dyn Disk>, room_wait: &RoomWait) -> io::Result<()> {
        self.clone().used().write_with_room(disk, room_wait).await
    }

    /// A full disk stops no replica that runs: it waits, as with what it appends.
    async fn write_with_room(&self, disk: &Arc<dyn Disk>, room_wait: &RoomWait) -> io::Result<()> {
        let mut is_first = true;
        loop {
            let full = match self.write(disk).await {
                Err(error) if is_full(&error) => error,
                result => return result,
            };
            if std::mem::take(&mut is_first) {
                tracing::warn!(group = %self.group, "the disk is full: the group waits for room to note whose replica this is");
            }
            if room_wait.lasts() {
                tokio::time::sleep(ROOM_RETRY).await;
            }
            if !room_wait.lasts() {
                return Err(full);
            }
        }
    }

    fn used(self) -> Identity {
        let state = match self.state {
            IdentityState::First => IdentityState::FirstInUse,
            IdentityState::Joined => IdentityState::JoinedInUse,
            other => other,
        };
        self.advanced(state)
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

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIELDS_BYTES + 8 * self.lost.len());
        out.put_u8(self.state as u8);
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
        let state = match state {
            1 => IdentityState::First,
            2 => IdentityState::Joined,
            3 => IdentityState::Removing,
            4 => IdentityState::Removed,
            5 => IdentityState::FirstInUse,
            6 => IdentityState::JoinedInUse,
            7 => IdentityState::Retired,
            other => return Err(format!("a newer version wrote its state {other}")),
        };
        let count = fields.get_u32_le() as usize;
        if fields.len() != 8 * count {
            return Err(format!("it counts {count} lost replicas in {} bytes", fields.len()));
        }
        let lost = (0..count).map(|_| ReplicaId(fields.get_u64_le())).collect();
        Ok(Identity { group, replica, state, is_resetting, was_member, lost })
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
        let identity = Identity {
            group: GroupId::om(7),
            replica: ReplicaId(300),
            state: IdentityState::Joined,
            is_resetting: false,
            was_member: false,
            lost: vec![ReplicaId(5)],
        };
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
        for at in 0..bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1;
            assert!(decode(&damaged).is_err(), "byte {at}");
            assert!(decode(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    fn joined() -> Identity {
        Identity::new(GroupId::om(7), ReplicaId(300), IdentityState::Joined)
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
        assert_eq!(noted.state, IdentityState::JoinedInUse);
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
