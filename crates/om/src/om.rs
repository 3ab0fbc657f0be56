use crate::address;
use crate::after_reset;
use crate::backup::BACKUPS_MAX;
use crate::buckets::{self, Buckets};
use crate::change_queue::WAITING_BYTES_MAX;
use crate::counted::{Counted, expose_listings, expose_memory, expose_tables};
use crate::groups::Groups;
use crate::heartbeat::{Heartbeat, Word};
use crate::moves::{self, Moves, SENT_AT_A_TIME};
use crate::options::OmOptions;
use crate::others::Others;
use crate::reclaim::{self, Reclaim, UnusedCounts};
use crate::replicas::{Means, Replicas};
use crate::service::{OPERATIONS, OmService};
use crate::sweep::{self, Sweep, SweepCounts, Times};
use crate::table_store::{DiskTables, TableStore};
use anyhow::Context;
use disk::{DataDirectory, RealDisk};
use metrics::Exposition;
use planted::Bug;
use proto::ClusterGuard;
use proto::om::om_server::OmServer;
use raft::{AddressBook, RaftHost};
use raftlog::LogSpace;
use rpc::{Channels, Link};
use statedb::{DbOptions, SharedMemory};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tonic::service::RoutesBuilder;
use types::Clock;

/// The time for one member of SCM to answer: as long as an election of SCM's may take, and more.
const SCM_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// A running OM: its replicas of groups of names, and what it tells SCM of them.
pub struct Om {
    service: OmService,
    scans_max: usize,
    disk: Arc<dyn DataDirectory>,
    replicas: Arc<Replicas>,
    word: Word,
    clock: Arc<dyn Clock>,
    /// Tasks that run until the OM is shut down.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Om {
    /// Opens the replicas that are in a metadata directory, which it may share with an SCM. They run and
    /// serve from there on, whether there is an SCM or not; which others it is to have SCM says, later.
    pub async fn start(
        options: OmOptions,
        disk: Arc<RealDisk>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Om> {
        let shared = Some(SharedMemory::new(options.memory_bytes));
        let db = DbOptions { shared, ..options.db.clone() };
        let tables = Arc::new(DiskTables { disk: disk.clone(), options: db });
        Om::start_on(options, disk, tables, space, host, addresses, clock).await
    }

    /// [`Om::start`] on a directory that somebody opened, with tables that are elsewhere.
    pub async fn start_on(
        options: OmOptions,
        disk: Arc<dyn DataDirectory>,
        tables: Arc<dyn TableStore>,
        space: Arc<LogSpace>,
        host: RaftHost,
        addresses: AddressBook,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Om> {
        let (scans_max, connector) = (options.scans_max, host.connector().clone());
        let clock_told = clock.clone();
        let means = Means {
            options: options.clone(),
            disk: disk.clone(),
            tables,
            space,
            host,
            addresses: addresses.clone(),
            clock: clock.clone(),
            room: Arc::new(Semaphore::new(WAITING_BYTES_MAX)),
        };
        let replicas = Arc::new(Replicas::new(means));
        let groups = Arc::new(Groups::new(Channels::new(connector.clone())));
        let others = Others { groups: groups.clone(), disk: disk.clone() };
        let buckets = Buckets {
            replicas: replicas.clone(),
            others: others.clone(),
            addresses: addresses.clone(),
            clock: clock.clone(),
            unsettled: Arc::default(),
            placing: Arc::default(),
        };
        let (counts, wanted) = Default::default();
        let unused = Arc::<UnusedCounts>::default();
        let swept = Arc::<SweepCounts>::default();
        let link =
            |connector| Link::new(&options.scm, connector, SCM_ANSWERS_WITHIN).context("addresses of SCM");
        let scm = match options.scm.is_empty() {
            true => None,
            false => Some(link(connector.clone())?),
        };
        let sweep = scm.clone().map(|scm| Sweep {
            replicas: replicas.clone(),
            others: others.clone(),
            scm,
            nodes: Channels::new(connector.clone()),
            disk: disk.clone(),
            addresses: addresses.clone(),
            clock: clock.clone(),
            counts: swept.clone(),
            times: Times {
                after: options.sweep_after,
                every: options.sweep_every,
                behind_fence: options.reclaim_after,
            },
            version: options.version.clone(),
        });
        let moves = Moves {
            replicas: replicas.clone(),
            others: others.clone(),
            addresses: addresses.clone(),
            clock: clock.clone(),
            counts,
            wanted,
            slots: Arc::new(Semaphore::new(SENT_AT_A_TIME)),
        };
        let service = OmService {
            replicas: replicas.clone(),
            buckets: buckets.clone(),
            moves: moves.clone(),
            unused: unused.clone(),
            swept,
            sweep: sweep.clone(),
            addresses: addresses.clone(),
            clock: clock.clone(),
            scans: Arc::new(Semaphore::new(scans_max)),
            backups: Arc::new(Semaphore::new(BACKUPS_MAX)),
            counted: Arc::new(Counted::new(OPERATIONS)),
        };
        // Before the directory belongs to a cluster there is nothing to open; and what there is could not say
        // to others whose it is.
        let has_opened =
            !disk.stamp().cluster.is_empty() && address::is_as_before(&*disk, &options.address).await?;
        if has_opened {
            replicas.open_all().await?;
        }
        let mut tasks = vec![
            tokio::spawn(buckets::finish_always(buckets.clone())),
            tokio::spawn(after_reset::settle_always(buckets)),
            tokio::spawn(moves::go_on_always(moves)),
        ];
        let word = match scm.zip(sweep) {
            None => Word::new("no SCM is given"),
            Some((scm, sweep)) => {
                let reclaim = Reclaim {
                    replicas: replicas.clone(),
                    scm,
                    disk: disk.clone(),
                    addresses: addresses.clone(),
                    clock: clock.clone(),
                    counts: unused,
                    after: options.reclaim_after,
                };
                tasks.push(tokio::spawn(reclaim::go_on_always(reclaim)));
                tasks.push(tokio::spawn(sweep::go_on_always(sweep.clone())));
                tasks.push(tokio::spawn(sweep::complete_always(sweep)));
                let link = link(connector)?;
                let word = Word::new("it has not answered yet");
                let (disk, replicas, word) = (disk.clone(), replicas.clone(), word);
                let beats = Heartbeat {
                    options,
                    disk,
                    addresses,
                    clock,
                    replicas,
                    link,
                    groups,
                    word: word.clone(),
                    has_opened,
                    registered: None,
                };
                tasks.push(tokio::spawn(beats.run()));
                word
            }
        };
        Ok(Om { service, scans_max, disk, replicas, word, clock: clock_told, tasks: Mutex::new(tasks) })
    }

    /// Mounts the OM's service on the process's gRPC server.
    pub fn add_to(&self, routes: &mut RoutesBuilder) {
        let disk = self.disk.clone();
        let is_of_none = |cluster: &str| cluster.is_empty() || planted::has(Bug::OmOfNoCluster);
        let here = move || Some(disk.stamp().cluster).filter(|cluster| !is_of_none(cluster));
        let service = OmServer::new(self.service.clone())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        routes.add_service(ClusterGuard::new(here).in_front_of(service));
    }

    /// The reason why the OM cannot do its work now, if there is one. To have no replica is no such reason,
    /// once SCM has said so.
    pub fn readiness(&self) -> Result<(), String> {
        self.word.check_cluster()?;
        if self.replicas.is_empty() {
            self.word.check_told()?;
        }
        self.replicas.check_space()?;
        self.replicas.readiness()
    }

    /// The cluster that the directory belongs to; empty before it has joined one.
    pub fn cluster(&self) -> String {
        self.disk.stamp().cluster
    }

    /// Entries that are committed and not applied here.
    pub fn lag(&self) -> u64 {
        self.replicas.open().iter().map(|replica| replica.group.status().lag()).sum()
    }

    pub fn expose(&self, exposition: &mut Exposition) {
        self.service.counted.expose(exposition);
        self.service.moves.counts.expose(exposition);
        self.service.buckets.unsettled.expose(self.clock.now_ms(), exposition);
        self.service.unused.expose(exposition);
        self.service.swept.expose(exposition);
        expose_listings(self.scans_max - self.service.scans.available_permits(), exposition);
        let open = self.replicas.open();
        // All groups share it.
        if let Some(replica) = open.first() {
            expose_memory(replica.dbs.current().cache_bytes(), exposition);
        }
        for replica in &open {
            let group = replica.group.id().number.to_string();
            // One group needs no name.
            let labels: &[(&str, &str)] = if open.len() > 1 { &[("group", &group)] } else { &[] };
            let tables = replica.dbs.current();
            replica.followed.usage.expose(&tables, labels, exposition);
            replica.followed.batches.expose(labels, exposition);
            let (group, now_ms) = (replica.group.id(), self.clock.now_ms());
            self.service.unused.expose_group(group, &tables, labels, now_ms, exposition);
            expose_tables(tables.rocks(), labels, exposition);
        }
    }

    /// Lets other members lead, closes the groups and makes the tables durable, so that the next start
    /// replays little.
    pub async fn shutdown(&self) {
        for task in self.tasks.lock().await.drain(..) {
            task.abort();
            // What the task had begun is done, or never will be.
            let _ = task.await;
        }
        self.replicas.shutdown().await;
    }
}
