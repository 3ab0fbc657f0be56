//! Limits of a message that a server is asked with: in bytes, before they are gathered, and in parts, before
//! they become structures. Two bytes on the wire can be a structure of 200 in memory, so a limit of bytes
//! alone is none.
//!
//! A message that is not named here has the limits of [`SMALL`]. Answers are taken from servers that were
//! asked for them, and have [`crate::MESSAGE_BYTES_MAX`] alone.

use crate::{Code, Failure};
use bytes::Buf;
use prost::Message;

/// The limit of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimit {
    pub bytes_max: usize,
    /// The most structures, strings and numbers of those that the message may have many of. Each is some
    /// hundred bytes in memory at most.
    pub parts_max: u32,
}

/// The limits of a message that is not named here: most requests have some hundred bytes; the longest key and
/// all its attributes are 9 KiB.
pub const SMALL: MessageLimit = MessageLimit { bytes_max: 64 << 10, parts_max: 1024 };

const fn limit(bytes_max: usize, parts_max: u32) -> MessageLimit {
    MessageLimit { bytes_max, parts_max }
}

/// The messages that need more, with their limits.
const LARGER: &[(&str, MessageLimit)] = &[
    // Entries of 16 MiB at most and 4 MiB of others with it; 256 of them, a checksum for each 64 KiB.
    ("flotilla.raft.v1.AppendRequest", limit(crate::MESSAGE_BYTES_MAX, 2048)),
    // 1024 heartbeats of some 100 bytes, each with four structures in it.
    ("flotilla.raft.v1.HeartbeatsRequest", limit(512 << 10, 5 * 1024)),
    // A manifest is 16 MiB at most, a piece 256 KiB.
    ("flotilla.raft.v1.SnapshotToFollower", limit(17 << 20, 16)),
    // A chunk is 4 MiB at most, its checksums 256 bytes.
    ("flotilla.datanode.v1.WriteChunk", limit((4 << 20) + (64 << 10), 256)),
    // What one command of the OM may be, 4 MiB, and its request; a piece is some 60 bytes there, and two
    // parts.
    ("flotilla.om.v1.ChangeRequest", limit(5 << 20, 160_000)),
    // 64 keys of 1 KiB.
    ("flotilla.om.v1.LookupKeysRequest", limit(128 << 10, 256)),
    // 512 KiB, or one row of 12 MiB; at most 8 192 rows and requests, whose answers are a few structures
    // each.
    ("flotilla.om.v1.ReceiveRowsRequest", limit(13 << 20, 64 << 10)),
    // The same for rows of a backup.
    ("flotilla.om.v1.RestoreRowsRequest", limit(13 << 20, 64 << 10)),
    // 10 000 pipelines, 64 000 parts of replicas with their terms, 10 000 numbers of those that are gone;
    // what is wrong with one replica takes 1 KiB.
    ("flotilla.scm.v1.HeartbeatRequest", limit(crate::MESSAGE_BYTES_MAX, 100_000)),
    // 16 384 blocks of 64 containers, some 40 bytes each.
    ("flotilla.scm.v1.DiscardBlocksRequest", limit(1 << 20, 17 * 1024)),
    // 1 000 disks.
    ("flotilla.scm.v1.RegisterRequest", limit(512 << 10, 4096)),
    // 10 000 numbers.
    ("flotilla.scm.v1.LocateContainersRequest", limit(128 << 10, 11_000)),
    // 10 000 hosts, with two names of 255 bytes.
    ("flotilla.scm.v1.SetRacksRequest", limit(6 << 20, 11_000)),
    // A value of 64 KiB, or an instance of 16, and its key.
    ("flotilla.registry.v1.PutKeyRequest", limit(128 << 10, 16)),
];

/// The depth to which messages may stand in each other; ours go five deep at most.
const DEPTH_MAX: u32 = 16;

