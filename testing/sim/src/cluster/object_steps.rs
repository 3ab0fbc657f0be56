//! The course of a cluster's OM: what befalls it, and what must hold of it in the end.

use super::gateways;
use super::object_faults::OmFault;
use super::objects::{OmWay, read_all_at_last};
use super::run::Run;
use super::view::View;
use crate::world::{Link, ProcessId};
use client::Client;
use std::sync::Arc;
use std::time::Duration;
use types::ContainerId;

impl Run {
    pub(super) fn object_faults_step(&mut self) {
        let (now, om) = (self.world.now(), self.plan.om());
        if !self.plan.has_om {
            return;
        }
        if self.object_faults.is_to_be_mended(now) {
            self.mend_way_of_om();
        }
        match self.object_faults.due(now) {
            Some(OmFault::CutOff) => {
                self.ledger.count(|counts| counts.om_cut_off += 1);
                self.set_way_of_om(Link { is_cut: true, ..Link::FAST });
            }
            Some(OmFault::Crash(crash, disk, lasts)) if self.world.is_up(ProcessId(om)) => {
                self.ledger.count(|counts| counts.om_crashes += 1);
                self.world.trace().event(format_args!("OM: {crash:?}"));
                self.crash_for(om, crash, disk, lasts);
            }
            _ => {}
        }
    }

    pub(super) fn mend_way_of_om(&mut self) {
        if self.object_faults.mended() {
            self.set_way_of_om(Link::FAST);
        }
    }

    /// Sets the way of OM's answers to clients; what they ask arrives.
    fn set_way_of_om(&mut self, link: Link) {
        let (om, clients) = (ProcessId(self.plan.om()), ProcessId(self.plan.clients()));
        self.world.network().set_link(om, clients, link);
    }

    /// Whether what was acknowledged in the container may be gone, or wait for somebody.
    fn may_lack(&self, view: &View, container: ContainerId) -> bool {
        let info = view.containers.iter().find(|info| info.container == container.0);
        self.is_lost_with_scm(container) || info.is_some_and(|info| self.losses.has_lost_majority(info))
    }

    /// Once all is quiet OM answers for each key, and what it answered all along could have happened.
    pub(super) fn check_objects(&mut self, view: &View) -> Result<(), String> {
        const WITHIN: Duration = Duration::from_secs(60);
        if !self.plan.has_om {
            return Ok(());
        }
        let way = OmWay {
            connector: self.world.connector(self.operator()),
            address: self.plan.address(self.plan.om()),
            cluster: view.status.cluster.clone(),
        };
        let (objects, ledger, under_way) = (self.objects.clone(), self.ledger.clone(), Arc::new(()));
        let gateway_objects = self.gateway_objects.clone();
        let options =
            gateways::options(&self.plan.scm_addresses(), way.address.clone(), gateways::DEADLINES[0]);
        let unreadable = gateways::Unreadable::default();
        let (held, not_read) = (under_way.clone(), unreadable.clone());
        self.world.spawn(self.operator(), async move {
            let _under_way = held;
            read_all_at_last(&way, &objects, &ledger).await;
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
            if !containers.iter().any(|container| self.may_lack(view, *container)) {
                return Err(format!("gateway key {key} cannot be read, in containers {containers:?}"));
            }
        }
        let histories = self.objects.check_histories()?
            + self.gateway_objects.check_histories().map_err(|why| format!("of gateways: {why}"))?;
        self.ledger.count(|counts| counts.object_histories += histories);
        Ok(())
    }
}
