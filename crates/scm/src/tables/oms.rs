//! The part of the tables that is about OMs and their groups of names.

use super::{Counter, OM_GROUPS, OMS, Tables, TablesMut, duty_or_service, key};
use prost::Message;
use proto::scm::{NodeDuty, OmGroupRecord, OmMemberRecord, OmRecord};
use std::collections::{BTreeMap, BTreeSet};
use types::{NodeId, ReplicaId};

/// The members that a group of names is to have. With fewer OMs it has one: two would bear less.
pub(crate) const OM_MEMBERS: usize = 3;

/// The most groups of names: each OM has a database and a log for each of its own.
pub(crate) const OM_GROUPS_MAX: usize = 256;

pub(crate) use proto::ROOT_OF_NAMES;

/// The replica of the names that an OM had before SCM placed groups. No other replica of names has this id.
pub(crate) const NAMES_OF_BEFORE: ReplicaId = ReplicaId(1);

/// The note, in the registry, of the names that an OM had before SCM placed groups.
const NOTE_OF_BEFORE: &str = "flotilla/om/0";
/// The group of these names.
const GROUP_OF_BEFORE: u64 = ROOT_OF_NAMES;

/// The most replicas of each kind that a group's record remembers besides its members: twenty bytes each.
const REMEMBERED_MAX: usize = 1000;

/// A replica of a group of names where it is. Two directories of before may have one of the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OmReplica {
    pub(crate) replica: u64,
    pub(crate) om: u64,
}

impl From<&OmMemberRecord> for OmReplica {
    fn from(record: &OmMemberRecord) -> OmReplica {
        OmReplica { replica: record.replica, om: record.om }
    }
}

impl OmReplica {
    pub(crate) fn is_in(&self, records: &[OmMemberRecord]) -> bool {
        records.iter().any(|record| OmReplica::from(record) == *self)
    }

    pub(crate) fn all(records: &[OmMemberRecord]) -> BTreeSet<OmReplica> {
        records.iter().map(OmReplica::from).collect()
    }

    /// The last of these records, as many as are remembered.
    pub(crate) fn last_kept(mut records: Vec<OmMemberRecord>) -> Vec<OmMemberRecord> {
        records.split_off(records.len().saturating_sub(REMEMBERED_MAX))
    }
}

impl Tables {
    pub(super) fn insert_om(&mut self, record: OmRecord) {
        let om = NodeId(record.om);
        self.oms_by_uuid.insert(record.uuid.clone(), om);
        self.oms.insert(om, record);
    }

    pub(super) fn insert_om_group(&mut self, record: OmGroupRecord) {
        self.om_groups.insert(record.group, record);
    }

    pub(crate) fn oms(&self) -> &BTreeMap<NodeId, OmRecord> {
        &self.oms
    }

    pub(crate) fn om(&self, om: NodeId) -> Option<&OmRecord> {
        self.oms.get(&om)
    }

    pub(crate) fn om_by_uuid(&self, uuid: &[u8]) -> Option<&OmRecord> {
        self.oms_by_uuid.get(uuid).and_then(|om| self.oms.get(om))
    }

    /// The OM that a command names; an error, in words, where there is none.
    pub(crate) fn named_om(&self, om: u64) -> Result<&OmRecord, String> {
        self.om(NodeId(om)).ok_or_else(|| format!("no OM {om}"))
    }

    pub(crate) fn om_groups(&self) -> &BTreeMap<u64, OmGroupRecord> {
        &self.om_groups
    }

    pub(crate) fn om_group(&self, group: u64) -> Option<&OmGroupRecord> {
        self.om_groups.get(&group)
    }

    /// The address of an OM; empty where it is not known, or another one has it.
    pub(crate) fn om_address(&self, om: NodeId) -> &str {
        self.om(om).map_or("", |record| &record.address)
    }

    /// Whether a forced reset may have lost groups of which OMs still have the names.
    pub(crate) fn may_have_lost_om_groups(&self) -> bool {
        self.lost_numbers.contains_key(&Counter::Replica)
    }

    /// Whether this group was ever made, be it by those that a forced reset gave up.
    pub(crate) fn may_have_made_om_group(&self, group: u64) -> bool {
        group < self.counter(Counter::OmGroup)
    }

