//! Messages of a method's kind, from what its descriptor says: as they should be, nearly, or not at all.

use crate::known::Known;
use crate::random::Random;
use crate::values::strange;
use protox::prost_reflect::prost::Message;
use protox::prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};

/// The depth to which structures stand in each other: ours go five deep.
const DEPTH_MAX: u32 = 6;
/// The most values of a list that are made anew; more are like these.
const DIFFERENT_MAX: usize = 8;

/// A message, and its bytes, of which there are about `bytes_max` at most.
pub(crate) fn message(
    kind: &MessageDescriptor,
    known: &Known,
    random: &mut Random,
    bytes_max: usize,
) -> (DynamicMessage, Vec<u8>) {
    // Of one that is right but for one thing, handlers see more than of one in which nothing is.
    let strange_in = *random.one_of(&[2, 4, 16]);
    let mut maker = Maker { known, random, strange_in, room: bytes_max as u64 / 32 };
    let made = maker.structure(kind, DEPTH_MAX);
    let mut bytes = made.encode_to_vec();
    if random.one_in(16) {
        damage(&mut bytes, random);
    }
    (made, bytes)
}

/// A message like another one but for one thing, as a stream has them.
pub(crate) fn alike(first: &DynamicMessage, known: &Known, random: &mut Random) -> (DynamicMessage, Vec<u8>) {
    let mut next = first.clone();
    let mut maker = Maker { known, random, strange_in: 4, room: 64 };
    maker.set_one(&mut next, DEPTH_MAX);
    let bytes = next.encode_to_vec();
    (next, bytes)
}

struct Maker<'a> {
    known: &'a Known,
    random: &'a mut Random,
    /// One value in so many is not as it should be.
    strange_in: u64,
    /// Values that may be made yet.
    room: u64,
}

impl Maker<'_> {
    /// One that is real, or was before something of it was made up, or one of which all is made up.
    fn structure(&mut self, kind: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let is_real = !self.random.one_in(self.strange_in);
        let real = self.known.message(kind.full_name(), self.random).filter(|_| is_real);
        let is_outermost = depth == DEPTH_MAX;
        let mut made = match real {
            Some(mut real) => {
                if is_outermost || self.random.one_in(self.strange_in) {
                    (0..self.random.below(3)).for_each(|_| self.set_one(&mut real, depth));
                }
                real
            }
            None => self.made_up(kind, depth),
        };
        self.renew(&mut made);
        made
    }

    fn made_up(&mut self, kind: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut made = DynamicMessage::new(kind.clone());
        if depth == 0 {
            return made;
        }
        for field in kind.fields() {
            if field.containing_oneof().is_none() && !self.random.one_in(4 * self.strange_in) {
                self.set(&mut made, &field, depth);
            }
        }
        for oneof in kind.oneofs() {
            let fields: Vec<FieldDescriptor> = oneof.fields().collect();
            if !self.random.one_in(4 * self.strange_in) {
                let field = self.random.one_of(&fields);
                self.set(&mut made, field, depth);
            }
        }
        made
    }

    /// Changes a field of it, mostly of a structure as deep in it as there is one.
    fn set_one(&mut self, real: &mut DynamicMessage, depth: u32) {
        let inner = real.fields().filter(|(_, value)| has_structure(value));
        let inner: Vec<FieldDescriptor> = inner.map(|(field, _)| field).collect();
        if !inner.is_empty() && !self.random.one_in(4) {
            match real.get_field_mut(self.random.one_of(&inner)) {
                Value::Message(message) => self.set_one(message, depth),
                Value::List(values) => {
                    let at = self.random.below(values.len() as u64) as usize;
                    if let Value::Message(message) = &mut values[at] {
                        self.set_one(message, depth);
                    }
                }
                _ => {}
            }
            return;
        }
        let fields: Vec<FieldDescriptor> = real.descriptor().fields().collect();
        if !fields.is_empty() {
            let field = self.random.one_of(&fields);
            self.set(real, field, depth.max(1));
        }
    }

    fn set(&mut self, made: &mut DynamicMessage, field: &FieldDescriptor, depth: u32) {
        let value = match field.kind() {
            Kind::Message(pair) if field.is_map() => {
                let (key, value) = (pair.map_entry_key_field(), pair.map_entry_value_field());
                let pairs = (0..self.count().min(64)).filter_map(|_| {
                    let key = self.value(&key, depth).into_map_key()?;
                    Some((key, self.value(&value, depth)))
                });
                Value::Map(pairs.collect())
            }
            _ if field.is_list() => {
                let mut values: Vec<Value> = Vec::new();
                for at in 0..self.count() as usize {
                    let like = values.get(at % DIFFERENT_MAX).filter(|_| at >= DIFFERENT_MAX).cloned();
                    // A copy has as much in it as what it is like.
                    if let Some(Value::Message(like)) = &like {
                        let Some(room) = self.room.checked_sub(like.encoded_len() as u64 / 8) else { break };
                        self.room = room;
                    }
                    values.push(like.unwrap_or_else(|| self.value(field, depth)));
                }
                Value::List(values)
            }
            _ => self.value(field, depth),
        };
        made.set_field(field, value);
    }

    /// The length of a list.
    fn count(&mut self) -> u64 {
        let most = if self.random.one_in(12 * self.strange_in) { 1 << self.random.below(18) } else { 4 };
        let count = self.random.below(most + 1).min(self.room);
        self.room -= count;
        count
    }

    fn value(&mut self, field: &FieldDescriptor, depth: u32) -> Value {
        let kind = field.kind();
        if let Kind::Message(kind) = &kind {
            return Value::Message(self.structure(kind, depth.saturating_sub(1)));
        }
        let real = match self.random.one_in(self.strange_in) {
            true => None,
            false => self.known.scalar(field, self.random),
        };
        real.unwrap_or_else(|| strange(&kind, self.random))
    }

    /// What has a name of its own is another one than any before it, mostly.
    fn renew(&mut self, made: &mut DynamicMessage) {
        let name = match made.descriptor().name() {
            "Change" => "request_id",
            "WriteChunk" => "nonce",
            _ => return,
        };
        if !self.random.one_in(4 * self.strange_in) {
            let id: Vec<u8> = (0..16).map(|_| self.random.next() as u8).collect();
            made.set_field_by_name(name, Value::Bytes(id.into()));
        }
    }
}

fn has_structure(value: &Value) -> bool {
    match value {
        Value::Message(_) => true,
        Value::List(values) => values.first().is_some_and(|first| matches!(first, Value::Message(_))),
        _ => false,
    }
}

/// Bits that flip, an end that is cut off, bytes that were not there.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(4) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            _ => bytes.splice(at..at, [random.next() as u8; 3]).for_each(drop),
        }
    }
}
