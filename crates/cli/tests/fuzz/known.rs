use crate::random::Random;
use crate::values::fitted;
use proto::om::BucketPlace;
use protox::prost_reflect::{DynamicMessage, FieldDescriptor, ReflectMessage, Value};
use std::collections::BTreeMap;

/// The most values of one name, and messages of one kind, that are kept: what comes later is like these.
const EACH_MAX: usize = 24;

/// What is real in a cluster: the numbers, names and whole structures of its answers. A message made of these
/// gets further than one of numbers that nobody has.
#[derive(Default)]
pub(crate) struct Known {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// Where the strangers' bucket is.
    pub(crate) place: Option<BucketPlace>,
    /// Numbers, strings and bytes by the name of their field.
    scalars: BTreeMap<String, Vec<Value>>,
    /// Structures by their full name.
    messages: BTreeMap<String, Vec<DynamicMessage>>,
}

impl Known {
    pub(crate) fn of(cluster: &str) -> Known {
        Known { cluster: cluster.to_owned(), ..Known::default() }
    }

    /// Takes in all that a message has.
    pub(crate) fn learn(&mut self, message: &DynamicMessage) {
        for (field, value) in message.fields() {
            self.learn_value(&name_of(&field), value);
        }
        let name = message.descriptor().full_name().to_owned();
        keep(self.messages.entry(name).or_default(), message.clone());
    }

    pub(crate) fn learn_value(&mut self, name: &str, value: &Value) {
        match value {
            Value::Message(message) => self.learn(message),
            Value::List(values) => values.iter().take(EACH_MAX).for_each(|one| self.learn_value(name, one)),
            Value::Map(pairs) => pairs.values().for_each(|value| self.learn_value(name, value)),
            Value::U32(_) | Value::U64(_) | Value::String(_) | Value::Bytes(_) => {
                keep(self.scalars.entry(name.to_owned()).or_default(), value.clone());
            }
            _ => {}
        }
    }

    /// A real structure of this kind.
    pub(crate) fn message(&self, name: &str, random: &mut Random) -> Option<DynamicMessage> {
        self.messages.get(name).map(|all| random.one_of(all).clone())
    }

    /// A real value that stood in a field of this name, or now and then in any other.
    pub(crate) fn scalar(&self, field: &FieldDescriptor, random: &mut Random) -> Option<Value> {
        let of_name = self.scalars.get(&name_of(field)).filter(|_| !random.one_in(32));
        let any = random.below(self.scalars.len().max(1) as u64) as usize;
        let all = of_name.or_else(|| self.scalars.values().nth(any).filter(|_| random.one_in(4)))?;
        fitted(random.one_of(all), &field.kind())
    }
}

/// The name under which values of a field are kept: lists have the names of what is in them, with an s, and
/// Raft has other numbers under the same names.
fn name_of(field: &FieldDescriptor) -> String {
    let name = field.name().strip_suffix('s').unwrap_or(field.name());
    match (field.parent_message().package_name(), name) {
        ("flotilla.raft.v1", "from" | "to_replica" | "member") => "raft-replica".to_owned(),
        ("flotilla.raft.v1", name) => format!("raft-{name}"),
        (_, name) => name.to_owned(),
    }
}

fn keep<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if all.len() < EACH_MAX && !all.contains(&one) {
        all.push(one);
    }
}