    /// Whether this id of a replica was given to somebody, be it by those that a forced reset gave up.
    pub(crate) fn is_drawn_replica(&self, replica: ReplicaId) -> bool {
        replica.0 != 0 && replica.0 < self.counter(Counter::Replica)
    }

    /// The reason, in words, why the names of a group that is not founded here may be on an OM that has not
    /// said so: to found it would hide them.
    pub(crate) fn names_may_be_elsewhere(&self, group: u64) -> Option<String> {
        let noted = self.directory.key(NOTE_OF_BEFORE).filter(|_| group == GROUP_OF_BEFORE);
        match (self.om_group(group), noted) {
            (Some(record), _) if record.is_founded || !record.is_uncertain => None,
            (None, Some(note)) => {
                let note = String::from_utf8_lossy(&note.value);
                let address = note.split_whitespace().next().unwrap_or_default().to_owned();
                Some(format!("its names were founded before by the OM at {address}, which has not come yet"))
            }
            (None, None) if !self.may_have_lost_om_groups() => None,
            _ => Some("it may have been founded in what the forced reset of SCM has lost".to_owned()),
        }
    }
}

impl TablesMut<'_> {
    pub(crate) fn put_om(&mut self, record: OmRecord) {
        self.batch.put(key(OMS, record.om), record.encode_to_vec());
        self.tables.insert_om(record);
    }

    pub(crate) fn put_om_group(&mut self, record: OmGroupRecord) {
        self.batch.put(key(OM_GROUPS, record.group), record.encode_to_vec());
        self.tables.insert_om_group(record);
    }

    pub(crate) fn draw_om_replica(&mut self) -> ReplicaId {
        match self.draw_replica() {
            NAMES_OF_BEFORE => self.draw_replica(),
            replica => replica,
        }
    }

    /// Removes the note of names of before: the group's record says from here on what it said.
    pub(crate) fn forget_names_of_before(&mut self, group: u64) {
        if group == GROUP_OF_BEFORE && self.directory.key(NOTE_OF_BEFORE).is_some() {
            self.remove_key(NOTE_OF_BEFORE.to_owned(), false);
        }
    }

    /// Marks all groups as uncertain: members of SCM that a forced reset gave up may have founded what is not
    /// founded here, and changed what is.
    pub(super) fn doubt_om_groups(&mut self) {
        let records: Vec<OmGroupRecord> = self.om_groups.values().cloned().collect();
        for record in records {
            self.put_om_group(OmGroupRecord { is_uncertain: true, ..record });
        }
    }
}

/// The duty of an OM; one that has none is in service.
pub(crate) fn om_duty(record: &OmRecord) -> NodeDuty {
    duty_or_service(record.duty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::registry::KeyValue;

    fn elsewhere(change: impl FnOnce(&mut TablesMut<'_>)) -> String {
        let mut tables = Tables::default();
        change(&mut TablesMut::new(&mut tables));
        tables.names_may_be_elsewhere(0).unwrap_or_default()
    }

    #[test]
    fn names_may_be_where_a_note_or_a_lost_record_had_them() {
        let given_up = || OmGroupRecord::default();
        let founded = || OmGroupRecord { is_founded: true, ..OmGroupRecord::default() };
        assert_eq!(elsewhere(|_| ()), "");
        let value = "host:7400 0123".into();
        let note = || KeyValue { key: NOTE_OF_BEFORE.to_owned(), value, ..KeyValue::default() };
        let noted = elsewhere(|tables| tables.put_key(note()));
        assert!(noted.contains("by the OM at host:7400,"), "{noted}");
        assert!(elsewhere(|tables| tables.reset()).contains("forced reset"));
        let put_before = |record| elsewhere(|tables| (tables.put_om_group(record), tables.reset()).1);
        assert!(put_before(given_up()).contains("forced reset"));
        assert_eq!(put_before(founded()), "");
        let put_after = |record| elsewhere(|tables| (tables.reset(), tables.put_om_group(record)).1);
        assert_eq!(put_after(given_up()), "", "a person has said so since");
    }

    #[test]
    fn the_id_of_names_of_before_is_given_to_no_other_replica() {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        assert_eq!([(); 2].map(|()| change.draw_om_replica().0), [2, 3]);
        assert!(change.is_drawn_replica(ReplicaId(3)) && !change.is_drawn_replica(ReplicaId(4)));
    }
}
