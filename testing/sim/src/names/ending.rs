//! The end of a run: without faults all is well again in time, and what must hold then.

use super::callers::list;
use super::histories::name;
use super::rows::{self, Rows};
use super::run::{Run, options};
use crate::world::ProcessId;
use client::{Client, ClientError};
use history::{BucketAnswer, BucketOp};
use proto::Code;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use types::GroupId;

/// The time that a cluster may take to be well again after the last fault: the sum of what may follow one
/// another. A connection is noticed to be dead (5 s), an OM to be dead (6 s), another takes its place and is
/// sent all (30 s, once begun anew); a group that nobody answers for is given up by the leader that moves a
/// bucket there (60 s).
const SETTLED_WITHIN: Duration = Duration::from_secs(5 + 6 + 60 + 60);
/// The time for which clients go on without faults.
const GOES_ON: Duration = Duration::from_secs(3);
const LOOK_MS: u128 = 100;
/// The time in which the last questions are answered.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// The limit of a page: more keys than a bucket has.
const PAGE: usize = 100;

impl Run {
    pub(super) fn settle(&mut self) -> Result<Duration, String> {
        self.stop_faults();
        let began = self.world.now();
        while self.world.now() < began + GOES_ON {
            self.step()?;
        }
        self.record.end();
        let longest = self.plan.deadlines.into_iter().max().unwrap_or_default();
        let called_until = self.world.now() + 2 * longest + ANSWERED_WITHIN;
        while Arc::strong_count(&self.at_work) > 1 {
            self.step()?;
            if self.world.now() > called_until {
                return Err(format!("a call lasts for longer than twice {longest:?}"));
            }
        }
        let groups = loop {
            self.step()?;
            if !self.world.now().as_millis().is_multiple_of(LOOK_MS) {
                continue;
            }
            match self.settled() {
                Ok(groups) => break groups,
                Err(why) if self.world.now() > began + SETTLED_WITHIN => {
                    let took = self.world.now() - began;
                    return Err(format!("no fault for {:.1} s, and {why}", took.as_secs_f64()));
                }
                Err(_) => {}
            }
        };
        let settled = self.world.now() - began;
        rows::check(&groups).map_err(|error| format!("{error:#}"))?;
        let compared: usize = groups.values().map(Rows::len).sum();
        self.record.count(|counts| counts.rows_compared += compared as u64);
        self.list_all()?;
        self.histories.check_all()?;
        Ok(settled)
    }

    /// The tables of all groups, if nothing is under way in any, and all members have the same.
    fn settled(&self) -> Result<BTreeMap<u64, Rows>, String> {
        let shown = self.view.newest().ok_or("SCM has shown nothing")?;
        if self.world.now() > shown.asked_at + Duration::from_secs(2) {
            return Err("SCM shows nothing".to_owned());
        }
        if let Some(why) = shown.unwhole() {
            return Err(format!("a group is not as it is to be: {why}"));
        }
        let mut groups = BTreeMap::new();
        for info in &shown.oms.groups {
            let group = info.group.clone().unwrap_or_default();
            let mut of_group: Option<Rows> = None;
            for member in &group.members {
                let rows = self.rows_at(group.group, &member.address)?;
                if let Some(why) = rows::under_way(&rows) {
                    return Err(format!("in group {} {why} has not come to its end", group.group));
                }
                match &of_group {
                    None => of_group = Some(rows),
                    Some(first) => {
                        if let Some(why) = rows::difference(first, &rows) {
                            let at = &member.address;
                            return Err(format!("group {} at {at} is another: {why}", group.group));
                        }
                    }
                }
            }
            groups.insert(group.group, of_group.unwrap_or_default());
        }
        Ok(groups)
    }

    fn rows_at(&self, group: u64, address: &str) -> Result<Rows, String> {
        let machine = self.plan.machine_at(address).ok_or_else(|| format!("`{address}` is no OM"))?;
        let tables = self.tables.get(&machine).and_then(|tables| tables.current(GroupId::om(group)));
        let tables = tables.ok_or_else(|| format!("group {group} is not open at {address}"))?;
        rows::read(&tables).map_err(|error| format!("{error:#}"))
    }

    /// Lists each bucket once more, by a client that has seen nothing before.
    fn list_all(&mut self) -> Result<(), String> {
        let operator = ProcessId(self.plan.operator());
        let longest = self.plan.deadlines.into_iter().max().unwrap_or_default();
        let (options, connector) = (options(&self.plan, longest), self.world.connector(operator));
        let (histories, record, under_way) = (self.histories.clone(), self.record.clone(), Arc::new(()));
        let held = under_way.clone();
        self.world.spawn(operator, async move {
            let client = Client::over(options, connector);
            for history in 0..histories.count() {
                let begun = histories.begin(history, BucketOp::List { after: None, limit: PAGE });
                match list(&client, &name(history), None, PAGE).await {
                    Ok(listed) => histories.note(begun, Some(listed)),
                    Err(ClientError::Refused(failure)) if failure.code == Code::NoSuchBucket => {
                        histories.note(begun, Some(BucketAnswer::Refused(failure.code)));
                    }
                    Err(error) => record.fail(format!("{} is not listed: {error}", begun.bucket)),
                }
            }
            drop(held);
        });
        let until = self.world.now() + ANSWERED_WITHIN;
        while Arc::strong_count(&under_way) > 1 {
            self.step()?;
            if self.world.now() > until {
                return Err(format!("buckets are not listed within {ANSWERED_WITHIN:?}"));
            }
        }
        Ok(())
    }
}
