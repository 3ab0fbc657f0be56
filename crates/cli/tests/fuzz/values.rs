//! Values as nobody sends them: those at which arithmetic ends, and words that are something else to whoever
//! reads them.

use crate::random::Random;
use protox::prost_reflect::{Kind, Value};

/// The numbers at which something ends: bits of types, those of ids, terms and indexes (docs/security.md).
const EDGES: &[u64] = &[
    0,
    1,
    2,
    255,
    256,
    (1 << 16) - 1,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 53,
    (1 << 56) - 1,
    1 << 56,
    (1 << 61) - 1,
    1 << 61,
    1 << 62,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

const WORDS: &[&str] = &[
    "",
    "/",
    ".",
    "..",
    "../../../etc/passwd",
    "a/../b",
    "//",
    "\0",
    "a\0b",
    "\u{1b}[2J\u{1b}]0;x\u{7}",
    "\r\n",
    "\u{202e}abc",
    "\u{feff}",
    "\u{10ffff}\u{10ffff}",
    "ÄäÖö߀𝄞",
    "(((((((((((((((((((((((a*)*)*)*)*)*)*)*)*)*",
    // Eighteen alternatives are 2^18 states to whoever makes a table of them.
    "[{a=(x|y)*x(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)(x|y)}]=info",
    "[a-",
    "x{1000000}",
    "%s%n%x",
    "$(reboot)",
    "' OR 1=1 --",
    "info",
    "flotilla_scm=debug",
    "-1",
    "18446744073709551616",
    "1e999",
    "NaN",
    "127.0.0.1:1",
    "127.0.0.1:99999",
    "[::]:0",
    "http://localhost:80/x",
    "00000000-0000-0000-0000-000000000000",
    "d41d8cd98f00b204e9800998ecf8427e-3",
    "s3",
    "first",
    "text/plain",
    "CRC32",
    "rack-1",
];

/// A real value as another kind has it; `None`: it has none like that.
pub(crate) fn fitted(value: &Value, kind: &Kind) -> Option<Value> {
    let number = value.as_u64().or(value.as_u32().map(u64::from));
    match kind {
        Kind::Uint64 | Kind::Fixed64 => number.map(Value::U64),
        Kind::Uint32 | Kind::Fixed32 => number.map(|number| Value::U32(number as u32)),
        Kind::String => value.as_str().map(|text| Value::String(text.to_owned())),
        Kind::Bytes => match value {
            Value::Bytes(bytes) => Some(Value::Bytes(bytes.clone())),
            Value::String(text) => Some(Value::Bytes(text.clone().into())),
            _ => None,
        },
        _ => None,
    }
}

/// A value that is made up.
pub(crate) fn strange(kind: &Kind, random: &mut Random) -> Value {
    match kind {
        Kind::Double => Value::F64(f64::from_bits(random.next())),
        Kind::Float => Value::F32(f32::from_bits(random.next() as u32)),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number(random) as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number(random) as i64),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(number(random) as u32),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(number(random)),
        Kind::Bool => Value::Bool(random.one_in(2)),
        Kind::String => Value::String(text(random)),
        Kind::Bytes => Value::Bytes(bytes(random).into()),
        // Numbers that have a name, and those that have none.
        Kind::Enum(names) => Value::EnumNumber(match random.one_in(4) {
            true => number(random) as i32,
            false => random.below(names.values().len() as u64 + 1) as i32,
        }),
        Kind::Message(_) => unreachable!("a structure is no scalar"),
    }
}

fn number(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(20),
        1 => random.next() >> random.below(64),
        _ => *random.one_of(EDGES),
    }
}

fn text(random: &mut Random) -> String {
    let word = *random.one_of(WORDS);
    match random.below(40) {
        0 => word.repeat(random.below(1 << 12) as usize),
        1 => "a".repeat([1 << 10, (1 << 10) + 1, 1 << 15, 1 << 17][random.below(4) as usize]),
        2..=5 => [word, *random.one_of(WORDS)].concat(),
        6..=9 => number(random).to_string(),
        10..=12 => format!("key-{}", random.below(6)),
        13 => char::from_u32(random.below(0x11_0000) as u32).unwrap_or('\u{fffd}').to_string(),
        _ => word.to_owned(),
    }
}

/// Ids are 16 bytes.
fn bytes(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => Vec::new(),
        1..=4 => (0..16).map(|_| random.next() as u8 >> random.below(8)).collect(),
        5 => vec![random.next() as u8; random.below(1 << 16) as usize],
        6 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
        _ => text(random).into_bytes(),
    }
}
