//! Telling SCM what is here, and doing what it answers.

use crate::address;
use crate::groups::Groups;
use crate::options::OmOptions;
use crate::replicas::Replicas;
use disk::DataDirectory;
use proto::scm::scm_client::ScmClient;
use proto::scm::{OmHeartbeatRequest, OmHeartbeatResponse, RegisterOmRequest};
use proto::{Code, Failure, Retry, in_cluster, uuid_bytes};
use raft::AddressBook;
use rpc::Link;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;
use tonic::Request;
use tracing::{error, info, warn};
use types::{Backoff, Clock, NodeId};

/// The pauses after a heartbeat that failed: the longest is as long as that between reports.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// The time for which changes gather, to be told together.
const GATHER: Duration = Duration::from_millis(20);

/// Reports to SCM and does what it says, for as long as the OM runs.
pub(crate) struct Heartbeat {
    pub(crate) options: OmOptions,
    pub(crate) disk: Arc<dyn DataDirectory>,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) link: Link,
    pub(crate) groups: Arc<Groups>,
    pub(crate) word: Word,
    /// Whether all that was in the directory is open, as far as it can be.
    pub(crate) has_opened: bool,
    /// The number that SCM has given this OM in this process's life.
    pub(crate) registered: Option<NodeId>,
}

/// SCM's word on this OM: how it took what it was told last.
#[derive(Clone)]
pub(crate) struct Word(Arc<Mutex<Heard>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Well,
    /// Nobody took the report, for this reason.
    Waits(String),
    /// SCM is of another cluster than what is here, by these words.
    Foreign(String),
}

impl Word {
    pub(crate) fn new(waits_for: &str) -> Word {
        Word(Arc::new(Mutex::new(Heard::Waits(waits_for.to_owned()))))
    }

    fn now(&self) -> Heard {
        self.0.lock().expect("no holder panics").clone()
    }

    fn set(&self, heard: Heard) {
        let before = std::mem::replace(&mut *self.0.lock().expect("no holder panics"), heard.clone());
        match (before, heard) {
            (Heard::Foreign(_), Heard::Foreign(_)) | (Heard::Well, Heard::Well) => {}
            (_, Heard::Foreign(why)) => error!(why, "OM is of another cluster"),
            (Heard::Foreign(_), Heard::Well) => info!("OM is of SCM's cluster"),
            (_, Heard::Well) => info!("SCM takes this OM's report"),
            (Heard::Waits(said), Heard::Waits(why)) if said == why => {}
            (_, Heard::Waits(why)) => warn!(why, "OM waits for SCM; what is here runs without it"),
        }
    }

    /// The reason why nothing here may be relied on: SCM is of another cluster.
    pub(crate) fn check_cluster(&self) -> Result<(), String> {
        match self.now() {
            Heard::Foreign(why) => Err(why),
            Heard::Well | Heard::Waits(_) => Ok(()),
        }
    }

    /// The reason why SCM has not told this OM what it is to have.
    pub(crate) fn check_told(&self) -> Result<(), String> {
        match self.now() {
            Heard::Well => Ok(()),
            Heard::Foreign(why) => Err(why),
            Heard::Waits(why) => Err(format!("it waits for SCM: {why}")),
        }
    }
}

impl Heartbeat {
    /// Reports until it is dropped, which may be anywhere: what SCM is told can be told again, and replicas
    /// come and go in steps that a crash may divide too.
    pub(crate) async fn run(mut self) {
        let interval = self.options.heartbeat;
        let mut retry = RETRY;
        loop {
            match self.step().await {
                Ok(()) => {
                    self.word.set(Heard::Well);
                    retry.reset();
                    tokio::select! {
                        () = sleep(interval) => {}
                        () = self.replicas.news() => sleep(GATHER.min(interval)).await,
                    }
                }
                Err(failure) => {
                    self.word.set(self.heard_after(&failure));
                    sleep(retry.pause()).await;
                }
            }
        }
    }

