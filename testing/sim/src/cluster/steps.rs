//! The single steps of schemes, taken when they are due.

use super::harm::{Harm, IndexHarm, logs_on};
use super::reader::{Way, read_checked};
use super::run::{Remedy, Run};
use super::scheme::Step;
use super::writer::Writer;
use crate::services::ScmCalls;
use crate::services::random_disk;
use crate::world::{Crash, Link, ProcessId};
use disk::sim::{Loss, Random, SimOptions};
use proto::scm::{Pipeline, ReplicaState};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use types::{ContainerId, PipelineId};

/// Clients of schemes have numbers from here on.
const CLIENTS_FROM: u64 = 1000;
const CHUNK_BYTES_MAX: u64 = 4000;

impl Run {
    pub(super) fn at(&mut self, at: Duration, step: Step) {
        self.steps_made += 1;
        self.steps.insert((at, self.steps_made), step);
    }

    /// Takes the steps that are due.
    pub(super) fn schemes_step(&mut self) {
        let now = self.world.now();
        while let Some(first) = self.steps.first_entry().filter(|first| first.key().0 <= now) {
            let step = first.remove();
            self.take(step);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write { pipeline, blocks, tries } => self.write_blocks(&pipeline, blocks, tries),
            Step::Crash { machine, crash, down } => {
                let disk = random_disk(&mut self.random);
                self.crash_for(machine, crash, disk, down);
            }
            Step::CrashHarmed { machine, crash, down, pipeline, harm } => {
                let disk = random_disk(&mut self.random);
                self.crash_for(machine, crash, disk, down);
                self.harm(machine, pipeline, harm);
            }
            Step::CrashIndex { machine, crash, down, pipeline, harm, rebuilt_after, power_lost_after } => {
                let disk = random_disk(&mut self.random);
                let has_log = |disk: &disk::sim::SimDisk| logs_on(disk).contains(&pipeline);
                if let Some(number) = self.world.disks(ProcessId(machine)).iter().position(has_log) {
                    self.crash_for(machine, crash, disk, down);
                    self.harm_index(machine, number, harm, rebuilt_after, power_lost_after);
                }
            }
            Step::Pause { machine, until } => {
                let is_up = self.world.is_up(ProcessId(machine));
                self.ledger.count(|counts| counts.paused_for_minutes += u64::from(is_up));
                self.pause_until(machine, until);
            }
            Step::Flip { what, until } => self.flip_by(what, until),
            Step::Lose { machine, crash } => {
                self.holdings.lose(machine, self.world.now());
                self.lose_node(machine, crash);
            }
            Step::Probe { machine, pipeline } => self.probe(machine, pipeline),
            Step::LoseScm { survivor } => self.lose_scm(survivor),
            Step::Restart { machine } => {
                let disks = self.world.disks(ProcessId(machine));
                let has_failed = disks.iter().any(|disk| disk::Disk::failure(disk).is_some());
                if self.world.is_up(ProcessId(machine)) && has_failed {
                    self.ledger.count(|counts| counts.failed_disks_restarted += 1);
                    let disk = random_disk(&mut self.random);
                    self.crash_for(machine, Crash::Kill, disk, Duration::from_millis(100));
                }
            }
            Step::LosePower { machine } => {
                let disk = random_disk(&mut self.random);
                let crash = Crash::PowerLoss(Loss::AllUnsynced);
                self.crash_for(machine, crash, disk, Duration::from_secs(1));
            }
            Step::Rebuild { machine } => {
                // A machine that is down has its indexes recreated when it starts.
                let disk = random_disk(&mut self.random);
                self.crash_for(machine, Crash::Kill, disk, Duration::ZERO);
            }
        }
    }

    /// Cuts a machine off from all but the clients.
    pub(super) fn isolate(&mut self, machine: usize, until: Duration) {
        self.cut_off(machine, 0..self.nodes().end, until);
    }

    pub(super) fn cut_off(&mut self, machine: usize, from: Range<usize>, until: Duration) {
        let cut = Link { is_cut: true, ..Link::FAST };
        let others = from.filter(|other| *other != machine);
        let pairs = others.flat_map(|other| [(machine, other), (other, machine)]);
        let pairs = pairs.map(|(from, to)| (ProcessId(from), ProcessId(to), cut)).collect();
        let cut = self.links.add(pairs);
        self.links.apply_to(self.world.network());
        self.later(until, Remedy::Network(cut));
    }

    fn write_blocks(&mut self, pipeline: &Pipeline, blocks: u64, tries: usize) {
        let Some(view) = self.views.newest() else { return };
        let clients = ProcessId(self.plan.clients());
        for _ in 0..blocks {
            self.clients_made += 1;
            let connector = self.world.connector(clients);
            let writer = Writer {
                number: CLIENTS_FROM + self.clients_made,
                ledger: self.ledger.clone(),
                scm: ScmCalls::new(connector.clone(), self.plan.scm_addresses()),
                connector,
                cluster: view.status.cluster.clone(),
                random: Random::new(self.random.next_u64()),
                think_ms_max: 0,
                chunk_bytes_max: self.plan.chunk_bytes_max.min(CHUNK_BYTES_MAX),
                tries,
            };
            self.world.spawn(clients, writer.write_one(pipeline.clone()));
        }
    }

