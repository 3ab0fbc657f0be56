use super::feed::Interest;
use super::instances;
use super::keys;
use super::reading::Reader;
use super::watch;
use crate::leader::Leader;
use crate::leadership::Leadership;
use futures::{Stream, StreamExt};
use proto::registry::registry_server::Registry;
use proto::registry::*;
use proto::{Code, Failure};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// The registry over gRPC. Every member reads, the leader writes.
#[derive(Clone)]
pub(crate) struct RegistryService {
    reader: Reader,
    watchers: Arc<Semaphore>,
}

impl RegistryService {
    pub(crate) fn new(leadership: Arc<Leadership>, stop: CancellationToken) -> RegistryService {
        let watchers = Arc::new(Semaphore::new(leadership.options.watchers_max));
        let feed = leadership.tables.feed();
        RegistryService { reader: Reader { leadership, feed, stop }, watchers }
    }

    fn leader(&self) -> Result<Arc<Leader>, Failure> {
        self.reader.leadership.leader()
    }

    /// The last revision before those that a watch tells of: it begins at `from`, or, where that is 0, at the
    /// next one.
    async fn told_before(&self, from: u64) -> Result<u64, Failure> {
        if from > 0 {
            return Ok(from - 1);
        }
        self.reader.catch_up().await?;
        Ok(self.reader.leadership.tables.read(|tables| tables.revision()))
    }
}

#[tonic::async_trait]
impl Registry for RegistryService {
    async fn register_instance(
        &self,
        request: Request<RegisterInstanceRequest>,
    ) -> Result<Response<RegisterInstanceResponse>, Status> {
        Ok(Response::new(instances::register(&*self.leader()?, request.into_inner()).await?))
    }

    async fn renew_instance(
        &self,
        request: Request<RenewInstanceRequest>,
    ) -> Result<Response<RenewInstanceResponse>, Status> {
        instances::renew(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(RenewInstanceResponse {}))
    }

    async fn deregister_instance(
        &self,
        request: Request<DeregisterInstanceRequest>,
    ) -> Result<Response<DeregisterInstanceResponse>, Status> {
        Ok(Response::new(instances::deregister(&*self.leader()?, request.into_inner()).await?))
    }

    async fn list_services(
        &self,
        request: Request<ListServicesRequest>,
    ) -> Result<Response<ListServicesResponse>, Status> {
        let reading = request.into_inner().reading;
        Ok(Response::new(self.reader.read(reading, &Interest::Instances, instances::services).await?))
    }

    async fn list_instances(
        &self,
        request: Request<ListInstancesRequest>,
    ) -> Result<Response<ListInstancesResponse>, Status> {
        let request = request.into_inner();
        instances::check_list(&request)?;
        let interest = match request.service.as_str() {
            "" => Interest::Instances,
            service => Interest::Service(service.to_owned()),
        };
        let read = self.reader.read(request.reading, &interest, |tables| instances::list(tables, &request));
        Ok(Response::new(read.await?))
    }

    async fn read_keys(
        &self,
        request: Request<ReadKeysRequest>,
    ) -> Result<Response<ReadKeysResponse>, Status> {
        let request = request.into_inner();
        keys::check_read(&request)?;
        let interest = match request.prefix {
            true => Interest::KeysWith(request.key.clone()),
            false => Interest::Key(request.key.clone()),
        };
        let read = self.reader.read(request.reading, &interest, |tables| keys::read(tables, &request));
        Ok(Response::new(read.await?))
    }

    async fn put_key(&self, request: Request<PutKeyRequest>) -> Result<Response<PutKeyResponse>, Status> {
        Ok(Response::new(keys::put(&*self.leader()?, request.into_inner()).await?))
    }

    async fn delete_keys(
        &self,
        request: Request<DeleteKeysRequest>,
    ) -> Result<Response<DeleteKeysResponse>, Status> {
        Ok(Response::new(keys::delete(&*self.leader()?, request.into_inner()).await?))
    }

    async fn renew_key(
        &self,
        request: Request<RenewKeyRequest>,
    ) -> Result<Response<RenewKeyResponse>, Status> {
        keys::renew(&*self.leader()?, request.get_ref()).await?;
        Ok(Response::new(RenewKeyResponse {}))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let WatchRequest { from, what } = request.into_inner();
        let interest = Interest::of(what)?;
        let permit = self.watchers.clone().try_acquire_owned().map_err(|_| {
            let limit = self.reader.leadership.options.watchers_max;
            Failure::new(Code::Busy, format!("{limit} watches are open, which is the limit"))
        })?;
        let told = self.told_before(from).await?;
        let events = watch::watch(self.reader.clone(), interest, told).map(move |told| {
            let _held_while_streaming = &permit;
            told
        });
        Ok(Response::new(Box::pin(events)))
    }
}
