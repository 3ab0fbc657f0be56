//! Operations that clients ask for, as the bytes of a command, and their answers.
//!
//! ```text
//! command: op…             op:      kind u8, key length u16, value length u32, expected length u32, key, value, expected
//! reply:   outcome…        outcome: kind u8, and for a conflict: length u32, the value found
//! ```
//! A length of `ABSENT` stands for no value.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const KEY_BYTES_MAX: usize = u16::MAX as usize;
const OP_HEAD_BYTES: usize = 1 + 2 + 4 + 4;
const ABSENT: u32 = u32::MAX;

mod kind {
    pub(super) const SET: u8 = 1;
    pub(super) const COMPARE_AND_SET: u8 = 2;
    pub(super) const APPEND: u8 = 3;

    pub(super) const DONE: u8 = 1;
    pub(super) const CONFLICT: u8 = 2;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a value; `None` deletes it.
    Set { key: Bytes, value: Option<Bytes> },
    /// Sets only where `expected` stands; `None` is no value.
    CompareAndSet { key: Bytes, expected: Option<Bytes>, value: Option<Bytes> },
    /// Adds to the end of what stands there. Doing it twice shows.
    Append { key: Bytes, value: Bytes },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Nothing was set, because this value stands there.
    Conflict(Option<Bytes>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    Short,
    UnknownKind(u8),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Short => write!(f, "bytes are missing"),
            DecodeError::UnknownKind(kind) => write!(f, "kind {kind} is unknown"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Encodes operations as the bytes of a command.
///
/// # Panics
/// When a key is longer than [`KEY_BYTES_MAX`], or a value than 4 GiB.
pub fn encode_ops(ops: &[Op]) -> Bytes {
    let mut out = BytesMut::with_capacity(ops.len() * (OP_HEAD_BYTES + 32));
    for op in ops {
        let (kind, key, value, expected) = match op {
            Op::Set { key, value } => (kind::SET, key, value.as_deref(), None),
            Op::CompareAndSet { key, expected, value } => {
                (kind::COMPARE_AND_SET, key, value.as_deref(), expected.as_deref())
            }
            Op::Append { key, value } => (kind::APPEND, key, Some(&value[..]), None),
        };
        out.put_u8(kind);
        out.put_u16_le(u16::try_from(key.len()).expect("a key of at most 64 KiB"));
        put_length(&mut out, value);
        put_length(&mut out, expected);
        out.put_slice(key);
        out.put_slice(value.unwrap_or_default());
        out.put_slice(expected.unwrap_or_default());
    }
    out.freeze()
}

pub fn decode_ops(mut bytes: Bytes) -> Result<Vec<Op>, DecodeError> {
    let mut ops = Vec::with_capacity(bytes.len() / (OP_HEAD_BYTES + 32) + 1);
    while !bytes.is_empty() {
        if bytes.len() < OP_HEAD_BYTES {
            return Err(DecodeError::Short);
        }
        let (kind, key_bytes) = (bytes.get_u8(), usize::from(bytes.get_u16_le()));
        let (value_bytes, expected_bytes) = (bytes.get_u32_le(), bytes.get_u32_le());
        let key = take(&mut bytes, key_bytes)?;
        let value = take_value(&mut bytes, value_bytes)?;
        let expected = take_value(&mut bytes, expected_bytes)?;
        ops.push(match kind {
            kind::SET => Op::Set { key, value },
            kind::COMPARE_AND_SET => Op::CompareAndSet { key, expected, value },
            kind::APPEND => Op::Append { key, value: value.unwrap_or_default() },
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        });
    }
    Ok(ops)
}

/// Counts the operations in these bytes, without copying any. A server that merges the commands of many
/// clients looks through each before: one that cannot be decoded would stop the group.
pub fn check_ops(mut bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut count = 0;
    while !bytes.is_empty() {
        let head = bytes.first_chunk::<OP_HEAD_BYTES>().ok_or(DecodeError::Short)?;
        let [kind, k0, k1, v0, v1, v2, v3, e0, e1, e2, e3] = *head;
        if !(kind::SET..=kind::APPEND).contains(&kind) {
            return Err(DecodeError::UnknownKind(kind));
        }
        let present = |bytes: [u8; 4]| match u32::from_le_bytes(bytes) {
            ABSENT => 0,
            length => length as usize,
        };
        let key_bytes = usize::from(u16::from_le_bytes([k0, k1]));
        let rest = key_bytes + present([v0, v1, v2, v3]) + present([e0, e1, e2, e3]);
        bytes = bytes[OP_HEAD_BYTES..].get(rest..).ok_or(DecodeError::Short)?;
        count += 1;
    }
    Ok(count)
}

/// Takes the next `count` outcomes, still encoded.
pub fn take_outcomes(bytes: &mut Bytes, count: usize) -> Result<Bytes, DecodeError> {
    let mut end = 0;
    for _ in 0..count {
        let rest = &bytes[end..];
        end += match *rest.first().ok_or(DecodeError::Short)? {
            kind::DONE => 1,
            kind::CONFLICT => {
                let length = rest[1..].first_chunk::<4>().ok_or(DecodeError::Short)?;
                match u32::from_le_bytes(*length) {
                    ABSENT => 5,
                    length => 5 + length as usize,
                }
            }
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        };
        if end > bytes.len() {
            return Err(DecodeError::Short);
        }
    }
    Ok(bytes.split_to(end))
}

pub(crate) fn encode_outcomes(outcomes: &[Outcome]) -> Bytes {
    let mut out = BytesMut::with_capacity(outcomes.len());
    for outcome in outcomes {
        match outcome {
            Outcome::Done => out.put_u8(kind::DONE),
            Outcome::Conflict(found) => {
                out.put_u8(kind::CONFLICT);
                put_length(&mut out, found.as_deref());
                out.put_slice(found.as_deref().unwrap_or_default());
            }
        }
    }
    out.freeze()
}

pub fn decode_outcomes(mut bytes: Bytes) -> Result<Vec<Outcome>, DecodeError> {
    let mut outcomes = Vec::with_capacity(bytes.len());
    while !bytes.is_empty() {
        outcomes.push(match bytes.get_u8() {
            kind::DONE => Outcome::Done,
            kind::CONFLICT if bytes.len() < 4 => return Err(DecodeError::Short),
            kind::CONFLICT => {
                let length = bytes.get_u32_le();
                Outcome::Conflict(take_value(&mut bytes, length)?)
            }
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        });
    }
    Ok(outcomes)
}

fn put_length(out: &mut BytesMut, value: Option<&[u8]>) {
    out.put_u32_le(value.map_or(ABSENT, |value| u32::try_from(value.len()).expect("a value below 4 GiB")));
}

fn take_value(bytes: &mut Bytes, length: u32) -> Result<Option<Bytes>, DecodeError> {
    if length == ABSENT { Ok(None) } else { take(bytes, length as usize).map(Some) }
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, DecodeError> {
    if bytes.len() < length { Err(DecodeError::Short) } else { Ok(bytes.split_to(length)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Option<Bytes>> {
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from))
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        prop_oneof![
            (key(), value()).prop_map(|(key, value)| Op::Set { key, value }),
            (key(), value(), value()).prop_map(|(key, expected, value)| Op::CompareAndSet {
                key,
                expected,
                value
            }),
            (key(), value()).prop_map(|(key, value)| Op::Append { key, value: value.unwrap_or_default() }),
        ]
    }

    proptest! {
        #[test]
        fn ops_survive_their_bytes(ops in proptest::collection::vec(op(), 0..8), cut in any::<prop::sample::Index>()) {
            let bytes = encode_ops(&ops);
            prop_assert_eq!(check_ops(&bytes).unwrap(), ops.len());
            prop_assert_eq!(decode_ops(bytes.clone()).unwrap(), ops);
            // Bytes that are cut anywhere are an error or fewer operations, never a panic.
            let cut = bytes.slice(..cut.index(bytes.len() + 1));
            prop_assert_eq!(check_ops(&cut).ok(), decode_ops(cut).ok().map(|ops| ops.len()));
        }

        #[test]
        fn outcomes_survive_their_bytes(found in proptest::collection::vec(proptest::option::of(value()), 0..8)) {
            let outcome = |found| match found { None => Outcome::Done, Some(value) => Outcome::Conflict(value) };
            let outcomes: Vec<_> = found.into_iter().map(outcome).collect();
            let mut bytes = encode_outcomes(&outcomes);
            prop_assert_eq!(decode_outcomes(bytes.clone()).unwrap(), outcomes.clone());
            for outcome in &outcomes {
                let one = take_outcomes(&mut bytes, 1).unwrap();
                prop_assert_eq!(decode_outcomes(one).unwrap(), vec![outcome.clone()]);
            }
            prop_assert_eq!(take_outcomes(&mut bytes, 1), Err(DecodeError::Short));
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let decoded = decode_ops(bytes.clone().into());
            prop_assert_eq!(check_ops(&bytes).ok(), decoded.ok().map(|ops| ops.len()));
            let _ = take_outcomes(&mut bytes.clone().into(), 3);
            let _ = decode_outcomes(bytes.into());
        }
    }
}
