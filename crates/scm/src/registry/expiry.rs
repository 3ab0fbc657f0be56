//! Leases that nobody renews: an instance becomes critical, and is removed when it stays away; a key is
//! removed. The leader decides that it is time, the log makes it so.

use super::feed::{Interest, LOOK_INTERVAL, Told};
use super::health::{is_connected, with_connectivity};
use super::instances::CONNECTED;
use super::leases::{Holder, Leases, Verdict};
use crate::leader::Leader;
use crate::tables::Tables;
use futures::future::join_all;
use proto::Failure;
use proto::registry::event::Change;
use proto::registry::registry_command::Command;
use proto::registry::{
    Event, ExpireKeysCommand, ExpiredKey, Health, Instance, InstanceName, KeyValue, RemoveInstanceCommand,
    SetChecksCommand,
};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info};

/// The most leases that are ended in one round.
const ROUND_MAX: usize = 1000;
/// The number of instances in a round whose ends are in the log together: keys of the next round wait for no
/// more than a dozen writes.
const INSTANCES_AT_ONCE: usize = 100;
/// The least time between two rounds: changes of a registry in motion are taken together.
const ROUND_INTERVAL_MIN: Duration = Duration::from_millis(20);
/// The pause of a leader that cannot write at its beginning: its disk is full, or nobody answers.
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Ends leases that are over, until the leadership ends.
pub(crate) async fn expire_leases(leader: &Leader) {
    let feed = leader.tables.feed();
    settle(leader).await;
    let mut told = hold_again(leader);
    loop {
        match feed.after(told, &Interest::Everything, usize::MAX) {
            Told::Events { events, revision } => {
                let now = Instant::now();
                let dead_after = leader.options.dead_after;
                leader.leases(|leases| {
                    events.iter().for_each(|event| follow(leases, event, dead_after, now));
                });
                told = revision;
            }
            Told::Compacted { .. } => told = hold_again(leader),
        }
        let due = leader.leases(|leases| leases.take_due(Instant::now(), ROUND_MAX));
        end_due(leader, due).await;
        tokio::time::sleep(ROUND_INTERVAL_MIN).await;
        let next = leader.leases(|leases| leases.next_due());
        let next = next.unwrap_or_else(|| Instant::now() + LOOK_INTERVAL);
        if feed.changed(told, &Interest::Everything, next).await.is_err() {
            // So many wait already that this task may not: it looks again without being told.
            tokio::time::sleep(ROUND_INTERVAL_MIN).await;
        }
    }
}

/// On return, all ends of leases that this process proposed as an earlier leader, and that were still on
/// their way, are applied or never will be. It may have led in the same term: then they are in the log before
/// what it decides as this leader. Otherwise one of them could end a lease that was renewed here.
async fn settle(leader: &Leader) {
    let nothing = || Command::ExpireKeys(ExpireKeysCommand { keys: Vec::new() });
    while let Err(failure) = leader.propose_registry_in_term(nothing()).await {
        debug!(%failure, "settle what was decided about leases before, again in a moment");
        tokio::time::sleep(SETTLE_PAUSE).await;
    }
}

fn hold_again(leader: &Leader) -> u64 {
    let (now, dead_after) = (Instant::now(), leader.options.dead_after);
    leader.tables.read(|tables| {
        leader.leases(|leases| hold_all(tables, leases, dead_after, now));
        tables.revision()
    })
}

/// Gives a lease to every instance and key of the tables that has a time to live, and forgets those that are
/// not there.
pub(super) fn hold_all(tables: &Tables, leases: &mut Leases, dead_after: Duration, now: Instant) {
    leases.retain(|holder| is_there(tables, holder));
    let directory = tables.directory();
    directory.instances().for_each(|instance| hold_instance(leases, instance, dead_after, now));
    directory.keys_with("", "").for_each(|entry| hold_key(leases, entry, now));
    leases.is_complete = true;
}

fn is_there(tables: &Tables, holder: &Holder) -> bool {
    match holder {
        Holder::Instance { service, id } => tables.directory().instance(service, id).is_some(),
        Holder::Key(key) => tables.directory().key(key).is_some(),
    }
}

fn follow(leases: &mut Leases, event: &Event, dead_after: Duration, now: Instant) {
    match &event.change {
        Some(Change::Instance(instance)) => hold_instance(leases, instance, dead_after, now),
        Some(Change::InstanceGone(name)) => leases.release(&holder_of(name)),
        Some(Change::Key(entry)) => hold_key(leases, entry, now),
        Some(Change::KeyGone(key)) => leases.release(&Holder::Key(key.clone())),
        None => {}
    }
}

/// Gives an instance its lease. One that others know as silent has the time until it is given up before it
/// once more: that is its whole time to live at least, since whoever led before may have acknowledged a
/// renewal that the tables do not tell of.
fn hold_instance(leases: &mut Leases, instance: &Instance, dead_after: Duration, now: Instant) {
    let holder = Holder::Instance { service: instance.service.clone(), id: instance.id.clone() };
    match instance.ttl_ms {
        0 => leases.release(&holder),
        ttl_ms if !is_connected(&instance.checks) => {
            let give_up = now + dead_after.max(Duration::from_millis(ttl_ms));
            leases.hold_lapsed(holder, instance.lease, now, give_up);
        }
        ttl_ms => leases.hold(holder, instance.lease, Duration::from_millis(ttl_ms), now),
    }
}

fn hold_key(leases: &mut Leases, entry: &KeyValue, now: Instant) {
    let holder = Holder::Key(entry.key.clone());
    match entry.ttl_ms {
        0 => leases.release(&holder),
        ttl_ms => leases.hold(holder, entry.mod_revision, Duration::from_millis(ttl_ms), now),
    }
}

