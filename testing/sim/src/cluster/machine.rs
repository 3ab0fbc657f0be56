//! The processes on the machines: SCM, datanodes, clients, and somebody who looks at it all.

use super::deleter::Deleter;
use super::gateways::{self, Gateway};
use super::ledger::{Ledger, OBJECT_CLIENTS_FROM};
use super::mover::{self, Mover};
use super::namers::{Namer, Names};
use super::objects::{ObjectClient, Objects, OmWay, create_bucket};
use super::plan::Plan;
use super::reader::Reader;
use super::view::Views;
use super::writer::{TRIES, Writer};
use crate::services::{Ahead, ScmCalls, ScmProcess, cluster_named};
use crate::world::Context;
use client::Client;
use datanode::offline::{OfflineDisk, RebuildOptions};
use datanode::{Datanode, DatanodeOptions};
use disk::sim::{Random, SimDirectory};
use disk::{DataDirectory, Disk};
use raft::{AddressBook, OfflineReplica, RaftHost, ReplicaRecord, ResetError};
use raftlog::{LogSpace, LogSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;
use tonic::service::{Routes, RoutesBuilder};
use types::{GroupId, OwnerId, ReplicaId};

/// A process that could not start is started again after this, as a service manager does it.
const START_AGAIN: Duration = Duration::from_millis(500);

const OBJECT_CLIENTS: u64 = 3;
/// The numbers of the clients that give each key once.
const NAMERS: std::ops::Range<u64> = 700..703;
/// The first number of gateways, above those of all that write blocks.
const GATEWAYS_FROM: u64 = 1_000_000;
const OBJECT_CHUNK_BYTES_MAX: u64 = 2000;

/// One life of a datanode's process, as the scenario sees it. Emptied when the process ends.
pub(super) type DatanodeSlot = Arc<Mutex<Option<Datanode>>>;

pub(super) struct DatanodeStart {
    pub(super) plan: Arc<Plan>,
    pub(super) ledger: Ledger,
    pub(super) machine: usize,
    pub(super) directories: Vec<SimDirectory>,
    /// Numbers of the directories whose index an operator has recreated before anything starts.
    pub(super) rebuilds: Vec<(usize, Arc<AtomicBool>)>,
    pub(super) address: String,
    pub(super) scm: String,
    pub(super) slot: DatanodeSlot,
}

impl DatanodeStart {
    pub(super) async fn run(self, context: Context) -> Routes {
        for (number, is_done) in &self.rebuilds {
            self.rebuild(*number).await;
            is_done.store(true, Ordering::Relaxed);
        }
        loop {
            match self.try_start(&context).await {
                Ok(routes) => return routes,
                Err(failure) => {
                    self.ledger.event(format_args!("{} cannot start: {failure:#}", self.address));
                    sleep(START_AGAIN).await;
                }
            }
        }
    }

    /// Runs `flotilla debug container rebuild` until it succeeds.
    async fn rebuild(&self, number: usize) {
        let disk =
            OfflineDisk::over(Arc::new(self.directories[number].clone()), self.plan.datanode.db.clone());
        loop {
            match disk.rebuild(RebuildOptions::default()).await {
                Ok(report) => {
                    self.ledger
                        .event(format_args!("disk {number} of {} is rebuilt: {report:?}", self.address));
                    return self.ledger.count(|counts| counts.indexes_rebuilt += 1);
                }
                Err(failure) => {
                    let what = format!("disk {number} of {} cannot be rebuilt: {failure:#}", self.address);
                    match self.ledger.is_damaged(self.machine) {
                        true => self.ledger.event(format_args!("{what}")),
                        false => self.ledger.fail(what),
                    }
                    sleep(START_AGAIN).await;
                }
            }
        }
    }

    async fn try_start(&self, context: &Context) -> anyhow::Result<Routes> {
        let mut directories: Vec<Arc<dyn DataDirectory>> = Vec::new();
        for directory in &self.directories {
            directories.push(Arc::new(directory.clone()));
        }
        let addresses = AddressBook::default();
        let host = RaftHost::over(context.connector(), self.plan.host.clone(), addresses.clone());
        let options = DatanodeOptions {
            disks: directories.iter().map(|directory| directory.root().to_owned()).collect(),
            scm: self.scm.clone(),
            address: self.address.clone(),
            ..self.plan.datanode.clone()
        };
        let clock = Ahead::by(self.plan.clock_ahead(&self.address)).clock(context);
        let datanode = Datanode::start_on(directories, options, host.clone(), addresses, clock).await?;
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        datanode.add_to(&mut routes);
        *self.slot.lock().expect("no holder panics") = Some(datanode);
        Ok(routes.routes())
    }
}

pub(super) struct ScmStart {
    pub(super) ledger: Ledger,
    pub(super) process: ScmProcess,
    /// Whether the other members are lost for good: then an operator makes this one the only one before it
    /// starts.
    pub(super) is_reset: bool,
}

impl ScmStart {
    pub(super) async fn run(self, context: Context) -> Routes {
        if self.is_reset
            && let Err(failure) = self.reset().await
        {
            let address = &self.process.options.address;
            self.ledger.fail(format!("{address} cannot be reset: {failure:#}"));
        }
        self.process.run(context).await
    }

    /// Does what `flotilla debug unsafe-reset-membership` does.
    async fn reset(&self) -> anyhow::Result<()> {
        let group = GroupId::SCM;
        let spec = LogSpec {
            log: group.to_u64(),
            dir: format!("groups/{group}"),
            owners_dir: format!("meta/{group}"),
            first_owner: OwnerId(0),
        };
        let disk: Arc<dyn Disk> = Arc::new(self.process.directory.clone());
        let here = ReplicaRecord::read(group, &disk).await?.map(|here| here.replica);
        let space = LogSpace::new(disk, self.process.space.clone());
        let replica = OfflineReplica::open(group, &space, spec).await?;
        // A plan that names nobody as lost fails and says who the members are.
        let members = match replica.plan(&BTreeSet::new(), 0) {
            Err(ResetError::QuorumIsLeft { left, .. }) => left.into_iter(),
            other => anyhow::bail!("nobody is named as lost, and {other:?}"),
        };
        let lost: BTreeSet<ReplicaId> = members.filter(|replica| Some(*replica) != here).collect();
        let plan = replica.plan(&lost, 0)?;
        Ok(replica.reset(&plan, 0, "the simulation lost the others").await?)
    }
}

pub(super) struct ClientsStart {
    pub(super) plan: Arc<Plan>,
    pub(super) ledger: Ledger,
    pub(super) scms: Vec<String>,
    pub(super) datanodes: Vec<String>,
    pub(super) objects: Objects,
    /// The record of what gateways asked and were answered.
    pub(super) gateway_objects: Objects,
    pub(super) names: Names,
    pub(super) views: Views,
    pub(super) random: Random,
}

impl ClientsStart {
    pub(super) async fn run(mut self, context: Context) -> Routes {
        let connector = context.connector();
        let scm = || ScmCalls::new(connector.clone(), self.scms.clone());
        let writers: Vec<_> = (0..self.plan.writers).map(|number| (number, scm())).collect();
        let cluster = scm();
        let (objects, gateway_objects) = (self.objects.clone(), self.gateway_objects.clone());
        let deleter = self.plan.deletes.then(|| (scm(), self.views.clone(), context.trace.clone()));
        // Clients of objects draw from a seed of their own, so that the others do the same with and without
        // an OM.
        let mut object_random = Random::new(self.plan.object_seed);
        let object_writers: Vec<_> = (0..OBJECT_CLIENTS).map(|number| (number, scm())).collect();
        let (names, namers) = (self.names.clone(), NAMERS.map(|number| (number, scm())).collect::<Vec<_>>());
        let (plan, ledger, addresses) = (self.plan.clone(), self.ledger.clone(), self.datanodes.clone());
        let mut randoms = std::iter::repeat_with(move || Random::new(self.random.next_u64()));
        tokio::spawn(async move {
            let cluster = cluster_named(&cluster).await;
            for ((number, scm), random) in writers.into_iter().zip(&mut randoms) {
                let writer = Writer {
                    number,
                    ledger: ledger.clone(),
                    connector: connector.clone(),
                    scm,
                    cluster: cluster.clone(),
                    random,
                    think_ms_max: plan.think_ms_max,
                    chunk_bytes_max: plan.chunk_bytes_max,
                    tries: TRIES,
                };
                tokio::spawn(writer.run());
            }
            for random in randoms.take(plan.readers as usize) {
                let (ledger, connector) = (ledger.clone(), connector.clone());
                let (cluster, addresses) = (cluster.clone(), addresses.clone());
                tokio::spawn(Reader { ledger, connector, cluster, addresses, random }.run());
            }
            if let Some((scm, views, trace)) = deleter {
                let deleter = Deleter {
                    ledger: ledger.clone(),
                    connector: connector.clone(),
                    scm,
                    cluster: cluster.clone(),
                    dead_after: plan.scm.dead_after,
                    views,
                    now: Box::new(move || trace.now()),
                    random: Random::new(plan.object_seed ^ 3),
                };
                tokio::spawn(deleter.run());
            }
            if plan.oms == 0 {
                return;
            }
            let oms = || OmWay::new(connector.clone(), plan.om_addresses(), cluster.clone());
            create_bucket(&oms(), &objects, plan.scm.om_groups as u64 - 1).await;
            let named_writer = |number, scm, random: &mut Random| Writer {
                number,
                ledger: ledger.clone(),
                connector: connector.clone(),
                scm,
                cluster: cluster.clone(),
                random: Random::new(random.next_u64()),
                think_ms_max: 0,
                chunk_bytes_max: plan.chunk_bytes_max.min(OBJECT_CHUNK_BYTES_MAX),
                tries: TRIES,
            };
            for (number, scm) in object_writers {
                let writer = named_writer(OBJECT_CLIENTS_FROM + number, scm, &mut object_random);
                let client = ObjectClient {
                    writer,
                    objects: objects.clone(),
                    oms: oms(),
                    datanodes: addresses.clone(),
                    random: Random::new(object_random.next_u64()),
                };
                ledger.let_work(client.run());
            }
            let mut namer_random = Random::new(plan.object_seed ^ 5);
            for (sweeps, (number, scm)) in plan.sweeps.into_iter().cycle().zip(namers) {
                let writer = named_writer(number, scm, &mut namer_random);
                let namer = Namer {
                    writer,
                    names: names.clone(),
                    objects: objects.clone(),
                    oms: oms(),
                    random: Random::new(namer_random.next_u64()),
                    sweeps,
                };
                ledger.let_work(namer.run());
            }
            let groups = plan.scm.om_groups as u64;
            if groups > 1 {
                let random = Random::new(plan.object_seed ^ 2);
                let (pause_ms_max, first) = plan.sweeps.map_or((mover::PAUSE_MS_MAX, 0), |sweeps| {
                    (sweeps.move_pause_ms_max, sweeps.first_group)
                });
                let groups = first..groups;
                let mover =
                    Mover { oms: oms(), ledger: ledger.clone(), random, groups, pause_ms_max, epoch: 0 };
                tokio::spawn(mover.run());
            }
            for (number, deadline) in (GATEWAYS_FROM..).zip(gateways::DEADLINES) {
                let options = gateways::options(&plan.scm_addresses(), deadline);
                let gateway = Gateway {
                    number,
                    client: Client::over(options, connector.clone()),
                    objects: gateway_objects.clone(),
                    ledger: ledger.clone(),
                    random: Random::new(object_random.next_u64()),
                    etags: BTreeMap::new(),
                };
                ledger.let_work(gateway.run());
            }
        });
        Routes::default()
    }
}

/// The operator's machine, which no fault touches.
pub(super) async fn run_operator(context: Context, views: Views, scm: ScmCalls, ledger: Ledger) -> Routes {
    let trace = context.trace.clone();
    tokio::spawn(views.follow(scm, ledger, move || trace.now()));
    Routes::default()
}
