//! Runs in which OMs reclaim within seconds, and sweep: what no key names goes, be it that no key ever did.
//! In the end all blocks that keys name must be there, and no others.

use super::gateways;
use super::run::Run;
use super::unnamed::{Looker, Unnamed};
use super::view::View;
use crate::world::SlowCalls;
use client::Client;
use proto::scm::{ContainerInfo, ContainerState};
use std::sync::Arc;
use std::time::Duration;
use types::ContainerId;

/// An open container is swept by nobody, so an operator closes them.
const CLOSE_EVERY_MS: u128 = 5000;
/// The call that asks what a group knows of a container.
const QUESTION: &str = "/ListKnownBlocks";
/// The time in which clients are done, once they begin nothing any more.
const DONE_WITHIN: Duration = Duration::from_secs(120);
/// The time in which calls whose answers were lost have arrived.
const LATE_CALLS: Duration = Duration::from_secs(3);
/// The time that OM takes to say what it has swept.
const SAID_WITHIN: Duration = Duration::from_secs(60);

impl Run {
    pub(super) fn begin_sweeps(&self) {
        let slow = self.plan.sweeps.map(|sweeps| SlowCalls { method: QUESTION, by_max: sweeps.asks_within });
        self.world.network().slow_calls(slow);
    }

    pub(super) fn close_to_sweep(&self) {
        if self.plan.sweeps.is_some() && self.world.now().as_millis().is_multiple_of(CLOSE_EVERY_MS) {
            self.close_containers();
        }
    }

    /// Whether a container may have blocks, be it that no key names them.
    pub(super) fn may_have_orphans(&self, info: &ContainerInfo) -> bool {
        self.plan.sweeps.is_some() && info.payload_bytes > 0 && !self.losses.excuse(info)
    }

    /// Checks that keys are what was acknowledged, and that what no key names goes where it is to; how long
    /// that took.
    pub(super) fn check_names(&mut self) -> Result<Duration, String> {
        self.until_clients_are_done()?;
        self.check_objects()?;
        match self.plan.sweeps {
            Some(_) => self.until_the_rest_is_gone(),
            None => Ok(Duration::ZERO),
        }
    }

    /// Waits until nobody is about to change a name.
    fn until_clients_are_done(&mut self) -> Result<(), String> {
        let began = self.world.now();
        let mut idle_since = None;
        loop {
            self.step()?;
            let now = self.world.now();
            match self.ledger.is_at_work() {
                false if now >= *idle_since.get_or_insert(now) + LATE_CALLS => return Ok(()),
                false => {}
                true if now > began + DONE_WITHIN => {
                    return Err(format!("clients are not done {DONE_WITHIN:?} after the last fault"));
                }
                true => idle_since = None,
            }
        }
    }

    /// Waits until each replica has what keys name, and no more, which must be so within a bound.
    fn until_the_rest_is_gone(&mut self) -> Result<Duration, String> {
        let looker = Looker {
            views: self.views.clone(),
            connector: self.world.connector(self.operator()),
            named: self.ledger.named(),
            ledger: self.ledger.clone(),
        };
        let unnamed = Unnamed::default();
        self.world.spawn(self.operator(), looker.run(unnamed.clone()));
        self.unnamed = Some(unnamed);
        self.run_old_copy()?;
        let took = self.until_settled()?;
        self.count_swept()?;
        Ok(took)
    }

    /// A thing that is left and should not be, once it is known what keys name.
    pub(super) fn unnamed_left(&self, view: &View) -> Option<String> {
        let unnamed = self.unnamed.as_ref()?;
        let is_over = |info: &ContainerInfo| {
            matches!(info.state(), ContainerState::ContainerClosed | ContainerState::ContainerDeleted)
        };
        let open = view.containers.iter().find(|info| self.may_have_orphans(info) && !is_over(info));
        match open {
            Some(info) => {
                Some(format!("container {} is {:?}, and has something", info.container, info.state()))
            }
            None => unnamed.found(),
        }
    }

    /// Counts what OM has swept since its leader was started.
    pub(super) fn count_swept(&mut self) -> Result<(), String> {
        let connector = self.world.connector(self.operator());
        let options = gateways::options(&self.plan.scm_addresses(), gateways::DEADLINES[0]);
        let (ledger, under_way) = (self.ledger.clone(), Arc::new(()));
        let held = under_way.clone();
        self.world.spawn(self.operator(), async move {
            let _under_way = held;
            if let Ok(swept) = Client::over(options, connector).sweep(0).await {
                ledger.event(format_args!("swept: {swept:?}"));
                ledger.count(|counts| {
                    counts.containers_swept += swept.swept_since;
                    counts.orphans += swept.orphans;
                });
            }
        });
        let until = self.world.now() + SAID_WITHIN;
        while Arc::strong_count(&under_way) > 1 {
            self.step()?;
            if self.world.now() > until {
                return Err("OM does not say what it has swept, and nothing is wrong with it".to_owned());
            }
        }
        Ok(())
    }

    /// Looks for a DELETED container that has a block which a key names.
    pub(super) fn look_for_deleted(&self, view: &View) {
        if self.plan.sweeps.is_none() {
            return;
        }
        let named = self.ledger.newest_blocks();
        let is_deleted = |info: &&ContainerInfo| info.state() == ContainerState::ContainerDeleted;
        for info in view.containers.iter().filter(is_deleted) {
            if let Some(block) = named.get(&ContainerId(info.container))
                && !self.losses.has_lost_majority(info)
            {
                self.ledger
                    .fail(format!("container {} is DELETED, and a key names block {block}", info.container));
            }
        }
    }
}