/// The shape of a message that may have many parts.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) parts: &'static [(u32, Part)],
}

#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// Another message, by its number in [`SHAPES`].
    Message(usize),
    /// A string or bytes that may come many times.
    Element,
    /// Numbers that may come many times, alone or together.
    Numbers,
}

/// A method that a server is asked by.
pub(crate) struct Method {
    path: &'static str,
    /// The number of the message that is asked with, in [`SHAPES`].
    asked: usize,
    /// Whether it is asked with a stream of these, and not with one.
    takes_stream: bool,
}

impl Method {
    fn at(path: &str) -> Option<&'static Method> {
        let at = METHODS.binary_search_by_key(&path, |method| method.path).ok()?;
        Some(&METHODS[at])
    }
}

/// Whether the method at this path is asked with a stream of messages. No other call has more than one.
pub fn takes_stream(path: &str) -> bool {
    Method::at(path).is_some_and(|method| method.takes_stream)
}

/// A message that a call carries.
pub(crate) trait Carried {
    /// The number of its shape in [`SHAPES`], for what a server is asked with.
    const ASKED: Option<usize>;
}

include!(concat!(env!("OUT_DIR"), "/shapes.rs"));

/// The reason why a message is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{name} has more than {parts_max} parts")]
    TooMany { name: &'static str, parts_max: u32 },
    #[error("{name} is no message of that kind")]
    Malformed { name: &'static str },
}

impl MessageLimit {
    fn of(shape: &Shape) -> MessageLimit {
        LARGER.iter().find(|(name, _)| *name == shape.name).map_or(SMALL, |(_, limit)| *limit)
    }

    /// The limit of what the method at this path is asked with; `None`: there is no such method.
    pub fn of_method(path: &str) -> Option<MessageLimit> {
        Some(MessageLimit::of(&SHAPES[Method::at(path)?.asked]))
    }

    /// The limits of all methods, in the order of their paths.
    pub fn of_all() -> impl Iterator<Item = (&'static str, MessageLimit)> {
        METHODS.iter().map(|method| (method.path, MessageLimit::of(&SHAPES[method.asked])))
    }
}

/// Counts what decoding would make, without making it, of all that `bytes` has.
pub(crate) fn check(shape: usize, bytes: &mut impl Buf) -> Result<(), Refused> {
    let shape = &SHAPES[shape];
    let parts_max = MessageLimit::of(shape).parts_max;
    let mut left = parts_max;
    count(shape, bytes, 0, &mut left, DEPTH_MAX).map_err(|end| match end {
        Unfit::TooMany => Refused::TooMany { name: shape.name, parts_max },
        Unfit::Malformed => Refused::Malformed { name: shape.name },
    })
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        match refused {
            Refused::TooMany { .. } => Failure::new(Code::TooLarge, refused.to_string()),
            Refused::Malformed { .. } => Failure::invalid(refused.to_string()),
        }
    }
}

/// Does with a message what a server does that is asked with it at this path, and drops it: for who looks for
/// messages that cost too much. `None`: there is no such method.
#[doc(hidden)]
pub fn decode_asked(path: &str, message: &[u8]) -> Option<Result<(), Failure>> {
    let at = DECODERS.binary_search_by_key(&path, |(path, _)| *path).ok()?;
    Some(DECODERS[at].1(message))
}

fn decode_as<M: Message + Carried + Default>(message: &[u8]) -> Result<(), Failure> {
    check(M::ASKED.expect("what a server is asked with"), &mut { message })?;
    M::decode(message).map(drop).map_err(|error| Failure::invalid(error.to_string()))
}

enum Unfit {
    TooMany,
    Malformed,
}

