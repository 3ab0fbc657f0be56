//! The gRPC service on which the groups of a process answer other members.

use crate::counts::HostCounts;
use crate::group::reads;
use crate::idle::heartbeats::BATCH_COUNT_MAX;
use crate::open_groups::OpenGroups;
use crate::snapshot::take_offer;
use crate::transport::refusal::refused;
use crate::transport::{appends, elections, other_history};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use proto::messages::{self, Messages};
use proto::raft::raft_transport_server::{RaftTransport, RaftTransportServer};
use proto::{Answering, CarriesData, Code, DataServer, Failure, raft as wire};
use std::sync::Arc;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) open_groups: Arc<OpenGroups>,
    pub(crate) counts: Arc<HostCounts>,
}

impl Service {
    /// Takes a stream of entries. The stream of answers begins before anything came: the sender starts when
    /// it has that.
    fn take_entries(
        &self,
        messages: impl Stream<Item = Result<wire::AppendRequest, Status>> + Send + Unpin + 'static,
    ) -> BoxStream<'static, Result<wire::AppendResponse, Status>> {
        let answers = appends::append(self.open_groups.clone(), self.counts.clone(), messages);
        stream::once(answers).try_flatten().boxed()
    }

    fn take_snapshot(
        &self,
        messages: impl Stream<Item = Result<wire::SnapshotToFollower, Status>> + Send + 'static,
    ) -> BoxStream<'static, Result<wire::SnapshotToLeader, Status>> {
        let answers = take_offer(self.open_groups.clone(), self.counts.clone(), messages.boxed());
        stream::once(answers).try_flatten().boxed()
    }

    pub(crate) fn into_server(self) -> DataServer<Service, RaftTransportServer<Service>> {
        let others = RaftTransportServer::new(self.clone())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        DataServer::new(self, others)
    }
}

/// Entries and snapshots come in without being copied out of their messages.
impl CarriesData for Service {
    fn answer(&self, call: http::Request<Body>) -> Answering {
        let answer = match call.uri().path() {
            messages::APPEND => {
                messages::answer(Ok(self.take_entries(Messages::of_request(call.into_body()))))
            }
            messages::SNAPSHOT => {
                messages::answer(Ok(self.take_snapshot(Messages::of_request(call.into_body()))))
            }
            _ => return Err(call),
        };
        Ok(std::future::ready(answer).boxed())
    }
}

#[tonic::async_trait]
impl RaftTransport for Service {
    type AppendStream = BoxStream<'static, Result<wire::AppendResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        Ok(Response::new(self.take_entries(request.into_inner())))
    }

    async fn heartbeats(
        &self,
        request: Request<wire::HeartbeatsRequest>,
    ) -> Result<Response<wire::HeartbeatsResponse>, Status> {
        let heartbeats = request.into_inner().heartbeats;
        if heartbeats.len() > BATCH_COUNT_MAX {
            let why = format!("{} heartbeats, the limit is {BATCH_COUNT_MAX}", heartbeats.len());
            return Err(refused(&self.counts, Failure::new(Code::TooLarge, why)));
        }
        let answers = appends::heartbeats(&self.open_groups, &self.counts, heartbeats).await;
        Ok(Response::new(wire::HeartbeatsResponse { answers }))
    }

    type SnapshotStream = BoxStream<'static, Result<wire::SnapshotToLeader, Status>>;

    async fn snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotToFollower>>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Ok(Response::new(self.take_snapshot(request.into_inner())))
    }

    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteResponse>, Status> {
        let answer = elections::vote(&self.open_groups, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| refused(&self.counts, failure))
    }

    async fn read_index(
        &self,
        request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexResponse>, Status> {
        let answer = reads::answer(&self.open_groups, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| refused(&self.counts, failure))
    }

    async fn hello(
        &self,
        request: Request<wire::HelloRequest>,
    ) -> Result<Response<wire::HelloResponse>, Status> {
        let answer = self.open_groups.hello(request.get_ref());
        let answer = answer.map(|is_here| Response::new(wire::HelloResponse { is_here }));
        answer.map_err(|failure| refused(&self.counts, failure))
    }

    async fn lead(
        &self,
        request: Request<wire::LeadRequest>,
    ) -> Result<Response<wire::LeadResponse>, Status> {
        let answer = other_history::lead(&self.open_groups, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| refused(&self.counts, failure))
    }

    async fn dismiss(&self, request: Request<wire::DismissRequest>) -> Result<Response<wire::Empty>, Status> {
        let answer = elections::dismiss(&self.open_groups, request.into_inner());
        answer.map(Response::new).map_err(|failure| refused(&self.counts, failure))
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let answer = elections::transfer_leader(&self.open_groups, request.into_inner()).await;
        answer.map(Response::new).map_err(|failure| refused(&self.counts, failure))
    }
}
