//! The gRPC service on which the groups of a process answer other members.

use crate::counts::HostCounts;
use crate::group::reads;
use crate::idle::heartbeats::{self, BATCH_COUNT_MAX};
use crate::registry::Registry;
use crate::snapshot::take_offer;
use crate::transport::{appends, elections};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use proto::raft::raft_transport_server::RaftTransport;
use proto::{Code, Failure, raft as wire};
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};
use types::GroupId;

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) registry: Arc<Registry>,
    pub(crate) counts: Arc<HostCounts>,
}

impl Service {
    /// What the sender is told, and what was counted.
    pub(crate) fn refused(&self, failure: Failure) -> Status {
        self.counts.refused(&failure);
        failure.into()
    }

    /// A message that gRPC could not read. One that is too large gets our words for it; the rest are broken connections.
    pub(crate) fn unread(&self, status: Status) -> Status {
        match status.code() {
            tonic::Code::OutOfRange => {
                let why = format!("a message is above the limit of {} bytes", proto::MESSAGE_BYTES_MAX);
                self.refused(Failure::new(Code::TooLarge, why))
            }
            _ => status,
        }
    }
}

#[tonic::async_trait]
impl RaftTransport for Service {
    type AppendStream = BoxStream<'static, Result<wire::AppendResponse, Status>>;

    /// Answers with headers at once: the sender starts when it has them.
    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let answers = appends::append(self.clone(), request.into_inner());
        Ok(Response::new(stream::once(answers).try_flatten().boxed()))
    }

    async fn heartbeats(
        &self,
        request: Request<wire::HeartbeatsRequest>,
    ) -> Result<Response<wire::HeartbeatsResponse>, Status> {
        let heartbeats = request.into_inner().heartbeats;
        if heartbeats.len() > BATCH_COUNT_MAX {
            let why = format!("{} heartbeats, the limit is {BATCH_COUNT_MAX}", heartbeats.len());
            return Err(self.refused(Failure::new(Code::TooLarge, why)));
        }
        let answers = heartbeats::answer(&self.registry, &self.counts, heartbeats).await;
        Ok(Response::new(wire::HeartbeatsResponse { answers }))
    }

    type SnapshotStream = BoxStream<'static, Result<wire::SnapshotToLeader, Status>>;

    async fn snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotToFollower>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let answers = take_offer(self.clone(), request.into_inner());
        Ok(Response::new(stream::once(answers).try_flatten().boxed()))
    }

    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let answer = elections::vote(&self.registry, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }

    async fn read_index(
        &self,
        request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexResponse>, Status> {
        let answer = reads::answer(&self.registry, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }

    async fn hello(
        &self,
        request: Request<wire::HelloRequest>,
    ) -> Result<Response<wire::HelloResponse>, Status> {
        let answer = self.registry.hello(request.get_ref());
        let answer = answer.map(|is_here| Response::new(wire::HelloResponse { is_here }));
        answer.map_err(|failure| self.refused(failure))
    }

    async fn dismiss(&self, request: Request<wire::DismissRequest>) -> Result<Response<wire::Empty>, Status> {
        let answer = elections::dismiss(&self.registry, request.into_inner());
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let answer = elections::transfer_leader(&self.registry, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| self.refused(failure))
    }
}

pub(crate) fn stopped(group: GroupId, error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Unavailable, format!("{group} stopped here: {error}"))
}
