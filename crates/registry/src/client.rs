use proto::registry::registry_client::RegistryClient as GrpcClient;
use proto::registry::*;
use proto::{Code, Failure, Naming, Retry, Seeker};
use rpc::{Channel, Channels, NotConnected, TcpConnector};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use tonic::{Response, Status, Streaming};
use types::{Backoff, Clock};

/// The time for which a call looks for somebody who answers: longer than an election takes.
const LOOK_MAX: Duration = Duration::from_secs(10);
/// The time for which one attempt waits for its answer, beyond what it asked to wait.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// Calls the registry, wherever it is; a cheap handle. Calls that change something are repeated only where it
/// is certain that they did nothing.
#[derive(Clone)]
pub struct RegistryClient {
    shared: Arc<Shared>,
}

struct Shared {
    scm: Seeker,
    naming: Naming,
    channels: Channels,
}

type Grpc = GrpcClient<InterceptedService<Channel, Naming>>;

/// The failures after which a call may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Any failure: the call changes nothing, or does the same once more.
    Always,
    /// A failure of a call that did certainly not reach the leader.
    IfRefused,
}

/// A watch of what changes, as one of SCM's members tells it.
pub struct Watch {
    pub address: String,
    pub stream: Streaming<WatchResponse>,
}

/// A failure, and whether the request left this process.
struct Attempt {
    failure: Failure,
    was_sent: bool,
}

impl RegistryClient {
    /// A client of the SCM at `scm`: "host:port", several separated by commas.
    pub fn new(scm: &str) -> Result<RegistryClient, Failure> {
        let channels = Channels::new(Arc::new(TcpConnector::default()));
        let shared = Shared { scm: Seeker::parse(scm)?, naming: Naming::default(), channels };
        Ok(RegistryClient { shared: Arc::new(shared) })
    }

    /// Names `cluster` in all calls, unless one is known already: an SCM of another one refuses them.
    pub fn know(&self, cluster: &str) {
        self.shared.naming.know(cluster);
    }

    /// Registers an instance. `clock` is the instance's, which SCM compares with its own; `None`: nobody is
    /// to look at it.
    pub async fn register(
        &self,
        instance: Instance,
        clock: Option<&dyn Clock>,
    ) -> Result<RegisterInstanceResponse, Failure> {
        let request = RegisterInstanceRequest { instance: Some(instance), clock_ms: 0 };
        self.call(request, Repeat::Always, Duration::ZERO, |mut grpc, request| {
            // The clock is read for each attempt: a time that is sent again for seconds would look like a
            // clock that is behind.
            let request = RegisterInstanceRequest { clock_ms: now_ms(clock), ..request };
            async move { grpc.register_instance(request).await }
        })
        .await
    }

    /// Renews an instance's lease; `clock` as in [`RegistryClient::register`].
    pub async fn renew(
        &self,
        request: RenewInstanceRequest,
        clock: Option<&dyn Clock>,
    ) -> Result<RenewInstanceResponse, Failure> {
        self.call(request, Repeat::Always, Duration::ZERO, |mut grpc, request| {
            let request = RenewInstanceRequest { clock_ms: now_ms(clock), ..request };
            async move { grpc.renew_instance(request).await }
        })
        .await
    }

    pub async fn deregister(&self, name: InstanceName) -> Result<DeregisterInstanceResponse, Failure> {
        let request = DeregisterInstanceRequest { name: Some(name) };
        self.call(request, Repeat::IfRefused, Duration::ZERO, |mut grpc, request| async move {
            grpc.deregister_instance(request).await
        })
        .await
    }

    pub async fn services(&self, reading: Reading) -> Result<ListServicesResponse, Failure> {
        let request = ListServicesRequest { reading: Some(reading) };
        self.call(request, Repeat::Always, wait_of(&reading), |mut grpc, request| async move {
            grpc.list_services(request).await
        })
        .await
    }

    /// Returns one page of instances.
    pub async fn list_instances(
        &self,
        request: ListInstancesRequest,
    ) -> Result<ListInstancesResponse, Failure> {
        let wait = request.reading.as_ref().map_or(Duration::ZERO, wait_of);
        self.call(request, Repeat::Always, wait, |mut grpc, request| async move {
            grpc.list_instances(request).await
        })
        .await
    }

    /// Returns all instances of a service, read page by page; `service` empty: of all services. The revision
    /// is that of the first page: what has changed since may be in the answer already.
    pub async fn instances(&self, service: &str) -> Result<ListInstancesResponse, Failure> {
        let service = service.to_owned();
        let mut request = ListInstancesRequest { service, ..ListInstancesRequest::default() };
        let mut all = self.list_instances(request.clone()).await?;
        while let Some(next) = all.next.take() {
            request.from = Some(next);
            let page = self.list_instances(request.clone()).await?;
            all.instances.extend(page.instances);
            all.next = page.next;
        }
        Ok(all)
    }

    pub async fn read(&self, request: ReadKeysRequest) -> Result<ReadKeysResponse, Failure> {
        let wait = request.reading.as_ref().map_or(Duration::ZERO, wait_of);
        self.call(
            request,
            Repeat::Always,
            wait,
            |mut grpc, request| async move { grpc.read_keys(request).await },
        )
        .await
    }

