use crate::role::Role;
use crate::version::{COMMIT, VERSION};
use client::Client;
use datanode::Datanode;
use metrics::{Exposition, Metric};
use om::Om;
use raft::RaftHost;
use raftlog::LogSpace;
use rpc::GateCounts;
use s3gw::Accounts;
use scm::Scm;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The time that a gateway's cluster may take to answer that it is there.
const CLIENT_READY_WITHIN: Duration = Duration::from_secs(1);

const INFO: Metric = Metric { name: "flotilla_info", help: "1; the labels say what runs here." };

/// The roles that one server of a process runs, to be asked how they are.
pub(crate) struct Roles {
    pub(crate) host: RaftHost,
    /// The counts of the gRPC port.
    pub(crate) gate: Arc<GateCounts>,
    /// The metadata directory of SCM and OM.
    pub(crate) meta: Option<(PathBuf, Arc<LogSpace>)>,
    pub(crate) scm: Option<Scm>,
    pub(crate) om: Option<Om>,
    pub(crate) datanode: Option<Datanode>,
    pub(crate) client: Option<Client>,
    /// The accounts of the gateway's requests.
    pub(crate) accounts: Option<Arc<Accounts>>,
}

impl Roles {
    /// Each role, with the reason when it cannot do its work now.
    pub(crate) async fn readiness(&self) -> Vec<(Role, Result<(), String>)> {
        let mut roles = Vec::new();
        for role in [Role::Scm, Role::Om, Role::Datanode, Role::S3] {
            if let Some(readiness) = self.role_readiness(role).await {
                roles.push((role, readiness));
            }
        }
        roles
    }

    /// The readiness of a role; `None` for one that is not here.
    pub(crate) async fn role_readiness(&self, role: Role) -> Option<Result<(), String>> {
        match role {
            Role::Scm => self.scm.as_ref().map(Scm::readiness),
            Role::Om => self.om.as_ref().map(Om::readiness),
            Role::Datanode => self.datanode.as_ref().map(Datanode::readiness),
            Role::S3 => {
                let ready = self.client.as_ref()?.ready(CLIENT_READY_WITHIN).await;
                Some(ready.map_err(|error| format!("{error:#}")))
            }
        }
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition) {
        exposition.scope(&[("cluster", self.cluster()), ("node", self.node())]);
        exposition.gauge(INFO, &[("version", VERSION), ("commit", COMMIT), ("roles", &self.names())], 1);
        self.host.metrics().expose(exposition);
        self.gate.expose(exposition);
        if let Some((path, space)) = &self.meta {
            space.metrics().expose(&path.display().to_string(), exposition);
        }
        if let Some(scm) = &self.scm {
            scm.expose(exposition);
        }
        if let Some(om) = &self.om {
            om.expose(exposition);
        }
        if let Some(datanode) = &self.datanode {
            datanode.expose(exposition);
        }
        if let Some(client) = &self.client {
            client.expose(exposition);
        }
        if let Some(accounts) = &self.accounts {
            accounts.expose(exposition);
        }
    }

    /// The cluster of this server; empty until a role knows it.
    fn cluster(&self) -> String {
        let roles = [Role::Scm, Role::Datanode, Role::Om, Role::S3];
        roles.into_iter().find_map(|role| self.cluster_of(role)).unwrap_or_default()
    }

    /// The cluster that a role belongs to, once it knows.
    pub(crate) fn cluster_of(&self, role: Role) -> Option<String> {
        let cluster = match role {
            Role::Scm => self.scm.as_ref().map(Scm::cluster),
            Role::Datanode => self.datanode.as_ref().and_then(Datanode::cluster),
            Role::Om => self.om.as_ref().map(Om::cluster),
            Role::S3 => self.client.as_ref().map(|client| client.view().cluster.clone()),
        };
        cluster.filter(|cluster| !cluster.is_empty())
    }

    /// A datanode's number; empty for the other roles, which have none.
    fn node(&self) -> String {
        let node = self.datanode.as_ref().and_then(Datanode::node);
        node.map_or(String::new(), |node| node.to_string())
    }

    fn names(&self) -> String {
        let present = [
            (Role::Scm, self.scm.is_some()),
            (Role::Om, self.om.is_some()),
            (Role::Datanode, self.datanode.is_some()),
            (Role::S3, self.client.is_some()),
        ];
        let names = present.iter().filter(|(_, is_here)| *is_here).map(|(role, _)| role.name());
        names.collect::<Vec<_>>().join(",")
    }
}
