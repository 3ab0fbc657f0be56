//! The end of a run: without faults everything must be well again in time, and then all logs and tables
//! agree.

use super::client::Client;
use super::node::Replica;
use super::oracle::{Content, Oracle};
use super::plan::Plan;
use super::run::Run;
use crate::world::{ProcessId, SILENCE_MAX};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{GroupId, LogIndex, Term};

/// The time that a group may take to be well again after the last fault: the sum of what may follow one
/// another. A connection is noticed to be dead (5 s), an append was left unanswered by its follower (10 s),
/// an unreachable follower (1 s) and a full disk (1 s) are tried again after pauses, a client's patience runs
/// out twice (6 s), some hundred small segments are recovered with three seeks each (10 s), and there are
/// elections: a lease, the longest wait of a member that saw a longer log, and two that are split. All of it
/// by the slowest clock.
fn settled_within(plan: &Plan) -> Duration {
    let longest =
        SILENCE_MAX + Duration::from_secs(10 + 1 + 1 + 6 + 10) + plan.election_max() * (1 + 4 + 2 * 2);
    let slowest_ppm = plan.drifts_ppm.iter().copied().min().unwrap_or_default().min(0);
    longest * 1_000_000 / (1_000_000 + slowest_ppm) as u32
}

impl Run {
    /// Stops all faults, and waits until all groups are well again, which must be in time; returns how long
    /// it took.
    pub(super) fn settle(&mut self) -> Result<Duration, String> {
        self.stop_faults();
        let began = self.world.now();
        let within = settled_within(&self.plan);
        for group in &self.plan.groups {
            self.clients.push(Client::probe(self.clients.len() as u64, group.id));
        }
        self.operators.iter_mut().for_each(|operator| operator.settle());
        loop {
            self.step(true)?;
            let unsettled = self.unsettled();
            let took = self.world.now() - began;
            match unsettled {
                None => return Ok(took),
                Some(why) if took > within => {
                    return Err(format!("no fault for {:.1} s, and {why}", took.as_secs_f64()));
                }
                Some(_) => {}
            }
        }
    }

    /// The thing that is still to come before all is well.
    fn unsettled(&self) -> Option<String> {
        if let Some(client) = self.clients.iter().find(|client| !client.is_idle()) {
            return Some(format!("a client of {:?} is not done", client.group));
        }
        for operator in &self.operators {
            let group = operator.group;
            if self.plan.group(group).changes_members && !operator.is_done() {
                return Some(format!("the members of {group:?} are not changed"));
            }
            let last = self.oracle.last_applied(group);
            for process in operator.processes() {
                let Some(watch) = self.statuses.get(&(process, group)) else {
                    return Some(format!("{process} has not opened {group:?}"));
                };
                let applied = *watch.replica.applied.lock().expect("no holder panics");
                if applied < last {
                    return Some(format!("{process} has applied {group:?} up to {applied:?} of {last:?}"));
                }
                let members = watch.replica.group.members();
                if !operator.agrees(&members, &self.seats) {
                    return Some(format!("{process} takes {members:?} for the members of {group:?}"));
                }
            }
        }
        None
    }

    /// Checks tables and logs of all members against what everybody agreed on.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        for ((process, group), watch) in &self.statuses {
            let at = *watch.replica.applied.lock().expect("no holder panics");
            let found = kv::records(&*watch.replica.tables).map_err(|error| format!("{error:#}"))?;
            self.oracle.check_tables(*group, &process.to_string(), at, &found.into_iter().collect());
            let check = check_log(self.oracle.clone(), *process, *group, watch.replica.clone(), None);
            self.world.spawn(*process, check);
        }
        let ticks = 200;
        for _ in 0..ticks {
            self.step(true)?;
        }
        Ok(())
    }
}

/// Reads a replica's whole log; a leader's must have all that was committed before.
pub(super) async fn check_log(
    oracle: Oracle,
    process: ProcessId,
    group: GroupId,
    replica: Replica,
    leads: Option<Term>,
) {
    const PIECE_BYTES: usize = 256 << 10;
    let log = replica.group.log();
    let name = process.to_string();
    let state = log.state();
    let mut before = state.purged.map(|purged| purged.term);
    let mut next = state.purged.map_or(LogIndex(0), |purged| purged.index.next());
    let first = next;
    let end = state.last.map_or(next, |last| last.index.next());
    let mut found = BTreeMap::new();
    while next < end {
        // The log was truncated, purged or closed meanwhile, or the machine is down: other checks see to
        // that.
        let Ok(entries) = log.read(next..end, PIECE_BYTES).await else { return };
        for entry in entries {
            let content = Content::of(entry.kind.into(), &entry.meta, entry.body.bytes());
            oracle.entry(group, entry.id, content, before, &name);
            before = Some(entry.id.term);
            found.insert(entry.id.index, entry.id.term);
            next = entry.id.index.next();
        }
    }
    if let Some(term) = leads
        && replica.group.status().term == term
    {
        oracle.check_leader(group, &name, term, first, &found);
    }
}
