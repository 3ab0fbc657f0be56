//! Harm that comes in several steps, each while the one before it still holds: what faults by chance hardly ever add up to.

use super::harm::Harm;
use super::plan::{Plan, random_disk};
use super::planted::Planted;
use super::reader::{Way, read_checked};
use super::run::{Remedy, Run, machine_at};
use super::scm_calls::ScmCalls;
use super::writer::Writer;
use crate::scenario::random_crash;
use crate::world::{Crash, Link, ProcessId, SILENCE_MAX};
use disk::sim::{Loss, Random, SimOptions};
use proto::scm::{Pipeline, PipelineState, ReplicaState};
use std::time::Duration;
use types::{ContainerId, PipelineId};

/// One of them is given up where a run never comes to be well enough to begin.
pub(super) const GIVEN_UP_AT: Duration = Duration::from_secs(25);
/// Clients of schemes have numbers from here on.
const CLIENTS_FROM: u64 = 1000;
const CHUNK_BYTES_MAX: u64 = 4000;
/// Who is cut off for less is sent what others had under way for it, be it that they are dead by then: connections last that long.
const LAG_MS_MIN: u64 = SILENCE_MAX.as_millis() as u64 + 300;

/// What a run does to one pipeline, once all is well.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheme {
    /// A leader is cut off with chunks that nobody acknowledges, and dies. The others elect and acknowledge other ones in their places, and
    /// leave. It comes back alone, and ends by itself.
    ///
    /// ```text
    /// leader   ──cut off, `tail` chunks──x           ┌──alone: quasi-closes, is asked for everything──
    /// others   ─────────────────elect, acknowledge──x          one is back ──┐  the other ──┐
    /// ```
    Diverge { tail: u64, cut: Duration, others: Duration, away: Duration, third: Duration },
    /// A member lags, cut off from the others for so long that nothing is on its way to it any more; another one loses its log, while the
    /// third one is away, or worse.
    ///
    /// ```text
    /// lags     ──cut off────────────back──────────────────────────────
    /// harmed   ──acknowledges──x  its log is harmed ┌──
    /// third    ──acknowledges──x                        (see `Third`)
    /// ```
    LoseLog { harm: Harm, third: Third, lag: Duration, down: Duration },
    /// A disk is full and stays so. A moment later another member is lost, or not.
    FullForGood { free_bytes: u64, leader: bool, lost_after: Option<Duration> },
    /// A member of SCM lags while containers are begun; then the others lose their disks, and it is made the only one.
    ResetScm { lag: Duration },
}

/// What happens to the third member beside one that loses its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Third {
    Stays,
    /// Beyond `dead_after`, and comes back.
    Away(Duration),
    /// For good.
    Lost,
    /// Its log too.
    Harmed(Harm, Duration),
}

/// What a scheme does at some moment.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// So many clients write a block each.
    Write {
        pipeline: Pipeline,
        blocks: u64,
        tries: usize,
    },
    Crash {
        machine: usize,
        crash: Crash,
        down: Duration,
    },
    /// ... and while it is down, its replica of a pipeline is harmed.
    CrashHarmed {
        machine: usize,
        crash: Crash,
        down: Duration,
        pipeline: PipelineId,
        harm: Harm,
    },
    Lose {
        machine: usize,
        crash: Crash,
    },
    /// All acknowledged blocks of a pipeline are read from one node.
    Probe {
        machine: usize,
        pipeline: PipelineId,
    },
    /// All of SCM's members but this one lose their disks.
    LoseScm {
        survivor: usize,
    },
    /// A process that reported a failed disk is restarted by its service manager, ...
    Restart {
        machine: usize,
    },
    /// ... and its machine loses power a little later.
    LosePower {
        machine: usize,
    },
}

fn ms(random: &mut Random, from: u64, below: u64) -> Duration {
    Duration::from_millis(from + random.below(below - from))
}

