//! The datanode's gRPC service.

mod blocks;
mod body_memory;
mod discards;
mod fetch;
mod read;
mod read_counts;
mod read_memory;
mod served;
mod write;

pub(crate) use blocks::Listings;
pub(crate) use body_memory::{BodiesOfOne, BodyMemory};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream};
use proto::datanode::datanode_server::{Datanode, DatanodeServer};
use proto::datanode::{
    ContainerPart, DiscardedBlocks, FetchContainerRequest, HeadRequest, HeadResponse, ListBlocksRequest,
    ListBlocksResponse, ListDiscardsRequest, ListWritableRequest, ListWritableResponse, ReadChunk,
    ReadRequest, WriteAck, WriteChunk,
};
use proto::messages::{self, Messages};
use proto::{Answering, CarriesData, ClusterGuard, DataServer, Guarded};
pub(crate) use read_counts::ReadCounts;
pub(crate) use read_memory::ReadMemory;
pub(crate) use served::Served;
use std::net::IpAddr;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Request, Response, Status, Streaming};
use write::{ACKS_MAX, WriteStream};

/// The parts of an answer that are read ahead for one receiver.
const READ_AHEAD: usize = 2;

#[derive(Clone)]
pub(crate) struct Service {
    served: Served,
}

impl Service {
    pub(crate) fn new(served: Served) -> Service {
        Service { served }
    }

    pub(crate) fn read_memory(&self) -> &ReadMemory {
        &self.served.read_memory
    }

    pub(crate) fn body_memory(&self) -> &BodyMemory {
        &self.served.body_memory
    }

    pub(crate) fn reads(&self) -> &ReadCounts {
        &self.served.reads
    }

    pub(crate) fn into_server(self) -> Guarded<DataServer<Service, DatanodeServer<Service>>> {
        let disks = self.served.disks.clone();
        let others = DatanodeServer::new(self.clone())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        ClusterGuard::new(move || disks.cluster()).in_front_of(DataServer::new(self, others))
    }

    fn take_chunks(
        &self,
        chunks: impl Stream<Item = Result<WriteChunk, Status>> + Send + 'static,
    ) -> ReceiverStream<Result<WriteAck, Status>> {
        let (acks, receiver) = mpsc::channel(ACKS_MAX);
        let stream = WriteStream::new(self.served.clone(), acks);
        self.served.workers.spawn(stream.run(chunks));
        ReceiverStream::new(receiver)
    }

    /// Answers a read; `from` is the address in whose share of the memory it is read.
    async fn send_block(
        &self,
        request: ReadRequest,
        from: Option<IpAddr>,
    ) -> Result<BoxStream<'static, Result<ReadChunk, Status>>, Status> {
        let first = read::begin(&self.served, request, from).await?;
        Ok(read::messages(first, self.served.workers.clone()))
    }

    async fn send_container(
        &self,
        request: FetchContainerRequest,
    ) -> Result<ReceiverStream<Result<ContainerPart, Status>>, Status> {
        let fetch = fetch::prepare(&self.served, request).await?;
        let (parts, receiver) = mpsc::channel(READ_AHEAD);
        self.served.workers.spawn_until_stop(fetch.run(parts));
        Ok(ReceiverStream::new(receiver))
    }
}

/// Blocks and containers go in and out without being copied into messages.
impl CarriesData for Service {
    fn answer(&self, call: http::Request<Body>) -> Answering {
        match call.uri().path() {
            messages::READ => {
                let (service, from) = (self.clone(), rpc::caller(&call));
                let read = move |request| async move { service.send_block(request, from).await };
                Ok(messages::answer_one(call.into_body(), read).boxed())
            }
            messages::FETCH_CONTAINER => {
                let service = self.clone();
                let fetch = move |request| async move { service.send_container(request).await };
                Ok(messages::answer_one(call.into_body(), fetch).boxed())
            }
            messages::WRITE => {
                let acks = self.take_chunks(Messages::of_request(call.into_body()));
                Ok(std::future::ready(messages::answer(Ok(acks))).boxed())
            }
            _ => Err(call),
        }
    }
}

#[tonic::async_trait]
impl Datanode for Service {
    type WriteStream = ReceiverStream<Result<WriteAck, Status>>;
    type ReadStream = BoxStream<'static, Result<ReadChunk, Status>>;
    type ListDiscardsStream = ReceiverStream<Result<DiscardedBlocks, Status>>;
    type FetchContainerStream = ReceiverStream<Result<ContainerPart, Status>>;

    async fn write(
        &self,
        request: Request<Streaming<WriteChunk>>,
    ) -> Result<Response<Self::WriteStream>, Status> {
        Ok(Response::new(self.take_chunks(request.into_inner())))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        Ok(Response::new(self.send_block(request.into_inner(), None).await?))
    }

    async fn head(&self, request: Request<HeadRequest>) -> Result<Response<HeadResponse>, Status> {
        Ok(Response::new(read::head(&self.served, request.into_inner()).await?))
    }

    async fn list_discards(
        &self,
        request: Request<ListDiscardsRequest>,
    ) -> Result<Response<Self::ListDiscardsStream>, Status> {
        let listing = discards::prepare(&self.served, request.into_inner()).await?;
        let (parts, receiver) = mpsc::channel(READ_AHEAD);
        self.served.workers.spawn_until_stop(listing.run(parts));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn list_blocks(
        &self,
        request: Request<ListBlocksRequest>,
    ) -> Result<Response<ListBlocksResponse>, Status> {
        Ok(Response::new(blocks::list(&self.served, request.into_inner()).await?))
    }

    async fn list_writable(
        &self,
        _request: Request<ListWritableRequest>,
    ) -> Result<Response<ListWritableResponse>, Status> {
        let refuse_bytes = self.served.options.container_refuse_bytes();
        let writable = self.served.pipelines.writable(refuse_bytes);
        let pipelines = writable.into_iter().map(|pipeline| pipeline.0).collect();
        Ok(Response::new(ListWritableResponse { pipelines }))
    }

    async fn fetch_container(
        &self,
        request: Request<FetchContainerRequest>,
    ) -> Result<Response<Self::FetchContainerStream>, Status> {
        Ok(Response::new(self.send_container(request.into_inner()).await?))
    }
}
