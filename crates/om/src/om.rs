use crate::options::OmOptions;
use crate::service::OmService;
use crate::state_machine::OmStateMachine;
use crate::tables::{APPLIED_KEY, check_format};
use anyhow::Context;
use disk::RealDisk;
use proto::om::om_server::OmServer;
use raft::{
    AddressBook, DbGenerations, Group, GroupSpec, GroupStart, Member, RaftHost, ReadIndexError, Role,
};
use raftlog::{LogSpace, LogSpec};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::service::RoutesBuilder;
use types::{Clock, GroupId, NodeId, OwnerId, ReplicaId};

/// A group of one elects itself; it only waits for its disk.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A running OM: the only member of its only group for now.
pub struct Om {
    service: OmService,
    host: RaftHost,
}

impl Om {
    /// Opens the OM's group in a metadata directory, which it may share with an SCM, and waits until it leads.
    pub async fn start(
        options: OmOptions,
        disk: Arc<RealDisk>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Om> {
        let dir = format!("db-{}", group_id());
        let dbs = DbGenerations::open(disk.clone(), &dir, &options.db, APPLIED_KEY).await;
        let dbs = dbs.with_context(|| format!("open {dir} in {}", disk.root().display()))?;
        check_format(&dbs.current()).with_context(|| format!("read {dir} in {}", disk.root().display()))?;
        let machine = OmStateMachine { dbs: dbs.clone() };
        let group = host
            .open(group_spec(&options), &space, log_spec(), machine)
            .await
            .context("open the OM's group")?;
        let scans = Arc::new(Semaphore::new(options.scans_max));
        let om = Om { service: OmService { group: group.clone(), dbs, addresses, clock, scans }, host };
        let ready = timeout(READY_TIMEOUT, start_ready(&group)).await;
        if let Err(error) =
            ready.context("wait for the OM's group to elect its leader").and_then(|ready| ready)
        {
            om.shutdown().await;
            return Err(error);
        }
        Ok(om)
    }

    /// Mounts the OM's service on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        let service = OmServer::new(self.service.clone())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        routes.add_service(service);
    }

    /// Why the OM cannot do its work now, if so.
    pub fn readiness(&self) -> Result<(), String> {
        self.service.group.status().readiness()
    }

    /// Entries that are committed and not applied here.
    pub fn lag(&self) -> u64 {
        self.service.group.status().lag()
    }

    /// Closes the group and makes the tables durable, so that the next start replays little.
    pub async fn shutdown(&self) {
        self.host.close(group_id()).await;
        let db = self.service.dbs.current();
        match tokio::task::spawn_blocking(move || db.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error = format!("{error:#}"), "flush the OM's tables"),
            Err(error) => tracing::error!(%error, "flush the OM's tables"),
        }
    }
}

/// Waits until the group leads and has applied what its log holds.
async fn start_ready(group: &Group) -> anyhow::Result<()> {
    let mut status = group.watch();
    loop {
        let found = status.wait_for(|status| status.role == Role::Leader || status.failure.is_some()).await;
        if let Some(failure) = found.context("the OM's group stopped")?.failure.clone() {
            anyhow::bail!("the OM's group failed: {failure}");
        }
        match group.read_index().await {
            Ok(_) => return Ok(()),
            Err(error @ ReadIndexError::Stopped { .. }) => return Err(error).context("catch up"),
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn group_id() -> GroupId {
    GroupId::om(0)
}

fn group_spec(options: &OmOptions) -> GroupSpec {
    let replica = ReplicaId(1);
    GroupSpec {
        // One member: nobody else is spoken to.
        cluster: String::new(),
        group: group_id(),
        replica,
        timing: options.timing,
        start: GroupStart::First(vec![Member { replica, node: NodeId(0), address: options.address.clone() }]),
        campaign: true,
        snapshots: Some(options.snapshots),
        lease_reads: false,
    }
}

fn log_spec() -> LogSpec {
    let group = group_id();
    LogSpec {
        log: group.to_u64(),
        dir: format!("groups/{group}"),
        owners_dir: format!("meta/{group}"),
        first_owner: OwnerId(0),
    }
}