impl Scheme {
    pub(super) fn random(random: &mut Random, planted: Option<Planted>) -> Option<Scheme> {
        let kind = match planted {
            None => random.below(8),
            Some(Planted::TailsAreRead) => 0,
            Some(Planted::LogsNeedNoProof) => 1,
            Some(Planted::ComingForEver) => 4,
            Some(Planted::NumbersDrawnAgain) => 5,
            Some(_) => return None,
        };
        Some(match kind {
            0 => Scheme::Diverge {
                tail: 10 + random.below(50),
                cut: ms(random, 700, 2500),
                others: ms(random, 1500, 3500),
                away: ms(random, 16_000, 24_000),
                third: ms(random, 0, 8000),
            },
            1..=3 => {
                // Where it is planted, one that the member always finds.
                let harm = if planted.is_some() { Harm::HardStateLost } else { Harm::random(random) };
                let third = match random.below(6) {
                    _ if planted.is_some() => Third::Away(ms(random, 20_000, 30_000)),
                    0 => Third::Stays,
                    1 => Third::Lost,
                    2 => Third::Harmed(Harm::random(random), ms(random, 100, 12_000)),
                    _ => Third::Away(ms(random, 7000, 35_000)),
                };
                let (lag, down) = (ms(random, LAG_MS_MIN, LAG_MS_MIN + 4000), ms(random, 100, 4000));
                Scheme::LoseLog { harm, third, lag, down }
            }
            4 => Scheme::FullForGood {
                free_bytes: random.below(300_000),
                leader: random.one_in(3),
                lost_after: (planted.is_none() && random.one_in(2)).then(|| ms(random, 500, 20_000)),
            },
            5 => Scheme::ResetScm { lag: ms(random, 2000, 8000) },
            _ => return None,
        })
    }
}

impl Run {
    /// Whether faults by chance must wait: the scheme has not begun, or it alone is the harm.
    pub(super) fn scheme_comes_first(&mut self) -> bool {
        let Some(scheme) = self.plan.scheme else { return false };
        let now = self.world.now();
        if self.scheme_began.is_some() {
            return now < self.faults_until && !self.plan.more_beside_scheme;
        }
        if now > GIVEN_UP_AT {
            return false;
        }
        if self.may_harm()
            && let Some(pipeline) = self.pipeline_for_scheme()
        {
            self.world.trace().event(format_args!("{scheme:?} of pipeline {}", pipeline.pipeline));
            self.scheme_began = Some(now);
            self.begin(scheme, &pipeline);
        }
        true
    }

    /// One that is open and well, and led.
    fn pipeline_for_scheme(&mut self) -> Option<Pipeline> {
        let view = self.views.newest()?;
        let is_well = |pipeline: &&Pipeline| {
            let mut members = pipeline.members.iter();
            pipeline.state() == PipelineState::PipelineOpen
                && pipeline.leader_node != 0
                && pipeline.health.is_empty()
                && members.all(|member| {
                    machine_at(&member.address).is_some_and(|node| !self.leaving.contains(&node))
                })
        };
        let well: Vec<&Pipeline> = view.pipelines.iter().filter(is_well).collect();
        (!well.is_empty()).then(|| (*self.random.pick(&well)).clone())
    }

    fn begin(&mut self, scheme: Scheme, pipeline: &Pipeline) {
        let address = |member: &proto::scm::PipelineMember| machine_at(&member.address);
        let leader =
            pipeline.members.iter().find(|member| member.node == pipeline.leader_node).and_then(address);
        let Some(leader) = leader else { return };
        let others: Vec<usize> =
            pipeline.members.iter().filter_map(address).filter(|it| *it != leader).collect();
        let [one, other] = others[..] else { return };
        let (one, other) = if self.random.one_in(2) { (one, other) } else { (other, one) };
        let now = self.world.now();
        self.faults_until = match scheme {
            Scheme::Diverge { tail, cut, others, away, third } => {
                self.diverge(pipeline, [leader, one, other], tail, now + cut, now + cut + others, away, third)
            }
            Scheme::LoseLog { harm, third, lag, down } => {
                // Who leads has what is acknowledged, in any case; it is harmed, or the third one.
                let (harmed, third_one) =
                    if self.random.one_in(2) { (leader, other) } else { (other, leader) };
                self.lose_log(pipeline, [one, harmed, third_one], harm, third, now + lag, down)
            }
            Scheme::FullForGood { free_bytes, leader: leads, lost_after } => {
                let (full, lost) = if leads {
                    (leader, one)
                } else {
                    (one, if self.random.one_in(2) { leader } else { other })
                };
                self.fill(pipeline, full, lost, free_bytes, lost_after)
            }
            Scheme::ResetScm { lag } => self.reset_scm(now + lag),
        };
    }