/// Counts the parts of a message that ends where `after` bytes are left.
fn count(shape: &Shape, bytes: &mut impl Buf, after: usize, left: &mut u32, depth: u32) -> Result<(), Unfit> {
    let depth = depth.checked_sub(1).ok_or(Unfit::Malformed)?;
    while bytes.remaining() > after {
        let key = varint(bytes)?;
        let number = u32::try_from(key >> 3).map_err(|_| Unfit::Malformed)?;
        let part = shape.parts.iter().find(|(field, _)| *field == number).map(|(_, part)| *part);
        let length = match key & 7 {
            0 => varint(bytes).map(|_| 0)?,
            1 => 8,
            2 => usize::try_from(varint(bytes)?).map_err(|_| Unfit::Malformed)?,
            5 => 4,
            // Groups, which no message of ours has.
            _ => return Err(Unfit::Malformed),
        };
        let behind = bytes.remaining().checked_sub(length).filter(|behind| *behind >= after);
        let behind = behind.ok_or(Unfit::Malformed)?;
        if let Some(part) = part {
            // Numbers that stand together take eight times their bytes in memory at most: as many as a
            // structure in sixteen bytes.
            let parts = match (part, key & 7) {
                (Part::Numbers, 2) => 1 + u32::try_from(length / 16).unwrap_or(u32::MAX),
                _ => 1,
            };
            *left = left.checked_sub(parts).ok_or(Unfit::TooMany)?;
            if let (Part::Message(inner), 2) = (part, key & 7) {
                count(&SHAPES[inner], bytes, behind, left, depth)?;
            }
        }
        bytes.advance(bytes.remaining() - behind);
    }
    match bytes.remaining() == after {
        true => Ok(()),
        // A number that ends behind its message.
        false => Err(Unfit::Malformed),
    }
}

