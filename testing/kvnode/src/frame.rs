//! Frames, in which nodes and clients speak to each other. Little-endian; a connection carries frames in both
//! directions, answers in any order.
//!
//! ```text
//! request: bytes u32, id u64, kind u8, group u32, rest     answer: bytes u32, id u64, code u8, rest
//! ```
//! The last answer on a connection that the node ends in order is for nobody (`GOODBYE`): every request that
//! was answered was taken, and no other was.
//!
//! `bytes` counts what follows it. Rests: operations and outcomes as `kv` encodes them; keys as length u16
//! and bytes; values as length u32 (`ABSENT`: none) and bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use types::NodeId;

/// The most bytes of a frame: a proposal of 16 MiB and its head.
const FRAME_BYTES_MAX: usize = (16 << 20) + 1024;
const LENGTH_BYTES: usize = 4;
const ABSENT: u32 = u32::MAX;
/// The id of a goodbye, which no request has.
pub(crate) const GOODBYE: u64 = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Operations of `kv`, encoded; answered with as many outcomes.
    Ops(Bytes),
    /// Keys, encoded; answered with as many values, no older than the request.
    Read(Bytes),
    /// Bytes to replicate that no state machine looks at.
    Put(Bytes),
    Facts,
    /// The node is to hand leadership of the group to that one.
    Transfer(NodeId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done(Bytes),
    /// Nothing was done; the leader, if it is known.
    NotLeader(Option<NodeId>),
    /// Nothing was done; the caller may ask here again, later.
    Busy,
    /// Nothing was done; the caller may ask elsewhere, or later.
    Unavailable(String),
    OutcomeUnknown,
    /// The request would be refused everywhere and always.
    Invalid(String),
}

/// The facts that a node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The number of times that the disk was asked to make something durable.
    pub syncs: u64,
    pub groups: Vec<GroupFacts>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupFacts {
    pub group: u32,
    pub is_leader: bool,
    pub term: u64,
    /// 0: none is known.
    pub leader: u64,
    /// Counts of entries: index + 1.
    pub last: u64,
    pub committed: u64,
    pub applied: u64,
    pub has_failed: bool,
    /// Whether the replica knows that it is no member any more.
    pub is_removed: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes is above the limit of {FRAME_BYTES_MAX}")]
    TooLarge(usize),
    #[error("bytes are missing")]
    Short,
    #[error("kind {0} is unknown")]
    Unknown(u8),
}

/// The next whole frame of what was received.
pub(crate) fn take_frame(received: &mut BytesMut) -> Result<Option<Bytes>, FrameError> {
    let Some(head) = received.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let bytes = u32::from_le_bytes(*head) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(FrameError::TooLarge(bytes));
    }
    if received.len() < LENGTH_BYTES + bytes {
        received.reserve(LENGTH_BYTES + bytes - received.len());
        return Ok(None);
    }
    received.advance(LENGTH_BYTES);
    Ok(Some(received.split_to(bytes).freeze()))
}

/// Writes a frame. Its length is known once the rest is written, so that is filled in last.
fn put_frame(out: &mut BytesMut, id: u64, kind: u8, rest: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_u32_le(0);
    out.put_u64_le(id);
    out.put_u8(kind);
    rest(out);
    let bytes = u32::try_from(out.len() - start - LENGTH_BYTES).expect("frames are below 4 GiB");
    out[start..start + LENGTH_BYTES].copy_from_slice(&bytes.to_le_bytes());
}

impl Request {
    pub(crate) fn encode(&self, id: u64, group: u32, out: &mut BytesMut) {
        let (kind, rest): (u8, &[u8]) = match self {
            Request::Ops(ops) => (1, ops),
            Request::Read(keys) => (2, keys),
            Request::Put(body) => (3, body),
            Request::Facts => (4, &[]),
            Request::Transfer(to) => (5, &to.0.to_le_bytes()),
        };
        put_frame(out, id, kind, |out| {
            out.put_u32_le(group);
            out.put_slice(rest);
        });
    }

    /// Takes id, group and request out of a frame.
    pub(crate) fn decode(mut frame: Bytes) -> Result<(u64, u32, Request), FrameError> {
        if frame.len() < 13 {
            return Err(FrameError::Short);
        }
        let (id, kind, group) = (frame.get_u64_le(), frame.get_u8(), frame.get_u32_le());
        let request = match kind {
            1 => Request::Ops(frame),
            2 => Request::Read(frame),
            3 => Request::Put(frame),
            4 => Request::Facts,
            5 => Request::Transfer(NodeId(frame.try_get_u64_le().map_err(|_| FrameError::Short)?)),
            unknown => return Err(FrameError::Unknown(unknown)),
        };
        Ok((id, group, request))
    }
}

impl Answer {
    pub(crate) fn encode(&self, id: u64, out: &mut BytesMut) {
        let (code, rest): (u8, &[u8]) = match self {
            Answer::Done(rest) => (0, rest),
            Answer::NotLeader(leader) => (1, &leader.map_or(0, |leader| leader.0).to_le_bytes()),
            Answer::Busy => (2, &[]),
            Answer::Unavailable(why) => (3, why.as_bytes()),
            Answer::OutcomeUnknown => (4, &[]),
            Answer::Invalid(why) => (5, why.as_bytes()),
        };
        put_frame(out, id, code, |out| out.put_slice(rest));
    }

