//! The course of a cluster's OMs: what befalls them, and what must hold of them in the end.

use super::gateways;
use super::namers::look_at_last;
use super::object_faults::OmFault;
use super::objects::{OmWay, read_all_at_last};
use super::run::Run;
use super::view::View;
use crate::world::{Crash, Link, ProcessId};
use client::Client;
use disk::sim::SimOptions;
use proto::scm::{OmGroupInfo, OmInfo};
use std::sync::Arc;
use std::time::Duration;
use types::ContainerId;

impl Run {
    pub(super) fn object_faults_step(&mut self) {
        if !self.plan.om_faults {
            return;
        }
        let now = self.world.now();
        if self.object_faults.is_to_be_mended(now) {
            self.mend_way_of_om();
        }
        let may_empty = self.oms_bear_a_loss();
        match self.object_faults.due(now, may_empty) {
            Some(OmFault::CutOff(om)) => {
                self.ledger.count(|counts| counts.om_cut_off += 1);
                self.set_way_of_om(om, Link { is_cut: true, ..Link::FAST });
            }
            Some(OmFault::Crash { om, crash, disk, lasts, is_emptied })
                if self.world.is_up(ProcessId(om)) =>
            {
                self.ledger.count(|counts| counts.om_crashes += 1);
                self.world.trace().event(format_args!("OM at {om}: {crash:?}, emptied: {is_emptied}"));
                self.crash_for(om, crash, disk, lasts);
                if is_emptied {
                    self.lose_all_of_om(om, disk);
                }
            }
            _ => {}
        }
    }

    /// Takes all from an OM that is down.
    fn lose_all_of_om(&mut self, om: usize, disk: SimOptions) {
        self.ledger.count(|counts| counts.om_emptied += 1);
        self.world.replace_disk(ProcessId(om), 0, disk);
        self.empty_om(om);
    }

    /// Has an operator empty an OM with a replica that is not of the cluster's group, as SCM and
    /// docs/operations.md tell him: one that was made just before SCM was reset to a member which had not
    /// heard of it (seed 9391). False where there is none.
    fn empty_strange_om(&mut self, view: &View) -> bool {
        let is_strange = |om: &&OmInfo| om.problem.contains("is not of the cluster's group");
        let Some(strange) = view.oms.oms.iter().find(is_strange) else { return false };
        let is_it = |om: &usize| self.plan.address(*om) == strange.address;
        let Some(om) = self.plan.oms().find(is_it) else { return false };
        let disk = self.object_faults.random_disk();
        self.crash(om, Crash::Kill, disk);
        self.lose_all_of_om(om, disk);
        self.start(om);
        true
    }

    /// Whether each group of names is on three OMs, as its leader says, of whom all are healthy: one that is
    /// still with its first member is lost with it (seed 619).
    fn oms_bear_a_loss(&self) -> bool {
        let Some(view) = self.views.newest() else { return false };
        let is_fresh = self.world.now() < view.asked_at + Duration::from_secs(1);
        let is_whole = |group: &OmGroupInfo| group.problem.is_empty() && members(group) == 3;
        is_fresh && !view.oms.groups.is_empty() && view.oms.groups.iter().all(is_whole)
    }

    pub(super) fn mend_way_of_om(&mut self) {
        if let Some(om) = self.object_faults.mended() {
            self.set_way_of_om(om, Link::FAST);
        }
    }

    /// Sets the link over which an OM's answers go to clients; what they ask arrives.
    fn set_way_of_om(&mut self, om: usize, link: Link) {
        let (om, clients) = (ProcessId(om), ProcessId(self.plan.clients()));
        self.world.network().set_link(om, clients, link);
    }

    /// Whether what was acknowledged in the container may be gone, or wait for somebody.
    fn may_lack(&self, view: &View, container: ContainerId) -> bool {
        let info = view.containers.iter().find(|info| info.container == container.0);
        info.is_some_and(|info| self.losses.has_lost_majority(info))
    }

    /// Waits until the groups of names are on as many OMs as they are to be, and SCM says that nothing is
    /// wrong with them.
    fn until_names_are_whole(&mut self, within: Duration) -> Result<(), String> {
        let mut until = self.world.now() + within;
        let mut has_emptied = false;
        loop {
            let view = self.views.newest().ok_or("SCM has shown nothing")?;
            let is_whole = |group: &OmGroupInfo| {
                group.problem.is_empty() && group.leader_om != 0 && members(group) == self.plan.oms
            };
            if !view.oms.groups.is_empty() && view.oms.groups.iter().all(is_whole) {
                return Ok(());
            }
            if self.world.now() > until {
                if has_emptied || !self.empty_strange_om(&view) {
                    return Err(format!("the names are not on {} OMs: {:?}", self.plan.oms, view.oms));
                }
                (has_emptied, until) = (true, self.world.now() + within);
            }
            self.step()?;
        }
    }

    /// Checks, once all is quiet, that OM answers for each key, and that what it answered all along could
    /// have happened.
    pub(super) fn check_objects(&mut self) -> Result<(), String> {
        const WITHIN: Duration = Duration::from_secs(60);
        if self.plan.oms == 0 {
            return Ok(());
        }
        let view = self.views.newest().ok_or("SCM has shown nothing")?;
        self.until_names_are_whole(WITHIN)?;
        let way = OmWay::new(
            self.world.connector(self.operator()),
            self.plan.om_addresses(),
            view.status.cluster.clone(),
        );
        let (objects, ledger, under_way) = (self.objects.clone(), self.ledger.clone(), Arc::new(()));
        let (gateway_objects, names) = (self.gateway_objects.clone(), self.names.clone());
        let options = gateways::options(&self.plan.scm_addresses(), gateways::DEADLINES[0]);
        let unreadable = gateways::Unreadable::default();
        let (held, not_read) = (under_way.clone(), unreadable.clone());
        self.world.spawn(self.operator(), async move {
            let _under_way = held;
            read_all_at_last(&way, &objects, &ledger).await;
            look_at_last(&way, &objects, &names, &ledger).await;
            let client = Client::over(options, way.connector.clone());
            gateways::read_all_at_last(&client, &gateway_objects, &ledger, &not_read).await;
        });
        let until = self.world.now() + WITHIN;
        while Arc::strong_count(&under_way) > 1 {
            self.step()?;
            if self.world.now() > until {
                return Err(format!("OM does not answer for {WITHIN:?}, and nothing is wrong with it"));
            }
        }
        for (key, containers) in unreadable.lock().expect("no holder panics").iter() {
            if !containers.iter().any(|container| self.may_lack(&view, *container)) {
                return Err(format!("gateway key {key} cannot be read, in containers {containers:?}"));
            }
        }
        let histories = self.objects.check_histories()?
            + self.gateway_objects.check_histories().map_err(|why| format!("of gateways: {why}"))?;
        self.ledger.count(|counts| counts.object_histories += histories);
        Ok(())
    }
}

fn members(group: &OmGroupInfo) -> usize {
    group.group.as_ref().map_or(0, |group| group.members.len())
}
