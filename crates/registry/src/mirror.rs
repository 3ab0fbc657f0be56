use crate::client::RegistryClient;
use proto::registry::event::Change;
use proto::registry::watch_request::What;
use proto::registry::{Event, Instance, WatchRequest, WatchResponse};
use proto::{Code, Failure};
use std::collections::BTreeMap;
use std::convert::Infallible as Never;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Streaming;
use tracing::{debug, info};
use types::Backoff;

const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// A watch that has nothing to tell says so each ten seconds; one that is silent for this long is broken.
const SILENCE_MAX: Duration = Duration::from_secs(25);

/// A copy of all instances that follows the registry, for as long as it is not dropped. While SCM is away it
/// stays as it is.
pub struct Mirror {
    state: Arc<RwLock<State>>,
    follower: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Instances by service and id.
    instances: BTreeMap<String, BTreeMap<String, Instance>>,
    revision: u64,
    /// The time at which SCM said last that this is all there is.
    heard: Option<Instant>,
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Mirror {
    pub fn start(client: RegistryClient) -> Mirror {
        let state = Arc::new(RwLock::default());
        let follower = tokio::spawn(follow(client, state.clone()));
        Mirror { state, follower }
    }

    /// Looks at the instances of a service, by id. `look` is quick.
    pub(crate) fn service<R>(
        &self,
        service: &str,
        look: impl FnOnce(&BTreeMap<String, Instance>) -> R,
    ) -> Option<R> {
        self.state().instances.get(service).map(look)
    }

    /// The time for which SCM has said nothing; `None` before it has said anything.
    pub fn age(&self) -> Option<Duration> {
        self.state().heard.map(|heard| heard.elapsed())
    }

    /// The revision of the last change that is in the copy.
    pub fn revision(&self) -> u64 {
        self.state().revision
    }

    fn state(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().expect("no holder panics")
    }

    #[cfg(test)]
    pub(crate) fn of(instances: Vec<Instance>) -> Mirror {
        let mut state = State { heard: Some(Instant::now()), ..State::default() };
        instances.into_iter().for_each(|instance| state.put(instance));
        Mirror { state: Arc::new(RwLock::new(state)), follower: tokio::spawn(async {}) }
    }
}

impl State {
    fn put(&mut self, instance: Instance) {
        let service = self.instances.entry(instance.service.clone()).or_default();
        service.insert(instance.id.clone(), instance);
    }

    fn follow(&mut self, event: Event) {
        match event.change {
            Some(Change::Instance(instance)) => self.put(instance),
            Some(Change::InstanceGone(name)) => {
                if let Some(service) = self.instances.get_mut(&name.service) {
                    service.remove(&name.id);
                    if service.is_empty() {
                        self.instances.remove(&name.service);
                    }
                }
            }
            Some(Change::Key(_) | Change::KeyGone(_)) | None => {}
        }
    }
}

async fn follow(client: RegistryClient, state: Arc<RwLock<State>>) {
    let mut retry = RETRY;
    loop {
        let listed = client.instances("").await;
        let failure = match listed {
            Ok(listed) => {
                retry.reset();
                // Events from the first page's revision on may tell of changes that later pages have already:
                // they say the same again.
                let mut next = State { revision: listed.revision, ..State::default() };
                listed.instances.into_iter().for_each(|instance| next.put(instance));
                next.heard = Some(Instant::now());
                info!(revision = next.revision, "follow the registry");
                *state.write().expect("no holder panics") = next;
                watch_on(&client, &state).await
            }
            Err(failure) => failure,
        };
        debug!(%failure, "list the registry again");
        tokio::time::sleep(retry.pause()).await;
    }
}

/// Goes on from one stream to the next. Returns the failure of one after which the registry must be listed
/// again: SCM has forgotten events that are missing here, or the stream brought nothing new.
async fn watch_on(client: &RegistryClient, state: &RwLock<State>) -> Failure {
    loop {
        let before = state.read().expect("no holder panics").revision;
        let failure = match watch_once(client, state, before).await {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        let has_come_on = state.read().expect("no holder panics").revision > before;
        if failure.code == Code::Compacted || !has_come_on {
            return failure;
        }
        debug!(%failure, "watch the registry again");
    }
}

async fn watch_once(client: &RegistryClient, state: &RwLock<State>, told: u64) -> Result<Never, Failure> {
    let request = WatchRequest { from: told + 1, what: Some(What::Service(String::new())) };
    let mut watch = client.watch(request).await?;
    let told = follow_stream(&mut watch.stream, state).await;
    told.inspect_err(|failure| client.broke(&watch.address, failure))
}

async fn follow_stream(
    stream: &mut Streaming<WatchResponse>,
    state: &RwLock<State>,
) -> Result<Never, Failure> {
    loop {
        let silent = || Failure::new(Code::Unavailable, "the watch fell silent");
        let message = tokio::time::timeout(SILENCE_MAX, stream.message()).await.map_err(|_| silent())??;
        let message = message.ok_or_else(|| Failure::new(Code::Unavailable, "the watch ended"))?;
        let mut state = state.write().expect("no holder panics");
        message.events.into_iter().for_each(|event| state.follow(event));
        state.revision = message.revision;
        state.heard = Some(Instant::now());
    }
}
