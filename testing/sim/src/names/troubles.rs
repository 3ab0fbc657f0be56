//! Faults as they befall machines, and what ends them.

use super::faults::{Fault, random_fault};
use super::run::Run;
use crate::services::CAPACITY_BYTES;
use crate::world::{Crash, Link, ProcessId};
use disk::sim::SimOptions;
use proto::scm::{CreateOmGroupRequest, TransferOmLeaderRequest};
use std::time::Duration;

/// The time after which nothing that was said of an emptied OM is of the time before.
const EMPTIED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The longest time for which a disk that failed goes on failing.
const FAILED_MS_MAX: u64 = 4_000;

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Remedy {
    Network(u64),
    Start(usize),
    Space(usize),
    /// The process of a disk that failed is ended, and starts again.
    Restart(usize, Crash, SimOptions),
    /// A machine goes on, and its network with it.
    Thaw(usize, u64),
}

impl Run {
    pub(super) fn draw_fault(&mut self) {
        let plan = self.plan.clone();
        if let Some((fault, lasts)) = random_fault(&plan, &mut self.random) {
            let until = self.world.now() + lasts;
            self.record.event(format_args!("{fault:?} until {} ms", until.as_millis()));
            self.fault(fault, until);
            self.links.apply_to(self.world.network());
        }
    }

    fn fault(&mut self, fault: Fault, until: Duration) {
        let record = self.record.clone();
        match fault {
            Fault::Partition { side, one_way } => {
                record.count(|counts| counts.partitions += 1);
                let side: Vec<_> = side.into_iter().map(ProcessId).collect();
                let cut = self.links.cut(&side, one_way);
                self.later(until, Remedy::Network(cut));
            }
            Fault::LoneLeader { group, clients } => self.cut_leader_off(group, clients, until),
            Fault::BadLink { from, to, link } => {
                record.count(|counts| counts.bad_links += 1);
                let bad = self.links.add(vec![(ProcessId(from), ProcessId(to), link)]);
                self.later(until, Remedy::Network(bad));
            }
            Fault::Crash { machines, crash, disk, down } => {
                let is_all = machines.len() == self.plan.oms().end;
                record.count(|counts| counts.all_crashed += u64::from(is_all));
                let is_long = down >= self.plan.scm.dead_after;
                record.count(|counts| counts.long_away += u64::from(is_long));
                for machine in machines {
                    self.crash_for(machine, crash, disk, down);
                }
            }
            Fault::Emptied { om, crash, disk, down } => {
                if self.oms_bear_a_loss() {
                    record.count(|counts| counts.om_emptied += 1);
                    self.crash_for(om, crash, disk, down);
                    self.world.replace_disk(ProcessId(om), 0, disk);
                    self.empty(om);
                    self.emptied_at = Some(self.world.now() + down);
                }
            }
            Fault::FullDisk { om, free_bytes } => {
                record.count(|counts| counts.full_disks += 1);
                record.disk_is_full(om);
                self.world.disk(ProcessId(om)).set_free_bytes(free_bytes);
                self.later(until, Remedy::Space(om));
            }
            Fault::FailedDisk { om, steps, at_sync, crash, disk: next } => {
                if self.world.is_up(ProcessId(om)) {
                    record.count(|counts| counts.failed_disks += 1);
                    self.failed.insert(om);
                    let disk = self.world.disk(ProcessId(om));
                    match at_sync {
                        true => disk.fail_sync_from(disk.steps() + steps),
                        false => disk.fail_at(disk.steps() + steps),
                    }
                    let after = Duration::from_millis(100 + self.random.below(FAILED_MS_MAX));
                    self.later(self.world.now() + after, Remedy::Restart(om, crash, next));
                }
            }
            Fault::Pause { machine } => {
                if self.world.is_up(ProcessId(machine)) {
                    record.count(|counts| counts.paused += 1);
                    let cut = self.links.cut(&[ProcessId(machine)], false);
                    self.world.freeze(ProcessId(machine));
                    self.later(until, Remedy::Thaw(machine, cut));
                }
            }
            Fault::Transfer { group } => self.transfer(group as u64),
            Fault::ClockJump { machine, ahead } => {
                record.count(|counts| counts.clock_jumps += 1);
                self.clocks[machine].set(ahead);
            }
            Fault::NewGroup => self.make_group(),
        }
    }