    /// Harms a replica on a machine that is down now; what SCM last showed says which container is written.
    fn harm(&mut self, machine: usize, pipeline: PipelineId, harm: Harm) {
        let Some(view) = self.views.newest() else { return };
        let of_pipeline = view.containers.iter().filter(|info| PipelineId(info.pipeline) == pipeline);
        let containers: Vec<ContainerId> = of_pipeline.map(|info| ContainerId(info.container)).collect();
        let held = self.owners(machine);
        let newest = containers.into_iter().filter(|container| held.contains(&(*container).into())).max();
        let Some(newest) = newest else { return };
        for disk in self.world.disks(ProcessId(machine)).to_vec() {
            let logs = logs_on(&disk);
            if harm.strike(&disk, pipeline, newest, &mut self.random) {
                self.world.trace().event(format_args!("{harm:?} of pipeline {pipeline} on {machine}"));
                self.ledger.count(|counts| counts.logs_harmed += 1);
                self.ledger.damage(machine);
                // A container whose only segment is gone was not deleted by anybody.
                self.holdings.forget(machine);
                self.note_lost_log(pipeline, machine);
                if harm == Harm::AllLost {
                    self.ledger.count(|counts| counts.disks_emptied += 1);
                    logs.into_iter().for_each(|lost| self.note_lost_log(lost, machine));
                    self.losses.forget(machine);
                }
                self.harmed_at = Some(self.world.now());
                return;
            }
        }
    }

    /// Harms an index of a machine that is down now.
    pub(super) fn harm_index(
        &mut self,
        machine: usize,
        number: usize,
        harm: IndexHarm,
        rebuilt_after: Duration,
        power_lost_after: Option<Duration>,
    ) {
        let directory = self.directories(machine).swap_remove(number);
        if !harm.strike(&directory, &self.plan.datanode.db, &mut self.random) {
            return;
        }
        let now = self.world.now();
        self.world.trace().event(format_args!("the index of disk {number} of {machine}: {harm:?}"));
        self.ledger.count(|counts| counts.indexes_harmed += 1);
        self.harmed_at = Some(now);
        self.rebuild_at(now + rebuilt_after, machine, number);
        self.at(now + rebuilt_after, Step::Rebuild { machine });
        if let Some(after) = power_lost_after {
            self.at(now + rebuilt_after + after, Step::LosePower { machine });
        }
    }

    pub(super) fn lose_node(&mut self, machine: usize, crash: Crash) {
        if self.gone.contains(&machine) {
            return;
        }
        self.ledger.count(|counts| counts.nodes_lost += 1);
        for number in 0..self.world.disks(ProcessId(machine)).len() {
            self.note_lost_disk(machine, number);
        }
        if self.world.is_up(ProcessId(machine)) {
            self.crash(machine, crash, SimOptions::default());
        }
        self.gone.insert(machine);
        self.harmed_at = Some(self.world.now());
    }

    /// Has the blocks of a pipeline read from one machine: right bytes or errors, be it that its replicas
    /// ended alone.
    fn probe(&mut self, machine: usize, pipeline: PipelineId) {
        let Some(view) = self.views.newest() else { return };
        let address = self.plan.address(machine);
        let of_pipeline = view.containers.iter().filter(|info| PipelineId(info.pipeline) == pipeline);
        let mut containers = BTreeSet::new();
        for info in of_pipeline {
            containers.insert(ContainerId(info.container));
            let here =
                info.replicas.iter().find(|it| it.node.as_ref().is_some_and(|node| node.address == address));
            match here.and_then(|it| it.replica.as_ref()).map(|replica| replica.state()) {
                Some(ReplicaState::ReplicaQuasiClosed) => {
                    self.ledger.count(|counts| counts.quasi_closed_probed += 1)
                }
                Some(ReplicaState::ReplicaWithoutLog) => {
                    self.ledger.count(|counts| counts.without_log_probed += 1)
                }
                _ => {}
            }
        }
        let blocks: Vec<_> =
            self.ledger.blocks().into_iter().filter(|it| containers.contains(&it.block.container)).collect();
        let (connector, ledger) = (self.world.connector(self.operator()), self.ledger.clone());
        let cluster = view.status.cluster.clone();
        self.world.spawn(self.operator(), async move {
            for written in blocks {
                let way = Way { connector: &*connector, cluster: &cluster, address: &address };
                match read_checked(&way, &ledger, &written, 0, written.length).await {
                    Ok(()) => ledger.count(|counts| counts.probes += 1),
                    Err(_) => ledger.count(|counts| counts.probes_failed += 1),
                }
            }
        });
    }
}
