use crate::adapter::encoding::{answered_vote, vote_to_wire};
use crate::adapter::terms::TermLimit;
use crate::adapter::type_config::{RaftVote, TypeConfig};
use crate::snapshot::manifest::Piece;
use crate::snapshot::receiver::WORKING_MAX;
use crate::snapshot::store::SnapshotStore;
use crate::snapshot::stored::{PieceError, PieceReader, Stored};
use crate::transport::processes::Process;
use crate::transport::refusal::{failed, malformed};
use openraft::RPCTypes;
use openraft::errors::{RPCError, StreamingError, Timeout, Unreachable};
use openraft::raft::SnapshotResponse;
use proto::messages::Messages;
use proto::raft as wire;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use types::{Clock, ReplicaId};
use wire::snapshot_to_follower::Message as ToFollower;
use wire::snapshot_to_leader::Message as ToLeader;

/// The most messages that are handed to gRPC and not yet taken by it.
const OUTGOING_COUNT_MAX: usize = 2;

/// A transfer to one member.
pub(crate) struct Transfer {
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) stored: Arc<Stored>,
    pub(crate) process: Arc<Process>,
    pub(crate) to: wire::Address,
    pub(crate) from: ReplicaId,
    pub(crate) vote: RaftVote,
    /// The time after which a follower that is silent, or takes nothing, is given up; one that asks may take
    /// its time, and one that says that it works has [`WORKING_MAX`].
    pub(crate) silence_max: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Offers a snapshot and answers the follower's wishes until it has installed it.