fn varint(bytes: &mut impl Buf) -> Result<u64, Unfit> {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = bytes.try_get_u8().map_err(|_| Unfit::Malformed)?;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Unfit::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{om, raft, registry, scm};
    fn check_message<M: Message + Carried>(message: &M) -> Result<(), Refused> {
        check(M::ASKED.expect("what a server is asked with"), &mut &message.encode_to_vec()[..])
    }

    #[test]
    fn each_name_is_that_of_a_message_some_method_is_asked_with() {
        for (name, _) in LARGER {
            assert!(METHODS.iter().any(|method| SHAPES[method.asked].name == *name), "{name}");
        }
        assert_eq!(MessageLimit::of_method("/flotilla.raft.v1.RaftTransport/Vote"), Some(SMALL));
        let appends = MessageLimit::of_method("/flotilla.raft.v1.RaftTransport/Append");
        assert_eq!(appends.map(|limit| limit.bytes_max), Some(crate::MESSAGE_BYTES_MAX));
        assert_eq!(MessageLimit::of_method("/flotilla.raft.v1.RaftTransport/Nothing"), None);
    }

    #[test]
    fn a_method_takes_a_stream_where_its_service_says_so() {
        for path in [crate::messages::WRITE, crate::messages::APPEND, crate::messages::SNAPSHOT] {
            assert!(takes_stream(path), "{path}");
        }
        for path in [crate::messages::READ, "/flotilla.scm.v1.Scm/Heartbeat", "/flotilla.scm.v1.Scm/Nothing"]
        {
            assert!(!takes_stream(path), "{path}");
        }
        assert!(MessageLimit::of_method("/flotilla.scm.v1.Scm/Heartbeat").is_some());
    }

    /// Eight MiB of empty heartbeats became 590 MiB.
    #[test]
    fn what_is_empty_counts() {
        let heartbeats =
            |count| raft::HeartbeatsRequest { heartbeats: vec![raft::AppendRequest::default(); count] };
        assert_eq!(check_message(&heartbeats(1024)), Ok(()));
        assert!(matches!(check_message(&heartbeats(4 << 20)), Err(Refused::TooMany { .. })));

        let entries = |count| raft::AppendRequest {
            entries: vec![raft::Entry::default(); count],
            ..Default::default()
        };
        assert_eq!(check_message(&entries(256)), Ok(()));
        assert!(matches!(check_message(&entries(100_000)), Err(Refused::TooMany { .. })));
        let nested = raft::HeartbeatsRequest { heartbeats: vec![entries(20_000)] };
        assert!(matches!(check_message(&nested), Err(Refused::TooMany { .. })), "within another message");

        let keys = om::DeleteKeysRequest { keys: vec![Default::default(); 1 << 20], ..Default::default() };
        let keys = one_change(keys);
        assert!(matches!(check_message(&keys), Err(Refused::TooMany { .. })), "of strings");
        let numbers = scm::HeartbeatRequest { containers_gone: vec![1; 8 << 20], ..Default::default() };
        assert!(matches!(check_message(&numbers), Err(Refused::TooMany { .. })), "of numbers");
        let pair = |n: u32| (n.to_string(), String::new());
        let instance = registry::Instance { metadata: (0..5000).map(pair).collect(), ..Default::default() };
        let pairs = registry::RegisterInstanceRequest { instance: Some(instance), clock_ms: 0 };
        assert!(matches!(check_message(&pairs), Err(Refused::TooMany { .. })), "of pairs");
    }

    fn one_change(request: impl crate::ChangesBucket) -> om::ChangeRequest {
        let change = om::Change::of(request, crate::RequestId(7), std::time::Duration::ZERO, None);
        om::ChangeRequest { changes: vec![change] }
    }

    /// Each message has as many parts as it has a use for.
    #[test]
    fn what_our_own_send_passes() {
        let to = raft::Address { group: 1, replica: 2, cluster: "c".repeat(36), version: 1 };
        let id = Some(raft::LogId { term: 1 << 40, index: 1 << 40 });
        let vote = Some(raft::Vote { term: 1 << 40, replica: 1 << 40, committed: true });
        let heartbeat =
            raft::AppendRequest { to: Some(to), vote, prev: id, committed: id, ..Default::default() };
        let heartbeats = raft::HeartbeatsRequest { heartbeats: vec![heartbeat; 1024] };
        assert_eq!(check_message(&heartbeats), Ok(()));
        assert!(heartbeats.encoded_len() <= limit_of(&heartbeats).bytes_max);

        let part = |number| om::CompletedPart { number, etag: "e".repeat(256) };
        let complete =
            om::CompleteUploadRequest { parts: (0..10_000).map(part).collect(), ..Default::default() };
        let complete = one_change(complete);
        assert_eq!(check_message(&complete), Ok(()));
        assert!(complete.encoded_len() <= limit_of(&complete).bytes_max);

        let locate = scm::LocateContainersRequest { containers: vec![u64::from(u32::MAX); 10_000] };
        assert_eq!(check_message(&locate), Ok(()));
        assert!(locate.encoded_len() <= limit_of(&locate).bytes_max);

        let replica = scm::ContainerReplica { ..Default::default() };
        let heartbeat = scm::HeartbeatRequest {
            containers: vec![replica; 10_000],
            pipelines: vec![scm::PipelineReport::default(); 10_000],
            containers_gone: vec![u64::MAX; 10_000],
            ..Default::default()
        };
        assert_eq!(check_message(&heartbeat), Ok(()));
    }

    fn limit_of<M: Message + Carried>(_: &M) -> MessageLimit {
        MessageLimit::of(&SHAPES[M::ASKED.expect("what a server is asked with")])
    }

    #[test]
    fn what_is_cut_or_stands_too_deep_is_malformed() {
        let shape = <raft::HeartbeatsRequest as Carried>::ASKED.expect("what a server is asked with");
        for bytes in [
            &b"\x0a"[..],
            b"\x0a\x05\x00",
            b"\x0b\x0c",
            b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
            b"\x09\x01",
        ] {
            assert!(matches!(check(shape, &mut { bytes }), Err(Refused::Malformed { .. })), "{bytes:?}");
        }
    }
}
