//! The registry's part of the tables. Each change here is one revision, and one event for those who watch.

use super::{Counter, INSTANCES, KEYS, Tables, TablesMut};
use crate::registry::Directory;
use prost::Message;
use proto::registry::event::Change;
use proto::registry::{Event, Instance, InstanceName, KeyValue};

impl Tables {
    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The revision of the last change in the registry; 0 before the first.
    pub(crate) fn revision(&self) -> u64 {
        self.counter(Counter::Revision) - 1
    }
}

impl TablesMut<'_> {
    /// Draws the revision of the change that is about to be made.
    pub(crate) fn draw_revision(&mut self) -> u64 {
        self.draw(Counter::Revision)
    }

    /// Puts an instance, whose `mod_revision` was drawn for this.
    pub(crate) fn put_instance(&mut self, instance: Instance) {
        self.batch.put(instance_key(&instance.service, &instance.id), instance.encode_to_vec());
        self.tell(instance.mod_revision, Change::Instance(instance.clone()), false);
        self.tables.directory.insert_instance(instance);
    }

    pub(crate) fn remove_instance(&mut self, name: InstanceName, expired: bool) -> u64 {
        let revision = self.draw_revision();
        self.batch.delete(instance_key(&name.service, &name.id));
        self.tables.directory.remove_instance(&name.service, &name.id);
        self.tell(revision, Change::InstanceGone(name), expired);
        revision
    }

    /// Puts a key, whose `mod_revision` was drawn for this.
    pub(crate) fn put_key(&mut self, entry: KeyValue) {
        self.batch.put(key_key(&entry.key), entry.encode_to_vec());
        self.tell(entry.mod_revision, Change::Key(entry.clone()), false);
        self.tables.directory.insert_key(entry);
    }

    pub(crate) fn remove_key(&mut self, key: String, expired: bool) -> u64 {
        let revision = self.draw_revision();
        self.batch.delete(key_key(&key));
        self.tables.directory.remove_key(&key);
        self.tell(revision, Change::KeyGone(key), expired);
        revision
    }

    fn tell(&mut self, revision: u64, change: Change, expired: bool) {
        self.events.push(Event { revision, change: Some(change), expired });
    }
}

fn key_key(key: &str) -> Vec<u8> {
    [&[KEYS], key.as_bytes()].concat()
}

/// The key of an instance in RocksDB. A service's name has no zero byte, so instances stand together by
/// service.
fn instance_key(service: &str, id: &str) -> Vec<u8> {
    [&[INSTANCES], service.as_bytes(), &[0], id.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `docs/format/scm-tables.md`; a change here is a change of format.
    #[test]
    fn keys_have_their_documented_bytes() {
        assert_eq!(key_key("a/b"), b"ea/b");
        assert_eq!(instance_key("om", "h-1"), b"gom\0h-1");
    }
}
