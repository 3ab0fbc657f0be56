//! openraft's types as they stand on disk and cross the wire: docs/format/entry.md. openraft may change its
//! types with every release; these encodings may not.

use crate::adapter::terms::{TermLimit, TermTooHigh};
use crate::adapter::type_config::{
    Data, Peer, RaftEntry, RaftLogId, RaftMembership, RaftStoredMembership, RaftVote,
};
use crate::{Applied, Command, Member};
use bytes::Bytes;
use openraft::EntryPayload;
use prost::Message;
use proto::{Failure, raft as wire};
use raftlog::HardState;
use std::collections::{BTreeMap, BTreeSet};
use types::{LogId, LogIndex, OwnerId, Payload, ReplicaId, Term};

/// `kind` of a log record. Persisted: never renumber.
mod kind {
    pub(super) const BLANK: u8 = 1;
    pub(super) const COMMAND: u8 = 2;
    pub(super) const MEMBERSHIP: u8 = 3;
    pub(super) const RESET: u8 = 4;
}

/// The highest index that can have come about; arithmetic on those past it could overflow.
pub(crate) const INDEX_MAX: u64 = 1 << 62;

/// The most bytes of a membership: some thousand members. Two bytes of one may be a structure in memory, so a
/// longer one is not looked at.
const MEMBERSHIP_BYTES_MAX: usize = 64 << 10;

/// The reason why bytes of a peer or a disk are no entry of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("index {index} is above {INDEX_MAX}")]
    IndexTooLarge { index: u64 },
    #[error(transparent)]
    Term(#[from] TermTooHigh),
    #[error("entry {index} has the unknown kind {kind}; a newer version wrote it")]
    UnknownKind { index: u64, kind: u32 },
    #[error("membership in entry {index}: {why}")]
    Membership { index: u64, why: String },
    #[error("body of entry {index}: {why}")]
    Body { index: u64, why: String },
    #[error(
        "the answer names this replica as having stood for term {term}, for which it never stood: somebody else did in its name"
    )]
    OwnVote { term: u64 },
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Body { .. } => Failure::new(proto::Code::Corrupt, error.to_string()),
            _ => Failure::invalid(error.to_string()),
        }
    }
}