pub(super) fn holder_of(name: &InstanceName) -> Holder {
    Holder::Instance { service: name.service.clone(), id: name.id.clone() }
}

/// Ends leases that are over, those of keys first: what somebody waits for is mostly a key, and all keys
/// together are one command.
async fn end_due(leader: &Leader, due: Vec<(Holder, u64)>) {
    let (mut keys, mut instances) = (Vec::new(), Vec::new());
    for (holder, stamp) in due {
        match holder {
            Holder::Key(key) => keys.push(ExpiredKey { key, mod_revision: stamp }),
            Holder::Instance { service, id } => instances.push((InstanceName { service, id }, stamp)),
        }
    }
    if !keys.is_empty() {
        let command = Command::ExpireKeys(ExpireKeysCommand { keys });
        match leader.propose_registry_in_term(command).await {
            Ok(reply) => leader.leases(|leases| leases.counts.keys_expired += reply.changed),
            Err(failure) => debug!(%failure, "end the leases of keys, again in a second"),
        }
    }
    for some in instances.chunks(INSTANCES_AT_ONCE) {
        let ends = some.iter().map(|(name, stamp)| end_instance(leader, name.clone(), *stamp));
        for failure in join_all(ends).await.into_iter().filter_map(Result::err) {
            debug!(%failure, "end a lease, again in a second");
        }
    }
}

/// Makes an instance critical at first, and removes it when it has been so for as long as it takes to give a
/// node up.
async fn end_instance(leader: &Leader, name: InstanceName, lease: u64) -> Result<(), Failure> {
    let holder = holder_of(&name);
    let found = leader.tables.read(|tables| {
        let found = tables.directory().instance(&name.service, &name.id);
        found.filter(|instance| instance.lease == lease).cloned()
    });
    let Some(instance) = found else { return Ok(()) };
    match leader.leases(|leases| leases.verdict(&holder, lease, Instant::now())) {
        Verdict::Lives => Ok(()),
        Verdict::Goes => remove(leader, name, lease).await,
        Verdict::Lapses => {
            lapse(leader, instance).await?;
            let now = Instant::now();
            let give_up = now + leader.options.dead_after;
            let is_over = leader.leases(|leases| {
                leases.counts.instances_lapsed += 1;
                leases.lapsed(&holder, lease, now, give_up)
            });
            if is_over {
                return Ok(());
            }
            // The instance was renewed while others were told of its silence.
            set_connectivity(leader, &name, lease, Health::Passing, CONNECTED).await
        }
    }
}

async fn remove(leader: &Leader, name: InstanceName, lease: u64) -> Result<(), Failure> {
    info!(service = name.service, id = name.id, "an instance is given up: it renews its lease no more");
    let command = RemoveInstanceCommand { name: Some(name), lease, expired: true };
    leader.propose_registry_in_term(Command::RemoveInstance(command)).await?;
    leader.leases(|leases| leases.counts.instances_expired += 1);
    Ok(())
}

async fn lapse(leader: &Leader, instance: Instance) -> Result<(), Failure> {
    info!(service = instance.service, id = instance.id, "an instance does not renew its lease");
    let output = format!("silent for {:.1} s", instance.ttl_ms as f64 / 1000.0);
    let name = InstanceName { service: instance.service, id: instance.id };
    set_connectivity(leader, &name, instance.lease, Health::Critical, &output).await
}

async fn set_connectivity(
    leader: &Leader,
    name: &InstanceName,
    lease: u64,
    health: Health,
    output: &str,
) -> Result<(), Failure> {
    let checks = leader.tables.read(|tables| {
        let found = tables.directory().instance(&name.service, &name.id);
        found.map(|instance| instance.checks.clone()).unwrap_or_default()
    });
    let checks = with_connectivity(checks, health, output);
    let command = SetChecksCommand { name: Some(name.clone()), lease, checks };
    leader.propose_registry_in_term(Command::SetChecks(command)).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::TablesMut;

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_begins_gives_each_its_time_and_the_lapsed_until_they_are_given_up() {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        for (id, health) in [("well", Health::Passing), ("lapsed", Health::Critical)] {
            let checks = with_connectivity(Vec::new(), health, "");
            let (service, id, ttl_ms) = ("web".to_owned(), id.to_owned(), 5000);
            change.put_instance(Instance { service, id, ttl_ms, checks, lease: 1, ..Instance::default() });
        }
        change.put_key(KeyValue {
            key: "k".to_owned(),
            ttl_ms: 7000,
            mod_revision: 3,
            ..KeyValue::default()
        });
        let (now, dead_after) = (Instant::now(), Duration::from_secs(600));
        let mut leases = Leases::default();
        assert!(leases.check_complete().is_err());
        hold_all(&tables, &mut leases, dead_after, now);
        assert!(leases.check_complete().is_ok());
        let instance = |id: &str| Holder::Instance { service: "web".to_owned(), id: id.to_owned() };
        let mut due_at = |seconds: u64| {
            let due = leases.take_due(now + Duration::from_secs(seconds), 9);
            due.into_iter().for_each(|(holder, _)| leases.release(&holder));
            leases.next_due().map(|due| (due - now).as_secs())
        };
        assert_eq!(due_at(4), Some(5));
        assert_eq!(due_at(5), Some(7), "the one that is well");
        assert_eq!(due_at(7), Some(600), "the key");
        let later = now + dead_after;
        assert_eq!(leases.verdict(&instance("lapsed"), 1, later), Verdict::Goes);

        let mut leases = Leases::default();
        hold_all(&tables, &mut leases, Duration::from_secs(1), now);
        assert_eq!(
            leases.next_due(),
            Some(now + Duration::from_secs(5)),
            "its renewal may not have been written"
        );
    }
}