    fn heard_after(&self, failure: &Failure) -> Heard {
        if failure.code != Code::WrongCluster {
            return Heard::Waits(failure.to_string());
        }
        let (root, cluster, scm) = (self.disk.root().display(), self.disk.stamp().cluster, &self.options.scm);
        let why =
            format!("{root} belongs to cluster {cluster}, the SCM of --scm {scm} to another: {failure}");
        Heard::Foreign(why)
    }

    async fn step(&mut self) -> Result<(), Failure> {
        let om = match self.registered {
            Some(om) => om,
            None => self.register().await?,
        };
        let answer = self.beat(om).await?;
        if answer.register_again {
            info!("SCM asks this OM to register again");
            self.registered = None;
            self.register().await?;
            return Ok(());
        }
        self.carry_out(om, answer).await;
        Ok(())
    }

    /// Registers this OM with SCM. On return the directory belongs to SCM's cluster, durably, and what is on
    /// it runs.
    async fn register(&mut self) -> Result<NodeId, Failure> {
        let stamp = self.disk.stamp();
        let request = RegisterOmRequest {
            uuid: uuid_bytes(stamp.disk.0),
            cluster: stamp.cluster.clone(),
            address: self.options.address.clone(),
            om: self.replicas.node().await.om_number(),
        };
        let answer = self.link.ask(|channel| {
            let request = in_cluster(Request::new(request.clone()), &stamp.cluster);
            async move { ScmClient::new(channel).register_om(request).await }
        });
        let answer = answer.await?;
        if answer.om == 0 {
            return Err(Failure::internal("SCM gave this OM the number 0"));
        }
        let join = self.disk.join_cluster(&answer.cluster, 0);
        join.map_err(|error| {
            let code = if stamp.cluster.is_empty() { Code::Internal } else { Code::WrongCluster };
            Failure { retry: Retry::Here, ..Failure::new(code, error.to_string()) }
        })?;
        if stamp.cluster.is_empty() {
            info!(cluster = answer.cluster, "OM joined the cluster");
        }
        let noted = address::note(&*self.disk, &self.options.address).await;
        noted.map_err(|error| Failure::internal(format!("{error:#}")))?;
        if !self.has_opened {
            let opened = self.replicas.open_all().await;
            opened.map_err(|error| Failure::internal(format!("{error:#}")))?;
            self.has_opened = true;
        }
        let om = NodeId(answer.om);
        self.addresses.set(NodeId::of_om(om.0), self.options.address.clone());
        info!(%om, cluster = answer.cluster, "registered");
        self.registered = Some(om);
        Ok(om)
    }

    async fn beat(&self, om: NodeId) -> Result<OmHeartbeatResponse, Failure> {
        let cluster = self.disk.stamp().cluster;
        let request = OmHeartbeatRequest {
            om: om.0,
            cluster: cluster.clone(),
            address: self.options.address.clone(),
            replicas: self.replicas.reports(om),
            clock_ms: self.clock.now_ms(),
            version: self.options.version.clone(),
            is_full: self.replicas.is_full(),
        };
        let answer = self.link.ask(|channel| {
            let request = in_cluster(Request::new(request.clone()), &cluster);
            async move { ScmClient::new(channel).om_heartbeat(request).await }
        });
        answer.await
    }

    async fn carry_out(&self, om: NodeId, told: OmHeartbeatResponse) {
        for node in told.addresses.iter().filter(|node| node.node != 0 && !node.address.is_empty()) {
            self.addresses.set(NodeId::of_om(node.node), node.address.clone());
        }
        self.replicas.note(om, &told);
        self.groups.note(&told.om_groups);
        // Replicas that are gone go first: they make room for others of the same groups.
        for name in &told.gone {
            self.replicas.gone(name).await;
        }
        for group in &told.groups {
            self.replicas.told(om, group).await;
        }
        for successor in &told.successors {
            self.replicas.hand_over(successor);
        }
    }
}
