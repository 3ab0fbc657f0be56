//! The datanode's gRPC service.

mod delete;
mod fetch;
mod read;
mod served;
mod write;

use futures::future::Either;
use futures::stream::Iter;
use proto::ClusterGuard;
use proto::datanode::datanode_server::{Datanode, DatanodeServer};
use proto::datanode::{
    ContainerPart, DeleteBlocksRequest, DeleteBlocksResponse, FetchContainerRequest, HeadRequest,
    HeadResponse, ListWritableRequest, ListWritableResponse, ReadChunk, ReadRequest, WriteAck, WriteChunk,
};
pub(crate) use served::Served;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status, Streaming};
use write::{ACKS_MAX, WriteStream};

/// Messages of at most 1 MiB read ahead for one read.
const READ_AHEAD: usize = 2;

#[derive(Clone)]
pub(crate) struct Service {
    served: Served,
}

impl Service {
    pub(crate) fn new(served: Served) -> Service {
        Service { served }
    }

    pub(crate) fn into_server(self) -> InterceptedService<DatanodeServer<Service>, ClusterGuard> {
        let disks = self.served.disks.clone();
        let server = DatanodeServer::new(self)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        InterceptedService::new(server, ClusterGuard::new(move || disks.cluster()))
    }
}

#[tonic::async_trait]
impl Datanode for Service {
    type WriteStream = ReceiverStream<Result<WriteAck, Status>>;
    type ReadStream = Either<
        Iter<std::option::IntoIter<Result<ReadChunk, Status>>>,
        ReceiverStream<Result<ReadChunk, Status>>,
    >;
    type FetchContainerStream = ReceiverStream<Result<ContainerPart, Status>>;

    async fn write(
        &self,
        request: Request<Streaming<WriteChunk>>,
    ) -> Result<Response<Self::WriteStream>, Status> {
        let (acks, receiver) = mpsc::channel(ACKS_MAX);
        let stream = WriteStream::new(self.served.clone(), acks);
        self.served.workers.spawn(stream.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let read = read::prepare(&self.served, request.into_inner()).await?;
        if let Some(whole) = read.at_once().await {
            return Ok(Response::new(Either::Left(futures::stream::iter(Some(Ok(whole?))))));
        }
        let (chunks, receiver) = mpsc::channel(READ_AHEAD);
        self.served.workers.spawn_until_stop(read.run(chunks));
        Ok(Response::new(Either::Right(ReceiverStream::new(receiver))))
    }

    async fn head(&self, request: Request<HeadRequest>) -> Result<Response<HeadResponse>, Status> {
        Ok(Response::new(read::head(&self.served, request.into_inner()).await?))
    }

    async fn delete_blocks(
        &self,
        request: Request<DeleteBlocksRequest>,
    ) -> Result<Response<DeleteBlocksResponse>, Status> {
        Ok(Response::new(delete::delete_blocks(&self.served, request.into_inner()).await?))
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
        let fetch = fetch::prepare(&self.served, request.into_inner()).await?;
        let (parts, receiver) = mpsc::channel(READ_AHEAD);
        self.served.workers.spawn_until_stop(fetch.run(parts));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
