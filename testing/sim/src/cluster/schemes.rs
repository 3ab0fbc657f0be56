//! Harm that comes in several steps, each while the one before it still holds: what faults by chance hardly
//! ever add up to.

use super::harm::{Harm, IndexHarm, logs_on};
use super::plan::machine_at;
use super::run::Run;
use super::scheme::{Flipped, Other, Scheme, Step, Third};
use crate::scenario::random_crash;
use crate::world::{Crash, ProcessId};
use disk::sim::Loss;
use proto::scm::{Pipeline, PipelineState};
use std::time::Duration;
use types::PipelineId;

/// The time at which a scheme is given up, where a run never comes to be well enough to begin it.
pub(super) const GIVEN_UP_AT: Duration = Duration::from_secs(25);

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

    /// A pipeline that is open, well and led, if there is one.
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
            Scheme::Diverge { tail, cut, others, away, third, then_harmed } => {
                let (dies, leave) = (now + cut, now + cut + others);
                let over = self.diverge(pipeline, [leader, one, other], tail, dies, leave, away, third);
                match then_harmed {
                    true => self.harm_end_from(over),
                    false => over,
                }
            }
            Scheme::LoseLog { harm, third, lag, down } => {
                // The leader has what is acknowledged, in any case; it is harmed, or it is the third one.
                let (harmed, third_one) =
                    if self.random.one_in(2) { (leader, other) } else { (other, leader) };
                self.lose_log(pipeline, [one, harmed, third_one], harm, third, now + lag, down)
            }
            Scheme::LoseIndex { harm, other, down, rebuilt_after, power_lost_after } => {
                let pair = if self.random.one_in(2) { [leader, one] } else { [one, leader] };
                self.lose_index(pipeline, pair, harm, other, down, rebuilt_after, power_lost_after)
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
            Scheme::Pause { leader: leads, after, lasts } => {
                let pair = if leads { [leader, one] } else { [one, other] };
                self.pause(pipeline, pair, after, lasts)
            }
        };
    }

    /// Lays out the steps of [`Scheme::Diverge`]; returns until when it lasts.
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

    /// Has the record of how a replica ended damaged, once all is well; returns until when that may take.
    fn harm_end_from(&mut self, from: Duration) -> Duration {
        let until = from + Duration::from_secs(30);
        self.at(from, Step::Flip { what: Flipped::End, until });
        until
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
        // SCM hears the member: it is behind, and not dead.
        self.cut_off(lags, self.nodes(), at);
        // No index durably has the last of what is written: what its segment had is lost with that.
        let before = [1200, 600, 300, 150].map(|ms| at - Duration::from_millis(ms));
        for moment in [now + Duration::from_millis(100)].into_iter().chain(before) {
            self.at(moment, Step::Write { pipeline: pipeline.clone(), blocks: 12, tries: 6 });
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

    #[allow(clippy::too_many_arguments)] // moments of one timeline
    fn lose_index(
        &mut self,
        pipeline: &Pipeline,
        [harmed, other_one]: [usize; 2],
        harm: IndexHarm,
        other: Other,
        down: Duration,
        rebuilt_after: Duration,
        power_lost_after: Option<Duration>,
    ) -> Duration {
        let at = self.world.now() + Duration::from_secs(1);
        for ms in [900, 500, 200] {
            let moment = at - Duration::from_millis(ms);
            self.at(moment, Step::Write { pipeline: pipeline.clone(), blocks: 12, tries: 6 });
        }
        let id = PipelineId(pipeline.pipeline);
        let lose = |harm, machine, crash| Step::CrashIndex {
            machine,
            harm,
            crash,
            down,
            pipeline: id,
            rebuilt_after,
            power_lost_after,
        };
        let crash = random_crash(&mut self.random);
        self.at(at, lose(harm, harmed, crash));
        let crash = random_crash(&mut self.random);
        let back = match other {
            Other::Stays => Duration::ZERO,
            Other::Away(down) => {
                self.ledger.count(|counts| counts.indexes_harmed_beside_away += 1);
                self.at(at, Step::Crash { machine: other_one, crash, down });
                down
            }
            Other::Lost => {
                self.ledger.count(|counts| counts.indexes_harmed_beside_lost += 1);
                self.at(at, Step::Lose { machine: other_one, crash });
                Duration::ZERO
            }
            Other::Harmed(harm) => {
                self.ledger.count(|counts| counts.indexes_harmed_of_two += 1);
                self.at(at, lose(harm, other_one, crash));
                Duration::ZERO
            }
        };
        at + back.max(rebuilt_after) + Duration::from_secs(4)
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
        let has_log = |disk: &disk::sim::SimDisk| logs_on(disk).contains(&id);
        let number = self.world.disks(ProcessId(full)).iter().position(has_log);
        let Some(number) = number else { return now };
        self.ledger.count(|counts| counts.disks_full_for_good += 1);
        for pipeline in logs_on(&self.world.disks(ProcessId(full))[number]) {
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

    /// Lays out the steps of [`Scheme::Pause`]: while another member is emptied, so that copies and deletions
    /// are under way.
    fn pause(
        &mut self,
        pipeline: &Pipeline,
        [machine, leaving]: [usize; 2],
        after: Duration,
        lasts: Duration,
    ) -> Duration {
        let (now, id) = (self.world.now(), PipelineId(pipeline.pipeline));
        let until = now + after + lasts;
        for at in [now, now + after, until - Duration::from_millis(100)] {
            self.at(at, Step::Write { pipeline: pipeline.clone(), blocks: 12, tries: 6 });
        }
        self.decommission(leaving, until);
        self.at(now + after, Step::Pause { machine, until });
        for after in [1, 4] {
            self.at(until + Duration::from_secs(after), Step::Probe { machine, pipeline: id });
        }
        until + Duration::from_secs(6)
    }

    fn reset_scm(&mut self, at: Duration) -> Duration {
        let (now, Some(view)) = (self.world.now(), self.views.newest()) else { return self.world.now() };
        let survivor = self.random.below(self.plan.scms as u64) as usize;
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
}