pub(crate) async fn send(
    transfer: Transfer,
) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
    let store = transfer.store.clone();
    let sent = transfer.run().await;
    store.let_go.notify_one();
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
        let mut answers = self.heard(self.process.snapshot(ReceiverStream::new(requests))).await?;

        let left = manifest.bytes();
        let sending = self.store.counters.start_sending(ReplicaId(self.to.replica), left);
        let mut reader = PieceReader::new(self.stored.clone());
        let mut working_since = None;
        loop {
            match self.next(&mut answers).await? {
                ToLeader::Working(_) => {
                    let since = *working_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > WORKING_MAX {
                        return Err(self.timed_out("it works for ever", WORKING_MAX));
                    }
                }
                ToLeader::Want(wire::SnapshotWant { file, number }) => {
                    working_since = None;
                    let piece = Piece { file, number };
                    sending.left(manifest.bytes_from(piece));
                    let message = self.answer(&mut reader, piece).await?;
                    let sent = tokio::time::timeout(self.silence_max, outgoing.send(message)).await;
                    // Where gRPC takes no more, the follower's side says why.
                    let _ = sent.map_err(|_| self.timed_out("nothing is taken", self.silence_max))?;
                }
                ToLeader::Done(vote) => {
                    self.process.answered();
                    let vote = answered_vote(&self.vote, Some(vote), TermLimit::now(&*self.clock));
                    let vote = vote.map_err(|error| streaming(malformed(error)))?;
                    sending.finish();
                    return Ok(SnapshotResponse::new(vote));
                }
            }
        }
    }

    async fn next(
        &self,
        answers: &mut Messages<wire::SnapshotToLeader>,
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
            Err(_) => Err(self.timed_out("silence", self.silence_max)),
        }
    }

    fn timed_out(&self, why: &str, timeout: Duration) -> StreamingError<TypeConfig> {
        self.process.failed(&format!("a snapshot is sent: {why}"));
        let (id, target) = (self.from.0, self.to.replica);
        Timeout { action: RPCTypes::InstallSnapshot, id, target, timeout }.into()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::testing::FileState;
    use crate::transport::processes::Processes;
    use crate::{AddressBook, Member};
    use disk::Disk;
    use disk::sim::{SimDisk, SimOptions};
    use futures::stream::{self, BoxStream, StreamExt};
    use proto::raft::raft_transport_server::{RaftTransport, RaftTransportServer};
    use rpc::TcpConnector;
    use tokio::net::TcpListener;
    use tonic::service::Routes;
    use tonic::{Request, Response, Status, Streaming};
    use types::{LogId, LogIndex, NodeId, Term};

    /// Asks for pieces and takes none of them.
    struct Stalls;

    fn unknown<T>() -> Result<Response<T>, Status> {
        Err(Status::unimplemented("it only stalls"))
    }

    #[tonic::async_trait]
    impl RaftTransport for Stalls {
        type AppendStream = BoxStream<'static, Result<wire::AppendResponse, Status>>;
        type SnapshotStream = BoxStream<'static, Result<wire::SnapshotToLeader, Status>>;

        async fn append(
            &self,
            _: Request<Streaming<wire::AppendRequest>>,
        ) -> Result<Response<Self::AppendStream>, Status> {
            unknown()
        }

        async fn heartbeats(
            &self,
            _: Request<wire::HeartbeatsRequest>,
        ) -> Result<Response<wire::HeartbeatsResponse>, Status> {
            unknown()
        }

        async fn snapshot(
            &self,
            request: Request<Streaming<wire::SnapshotToFollower>>,
        ) -> Result<Response<Self::SnapshotStream>, Status> {
            let wants = (0..100).map(|number| {
                let want = wire::SnapshotWant { file: 0, number: number % 10 };
                Ok(wire::SnapshotToLeader { message: Some(ToLeader::Want(want)) })
            });
            let never = stream::pending().inspect(move |_: &Result<_, _>| _ = &request);
            Ok(Response::new(stream::iter(wants).chain(never).boxed()))
        }

        async fn vote(&self, _: Request<wire::VoteRequest>) -> Result<Response<wire::VoteResponse>, Status> {
            unknown()
        }

        async fn transfer_leader(
            &self,
            _: Request<wire::TransferLeaderRequest>,
        ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
            unknown()
        }

        async fn read_index(
            &self,
            _: Request<wire::ReadIndexRequest>,
        ) -> Result<Response<wire::ReadIndexResponse>, Status> {
            unknown()
        }

        async fn hello(
            &self,
            _: Request<wire::HelloRequest>,
        ) -> Result<Response<wire::HelloResponse>, Status> {
            unknown()
        }

        async fn lead(&self, _: Request<wire::LeadRequest>) -> Result<Response<wire::LeadResponse>, Status> {
            unknown()
        }

        async fn dismiss(&self, _: Request<wire::DismissRequest>) -> Result<Response<wire::Empty>, Status> {
            unknown()
        }
    }

    #[tokio::test]
    async fn a_receiver_that_takes_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let routes = Routes::new(RaftTransportServer::new(Stalls));
        let serving = tokio::spawn(rpc::serve(listener, routes, std::future::pending()));

        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(SimOptions::default()));
        let state = FileState::open(&disk, 3 << 20).await.unwrap();
        state.set(LogId { term: Term(1), index: LogIndex(9) });
        let store = state.store().await.unwrap();
        let stored = store.write().await.unwrap();
        let member = Member { replica: ReplicaId(2), node: NodeId(2), address };
        let transfer = Transfer {
            store: store.clone(),
            stored,
            process: Processes::new(AddressBook::default(), Arc::new(TcpConnector::default()))
                .of(&member)
                .unwrap(),
            to: crate::transport::protocol::address(store.group(), member.replica, "test"),
            from: ReplicaId(1),
            vote: RaftVote::new_committed(1, 1),
            // Long enough to connect on a busy machine, which counts too.
            silence_max: Duration::from_secs(2),
            clock: Arc::new(types::SystemClock),
        };
        let sent = tokio::time::timeout(Duration::from_secs(60), send(transfer)).await;
        match sent.expect("it ends by itself") {
            Err(StreamingError::Timeout(_)) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(store.counters.progress(None).sends_failed, 1);
        assert!(!store.counters.progress(None).sending.contains_key(&member.replica));
        serving.abort();
        let _ = serving.await;
    }
}
