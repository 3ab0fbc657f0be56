//! Messages on the network, as the oracle sees them: whether or not one arrives, somebody said it.

use super::oracle::{Content, Oracle};
use crate::world::{Direction, Observer, Sent};
use bytes::{Buf, Bytes};
use prost::Message;
use proto::raft::{
    Address, AppendRequest, HeartbeatsRequest, SnapshotToFollower, Vote, snapshot_to_follower,
};
use std::sync::Arc;
use types::{GroupId, LogId, LogIndex, ReplicaId, Term};

pub(super) fn observer(oracle: Oracle) -> Observer {
    Arc::new(move |sent: &Sent<'_>| {
        let method = sent.path.rsplit('/').next().unwrap_or_default();
        if sent.direction != Direction::Request || !LEADERS_SAY.contains(&method) {
            return;
        }
        for message in messages(sent.data.clone()) {
            if let Err(error) = seen(&oracle, method, &sent.from.to_string(), message) {
                oracle.fail(format!("{} sent a message of {method} that is none: {error}", sent.from));
            }
        }
    })
}

/// The gRPC messages of a frame; tonic does not split them over frames.
fn messages(mut data: Bytes) -> impl Iterator<Item = Bytes> {
    const PREFIX_BYTES: usize = 5;
    std::iter::from_fn(move || {
        if data.len() < PREFIX_BYTES {
            return None;
        }
        let _compressed = data.get_u8();
        let bytes = data.get_u32() as usize;
        (data.len() >= bytes).then(|| data.split_to(bytes))
    })
}

/// The calls by which leaders speak to the members of their group.
const LEADERS_SAY: [&str; 3] = ["Append", "Heartbeats", "Snapshot"];

fn seen(oracle: &Oracle, method: &str, by: &str, message: Bytes) -> Result<(), prost::DecodeError> {
    match method {
        "Append" => append_seen(oracle, by, &AppendRequest::decode(message)?),
        "Heartbeats" => {
            let heartbeats = HeartbeatsRequest::decode(message)?.heartbeats;
            heartbeats.iter().for_each(|heartbeat| append_seen(oracle, by, heartbeat));
        }
        _ => {
            let message = SnapshotToFollower::decode(message)?.message;
            if let Some(snapshot_to_follower::Message::Offer(offer)) = message {
                leader_seen(oracle, by, offer.to.as_ref(), offer.vote);
            }
        }
    }
    Ok(())
}

/// Tells the oracle that the sender leads, as only leaders send such messages; returns the group.
fn leader_seen(oracle: &Oracle, by: &str, to: Option<&Address>, vote: Option<Vote>) -> Option<GroupId> {
    let group = to.and_then(|to| GroupId::try_from(to.group).ok());
    let (Some(group), Some(vote)) = (group, vote) else {
        oracle.fail(format!("{by} sent something to nobody, or without a vote"));
        return None;
    };
    oracle.leads(group, Term(vote.term), ReplicaId(vote.replica));
    Some(group)
}

fn append_seen(oracle: &Oracle, by: &str, message: &AppendRequest) {
    let Some(group) = leader_seen(oracle, by, message.to.as_ref(), message.vote) else { return };
    if let Some(id) = &message.committed {
        oracle.committed(group, LogId { term: Term(id.term), index: LogIndex(id.index) }, by);
    }
    let mut before = message.prev.as_ref().map(|prev| Term(prev.term));
    for entry in &message.entries {
        let id = LogId { term: Term(entry.term), index: LogIndex(entry.index) };
        oracle.entry(group, id, Content::of(entry.kind, &entry.meta, &entry.body), before, by);
        before = Some(id.term);
    }
}
