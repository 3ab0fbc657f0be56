use crate::client::RegistryClient;
use proto::Code;
use proto::registry::{Check, Instance, InstanceName, RenewInstanceRequest};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use types::Clock;

/// The renewals within the time of a lease: it ends when so many in a row are missed.
const RENEWALS_PER_TTL: u32 = 3;
/// The time that leaving may take: one slow write of SCM. A lease that is not given back ends by itself.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// The part of an instance that stays the same while its process runs.
#[derive(Clone, Debug)]
pub struct Registration {
    pub service: String,
    pub id: String,
    /// Addresses, "host:port", by what is spoken there.
    pub addresses: BTreeMap<String, String>,
    pub metadata: BTreeMap<String, String>,
    pub ttl: Duration,
}

type Checks = Pin<Box<dyn Future<Output = Vec<Check>> + Send>>;

/// Keeps an instance registered: registers it, renews its lease with what its checks say, and registers it
/// again when SCM does not know it any more.
pub struct Registrar {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Registrar {
    /// Starts to keep the instance registered. `checks` is asked before each renewal. The time of `clock`,
    /// this process's, is told with each: SCM compares it with its own.
    pub fn start(
        client: RegistryClient,
        registration: Registration,
        clock: Arc<dyn Clock>,
        checks: impl Fn() -> Checks + Send + Sync + 'static,
    ) -> Registrar {
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { keep(&client, &registration, &*clock, &checks, &stop).await }
        });
        Registrar { stop, task }
    }

    /// Leaves the registry, so that nobody looks for the instance until its lease ends.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            warn!(%error, "the task that keeps an instance registered");
        }
    }
}

async fn keep(
    client: &RegistryClient,
    registration: &Registration,
    clock: &dyn Clock,
    checks: &(impl Fn() -> Checks + Sync),
    stop: &CancellationToken,
) {
    let name = InstanceName { service: registration.service.clone(), id: registration.id.clone() };
    let interval = registration.ttl / RENEWALS_PER_TTL;
    let mut lease = None;
    // Registering and renewing may be given up anywhere: the next process of this name, or the lease's end,
    // cleans up.
    let kept = stop.run_until_cancelled(async {
        loop {
            lease = match lease {
                None => register(client, registration, clock, checks().await).await,
                Some(lease) => renew(client, &name, clock, lease, checks().await).await,
            };
            tokio::time::sleep(interval).await;
        }
    });
    kept.await;
    if lease.is_some() {
        match tokio::time::timeout(LEAVE_MAX, client.deregister(name)).await {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => debug!(%failure, "leave the registry"),
            Err(_) => debug!("the registry does not answer; the lease ends by itself"),
        }
    }
}

async fn register(
    client: &RegistryClient,
    registration: &Registration,
    clock: &dyn Clock,
    checks: Vec<Check>,
) -> Option<u64> {
    let Registration { service, id, addresses, metadata, ttl } = registration.clone();
    let ttl_ms = ttl.as_millis() as u64;
    let instance = Instance { service, id, addresses, metadata, ttl_ms, checks, ..Instance::default() };
    match client.register(instance, Some(clock)).await {
        Ok(registered) => {
            info!(service = registration.service, id = registration.id, "registered");
            Some(registered.lease)
        }
        Err(failure) => {
            info!(service = registration.service, %failure, "not registered yet");
            None
        }
    }
}

/// Renews a lease, and returns it if it is still there.
async fn renew(
    client: &RegistryClient,
    name: &InstanceName,
    clock: &dyn Clock,
    lease: u64,
    checks: Vec<Check>,
) -> Option<u64> {
    let renewal = RenewInstanceRequest { name: Some(name.clone()), lease, checks, clock_ms: 0 };
    match client.renew(renewal, Some(clock)).await {
        Ok(_) => Some(lease),
        Err(failure) if failure.code == Code::NotFound => {
            info!(service = name.service, id = name.id, %failure, "register again");
            None
        }
        Err(failure) => {
            debug!(service = name.service, %failure, "renew the lease");
            Some(lease)
        }
    }
}

/// An address as a name that DNS takes: the id of an instance that has nothing better. Addresses of usual
/// length that differ in a letter or a digit give different names.
pub fn label_of_address(address: &str) -> String {
    const LABEL_BYTES_MAX: usize = 63;
    let letter = |letter: char| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '-',
    };
    let label: String = address.chars().map(letter).collect();
    let label = label.trim_matches('-');
    // The end of a long label has the port.
    let label = &label[label.len().saturating_sub(LABEL_BYTES_MAX)..];
    label.trim_start_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_labels() {
        assert_eq!(label_of_address("127.0.0.1:7400"), "127-0-0-1-7400");
        assert_eq!(label_of_address("[::1]:7400"), "1--7400");
        assert_eq!(label_of_address("Node-1.example.com:7400"), "node-1-example-com-7400");
        assert_eq!(label_of_address(&format!("{}.x:7400", "a".repeat(80))).len(), 63);
    }
}
