//! Commands of any kind and order, against the simplest thing that could be right.

use super::apply;
use crate::registry::Directory;
use crate::tables::{Tables, TablesMut};
use proptest::prelude::*;
use proto::registry::event::Change;
use proto::registry::registry_command::Command;
use proto::registry::*;
use proto::{Code, Failure};
use statedb::Db;
use std::collections::BTreeMap;
use types::Term;

const KEYS_MAX: u64 = 3;
const BYTES_MAX: u64 = 40;
const INSTANCES_MAX: u64 = 2;

/// A key's value, creation, change, version and time to live.
type Entry = (Vec<u8>, u64, u64, u64, u64);
/// An instance's lease, creation, change and the word of its check.
type Registered = (u64, u64, u64, String);

#[derive(Default)]
struct Model {
    revision: u64,
    keys: BTreeMap<String, Entry>,
    instances: BTreeMap<String, Registered>,
}

/// A step's outcome: how many changes, or the code of the refusal.
type Outcome = Result<u64, Code>;

impl Model {
    fn draw(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn apply(&mut self, command: &Command) -> Outcome {
        match command.clone() {
            Command::PutKey(put) => self.put(put),
            Command::DeleteKeys(delete) => self.delete(delete),
            Command::ExpireKeys(expire) => {
                let of = |key: &ExpiredKey| (key.key.clone(), key.mod_revision);
                let mut expired = 0;
                for (key, revision) in expire.keys.iter().map(of) {
                    if self.keys.get(&key).is_some_and(|entry| entry.2 == revision && entry.4 > 0) {
                        self.keys.remove(&key);
                        self.draw();
                        expired += 1;
                    }
                }
                Ok(expired)
            }
            Command::PutInstance(put) => {
                let instance = put.instance.unwrap();
                let before = self.instances.get(&instance.id).map(|before| before.1);
                if before.is_none() && self.instances.len() as u64 >= INSTANCES_MAX {
                    return Err(Code::LimitReached);
                }
                let now = self.draw();
                let word = instance.checks[0].output.clone();
                self.instances.insert(instance.id, (now, before.unwrap_or(now), now, word));
                Ok(1)
            }
            Command::SetChecks(set) => {
                let id = set.name.unwrap().id;
                let word = set.checks[0].output.clone();
                let Some(found) = self.instances.get(&id).filter(|found| found.0 == set.lease).cloned()
                else {
                    return Err(Code::NotFound);
                };
                if found.3 == word {
                    return Ok(0);
                }
                let now = self.draw();
                self.instances.insert(id, (found.0, found.1, now, word));
                Ok(1)
            }
            Command::RemoveInstance(remove) => {
                let id = remove.name.unwrap().id;
                let found = self.instances.get(&id).map(|found| found.0);
                if !found.is_some_and(|lease| remove.lease == 0 || remove.lease == lease) {
                    return Err(Code::NotFound);
                }
                self.instances.remove(&id);
                self.draw();
                Ok(1)
            }
        }
    }

    fn put(&mut self, put: PutKeyCommand) -> Outcome {
        let before = self.keys.get(&put.key).cloned();
        if put.if_mod_revision.is_some_and(|wanted| wanted != before.as_ref().map_or(0, |entry| entry.2)) {
            return Err(Code::PreconditionFailed);
        }
        let mut after = self.keys.clone();
        let version = before.as_ref().map_or(1, |entry| entry.3 + 1);
        let created = before.as_ref().map_or(self.revision + 1, |entry| entry.1);
        after.insert(put.key.clone(), (put.value.to_vec(), created, self.revision + 1, version, put.ttl_ms));
        let bytes = |keys: &BTreeMap<String, Entry>| {
            keys.iter().map(|(key, entry)| (key.len() + entry.0.len()) as u64).sum::<u64>()
        };
        let grows = bytes(&after) > bytes(&self.keys);
        if after.len() as u64 > KEYS_MAX || grows && bytes(&after) > BYTES_MAX {
            return Err(Code::LimitReached);
        }
        self.keys = after;
        self.draw();
        Ok(1)
    }

    fn delete(&mut self, delete: DeleteKeysCommand) -> Outcome {
        let found = self.keys.get(&delete.key).map_or(0, |entry| entry.2);
        if delete.if_mod_revision.is_some_and(|wanted| wanted != found) {
            return Err(Code::PreconditionFailed);
        }
        let goes = |key: &&String| match delete.prefix {
            true => key.starts_with(&delete.key),
            false => **key == delete.key,
        };
        let gone: Vec<String> =
            self.keys.keys().filter(goes).take(delete.deletions_max as usize).cloned().collect();
        for key in &gone {
            self.keys.remove(key);
            self.draw();
        }
        Ok(gone.len() as u64)
    }
}

/// A follower knows what somebody knows who followed the events and never looked at the tables.
#[derive(Default)]
struct Follower {
    directory: Directory,
    revision: u64,
}

impl Follower {
    fn follow(&mut self, event: Event) {
        assert_eq!(event.revision, self.revision + 1, "revisions have no gaps");
        self.revision = event.revision;
        match event.change.unwrap() {
            Change::Instance(instance) => self.directory.insert_instance(instance),
            Change::InstanceGone(name) => self.directory.remove_instance(&name.service, &name.id),
            Change::Key(entry) => self.directory.insert_key(entry),
            Change::KeyGone(key) => self.directory.remove_key(&key),
        }
    }
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "ab", "abc", "b"]).prop_map(str::to_owned)
}