    /// Until when it lasts.
    #[allow(clippy::too_many_arguments)] // moments of one timeline
    fn diverge(
        &mut self,
        pipeline: &Pipeline,
        [leader, one, other]: [usize; 3],
        tail: u64,
        dies: Duration,
        leave: Duration,
        away: Duration,
        third: Duration,
    ) -> Duration {
        const RETURN: Duration = Duration::from_millis(200);
        self.ledger.count(|counts| counts.leaders_diverged += 1);
        let (now, id) = (self.world.now(), PipelineId(pipeline.pipeline));
        let pipeline = pipeline.clone();
        self.isolate(leader, dies);
        let short = Duration::from_millis(10);
        self.at(now + short, Step::Write { pipeline: pipeline.clone(), blocks: tail, tries: 1 });
        let back = leave + RETURN;
        self.at(dies, Step::Crash { machine: leader, crash: Crash::Kill, down: back.saturating_sub(dies) });
        for part in 1..=3 {
            let at = dies + (leave - dies) * part / 4;
            self.at(at, Step::Write { pipeline: pipeline.clone(), blocks: tail / 2 + 1, tries: 6 });
        }
        let crash = if self.random.one_in(2) { Crash::Kill } else { Crash::PowerLoss(Loss::AllUnsynced) };
        self.at(leave, Step::Crash { machine: one, crash, down: away });
        self.at(leave, Step::Crash { machine: other, crash, down: away + third });
        let over = leave + away + third + Duration::from_secs(2);
        let mut look = leave + Duration::from_secs(6);
        while look < over {
            self.at(look, Step::Probe { machine: leader, pipeline: id });
            look += Duration::from_secs(2);
        }
        over
    }

    fn lose_log(
        &mut self,
        pipeline: &Pipeline,
        [lags, harmed, third_one]: [usize; 3],
        harm: Harm,
        third: Third,
        at: Duration,
        down: Duration,
    ) -> Duration {
        let (now, id) = (self.world.now(), PipelineId(pipeline.pipeline));
        // SCM hears it: it is behind, and not dead.
        self.cut_off(lags, self.nodes(), at);
        for moment in [now + Duration::from_millis(100), at - Duration::from_millis(500)] {
            self.at(moment, Step::Write { pipeline: pipeline.clone(), blocks: 20, tries: 6 });
        }
        let crash = random_crash(&mut self.random);
        self.at(at, Step::CrashHarmed { machine: harmed, crash, down, pipeline: id, harm });
        let crash = random_crash(&mut self.random);
        let back = match third {
            Third::Stays => Duration::ZERO,
            Third::Away(down) => {
                self.ledger.count(|counts| counts.logs_lost_beside_away += 1);
                self.at(at, Step::Crash { machine: third_one, crash, down });
                down
            }
            Third::Lost => {
                self.ledger.count(|counts| counts.logs_lost_beside_lost += 1);
                self.at(at, Step::Lose { machine: third_one, crash });
                Duration::ZERO
            }
            Third::Harmed(harm, down) => {
                self.ledger.count(|counts| counts.logs_lost_of_two += 1);
                self.at(at, Step::CrashHarmed { machine: third_one, crash, down, pipeline: id, harm });
                down
            }
        };
        for (seconds, machine) in [(8, lags), (13, lags), (14, harmed), (18, harmed), (20, lags), (26, lags)]
        {
            self.at(at + Duration::from_secs(seconds), Step::Probe { machine, pipeline: id });
        }
        at + back.max(down) + Duration::from_secs(4)
    }

