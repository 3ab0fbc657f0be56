//! The only OM runs on an old copy of its directory for a while: it knows nothing of what was named since.
//! Nothing of that may be given up by it, and the right directory, once it is back, goes on.

use super::om_copy::{OmCopy, copy_disk};
use super::run::Run;
use crate::services::quick_disk;
use crate::world::{Crash, ProcessId};
use futures::FutureExt;
use std::time::Duration;

/// The time for which the copy runs: longer than it takes from a look to the end of what the sweep gives up.
const RUNS_FOR: Duration = Duration::from_secs(40);

impl Run {
    /// Copies the only OM's directory, once, when it is time.
    pub(super) fn copy_om(&mut self) -> Result<(), String> {
        let is_due =
            self.plan.sweeps.and_then(|sweeps| sweeps.copied_at).is_some_and(|at| self.world.now() >= at);
        let om = self.plan.oms().start;
        if !is_due || self.om_copy.is_some() || !self.world.is_up(ProcessId(om)) {
            return Ok(());
        }
        self.crash(om, Crash::Kill, quick_disk());
        let disk = self.world.disk(ProcessId(om)).clone();
        let copied = copy_disk(&disk).now_or_never().ok_or("a disk makes its reader wait")?;
        let disk = copied.map_err(|error| format!("copy an OM's disk: {error}"))?;
        let tables = self.object_faults.tables(om).copied("/om-copy", &self.plan.scm.db);
        let tables = tables.map_err(|error| format!("copy an OM's tables: {error:#}"))?;
        self.om_copy = Some(OmCopy { disk, tables });
        self.start(om);
        Ok(())
    }

    /// Runs the copy in the place of the right directory for a while, and then puts that back.
    pub(super) fn run_old_copy(&mut self) -> Result<(), String> {
        let Some(copy) = self.om_copy.take() else { return Ok(()) };
        self.count_swept()?;
        let right = self.exchange(copy);
        self.ledger.count(|counts| counts.old_copies += 1);
        let until = self.world.now() + RUNS_FOR;
        while self.world.now() < until {
            self.step()?;
        }
        self.exchange(right);
        Ok(())
    }

    /// Puts a directory into the place of the OM's, and returns what the OM had until then.
    fn exchange(&mut self, copy: OmCopy) -> OmCopy {
        let om = self.plan.oms().start;
        self.world
            .trace()
            .event(format_args!("another directory is put into the place of the one of OM at {om}"));
        self.crash(om, Crash::Kill, quick_disk());
        let OmCopy { disk, tables } = copy;
        let disk = self.world.put_disk(ProcessId(om), 0, disk);
        let tables = self.object_faults.put_tables(om, tables);
        self.start(om);
        OmCopy { disk, tables }
    }
}