fn name(id: &str) -> Option<InstanceName> {
    Some(InstanceName { service: "web".to_owned(), id: id.to_owned() })
}

fn checks(word: u8) -> Vec<Check> {
    vec![Check { name: "c".to_owned(), health: Health::Passing as i32, output: word.to_string() }]
}

/// Revisions are small where runs are short, so that comparisons hit now and then.
fn command() -> impl Strategy<Value = Command> {
    let revision = 0u64..12;
    let id = || prop::sample::select(vec!["x", "y", "z"]);
    prop_oneof![
        4 => (key(), 0usize..24, prop::option::of(revision.clone()), 0u64..2).prop_map(
            |(key, len, if_mod_revision, ttl_ms)| Command::PutKey(PutKeyCommand {
                key,
                value: vec![7; len].into(),
                if_mod_revision,
                ttl_ms,
                keys_max: KEYS_MAX,
                bytes_max: BYTES_MAX,
            })
        ),
        2 => (key(), any::<bool>(), prop::option::of(revision.clone()), 0u64..3).prop_map(
            |(key, prefix, if_mod_revision, deletions_max)| Command::DeleteKeys(DeleteKeysCommand {
                key,
                prefix,
                if_mod_revision: if_mod_revision.filter(|_| !prefix),
                deletions_max: deletions_max + u64::from(!prefix),
            })
        ),
        1 => prop::collection::vec((key(), revision.clone()), 0..4).prop_map(|keys| {
            let keys = keys.into_iter().map(|(key, mod_revision)| ExpiredKey { key, mod_revision });
            Command::ExpireKeys(ExpireKeysCommand { keys: keys.collect() })
        }),
        2 => (id(), 0u8..3).prop_map(|(id, word)| {
            let (service, id) = ("web".to_owned(), id.to_owned());
            let instance = Instance { service, id, checks: checks(word), ..Instance::default() };
            Command::PutInstance(PutInstanceCommand { instance: Some(instance), instances_max: INSTANCES_MAX })
        }),
        2 => (id(), revision.clone(), 0u8..3).prop_map(|(id, lease, word)| {
            Command::SetChecks(SetChecksCommand { name: name(id), lease, checks: checks(word) })
        }),
        1 => (id(), revision).prop_map(|(id, lease)| {
            let expired = lease % 2 == 0;
            Command::RemoveInstance(RemoveInstanceCommand { name: name(id), lease, expired })
        }),
    ]
}

fn check(commands: Vec<Command>) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
    let (mut tables, mut model, mut follower) = (Tables::default(), Model::default(), Follower::default());
    for command in commands {
        let mut change = TablesMut::new(&mut tables);
        let reply = RegistryCommand { command: Some(command.clone()), only_in_term: 0 };
        let reply = apply(&mut change, reply, Term(1)).registry.unwrap();
        let (batch, events) = (change.batch, change.events);
        db.write(batch).unwrap();
        assert_eq!(events.len() as u64, reply.changed, "{command:?}");
        let revision_of_reply = if reply.changed == 0 { 0 } else { tables.revision() };
        assert_eq!(reply.revision, revision_of_reply, "{command:?}");
        events.into_iter().for_each(|event| follower.follow(event));
        let outcome = match reply.refused {
            Some(refused) => Err(Failure::from(refused).code),
            None => Ok(reply.changed),
        };
        assert_eq!(outcome, model.apply(&command), "{command:?}");
        check_same(&tables, &model);
        assert_eq!((tables.directory(), tables.revision()), (&follower.directory, follower.revision));
    }
    assert_eq!(Tables::load(&db).unwrap(), tables);
}

fn check_same(tables: &Tables, model: &Model) {
    let directory = tables.directory();
    let keys = directory.keys_with("", "").map(|entry| {
        let KeyValue { key, value, create_revision, mod_revision, version, ttl_ms } = entry.clone();
        (key, (value.to_vec(), create_revision, mod_revision, version, ttl_ms))
    });
    assert_eq!(keys.collect::<BTreeMap<_, _>>(), model.keys);
    let instances = directory.instances().map(|instance| {
        let word = instance.checks[0].output.clone();
        (instance.id.clone(), (instance.lease, instance.create_revision, instance.mod_revision, word))
    });
    assert_eq!(instances.collect::<BTreeMap<_, _>>(), model.instances);
    assert_eq!(tables.revision(), model.revision);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_registry_is_maps_with_one_counter(commands in prop::collection::vec(command(), 0..40)) {
        check(commands);
    }
}