    fn fill(
        &mut self,
        pipeline: &Pipeline,
        full: usize,
        lost: usize,
        free_bytes: u64,
        lost_after: Option<Duration>,
    ) -> Duration {
        let (now, id) = (self.world.now(), PipelineId(pipeline.pipeline));
        let has_log = |disk: &disk::sim::SimDisk| super::harm::logs_on(disk).contains(&id);
        let number = self.world.disks(ProcessId(full)).iter().position(has_log);
        let Some(number) = number else { return now };
        self.ledger.count(|counts| counts.disks_full_for_good += 1);
        for pipeline in super::harm::logs_on(&self.world.disks(ProcessId(full))[number]) {
            self.note_lost_log(pipeline, full);
        }
        self.full.insert((full, number), free_bytes);
        self.world.disks(ProcessId(full))[number].set_free_bytes(free_bytes);
        for n in 0..6 {
            let at = now + Duration::from_secs(2 * n) + Duration::from_millis(50);
            self.at(at, Step::Write { pipeline: pipeline.clone(), blocks: 30, tries: 6 });
        }
        if let Some(after) = lost_after
            && self.staying() > 4
        {
            self.ledger.count(|counts| counts.disks_full_beside_lost += 1);
            let crash = random_crash(&mut self.random);
            self.at(now + after, Step::Lose { machine: lost, crash });
        }
        now + lost_after.unwrap_or_default() + Duration::from_secs(14)
    }

    fn reset_scm(&mut self, at: Duration) -> Duration {
        let (now, Some(view)) = (self.world.now(), self.views.newest()) else { return self.world.now() };
        let survivor = self.random.below(self.plan.scms as u64) as usize;
        self.known_to_survivor = view.containers.iter().map(|info| ContainerId(info.container)).collect();
        self.isolate(survivor, at);
        let is_open = |pipeline: &&Pipeline| pipeline.state() == PipelineState::PipelineOpen;
        let open: Vec<Pipeline> = view.pipelines.iter().filter(is_open).cloned().collect();
        for part in 0..3 {
            for pipeline in open.iter().take(3) {
                let at = now + (at - now) * part / 3 + Duration::from_millis(100);
                self.at(at, Step::Write { pipeline: pipeline.clone(), blocks: 40, tries: 6 });
            }
        }
        self.at(at, Step::LoseScm { survivor });
        at + Duration::from_secs(12)
    }

    pub(super) fn at(&mut self, at: Duration, step: Step) {
        self.steps_made += 1;
        self.steps.insert((at, self.steps_made), step);
    }

    /// Does what is due.
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
            Step::Lose { machine, crash } => self.lose_node(machine, crash),
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
        }
    }

    /// From all but the clients.
    fn isolate(&mut self, machine: usize, until: Duration) {
        self.cut_off(machine, 0..self.nodes().end, until);
    }

    fn cut_off(&mut self, machine: usize, from: std::ops::Range<usize>, until: Duration) {
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

    /// To a machine that is down now; what SCM last heard says which container is written.
    fn harm(&mut self, machine: usize, pipeline: PipelineId, harm: Harm) {
        let Some(view) = self.views.newest() else { return };
        let of_pipeline = view.containers.iter().filter(|info| PipelineId(info.pipeline) == pipeline);
        let containers: Vec<ContainerId> = of_pipeline.map(|info| ContainerId(info.container)).collect();
        let held = self.owners(machine);
        let newest = containers.into_iter().filter(|container| held.contains(&(*container).into())).max();
        let Some(newest) = newest else { return };
        for disk in self.world.disks(ProcessId(machine)).to_vec() {
            if harm.strike(&disk, pipeline, newest, &mut self.random) {
                self.world.trace().event(format_args!("{harm:?} of pipeline {pipeline} on {machine}"));
                self.ledger.count(|counts| counts.logs_harmed += 1);
                self.ledger.damage(machine);
                self.note_lost_log(pipeline, machine);
                self.harmed_at = Some(self.world.now());
                return;
            }
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

    /// Right bytes or errors, be it that its replicas ended alone.
    fn probe(&mut self, machine: usize, pipeline: PipelineId) {
        let Some(view) = self.views.newest() else { return };
        let address = self.plan.address(machine);
        let of_pipeline = view.containers.iter().filter(|info| PipelineId(info.pipeline) == pipeline);
        let mut containers = std::collections::BTreeSet::new();
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

impl Plan {
    /// What it needs: quick elections, so that a pipeline goes on before SCM notices anything; members of SCM that can be lost.
    pub(super) fn for_scheme(mut self, quick: raft::Timing) -> Plan {
        match self.scheme {
            Some(Scheme::Diverge { .. }) => self.datanode.pipeline_timing = quick,
            Some(Scheme::ResetScm { .. }) => (self.scms, self.more_beside_scheme) = (3, false),
            _ => {}
        }
        self
    }
}