impl From<DecodeError> for std::io::Error {
    fn from(error: DecodeError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

pub(crate) fn log_id_from(id: LogId) -> RaftLogId {
    RaftLogId::new(id.term.0.into(), id.index.0)
}

pub(crate) fn log_id_of(id: &RaftLogId) -> LogId {
    LogId { term: Term(id.leader_id.term), index: LogIndex(id.index) }
}

pub(crate) fn vote_from(state: HardState) -> RaftVote {
    vote(state.vote_term, state.vote_replica, state.vote_committed)
}

pub(crate) fn vote_to(vote: &RaftVote) -> HardState {
    HardState {
        vote_term: vote.leader_id.term,
        vote_replica: vote.leader_id.voted_for,
        vote_committed: vote.committed,
    }
}

fn vote(term: u64, replica: u64, committed: bool) -> RaftVote {
    if committed { RaftVote::new_committed(term, replica) } else { RaftVote::new(term, replica) }
}

/// An entry as a log record.
pub(crate) fn entry_to_record(entry: RaftEntry) -> Result<raftlog::Entry, DecodeError> {
    let id = log_id_of(&entry.log_id);
    let record = |kind, meta, body, roll_to| raftlog::Entry { id, kind, meta, body, roll_to };
    Ok(match entry.payload {
        EntryPayload::Blank => record(kind::BLANK, Bytes::new(), Payload::default(), None),
        EntryPayload::Normal(Data::Whole(Command { meta, body, roll_to })) => {
            record(kind::COMMAND, meta, body, roll_to)
        }
        EntryPayload::Normal(Data::Reset(meta)) => record(kind::RESET, meta, Payload::default(), None),
        EntryPayload::Normal(Data::Located { .. }) => {
            return Err(DecodeError::Missing("the body of a located entry"));
        }
        EntryPayload::Membership(membership) => {
            let meta = membership_to_wire(&membership).encode_to_vec().into();
            record(kind::MEMBERSHIP, meta, Payload::default(), None)
        }
    })
}

/// The entry of a log record with its body, for a follower.
pub(crate) fn entry_from_record(record: raftlog::Entry) -> Result<RaftEntry, DecodeError> {
    let raftlog::Entry { id, kind, meta, body, roll_to } = record;
    entry_from_parts(id, kind.into(), meta, |meta| Data::Whole(Command { meta, body, roll_to }))
}

/// The entry of a log record without its body, for apply.
pub(crate) fn entry_from_meta(record: raftlog::EntryMeta) -> Result<RaftEntry, DecodeError> {
    let raftlog::EntryMeta { id, kind, meta, roll_to, place } = record;
    entry_from_parts(id, kind.into(), meta, |meta| Data::Located { meta, place, roll_to })
}

/// An entry of a peer; its body is verified against its checksums.
pub(crate) fn entry_from_wire(entry: wire::Entry) -> Result<RaftEntry, DecodeError> {
    let wire::Entry { term, index, kind, meta, body, body_crcs, roll_to } = entry;
    let body = Payload::verified(body, body_crcs)
        .map_err(|mismatch| DecodeError::Body { index, why: mismatch.to_string() })?;
    let id = LogId { term: Term(term), index: LogIndex(index) };
    let roll_to = roll_to.map(OwnerId);
    entry_from_parts(id, kind, meta, |meta| Data::Whole(Command { meta, body, roll_to }))
}

pub(crate) fn entry_to_wire(entry: RaftEntry) -> Result<wire::Entry, DecodeError> {
    let raftlog::Entry { id, kind, meta, body, roll_to } = entry_to_record(entry)?;
    let (body, crcs) = body.into_parts();
    Ok(wire::Entry {
        term: id.term.0,
        index: id.index.0,
        kind: kind.into(),
        meta,
        body,
        body_crcs: crcs.to_vec(),
        roll_to: roll_to.map(|owner| owner.0),
    })
}

fn entry_from_parts(
    id: LogId,
    kind: u32,
    meta: Bytes,
    command: impl FnOnce(Bytes) -> Data,
) -> Result<RaftEntry, DecodeError> {
    let index = id.index.0;
    let payload = match u8::try_from(kind) {
        Ok(kind::BLANK) => EntryPayload::Blank,
        Ok(kind::COMMAND) => EntryPayload::Normal(command(meta)),
        Ok(kind::RESET) => EntryPayload::Normal(Data::Reset(meta)),
        Ok(kind::MEMBERSHIP) => {
            let why = |why: String| DecodeError::Membership { index, why };
            check_membership_bytes(&meta).map_err(why)?;
            let membership = wire::Membership::decode(meta).map_err(|error| why(error.to_string()))?;
            EntryPayload::Membership(membership_from_wire(membership).map_err(why)?)
        }
        _ => return Err(DecodeError::UnknownKind { index, kind }),
    };
    Ok(RaftEntry { log_id: log_id_from(id), payload })
}

pub(crate) fn log_id_to_wire(id: &RaftLogId) -> wire::LogId {
    wire::LogId { term: id.leader_id.term, index: id.index }
}

pub(crate) fn log_id_from_wire(id: wire::LogId) -> RaftLogId {
    RaftLogId::new(id.term.into(), id.index)
}

/// The log id of a message, checked: openraft does not look at it before it reckons with it.
pub(crate) fn log_id_checked(id: wire::LogId, terms: TermLimit) -> Result<RaftLogId, DecodeError> {
    terms.check(id.term)?;
    match id.index {
        index if index > INDEX_MAX => Err(DecodeError::IndexTooLarge { index }),
        _ => Ok(log_id_from_wire(id)),
    }
}

pub(crate) fn vote_to_wire(vote: &RaftVote) -> wire::Vote {
    wire::Vote { term: vote.leader_id.term, replica: vote.leader_id.voted_for, committed: vote.committed }
}

pub(crate) fn vote_from_wire(wire: Option<wire::Vote>, terms: TermLimit) -> Result<RaftVote, DecodeError> {
    let wire::Vote { term, replica, committed } = wire.ok_or(DecodeError::Missing("vote"))?;
    terms.check(term)?;
    Ok(vote(term, replica, committed))
}

/// The vote in an answer to what was sent with the vote `sent`. openraft takes a vote that names its own
/// replica for one of its own, and would lead in one term with a later one as its vote.
pub(crate) fn answered_vote(
    sent: &RaftVote,
    wire: Option<wire::Vote>,
    terms: TermLimit,
) -> Result<RaftVote, DecodeError> {
    let answered = vote_from_wire(wire, terms)?;
    let (here, there) = (&sent.leader_id, &answered.leader_id);
    if there.voted_for == here.voted_for && there.term > here.term {
        return Err(DecodeError::OwnVote { term: there.term });
    }
    Ok(answered)
}

/// The membership a new group starts with.
pub(crate) fn first_membership(members: &[Member]) -> Result<RaftMembership, String> {
    let voters: BTreeSet<u64> = members.iter().map(|member| member.replica.0).collect();
    if voters.len() != members.len() || voters.contains(&0) {
        return Err(format!("members need replica ids that are different and not 0: {members:?}"));
    }
    let peers: BTreeMap<u64, Peer> = members
        .iter()
        .map(|member| (member.replica.0, Peer { node: member.node, address: member.address.clone() }))
        .collect();
    RaftMembership::new(vec![voters], peers).map_err(|error| error.to_string())
}

fn membership_to_wire(membership: &RaftMembership) -> wire::Membership {
    wire::Membership {
        voter_sets: membership
            .get_joint_config()
            .iter()
            .map(|voters| wire::VoterSet { replicas: voters.iter().copied().collect() })
            .collect(),
        members: membership
            .nodes()
            .map(|(&replica, peer)| wire::Member {
                replica,
                node: peer.node.0,
                address: peer.address.clone(),
            })
            .collect(),
    }
}

pub(crate) fn member_to_wire(member: Member) -> wire::Member {
    wire::Member { replica: member.replica.0, node: member.node.0, address: member.address }
}

pub(crate) fn member_from_wire(member: wire::Member) -> Member {
    Member { replica: ReplicaId(member.replica), node: member.node.into(), address: member.address }
}

fn check_membership_bytes(bytes: &Bytes) -> Result<(), String> {
    match bytes.len() {
        count if count > MEMBERSHIP_BYTES_MAX => {
            Err(format!("it has {count} bytes, the limit is {MEMBERSHIP_BYTES_MAX}"))
        }
        _ => Ok(()),
    }
}

fn membership_from_wire(wire: wire::Membership) -> Result<RaftMembership, String> {
    let voter_sets: Vec<BTreeSet<u64>> =
        wire.voter_sets.into_iter().map(|voters| voters.replicas.into_iter().collect()).collect();
    let peers: BTreeMap<u64, Peer> = wire
        .members
        .into_iter()
        .map(|member| (member.replica, Peer { node: member.node.into(), address: member.address }))
        .collect();
    RaftMembership::new(voter_sets, peers).map_err(|error| error.to_string())
}

/// The applied position of a state machine, with the membership in force there.
pub(crate) fn applied_to(id: LogId, membership: &RaftStoredMembership) -> Applied {
    let stored = wire::StoredMembership {
        at: membership.log_id().as_ref().map(log_id_to_wire),
        membership: Some(membership_to_wire(membership.membership())),
    };
    Applied { id, membership: stored.encode_to_vec().into() }
}

pub(crate) fn applied_from(applied: &Applied) -> Result<RaftStoredMembership, String> {
    check_membership_bytes(&applied.membership)?;
    let stored =
        wire::StoredMembership::decode(applied.membership.clone()).map_err(|error| error.to_string())?;
    let membership = membership_from_wire(stored.membership.unwrap_or_default())?;
    Ok(RaftStoredMembership::new(stored.at.map(log_id_from_wire), membership))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{NodeId, ReplicaId};

    fn members() -> Vec<Member> {
        let member =
            |n: u64| Member { replica: ReplicaId(100 + n), node: NodeId(n), address: format!("n{n}:7") };
        (1..=2).map(member).collect()
    }

    fn command(body: &'static [u8]) -> RaftEntry {
        let body = Payload::checksummed(Bytes::from_static(body));
        let command = Command { meta: "meta".into(), body, roll_to: Some(OwnerId(9)) };
        RaftEntry { log_id: RaftLogId::new(3.into(), 8), payload: EntryPayload::Normal(Data::Whole(command)) }
    }

    /// Bytes written by the first version. A failure here means that old data directories cannot be read.
    #[test]
    fn membership_and_applied_position_keep_their_bytes() {
        let membership = first_membership(&members()).unwrap();
        let log_id = RaftLogId::new(0.into(), 0);
        let entry = RaftEntry { log_id, payload: EntryPayload::Membership(membership.clone()) };
        let record = entry_to_record(entry).unwrap();
        assert_eq!(record.kind, 3);
        let stored = b"\x0a\x04\x0a\x02\x65\x66\x12\x0a\x08\x65\x10\x01\x1a\x04n1:7\x12\x0a\x08\x66\x10\x02\x1a\x04n2:7";
        assert_eq!(record.meta.as_ref(), stored.as_slice());
        match entry_from_record(record).unwrap().payload {
            EntryPayload::Membership(read) => assert_eq!(read, membership),
            other => panic!("{other}"),
        }

        let at = RaftStoredMembership::new(Some(RaftLogId::new(2.into(), 5)), membership);
        let id = LogId { term: Term(2), index: LogIndex(7) };
        let applied = applied_to(id, &at);
        let expected = [b"\x0a\x04\x08\x02\x10\x05\x12\x1e".as_slice(), stored].concat();
        assert_eq!(applied.membership, expected);
        assert_eq!(applied_from(&applied).unwrap(), at);
    }

    #[test]
    fn commands_survive_the_wire_and_damage_is_found() {
        let sent = entry_to_wire(command(b"some bytes")).unwrap();
        assert_eq!((sent.term, sent.index, sent.kind, sent.roll_to), (3, 8, 2, Some(9)));
        let EntryPayload::Normal(Data::Whole(got)) = entry_from_wire(sent.clone()).unwrap().payload else {
            panic!("a command");
        };
        assert_eq!(
            (got.meta.as_ref(), got.body.bytes().as_ref()),
            (b"meta".as_slice(), b"some bytes".as_slice())
        );
        assert_eq!(got.roll_to, Some(OwnerId(9)));

        let other_body = wire::Entry { body: "same size!".into(), ..sent.clone() };
        assert!(matches!(entry_from_wire(other_body), Err(DecodeError::Body { index: 8, .. })));
        let missing_sums = wire::Entry { body_crcs: Vec::new(), ..sent.clone() };
        assert!(matches!(entry_from_wire(missing_sums), Err(DecodeError::Body { index: 8, .. })));
        for kind in [0, 5, 258] {
            let unknown = wire::Entry { kind, ..sent.clone() };
            assert_eq!(entry_from_wire(unknown).unwrap_err(), DecodeError::UnknownKind { index: 8, kind });
        }
        let reset =
            wire::Entry { kind: 4, body: Bytes::new(), body_crcs: Vec::new(), roll_to: None, ..sent.clone() };
        let passed_on = entry_to_wire(entry_from_wire(reset.clone()).unwrap()).unwrap();
        assert_eq!(passed_on, reset, "a record of a reset is the same on all members");
        for meta in [Bytes::from_static(b"\x01"), [0x0a, 0].repeat(8 << 20).into()] {
            let no_members = wire::Entry { kind: 3, meta, ..sent.clone() };
            assert!(matches!(entry_from_wire(no_members), Err(DecodeError::Membership { index: 8, .. })));
        }
    }

    #[test]
    fn members_need_ids_of_their_own() {
        let mut twice = members();
        twice[1].replica = twice[0].replica;
        assert!(first_membership(&twice).is_err());
        let mut none = members();
        none[0].replica = ReplicaId(0);
        assert!(first_membership(&none).is_err());
    }
}
