use crate::encoding::{vote_from_wire, vote_to_wire};
use crate::network::{failed, malformed};
use crate::peers::Peer;
use crate::snapshot::manifest::Piece;
use crate::snapshot::store::SnapshotStore;
use crate::snapshot::stored::{PieceError, PieceReader, Stored};
use crate::type_config::{RaftVote, TypeConfig};
use openraft::RPCTypes;
use openraft::errors::{RPCError, StreamingError, Timeout, Unreachable};
use openraft::raft::SnapshotResponse;
use proto::raft as wire;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use types::ReplicaId;
use wire::snapshot_to_follower::Message as ToFollower;
use wire::snapshot_to_leader::Message as ToLeader;

/// Messages handed to gRPC and not yet taken by it.
const OUTGOING_COUNT_MAX: usize = 2;

/// A transfer to one member.
pub(crate) struct Transfer {
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) stored: Arc<Stored>,
    pub(crate) process: Arc<Peer>,
    pub(crate) to: wire::Address,
    pub(crate) from: ReplicaId,
    pub(crate) vote: RaftVote,
    /// A follower that is silent for longer is given up; one that asks or says that it works may take its time.
    pub(crate) silence_max: Duration,
}

/// Offers a snapshot and answers the follower's wishes until it has installed it.
pub(crate) async fn send(
    transfer: Transfer,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    let store = transfer.store.clone();
    let sent = transfer.run().await;
    store.sweep().await;
    sent
}

impl Transfer {
    async fn run(self) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let manifest = &self.stored.manifest;
        tracing::info!(group = %self.store.group(), to = self.to.replica, last = manifest.applied.id.index.0, "offer a snapshot");
        let (outgoing, requests) = mpsc::channel(OUTGOING_COUNT_MAX);
        let offer = wire::SnapshotOffer {
            to: Some(self.to.clone()),
            vote: Some(vote_to_wire(&self.vote)),
            manifest: self.stored.encoded.clone(),
        };
        let first = wire::SnapshotToFollower { message: Some(ToFollower::Offer(offer)) };
        outgoing.try_send(first).expect("a new channel has room");
        let mut client = self.process.client();
        let answers = self.heard(client.snapshot(ReceiverStream::new(requests))).await?;
        let mut answers = answers.into_inner();

        let left = manifest.bytes();
        let sending = self.store.counters.start_sending(ReplicaId(self.to.replica), left);
        let mut reader = PieceReader::new(self.stored.clone());
        loop {
            match self.next(&mut answers).await? {
                ToLeader::Working(_) => {}
                ToLeader::Want(wire::SnapshotWant { file, number }) => {
                    let piece = Piece { file, number };
                    sending.left(manifest.bytes_from(piece));
                    let message = self.answer(&mut reader, piece).await?;
                    // gRPC takes no more: the follower's side says why.
                    let _ = outgoing.send(message).await;
                }
                ToLeader::Done(vote) => {
                    self.process.answered();
                    let vote = vote_from_wire(Some(vote)).map_err(|error| streaming(malformed(error)))?;
                    return Ok(SnapshotResponse::new(vote));
                }
            }
        }
    }

    async fn next(
        &self,
        answers: &mut Streaming<wire::SnapshotToLeader>,
    ) -> Result<ToLeader, StreamingError<TypeConfig>> {
        let answer = self.heard(answers.message()).await?;
        let ended = || Unreachable::from_string("the follower ended a snapshot's stream");
        answer.and_then(|answer| answer.message).ok_or_else(|| ended().into())
    }

    async fn heard<T>(
        &self,
        answer: impl Future<Output = Result<T, tonic::Status>>,
    ) -> Result<T, StreamingError<TypeConfig>> {
        match tokio::time::timeout(self.silence_max, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) => Err(streaming(failed(&self.process, &status))),
            Err(_) => {
                self.process.failed("silence while a snapshot is sent");
                let (id, target) = (self.from.0, self.to.replica);
                Err(Timeout { action: RPCTypes::InstallSnapshot, id, target, timeout: self.silence_max }
                    .into())
            }
        }
    }

    async fn answer(
        &self,
        reader: &mut PieceReader,
        piece: Piece,
    ) -> Result<wire::SnapshotToFollower, StreamingError<TypeConfig>> {
        let data = reader.read(piece).await.map_err(|error| {
            tracing::warn!(group = %self.store.group(), %error, "a snapshot cannot be sent");
            if matches!(error, PieceError::Damaged(..)) {
                self.store.attention.notify_one();
            }
            Unreachable::from_string(error)
        })?;
        self.store.limits.sending.take(data.len()).await;
        self.store.counters.sent_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let Piece { file, number } = piece;
        Ok(wire::SnapshotToFollower {
            message: Some(ToFollower::Piece(wire::SnapshotPiece { file, number, data })),
        })
    }
}

pub(crate) fn streaming(error: RPCError<TypeConfig>) -> StreamingError<TypeConfig> {
    match error {
        RPCError::Timeout(error) => error.into(),
        RPCError::Unreachable(error) => error.into(),
        RPCError::Network(error) => error.into(),
        RPCError::RemoteError(error) => Unreachable::from_string(error).into(),
    }
}
