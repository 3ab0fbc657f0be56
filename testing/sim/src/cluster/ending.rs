//! The end of a run, and what must hold before anything is destroyed: everything acknowledged has three good
//! copies.

use super::deleter::unequal;
use super::ledger::Written;
use super::plan::machine_at;
use super::reader::{Way, read_checked};
use super::replica_files::ReplicaFiles;
use super::run::Run;
use super::untold::{Untold, describe};
use super::view::View;
use crate::services::quick_disk;
use crate::world::{Crash, ProcessId};
use proto::Code;
use proto::scm::{
    CloseContainerRequest, ContainerInfo, ContainerState, ContainerTrouble, DatanodeInfo, DiskState,
    DropReplicaRequest, NodeDuty, NodeState, Pipeline, PipelineState, ReplicaInfo, ReplicaState,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;
use types::ContainerId;

const REPLICAS: usize = 3;
/// The age up to which a view of the cluster is taken for what the cluster is now.
const VIEW_AGE_MAX: Duration = Duration::from_secs(2);
const LOOK_MS: u128 = 50;
/// The time after which an operator asks again for containers to be closed.
const CLOSE_AGAIN: Duration = Duration::from_secs(5);

/// The time that an operator waits before he drops what SCM cannot compare.
const DROPPED_AFTER: Duration = Duration::from_secs(120);

/// The time that a cluster may take to be well again after the last fault: the sum of what may follow one
/// another. A connection is noticed to be dead (5 s), a node to be dead (6 s), its pipelines end without a
/// leader (6 s), their members let go of them, and what they lack is deleted (60 s); a task that failed is
/// given to another node, or to the same one after a minute, twice (120 s), and so is that of a node that
/// could not hash or scrub a container (60 s); each container is scrubbed again (10 s). Copies take what
/// their bytes take, and logs that are read to their ends what their entries take, besides.
const SETTLED_WITHIN: Duration = Duration::from_secs(5 + 6 + 6 + 60 + 120 + 60 + 10);
/// The time that copies may take at least: some tens of MiB at 200 KiB/s.
const COPIED_WITHIN: Duration = Duration::from_secs(60);

/// The time in which a member reads an entry's head when it ends by itself: a positioning of the slowest disk
/// there is, beside a scrub and what the index writes there.
const HEAD_READ: Duration = Duration::from_millis(3 * 32);

/// The time that one round of scrubbing over all containers of a disk takes.
const SCRUB_TAKES: Duration = Duration::from_secs(5);

impl Run {
    /// Stops all faults and writing, and waits until all is well again, which must be in time; returns how
    /// long it took.
    pub(super) fn settle(&mut self) -> Result<Duration, String> {
        self.stop_faults();
        self.ledger.stop_writing();
        self.until_settled()
    }

    pub(super) fn until_settled(&mut self) -> Result<Duration, String> {
        let began = self.world.now();
        let mut close_at = began;
        let (mut untold, mut sound_since) = (Untold::default(), None);
        // A bit that is flipped in a record's body is found by the first scrub of its container, no earlier.
        let scrubbed_after = match self.ledger.has_damage() {
            true => self.plan.datanode.scrub_interval + SCRUB_TAKES,
            false => Duration::ZERO,
        };
        loop {
            if self.world.now() >= close_at {
                self.close_containers();
                if self.world.now() > began + DROPPED_AFTER {
                    self.drop_what_cannot_be_compared();
                }
                close_at = self.world.now() + CLOSE_AGAIN;
            }
            self.step()?;
            let took = self.world.now() - began;
            if !took.as_millis().is_multiple_of(LOOK_MS) {
                continue;
            }
            if let Some(view) = self.views.newest() {
                untold.judge(self.world.now(), &view, |info| self.lacks_room_for_its_end(info))?;
            }
            match self.unsettled() {
                None if took >= scrubbed_after + *sound_since.get_or_insert(took) => return Ok(took),
                None => continue,
                Some(why) if took > SETTLED_WITHIN + self.copied_within() + self.read_within() => {
                    return Err(format!("no fault for {:.1} s, and {why}", took.as_secs_f64()));
                }
                Some(_) => sound_since = None,
            }
        }
    }

    /// The time in which one node could copy all that there is.
    fn copied_within(&self) -> Duration {
        let Some(view) = self.views.newest() else { return COPIED_WITHIN };
        let bytes: u64 = view.containers.iter().map(|info| info.payload_bytes).sum();
        COPIED_WITHIN.max(Duration::from_secs(bytes / self.plan.datanode.copy_bytes_per_second))
    }

    /// The time in which a member could read the longest log.
    fn read_within(&self) -> Duration {
        let Some(view) = self.views.newest() else { return Duration::ZERO };
        let told = view.containers.iter().flat_map(|info| &info.replicas);
        let last = told.filter_map(|told| told.replica.as_ref()).map(|replica| replica.last_index).max();
        HEAD_READ * u32::try_from(last.unwrap_or_default()).unwrap_or(u32::MAX)
    }

    /// Has an operator ask for all containers to be closed that have something in them.
    pub(super) fn close_containers(&self) {
        let Some(view) = self.views.newest() else { return };
        let mut written = self.ledger.containers();
        written.extend(self.ledger.filed().iter().map(|written| written.block.container));
        let is_open = |info: &&ContainerInfo| info.state() == ContainerState::ContainerOpen;
        for info in view.containers.iter().filter(is_open) {
            let container = info.container;
            if written.contains(&ContainerId(container)) || self.may_have_orphans(info) {
                let scm = self.scm_calls();
                self.world.spawn(self.operator(), async move {
                    let request = CloseContainerRequest { container };
                    // The operator asks again until the container is closed.
                    let _ = scm.call(|mut scm| async move { scm.close_container(request).await }).await;
                });
            }
        }
    }

    /// Has an operator drop the replicas that go on past their container and are damaged before the last
    /// record that they know committed. Nobody can tell whether the good ones have that, so SCM keeps them
    /// until somebody says so.
    fn drop_what_cannot_be_compared(&self) {
        let Some(view) = self.views.newest() else { return };
        let is_unread = |info: &&ReplicaInfo| info.replica.as_ref().is_some_and(|it| it.committed_unread);
        for info in view.containers.iter().filter(|info| good_replicas(info).len() >= REPLICAS) {
            for node in info.replicas.iter().filter(is_unread).filter_map(|info| info.node.as_ref()) {
                let (scm, request) =
                    (self.scm_calls(), DropReplicaRequest { container: info.container, node: node.node });
                self.world.spawn(self.operator(), async move {
                    // SCM refuses where it repairs the replica by itself.
                    let _ = scm.call(|mut scm| async move { scm.drop_replica(request).await }).await;
                });
            }
        }
    }

    /// The block that waits to be called gone, if one does that need not wait for an operator.
    fn waits_to_be_gone(&self, view: &View) -> Option<String> {
        let is_excused = |container: ContainerId| {
            let info = view.containers.iter().find(|info| info.container == container.0);
            match info {
                Some(info) => self.losses.excuse(info),
                None => false,
            }
        };
        let filed = self.ledger.filed();
        let waits = filed.iter().find(|written| !is_excused(written.block.container))?;
        Some(format!("block {} is not gone, of {}", waits.block, filed.len()))
    }

    fn unsettled(&self) -> Option<String> {
        let away = self.nodes().find(|node| !self.gone.contains(node) && !self.is_running(*node));
        if let Some(node) = away {
            return Some(format!("{} is not there", self.plan.address(node)));
        }
        let unheard = self.nodes().find(|node| !self.gone.contains(node) && !self.is_healthy(*node));
        if let Some(node) = unheard {
            return Some(format!("SCM does not hear {}", self.plan.address(node)));
        }
        if let Some(why) = self.unsound() {
            return Some(why);
        }
        let view = self.views.newest()?;
        let written = self.ledger.containers();
        let open = view.containers.iter().find(|info| {
            written.contains(&ContainerId(info.container))
                && info.state() != ContainerState::ContainerClosed
                && !self.losses.excuse(info)
        });
        if let Some(open) = open {
            return Some(format!("container {} is {:?}", open.container, open.state()));
        }
        let is_decided = |info: &&ContainerInfo| !self.losses.excuse(info);
        let unequal = view.containers.iter().filter(is_decided).find_map(unequal);
        let left = unequal.or_else(|| self.waits_to_be_gone(&view)).or_else(|| self.unnamed_left(&view));
        if let Some(why) = left.or_else(|| self.kept_twice(&view)) {
            return Some(why);
        }
        let mut leaving = view.datanodes.iter().filter(|info| info.duty() == NodeDuty::NodeDecommissioning);
        leaving.find_map(|node| self.stays_for(&view, node))
    }

    /// A closed container that a node keeps on two of its disks, of which it told a good replica: one that
    /// comes back finds what was copied to another one meanwhile.
    fn kept_twice(&self, view: &View) -> Option<String> {
        let all_work = |node: u64| {
            let told = view.datanodes.iter().find(|info| info.node == node);
            told.is_some_and(|told| told.disks.iter().all(|disk| disk.state() == DiskState::Works))
        };
        let closed = |info: &&ContainerInfo| {
            info.state() == ContainerState::ContainerClosed && !self.losses.excuse(info)
        };
        let is_good = |info: &&ReplicaInfo| {
            let told = info.replica.as_ref();
            info.node_state() == NodeState::NodeHealthy
                && told.is_some_and(|it| it.released && it.unhealthy.is_empty() && !it.hash.is_empty())
        };
        view.containers.iter().filter(closed).find_map(|info| {
            let nodes = info.replicas.iter().filter(is_good).filter_map(|replica| replica.node.as_ref());
            nodes.filter(|node| all_work(node.node)).find_map(|node| {
                let directory = format!("containers/{:016x}", info.container);
                let disks = self.world.disks(ProcessId(machine_at(&node.address)?)).iter();
                let holders = disks.filter(|disk| {
                    let mut files = disk.files_in(&directory);
                    files.retain(|(_, bytes)| *bytes > 0);
                    let mut names = files.iter().map(|(name, _)| name);
                    names.any(|name| name.ends_with(".seg"))
                });
                let is_twice = holders.count() > 1;
                is_twice.then(|| format!("{} keeps container {} twice", node.address, info.container))
            })
        })
    }

    /// The fault, if there is one, of closed containers and pipelines.
    pub(super) fn unsound(&self) -> Option<String> {
        let Some(view) = self.views.newest() else { return Some("SCM has shown nothing".to_owned()) };
        if self.world.now() > view.asked_at + VIEW_AGE_MAX {
            return Some("SCM shows nothing".to_owned());
        }
        self.unsound_cluster(&view).or_else(|| self.unsound_containers(&view))
    }

    fn unsound_cluster(&self, view: &View) -> Option<String> {
        let status = &view.status;
        if status.safe_mode {
            return Some(format!("SCM is in safe mode, waiting for {:?}", status.safe_mode_waits));
        }
        let counts =
            [("being copied", status.copies_under_way), ("being deleted", status.deletions_under_way)];
        if let Some((what, count)) = counts.iter().find(|(_, count)| *count > 0) {
            return Some(format!("{count} containers are {what}"));
        }
        let is_over = |number: u64| {
            let pipeline = view.pipelines.iter().find(|pipeline| pipeline.pipeline == number);
            pipeline.is_some_and(|pipeline| pipeline.state() == PipelineState::PipelineClosed)
        };
        let is_troubled = |info: &&ContainerInfo| {
            let is_undecided = match info.state() {
                ContainerState::ContainerQuasiClosed => true,
                ContainerState::ContainerOpen => is_over(info.pipeline),
                _ => false,
            };
            (is_undecided || !info.troubles.is_empty())
                && !self.losses.excuse(info)
                && !self.waits_for_room(info)
        };
        let troubled: Vec<_> = view.containers.iter().filter(is_troubled).map(describe).collect();
        if !troubled.is_empty() {
            return Some(format!("containers are in trouble: {}", troubled.join("; ")));
        }
        view.pipelines.iter().find_map(unsound_pipeline)
    }

    /// The reason why a node that leaves is still needed. Nobody makes copies of a container that waits for
    /// an operator. One that is dead may have any that is not open: it has told a new leader of SCM of
    /// none.
    fn stays_for(&self, view: &View, leaving: &DatanodeInfo) -> Option<String> {
        let (node, is_dead) = (leaving.node, leaving.state() == NodeState::NodeDead);
        let is_over = |info: &ContainerInfo| {
            matches!(info.state(), ContainerState::ContainerClosed | ContainerState::ContainerQuasiClosed)
        };
        let has_it = |info: &&ContainerInfo| {
            let mut holders = info.replicas.iter().filter_map(|replica| replica.node.as_ref());
            is_dead && is_over(info) || holders.any(|of| of.node == node)
        };
        let is_needed = |info: &&ContainerInfo| {
            good_replicas(info).iter().filter(|(holder, _)| *holder != node).count() < REPLICAS
        };
        let needed: Vec<_> = view.containers.iter().filter(has_it).filter(is_needed).collect();
        let is_excused = |info: &&ContainerInfo| self.losses.excuse(info) || self.waits_for_room(info);
        if !needed.is_empty() && needed.iter().all(is_excused) {
            return None;
        }
        if needed.is_empty() && view.containers.iter().any(|info| self.cannot_end_on(info, node)) {
            return None;
        }
        let needed: Vec<_> = needed.into_iter().map(describe).collect();
        let DatanodeInfo { containers_waiting, pipelines_waiting, .. } = leaving;
        let waits = format!("{containers_waiting} containers and {pipelines_waiting} pipelines");
        Some(format!("node {node} is still leaving, needed for {waits}: {}", needed.join("; ")))
    }

    fn is_full(&self, address: &str) -> bool {
        self.full.keys().any(|(machine, _)| self.plan.address(*machine) == address)
    }

    /// Whether a replica is whole and cannot be marked as closed: not even the few bytes that say where it
    /// ends fit on its disk. SCM tells of that disk.
    fn lacks_room_for_its_end(&self, info: &ReplicaInfo) -> bool {
        let is_unmarked =
            info.replica.as_ref().is_some_and(|it| it.state() == ReplicaState::ReplicaQuasiClosed);
        is_unmarked && info.node.as_ref().is_some_and(|node| self.is_full(&node.address))
    }

    /// Whether a node has a replica that it cannot end: letting go of a log takes some room on its disk,
    /// which is full for good. It goes with what it has once somebody makes room, or gives it up.
    fn cannot_end_on(&self, info: &ContainerInfo, node: u64) -> bool {
        info.replicas.iter().any(|info| {
            let is_open = info.replica.as_ref().is_some_and(|it| it.state() == ReplicaState::ReplicaOpen);
            is_open && info.node.as_ref().is_some_and(|of| of.node == node && self.is_full(&of.address))
        })
    }

    /// Whether a container has three good replicas, and others on disks that are full for good: to let go of
    /// a log takes some room, too.
    fn waits_for_room(&self, info: &ContainerInfo) -> bool {
        let good = good_replicas(info);
        let unmarked = info.replicas.iter().filter(|info| self.lacks_room_for_its_end(info)).count();
        let stands_full = |info: &ReplicaInfo| {
            let is_gone = info.node_state() == NodeState::NodeDead;
            let is_good = |node: u64| good.iter().any(|(number, _)| *number == node);
            info.node
                .as_ref()
                .is_some_and(|node| is_gone || self.is_full(&node.address) || is_good(node.node))
        };
        (good.len()..=good.len() + unmarked).contains(&REPLICAS)
            && info.troubles().all(|trouble| trouble == ContainerTrouble::ContainerDifferent)
            && info.replicas.iter().all(stands_full)
    }

    fn unsound_containers(&self, view: &View) -> Option<String> {
        let by_number: BTreeMap<u64, &ContainerInfo> =
            view.containers.iter().map(|info| (info.container, info)).collect();
        for container in self.ledger.containers() {
            let Some(info) = by_number.get(&container.0) else {
                return Some(format!("container {container} is unknown"));
            };
            match info.state() {
                _ if self.losses.excuse(info) || self.waits_for_room(info) => {}
                ContainerState::ContainerOpen => {}
                ContainerState::ContainerClosed => {
                    if let Some(why) = unsound_replicas(info) {
                        return Some(format!("container {container}: {why}"));
                    }
                }
                state => return Some(format!("container {container} is {state:?}")),
            }
        }
        None
    }

    /// Checks blocks as they are read, replicas as the nodes know them, and the files.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        let view = self.views.newest().ok_or("SCM has shown nothing")?;
        self.read_all(&view)?;
        self.compare_inventories()?;
        let view = self.views.newest().ok_or("SCM has shown nothing")?;
        self.check_waiting(&view)?;
        for machine in 0..self.nodes().end {
            if self.world.is_up(ProcessId(machine)) {
                self.crash(machine, Crash::Kill, quick_disk());
            }
        }
        self.compare_files(&view)
    }

    /// Reads each acknowledged block from every node: from those with a good replica, and from all others,
    /// which have none, or one that is not read, and must give the right bytes or an error.
    fn read_all(&mut self, view: &View) -> Result<(), String> {
        const READERS: usize = 8;
        // A node that is slow asks its readers to look elsewhere.
        const TRIES: usize = 10;
        // Disks take up to 32 ms for each.
        const OF_EACH: Duration = Duration::from_millis(50);
        const AT_LEAST: Duration = Duration::from_secs(200);
        let mut reads: Vec<(Written, String, MustBe)> = Vec::new();
        let nodes: Vec<usize> = self.nodes().filter(|node| self.is_running(*node)).collect();
        for written in self.ledger.blocks() {
            let info = view.containers.iter().find(|info| info.container == written.block.container.0);
            // Where a tail was lost, the same places may have other records.
            let may_be_lost =
                |info: &&ContainerInfo| self.losses.excuse(info) || self.losses.has_lost_majority(info);
            let decided = info.into_iter().filter(|info| !may_be_lost(info));
            let good: BTreeSet<String> =
                decided.flat_map(good_replicas).map(|(_, address)| address).collect();
            let all = nodes.iter().map(|machine| self.plan.address(*machine));
            let others = all.filter(|address| !good.contains(address));
            reads.extend(others.map(|address| (written, address, MustBe::RightOrAnError)));
            reads.extend(good.into_iter().map(|address| (written, address, MustBe::Right)));
        }
        let share = reads.len().div_ceil(READERS).max(1);
        let under_way = Arc::new(());
        let failed: Arc<Mutex<Vec<(Written, String, String)>>> = Arc::default();
        let last_failure: Arc<Mutex<String>> = Arc::default();
        for reads in reads.chunks(share) {
            let (reads, ledger, under_way) = (reads.to_vec(), self.ledger.clone(), under_way.clone());
            let (failed, last_failure) = (failed.clone(), last_failure.clone());
            let (connector, cluster) = (self.world.connector(self.operator()), view.status.cluster.clone());
            self.world.spawn(self.operator(), async move {
                let _under_way = under_way;
                for (written, address, must_be) in reads {
                    let way = Way { connector: &*connector, cluster: &cluster, address: &address };
                    let mut tries = if must_be == MustBe::Right { TRIES } else { 1 };
                    let failure = loop {
                        tries -= 1;
                        match read_checked(&way, &ledger, &written, 0, written.length).await {
                            Ok(_) => {
                                let is_elsewhere = must_be == MustBe::RightOrAnError;
                                ledger.count(|counts| counts.reads_elsewhere += u64::from(is_elsewhere));
                                break None;
                            }
                            // A node whose container is gone does not get it back.
                            Err(failure) if tries == 0 || failure.code == Code::NotFound => {
                                break Some(failure);
                            }
                            Err(failure) => {
                                *last_failure.lock().expect("no holder panics") =
                                    format!("{address}: block {}: {failure}", written.block);
                                sleep(Duration::from_secs(1)).await;
                            }
                        }
                    };
                    if let Some(failure) = failure.filter(|_| must_be == MustBe::Right) {
                        let failure = (written, address, failure.message);
                        failed.lock().expect("no holder panics").push(failure);
                    }
                }
            });
        }
        let within = AT_LEAST + OF_EACH * share as u32;
        let until = self.world.now() + within;
        while Arc::strong_count(&under_way) > 1 {
            self.step()?;
            if self.world.now() > until {
                let last = last_failure.lock().expect("no holder panics");
                return Err(format!(
                    "reading all blocks takes longer than {within:?}; the last that failed: {last}"
                ));
            }
        }
        let failed = std::mem::take(&mut *failed.lock().expect("no holder panics"));
        if failed.is_empty() { Ok(()) } else { self.check_failed_reads(&failed) }
    }

    /// Fails unless each replica that could not be read was one too many and deleted meanwhile: then SCM says
    /// so soon.
    fn check_failed_reads(&mut self, failed: &[(Written, String, String)]) -> Result<(), String> {
        const SAID_WITHIN: Duration = Duration::from_secs(5);
        let until = self.world.now() + SAID_WITHIN;
        while self.world.now() < until {
            self.step()?;
        }
        let view = self.views.newest().ok_or("SCM has shown nothing")?;
        let is_good = |(written, address, _): &&(Written, String, String)| {
            let info = view.containers.iter().find(|info| info.container == written.block.container.0);
            info.is_some_and(|info| good_replicas(info).iter().any(|(_, good)| good == address))
        };
        match failed.iter().find(is_good) {
            Some((written, address, why)) => Err(format!("{written:?} cannot be read from {address}: {why}")),
            None => Ok(()),
        }
    }

    /// Compares SCM's word about a node's replicas with what the node has, or soon will have: a member may
    /// still be making up for what it missed.
    fn compare_inventories(&mut self) -> Result<(), String> {
        const SAID_WITHIN: Duration = Duration::from_secs(60);
        let until = self.world.now() + SAID_WITHIN;
        loop {
            let compared = self.compare_inventories_now();
            if compared.is_ok() || self.world.now() > until {
                return compared;
            }
            self.step()?;
        }
    }

    fn compare_inventories_now(&mut self) -> Result<(), String> {
        let view = self.views.newest().ok_or("SCM has shown nothing")?;
        let found: Arc<Mutex<BTreeMap<usize, BTreeSet<ContainerId>>>> = Arc::default();
        let mut expected: BTreeMap<usize, BTreeSet<ContainerId>> = BTreeMap::new();
        for (node, slot) in &self.slots {
            let Some(datanode) = slot.lock().expect("no holder panics").clone() else { continue };
            let number = datanode.node().map_or(0, |node| node.0);
            let (node, found) = (*node, found.clone());
            let has = |info: &&ContainerInfo| {
                info.replicas.iter().any(|replica| replica.node.as_ref().is_some_and(|of| of.node == number))
            };
            let shown = view.containers.iter().filter(has).map(|info| ContainerId(info.container));
            expected.insert(node, shown.collect());
            let (ledger, address) = (self.ledger.clone(), self.plan.address(node));
            self.world.spawn(ProcessId(node), async move {
                match datanode.container_reports().await {
                    Ok(reports) => {
                        let here = reports.into_iter().map(|report| report.container).collect();
                        found.lock().expect("no holder panics").insert(node, here);
                    }
                    Err(failure) => ledger.fail(format!("{address}: {failure:#}")),
                }
            });
        }
        for _ in 0..100 {
            self.step()?;
        }
        let written = self.ledger.containers();
        let found = std::mem::take(&mut *found.lock().expect("no holder panics"));
        for (node, shown) in expected {
            let here = found.get(&node).cloned().unwrap_or_default();
            let is_meant = |container: &&ContainerId| written.contains(container);
            let only = |one: &BTreeSet<ContainerId>, other: &BTreeSet<ContainerId>| -> Vec<u64> {
                one.difference(other).filter(is_meant).map(|container| container.0).collect()
            };
            let (only_shown, only_here) = (only(&shown, &here), only(&here, &shown));
            if !only_shown.is_empty() || !only_here.is_empty() {
                let address = self.plan.address(node);
                return Err(format!(
                    "SCM shows containers {only_shown:?} on {address}, which are not there, and not {only_here:?}, which are"
                ));
            }
        }
        Ok(())
    }

    /// Compares the good replicas of each container, byte for byte.
    fn compare_files(&self, view: &View) -> Result<(), String> {
        let written = self.ledger.containers();
        let decided = view.containers.iter().filter(|info| !self.losses.excuse(info));
        for info in decided.filter(|info| written.contains(&ContainerId(info.container))) {
            self.ledger.count(|counts| counts.containers += 1);
            let container = ContainerId(info.container);
            let mut replicas: Vec<(usize, ReplicaFiles)> = Vec::new();
            for (_, address) in good_replicas(info) {
                let Some(machine) = machine_at(&address) else { continue };
                let files = ReplicaFiles::read(self.world.disks(ProcessId(machine)), container);
                let files = files.map_err(|why| format!("container {container} on {address}: {why}"))?;
                self.ledger.count(|counts| {
                    counts.replicas_compared += 1;
                    counts.replicas_compacted += u64::from(files.is_compacted);
                });
                replicas.push((machine, files));
            }
            let Some(((first, expected), others)) = replicas.split_first() else { continue };
            for (other, files) in others {
                if let Some(why) = expected.difference(files) {
                    return Err(format!(
                        "container {container} differs on machines {first} and {other}: {why}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn unsound_pipeline(pipeline: &Pipeline) -> Option<String> {
    let (id, state, health) = (pipeline.pipeline, pipeline.state(), &pipeline.health);
    if state.is_closing() || !health.is_empty() {
        return Some(format!("pipeline {id} is {state:?}: {health:?}"));
    }
    let is_led = state != PipelineState::PipelineOpen || pipeline.leader_node != 0;
    (!is_led).then(|| format!("pipeline {id} has no leader"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MustBe {
    Right,
    RightOrAnError,
}

/// Node and address of each good replica.
fn good_replicas(info: &ContainerInfo) -> Vec<(u64, String)> {
    let is_good = |info: &&ReplicaInfo| {
        let is_there = info.node_state() == NodeState::NodeHealthy && info.duty() == NodeDuty::NodeInService;
        let replica = info.replica.as_ref();
        let is_whole = replica.is_some_and(|replica| {
            replica.state() == ReplicaState::ReplicaClosed
                && replica.unhealthy.is_empty()
                && !replica.hash.is_empty()
        });
        is_there && is_whole
    };
    let good = info.replicas.iter().filter(is_good).filter_map(|info| info.node.clone());
    good.map(|node| (node.node, node.address)).collect()
}

pub(super) fn unsound_replicas(info: &ContainerInfo) -> Option<String> {
    let good = good_replicas(info);
    // A replica that is one too many is deleted in a moment, be it that it still lacks its hash.
    let is_counted = |info: &&ReplicaInfo| {
        info.node_state() == NodeState::NodeHealthy && info.duty() == NodeDuty::NodeInService
    };
    let counted = info.replicas.iter().filter(is_counted).count();
    if good.len() != REPLICAS || counted != REPLICAS {
        return Some(format!("{} good replicas of {counted}: {}", good.len(), describe(info)));
    }
    let of_good = info.replicas.iter().filter(|info| {
        info.node.as_ref().is_some_and(|node| good.iter().any(|(number, _)| *number == node.node))
    });
    let ends: BTreeSet<_> = of_good
        .filter_map(|info| info.replica.as_ref())
        .map(|replica| (replica.last_term, replica.last_index, replica.hash.clone()))
        .collect();
    (ends.len() != 1).then(|| format!("good replicas end as {ends:?}"))
}
