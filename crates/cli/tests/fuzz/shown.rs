use protox::prost_reflect::{DynamicMessage, Value};
use std::fmt;

/// A message as a person reads it: the fields it has, by name.
pub(crate) struct Shown<'a>(pub(crate) &'a DynamicMessage);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (field, value) in self.0.fields() {
            map.entry(&format_args!("{}", field.name()), &ShownValue(value));
        }
        map.finish()
    }
}

struct ShownValue<'a>(&'a Value);

impl fmt::Debug for ShownValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Message(message) => write!(f, "{}", Shown(message)),
            Value::List(values) => f.debug_list().entries(values.iter().map(ShownValue)).finish(),
            Value::Map(pairs) => {
                f.debug_map().entries(pairs.iter().map(|(key, value)| (key, ShownValue(value)))).finish()
            }
            Value::U32(number) => write!(f, "{number}"),
            Value::U64(number) => write!(f, "{number}"),
            Value::I32(number) | Value::EnumNumber(number) => write!(f, "{number}"),
            Value::I64(number) => write!(f, "{number}"),
            Value::Bool(is) => write!(f, "{is}"),
            Value::String(text) => write!(f, "{text:?}"),
            Value::Bytes(bytes) => write!(f, "{bytes:?}"),
            Value::F32(number) => write!(f, "{number}"),
            Value::F64(number) => write!(f, "{number}"),
        }
    }
}