    /// Returns all keys with a prefix, read page by page; keys that change meanwhile may be seen before or
    /// after.
    pub async fn read_all(&self, prefix: &str, keys_only: bool) -> Result<Vec<KeyValue>, Failure> {
        let mut request =
            ReadKeysRequest { key: prefix.to_owned(), prefix: true, keys_only, ..ReadKeysRequest::default() };
        let mut entries = Vec::new();
        loop {
            let page = self.read(request.clone()).await?;
            entries.extend(page.entries);
            if page.next.is_empty() {
                return Ok(entries);
            }
            request.from = page.next;
        }
    }

    pub async fn put(&self, request: PutKeyRequest) -> Result<PutKeyResponse, Failure> {
        self.call(request, Repeat::IfRefused, Duration::ZERO, |mut grpc, request| async move {
            grpc.put_key(request).await
        })
        .await
    }

    /// Deletes keys, and says how many were deleted. With a prefix, until there are none.
    pub async fn delete(&self, request: DeleteKeysRequest) -> Result<u64, Failure> {
        let mut deleted = 0;
        loop {
            let call = self.call(
                request.clone(),
                Repeat::IfRefused,
                Duration::ZERO,
                |mut grpc, request| async move { grpc.delete_keys(request).await },
            );
            let part = call.await?;
            deleted += part.deleted;
            if !part.more {
                return Ok(deleted);
            }
        }
    }

    pub async fn renew_key(&self, request: RenewKeyRequest) -> Result<RenewKeyResponse, Failure> {
        self.call(request, Repeat::Always, Duration::ZERO, |mut grpc, request| async move {
            grpc.renew_key(request).await
        })
        .await
    }

    /// Opens a stream of the events from a revision on. When it breaks, it can be opened again after the last
    /// revision it told of.
    pub async fn watch(&self, request: WatchRequest) -> Result<Watch, Failure> {
        let watching = self.find(request, Repeat::Always, Duration::ZERO, |mut grpc, request| async move {
            grpc.watch(request).await
        });
        let (address, stream) = watching.await?;
        Ok(Watch { address, stream })
    }

    /// Notes that an SCM's stream broke: the next attempt asks somebody else.
    pub fn broke(&self, address: &str, failure: &Failure) {
        self.shared.scm.failed(address, failure);
    }

    async fn call<Q, A, F>(
        &self,
        request: Q,
        repeat: Repeat,
        wait: Duration,
        method: impl Fn(Grpc, Q) -> F,
    ) -> Result<A, Failure>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.find(request, repeat, wait, method).await.map(|(_, answer)| answer)
    }

    /// Returns the answer, and the address of who gave it.
    async fn find<Q, A, F>(
        &self,
        request: Q,
        repeat: Repeat,
        wait: Duration,
        method: impl Fn(Grpc, Q) -> F,
    ) -> Result<(String, A), Failure>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let deadline = Instant::now() + LOOK_MAX + wait;
        let mut retry = RETRY;
        loop {
            let address = self.shared.scm.address();
            let attempt = match self.attempt(&address, request.clone(), wait + ANSWER_MAX, &method).await {
                Ok(answer) => return Ok((address, answer)),
                Err(attempt) => attempt,
            };
            let Attempt { failure, was_sent } = attempt;
            self.shared.scm.failed(&address, &failure);
            let may_repeat = match failure.retry {
                Retry::No | Retry::Unspecified => false,
                Retry::Unknown => repeat == Repeat::Always || !was_sent,
                Retry::Here | Retry::Elsewhere => true,
            };
            if !may_repeat || Instant::now() + retry.next_pause() >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(retry.pause()).await;
        }
    }

    async fn attempt<Q, A, F>(
        &self,
        address: &str,
        request: Q,
        within: Duration,
        method: &impl Fn(Grpc, Q) -> F,
    ) -> Result<A, Attempt>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let channel = self
            .shared
            .channels
            .to(address)
            .map_err(|error| Attempt { failure: Failure::invalid(error), was_sent: false })?;
        let grpc = GrpcClient::with_interceptor(channel, self.shared.naming.clone());
        let grpc = grpc.max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        let asking = async {
            match method(grpc.clone(), request.clone()).await {
                Err(refusal) if self.shared.naming.learn(&refusal) => method(grpc, request).await,
                answer => answer,
            }
        };
        match tokio::time::timeout(within, asking).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => {
                let was_sent = !is_connect_error(&status);
                Err(Attempt { failure: status.into(), was_sent })
            }
            Err(_) => {
                let message = format!("SCM at {address} did not answer within {within:?}");
                Err(Attempt { failure: Failure::new(Code::OutcomeUnknown, message), was_sent: true })
            }
        }
    }
}

/// The clock's time as requests say it; 0 where there is no clock.
fn now_ms(clock: Option<&dyn Clock>) -> u64 {
    clock.map_or(0, Clock::now_ms)
}

fn wait_of(reading: &Reading) -> Duration {
    Duration::from_millis(reading.wait_ms)
}

/// Whether there was no connection to send the request on.
fn is_connect_error(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<NotConnected>() {
            return true;
        }
        source = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_listening_is_told_from_an_answer_that_is_lost() {
        // Nobody listens on port 1.
        let client = RegistryClient::new("127.0.0.1:1").unwrap();
        let attempt = client
            .attempt("127.0.0.1:1", PutKeyRequest::default(), ANSWER_MAX, &|mut grpc, request| async move {
                grpc.put_key(request).await
            })
            .await;
        let attempt = attempt.err().unwrap();
        assert!(!attempt.was_sent, "{}", attempt.failure);
        assert!(!is_connect_error(&Status::unavailable("broken pipe")));
    }
}
