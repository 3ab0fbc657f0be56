//! The datanode's gRPC service.

mod blocks;
mod body_memory;
mod data_server;
mod discards;
mod fetch;
mod read;
mod read_counts;
mod read_memory;
mod served;
mod write;

pub(crate) use blocks::Listings;
pub(crate) use body_memory::BodyMemory;
use data_server::DataServer;
use futures::Stream;
use proto::datanode::datanode_server::Datanode;
use proto::datanode::{
    ContainerPart, DiscardedBlocks, FetchContainerRequest, HeadRequest, HeadResponse, ListBlocksRequest,
    ListBlocksResponse, ListDiscardsRequest, ListWritableRequest, ListWritableResponse, ReadChunk,
    ReadRequest, WriteAck, WriteChunk,
};
use proto::{ClusterGuard, Guarded};
pub(crate) use read_counts::ReadCounts;
pub(crate) use read_memory::ReadMemory;
use read_memory::Taken;
pub(crate) use served::Served;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use write::{ACKS_MAX, WriteStream};

/// Parts of a container read ahead for one copy.
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

    pub(crate) fn into_server(self) -> Guarded<DataServer> {
        let disks = self.served.disks.clone();
        ClusterGuard::new(move || disks.cluster()).in_front_of(DataServer::new(self))
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

    async fn send_block(&self, request: ReadRequest) -> Result<Taken<ReadChunk>, Status> {
        let (chunks, taken) = Taken::channel();
        if let Some((first, rest)) = read::begin(&self.served, request).await? {
            let _ = chunks.try_send(Ok(first)); // there is a place, and somebody listens
            // Most reads are of small objects, and need no task that sends.
            if rest.is_left() {
                self.served.workers.spawn_until_stop(rest.run(chunks));
            }
        }
        Ok(taken)
    }
}

#[tonic::async_trait]
impl Datanode for Service {
    type WriteStream = ReceiverStream<Result<WriteAck, Status>>;
    type ReadStream = Taken<ReadChunk>;
    type ListDiscardsStream = ReceiverStream<Result<DiscardedBlocks, Status>>;
    type FetchContainerStream = ReceiverStream<Result<ContainerPart, Status>>;

    async fn write(
        &self,
        request: Request<Streaming<WriteChunk>>,
    ) -> Result<Response<Self::WriteStream>, Status> {
        Ok(Response::new(self.take_chunks(request.into_inner())))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        Ok(Response::new(self.send_block(request.into_inner()).await?))
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
        let fetch = fetch::prepare(&self.served, request.into_inner()).await?;
        let (parts, receiver) = mpsc::channel(READ_AHEAD);
        self.served.workers.spawn_until_stop(fetch.run(parts));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
