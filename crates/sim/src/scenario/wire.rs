//! What goes over the network, as the oracle sees it: whether or not it arrives, somebody said it.

use super::oracle::{Oracle, content_of};
use crate::world::{Direction, Observer, Sent};
use bytes::{Buf, Bytes};
use prost::Message;
use proto::raft::AppendRequest;
use std::sync::Arc;
use types::{GroupId, LogId, LogIndex, ReplicaId, Term};

pub(super) fn observer(oracle: Oracle) -> Observer {
    Arc::new(move |sent: &Sent<'_>| {
        if sent.direction == Direction::Request && sent.path.ends_with("/Append") {
            for message in messages(sent.data.clone()) {
                append_seen(&oracle, sent, message);
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

fn append_seen(oracle: &Oracle, sent: &Sent<'_>, message: Bytes) {
    let by = sent.from.to_string();
    let message = match AppendRequest::decode(message) {
        Ok(message) => message,
        Err(error) => return oracle.fail(format!("{by} sent an append that is none: {error}")),
    };
    let Some(group) = message.to.as_ref().and_then(|to| GroupId::try_from(to.group).ok()) else {
        return oracle.fail(format!("{by} sent an append to nobody"));
    };
    let Some(vote) = message.vote else { return oracle.fail(format!("{by} sent an append without a vote")) };
    oracle.leads(group, Term(vote.term), ReplicaId(vote.replica));
    if let Some(id) = message.committed {
        oracle.committed(group, LogId { term: Term(id.term), index: LogIndex(id.index) }, &by);
    }
    let mut before = message.prev.map(|prev| Term(prev.term));
    for entry in &message.entries {
        let id = LogId { term: Term(entry.term), index: LogIndex(entry.index) };
        oracle.entry(group, id, content_of(entry.kind, &entry.meta), before, &by);
        before = Some(id.term);
    }
}