    fn cut_leader_off(&mut self, group: usize, clients: Option<usize>, until: Duration) {
        let shown = self.view.newest();
        let leader = shown.as_ref().and_then(|shown| shown.leader(group));
        let Some(leader) = leader.and_then(|address| self.plan.machine_at(address)) else { return };
        self.record.count(|counts| counts.lone_leaders += 1);
        let cut = Link { is_cut: true, ..Link::FAST };
        let others = (0..self.plan.oms().end).filter(|other| *other != leader);
        let cut_off = || std::iter::once(leader).chain(clients);
        let pairs = others.flat_map(|other| cut_off().flat_map(move |one| [(one, other), (other, one)]));
        let pairs = pairs.map(|(from, to)| (ProcessId(from), ProcessId(to), cut)).collect();
        let cut = self.links.add(pairs);
        self.later(until, Remedy::Network(cut));
    }

    /// Whether no names are lost with one OM: all are there, and each group is on three, as its leader has
    /// said since an OM lost what it had.
    fn oms_bear_a_loss(&self) -> bool {
        let now = self.world.now();
        let Some(shown) = self.view.newest() else { return false };
        let is_fresh = now < shown.asked_at + Duration::from_secs(1);
        let is_early = self.emptied_at.is_some_and(|emptied| now < emptied + EMPTIED_AGAIN_AFTER);
        let are_up = self.plan.oms().all(|om| self.world.is_up(ProcessId(om)));
        is_fresh && !is_early && are_up && shown.unwhole().is_none()
    }

    /// Asks SCM once, as an operator who may fail too, to have another member lead a group.
    fn transfer(&self, group: u64) {
        let (scm, record) = (self.scm_calls(), self.record.clone());
        self.world.spawn(ProcessId(self.plan.operator()), async move {
            let request = TransferOmLeaderRequest { group, om: 0 };
            let asked = scm.call(|mut scm| async move { scm.transfer_om_leader(request).await });
            let is_begun = asked.await.is_ok();
            record.count(|counts| counts.transfers += u64::from(is_begun));
        });
    }

    fn make_group(&self) {
        let (scm, record) = (self.scm_calls(), self.record.clone());
        self.world.spawn(ProcessId(self.plan.operator()), async move {
            let asked = scm.call(|mut scm| async move { scm.create_om_group(CreateOmGroupRequest {}).await });
            let is_made = asked.await.is_ok();
            record.count(|counts| counts.groups_made += u64::from(is_made));
        });
    }

    fn crash(&mut self, machine: usize, crash: Crash, disk: SimOptions) {
        let is_om = self.plan.oms().contains(&machine);
        self.record.count(|counts| match is_om {
            true => counts.om_crashes += 1,
            false => counts.scm_crashes += 1,
        });
        self.world.crash(ProcessId(machine), crash, disk);
    }

    /// Crashes a machine, unless it is down already, and starts it after `down`.
    fn crash_for(&mut self, machine: usize, crash: Crash, disk: SimOptions, down: Duration) {
        if self.world.is_up(ProcessId(machine)) {
            self.crash(machine, crash, disk);
            self.later(self.world.now() + down, Remedy::Start(machine));
        }
    }

    fn later(&mut self, at: Duration, remedy: Remedy) {
        self.remedies_made += 1;
        self.remedies.insert((at, self.remedies_made), remedy);
    }

    pub(super) fn remedy(&mut self, remedy: Remedy) {
        match remedy {
            Remedy::Network(fault) => self.links.remove(fault),
            Remedy::Start(machine) => {
                if !self.world.is_up(ProcessId(machine)) {
                    self.start(machine);
                }
            }
            Remedy::Space(om) => self.world.disk(ProcessId(om)).set_free_bytes(CAPACITY_BYTES / 2),
            Remedy::Restart(om, crash, disk) => {
                if self.failed.contains(&om) {
                    self.crash_for(om, crash, disk, Duration::ZERO);
                }
            }
            Remedy::Thaw(machine, cut) => {
                self.world.thaw(ProcessId(machine));
                self.links.remove(cut);
            }
        }
        self.links.apply_to(self.world.network());
    }

    /// Mends all that can be mended.
    pub(super) fn stop_faults(&mut self) {
        self.record.event(format_args!("all faults stop"));
        self.record.quiet();
        self.links.clear();
        while !self.remedies.is_empty() {
            for (_, remedy) in std::mem::take(&mut self.remedies) {
                self.remedy(remedy);
            }
        }
        for om in self.plan.oms() {
            // An OM that a full disk was in the way of has room from here on, whatever comes of its crashes.
            self.world.disk(ProcessId(om)).set_free_bytes(CAPACITY_BYTES / 2);
        }
        self.links.apply_to(self.world.network());
    }
}
