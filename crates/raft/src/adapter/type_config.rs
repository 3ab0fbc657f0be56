//! The types that openraft is instantiated with.

use crate::adapter::ids::LeaderId;
pub(crate) use crate::adapter::ids::RaftLogId;
use crate::counts::Share;
use crate::{Command, Member};
use bytes::Bytes;
use openraft::errors::ClientWriteError;
use openraft::raft::{ClientWriteResponse, ClientWriteResult};
use openraft::type_config::alias::{CommittedLeaderIdOf, EntryOf, StoredMembershipOf, VoteOf};
use openraft::{Membership, OptionalSend, RaftTypeConfig};
use raftlog::Place;
use std::fmt;
use tokio::sync::oneshot;
use types::{NodeId, OwnerId, ReplicaId};

/// openraft's parameters. Its own serialization is never used: see [`crate::adapter::encoding`].
#[derive(Debug, Clone, Copy, Default, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) struct TypeConfig;

impl RaftTypeConfig for TypeConfig {
    type D = Data;
    type R = Reply;
    type NodeId = u64;
    type Node = Peer;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Data, u64, Peer>;
    type Entry = openraft::Entry<CommittedLeaderIdOf<Self>, Self::Payload>;
    type AsyncRuntime = crate::adapter::runtime::Runtime;
    type Responder<T>
        = Answer<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub(crate) type RaftEntry = EntryOf<TypeConfig>;
pub(crate) type RaftVote = VoteOf<TypeConfig>;
pub(crate) type RaftMembership = Membership<u64, Peer>;
pub(crate) type RaftStoredMembership = StoredMembershipOf<TypeConfig>;
pub(crate) type WriteError = ClientWriteError<TypeConfig>;
pub(crate) type WriteResponse = ClientWriteResponse<TypeConfig>;
pub(crate) type WriteResult = ClientWriteResult<TypeConfig>;

/// A member without its replica id, which is openraft's key for it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    pub(crate) address: String,
}

pub(crate) fn member_of(replica: u64, peer: &Peer) -> Member {
    Member { replica: ReplicaId(replica), node: peer.node, address: peer.address.clone() }
}

/// A command inside openraft.
#[derive(Debug)]
pub(crate) enum Data {
    /// A command on its way to a log: from a client, or read for a follower.
    Whole(Command),
    /// The note of a forced reset: a `ResetRecord`, for people. No state machine sees it.
    Reset(Bytes),
    /// A command in the log, as apply sees it: the body stays where it is.
    Located { meta: Bytes, place: Place, roll_to: Option<OwnerId> },
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Whole(command) => write!(f, "{}+{} bytes", command.meta.len(), command.body.len()),
            Data::Reset(record) => write!(f, "record of a reset, {} bytes", record.len()),
            Data::Located { meta, place, .. } => write!(f, "{}+{} bytes", meta.len(), place.body_bytes),
        }
    }
}

/// A state machine's answer to one command.
#[derive(Debug)]
pub(crate) struct Reply(pub(crate) Bytes);

/// The way back for the outcome of a proposal. It holds the proposal's share of the group's limit until the
/// command is applied or dropped, whether or not anybody still waits for it.
pub(crate) struct Answer<T> {
    pub(crate) to: oneshot::Sender<T>,
    pub(crate) share: Option<Share>,
}

impl<T: OptionalSend + 'static> openraft::raft::responder::Responder<TypeConfig, T> for Answer<T> {
    fn on_complete(self, result: T) {
        drop(self.share);
        // A proposer that stopped waiting needs no answer.
        let _ = self.to.send(result);
    }
}