    pub(crate) fn decode(mut frame: Bytes) -> Result<(u64, Answer), FrameError> {
        if frame.len() < 9 {
            return Err(FrameError::Short);
        }
        let (id, code) = (frame.get_u64_le(), frame.get_u8());
        let text = |frame: Bytes| String::from_utf8_lossy(&frame).into_owned();
        let answer = match code {
            0 => Answer::Done(frame),
            1 => {
                let leader = frame.try_get_u64_le().map_err(|_| FrameError::Short)?;
                Answer::NotLeader((leader != 0).then_some(NodeId(leader)))
            }
            2 => Answer::Busy,
            3 => Answer::Unavailable(text(frame)),
            4 => Answer::OutcomeUnknown,
            5 => Answer::Invalid(text(frame)),
            unknown => return Err(FrameError::Unknown(unknown)),
        };
        Ok((id, answer))
    }
}

pub(crate) fn put_key(out: &mut BytesMut, key: &[u8]) {
    out.put_u16_le(u16::try_from(key.len()).expect("a key of at most 64 KiB"));
    out.put_slice(key);
}

pub(crate) fn take_key(keys: &mut Bytes) -> Result<Bytes, FrameError> {
    let bytes = keys.try_get_u16_le().map_err(|_| FrameError::Short)?.into();
    if keys.len() < bytes { Err(FrameError::Short) } else { Ok(keys.split_to(bytes)) }
}

pub(crate) fn put_value(out: &mut BytesMut, value: Option<&[u8]>) {
    let bytes = value.map_or(ABSENT, |value| u32::try_from(value.len()).expect("a value below 4 GiB"));
    out.put_u32_le(bytes);
    out.put_slice(value.unwrap_or_default());
}

pub(crate) fn take_value(values: &mut Bytes) -> Result<Option<Bytes>, FrameError> {
    let bytes = values.try_get_u32_le().map_err(|_| FrameError::Short)?;
    match bytes {
        ABSENT => Ok(None),
        bytes if values.len() < bytes as usize => Err(FrameError::Short),
        bytes => Ok(Some(values.split_to(bytes as usize))),
    }
}

impl NodeFacts {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(self.syncs);
        for facts in &self.groups {
            out.put_u32_le(facts.group);
            let flags = [facts.is_leader, facts.has_failed, facts.is_removed];
            out.put_u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
            for number in [facts.term, facts.leader, facts.last, facts.committed, facts.applied] {
                out.put_u64_le(number);
            }
        }
        out.freeze()
    }

    pub(crate) fn decode(mut bytes: Bytes) -> Result<NodeFacts, FrameError> {
        const GROUP_BYTES: usize = 4 + 1 + 5 * 8;
        let syncs = bytes.try_get_u64_le().map_err(|_| FrameError::Short)?;
        let mut groups = Vec::new();
        while !bytes.is_empty() {
            if bytes.len() < GROUP_BYTES {
                return Err(FrameError::Short);
            }
            let (group, flags) = (bytes.get_u32_le(), bytes.get_u8());
            let mut next = || bytes.get_u64_le();
            let (term, leader, last, committed, applied) = (next(), next(), next(), next(), next());
            groups.push(GroupFacts {
                group,
                is_leader: flags & 1 != 0,
                term,
                leader,
                last,
                committed,
                applied,
                has_failed: flags & 2 != 0,
                is_removed: flags & 4 != 0,
            });
        }
        Ok(NodeFacts { syncs, groups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_and_in_order() {
        let requests = [
            Request::Ops(Bytes::from_static(b"ops")),
            Request::Read(Bytes::from_static(b"keys")),
            Request::Put(Bytes::from(vec![7; 100_000])),
            Request::Facts,
            Request::Transfer(NodeId(3)),
        ];
        let mut sent = BytesMut::new();
        for (id, request) in requests.iter().enumerate() {
            request.encode(id as u64, 9, &mut sent);
        }
        let (mut received, mut taken) = (BytesMut::new(), Vec::new());
        for piece in sent.chunks(777) {
            received.extend_from_slice(piece);
            while let Some(frame) = take_frame(&mut received).unwrap() {
                taken.push(Request::decode(frame).unwrap());
            }
        }
        let expected: Vec<_> = requests.into_iter().enumerate().map(|(id, it)| (id as u64, 9, it)).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn answers_and_facts_survive_their_bytes() {
        let answers = [
            Answer::Done(Bytes::from_static(b"done")),
            Answer::NotLeader(None),
            Answer::NotLeader(Some(NodeId(2))),
            Answer::Busy,
            Answer::Unavailable("why".to_owned()),
            Answer::OutcomeUnknown,
            Answer::Invalid("why".to_owned()),
        ];
        for answer in answers {
            let mut sent = BytesMut::new();
            answer.encode(4, &mut sent);
            let frame = take_frame(&mut sent).unwrap().unwrap();
            assert_eq!(Answer::decode(frame).unwrap(), (4, answer));
        }
        let group = GroupFacts { group: 1, is_leader: true, term: 2, applied: 9, ..GroupFacts::default() };
        let (failed, removed) = (
            GroupFacts { has_failed: true, ..GroupFacts::default() },
            GroupFacts { is_removed: true, ..group },
        );
        let facts = NodeFacts { syncs: 7, groups: vec![group, GroupFacts::default(), failed, removed] };
        assert_eq!(NodeFacts::decode(facts.encode()).unwrap(), facts);
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_by_its_head() {
        let mut received = BytesMut::from(&u32::MAX.to_le_bytes()[..]);
        assert_eq!(take_frame(&mut received), Err(FrameError::TooLarge(u32::MAX as usize)));
    }
}
