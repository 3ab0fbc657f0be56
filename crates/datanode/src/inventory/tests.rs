use super::report::REPORT_REPLICAS_MAX;
use super::*;
use proto::scm::HeartbeatRequest;
use std::collections::BTreeMap;

const DISK: DiskId = DiskId(7);

fn replica(blocks: u64) -> Replica {
    Replica { blocks, released: false, ..Replica::of_test(DISK) }
}

/// An SCM that knows what it would from the heartbeats it took.
#[derive(Default)]
struct Scm {
    known: BTreeMap<u64, u64>,
    is_complete: bool,
}

impl Scm {
    fn take(&mut self, request: &HeartbeatRequest) {
        if request.report_begins {
            (self.known, self.is_complete) = Default::default();
        }
        self.known.extend(request.containers.iter().map(|it| (it.container, it.blocks)));
        self.known.retain(|container, _| !request.containers_gone.contains(container));
        self.is_complete |= request.report_ends;
    }
}

fn beat(inventory: &Inventory, scm: &mut Scm) -> bool {
    let mut request = HeartbeatRequest::default();
    let report = inventory.report(&mut request);
    assert!(request.containers.len() + request.containers_gone.len() <= REPORT_REPLICAS_MAX);
    scm.take(&request);
    inventory.taken(&report);
    report.has_more
}

fn check(inventory: &Inventory, scm: &Scm) {
    let here: BTreeMap<u64, u64> =
        inventory.select(|(container, it)| Some((container.0, it.blocks))).into_iter().collect();
    assert_eq!(scm.known, here);
    assert!(scm.is_complete);
}

#[test]
fn everything_is_told_first_and_then_what_changed() {
    let (inventory, mut scm) = (Inventory::default(), Scm::default());
    inventory.put(ContainerId(1), replica(1));
    inventory.put(ContainerId(2), replica(1));
    assert!(!beat(&inventory, &mut scm));
    check(&inventory, &scm);

    inventory.put(ContainerId(2), replica(5));
    inventory.remove(ContainerId(1), DISK);
    let mut request = HeartbeatRequest::default();
    inventory.report(&mut request);
    assert_eq!((request.containers.len(), request.containers[0].blocks), (1, 5));
    assert_eq!(request.containers_gone, [1]);
    assert!(!request.report_begins && !request.report_ends);

    // The heartbeat failed: the next one says it again. What is told is not said twice.
    beat(&inventory, &mut scm);
    check(&inventory, &scm);
    inventory.put(ContainerId(2), replica(5));
    let mut request = HeartbeatRequest::default();
    inventory.report(&mut request);
    assert!(request.containers.is_empty() && request.containers_gone.is_empty());
}

#[test]
fn what_changes_while_a_heartbeat_is_under_way_is_told_with_the_next() {
    let (inventory, mut scm) = (Inventory::default(), Scm::default());
    beat(&inventory, &mut scm);
    inventory.put(ContainerId(1), replica(1));
    inventory.put(ContainerId(2), replica(1));
    let mut request = HeartbeatRequest::default();
    let report = inventory.report(&mut request);
    inventory.put(ContainerId(1), replica(2));
    inventory.remove(ContainerId(2), DISK);
    scm.take(&request);
    inventory.taken(&report);
    beat(&inventory, &mut scm);
    check(&inventory, &scm);
}

#[test]
fn a_full_report_comes_in_pages_and_changes_during_it_are_not_lost() {
    let (inventory, mut scm) = (Inventory::default(), Scm::default());
    let count = 2 * REPORT_REPLICAS_MAX as u64 + 3;
    (1..=count).for_each(|number| inventory.put(ContainerId(number), replica(1)));
    assert!(beat(&inventory, &mut scm));
    assert!(!scm.is_complete);
    // A replica of the page that SCM has, one of the page to come, and one that is gone again.
    inventory.put(ContainerId(1), replica(2));
    inventory.put(ContainerId(count), replica(2));
    inventory.remove(ContainerId(2), DISK);
    assert!(beat(&inventory, &mut scm));
    assert!(!beat(&inventory, &mut scm));
    assert!(scm.is_complete);
    beat(&inventory, &mut scm);
    check(&inventory, &scm);
}

#[test]
fn a_full_report_that_is_asked_for_meanwhile_begins_anew() {
    let (inventory, mut scm) = (Inventory::default(), Scm::default());
    let count = REPORT_REPLICAS_MAX as u64 + 1;
    (1..=count).for_each(|number| inventory.put(ContainerId(number), replica(1)));
    let mut request = HeartbeatRequest::default();
    let report = inventory.report(&mut request);
    inventory.report_all();
    inventory.taken(&report);
    // An SCM that never saw the first page.
    assert!(beat(&inventory, &mut scm));
    assert!(!beat(&inventory, &mut scm));
    check(&inventory, &scm);
}

#[test]
fn more_losses_than_can_be_listed_become_a_full_report() {
    let (inventory, mut scm) = (Inventory::default(), Scm::default());
    (1..=10_005).for_each(|number| inventory.put(ContainerId(number), replica(1)));
    while beat(&inventory, &mut scm) {}
    (1..=10_001).for_each(|number| inventory.remove(ContainerId(number), DISK));
    let mut request = HeartbeatRequest::default();
    inventory.report(&mut request);
    assert!(request.report_begins && request.report_ends && request.containers_gone.is_empty());
    beat(&inventory, &mut scm);
    check(&inventory, &scm);
}

#[tokio::test]
async fn news_wake_the_heartbeat_and_sizes_do_not() {
    let inventory = Inventory::default();
    let wake = inventory.wake();
    let woken = async || tokio::time::timeout(std::time::Duration::ZERO, wake.notified()).await.is_ok();
    inventory.put(ContainerId(1), replica(1));
    assert!(woken().await, "it is new");
    inventory.put(ContainerId(1), replica(2));
    assert!(!woken().await, "it grew");
    inventory.set_unhealthy(ContainerId(1), DISK, "bad");
    assert!(woken().await, "it is bad");
    inventory.set_unhealthy(ContainerId(1), DiskId(8), "another disk's");
    assert!(!woken().await);
    inventory.remove(ContainerId(1), DiskId(8));
    assert!(inventory.get(ContainerId(1)).is_some_and(|it| it.unhealthy.as_deref() == Some("bad")));
    inventory.remove(ContainerId(1), DISK);
    assert!(woken().await && inventory.get(ContainerId(1)).is_none());
}

/// The index does not keep it.
#[test]
fn that_all_of_a_replica_was_read_is_kept_until_it_is_on_another_disk() {
    let inventory = Inventory::default();
    inventory.put(ContainerId(1), replica(1));
    inventory.set_checked(ContainerId(1), DISK, 7);
    inventory.put(ContainerId(1), replica(2));
    assert_eq!(inventory.get(ContainerId(1)).unwrap().to_proto(ContainerId(1)).checked_ms, 7);
    inventory.put(ContainerId(1), Replica { disk: DiskId(8), ..replica(2) });
    assert_eq!(inventory.get(ContainerId(1)).unwrap().checked_ms, 0);
}

/// A look at a replica takes a while, and the replica may be deleted meanwhile.
#[test]
fn what_was_read_before_a_deletion_does_not_come_back_after_it() {
    let inventory = Inventory::default();
    inventory.put(ContainerId(1), replica(1));
    let as_of = inventory.removals();
    let read = inventory.get(ContainerId(1)).unwrap();
    inventory.remove(ContainerId(1), DISK);
    inventory.put_read(ContainerId(1), read.clone(), as_of);
    assert_eq!(inventory.get(ContainerId(1)), None);
    assert_eq!(inventory.begin_round(), [(DISK, ContainerId(1))].into(), "it is read again");
    inventory.set_unhealthy(ContainerId(1), DISK, "damaged");
    assert_eq!(inventory.get(ContainerId(1)), None);
    inventory.put_read(ContainerId(1), read, inventory.removals());
    assert!(inventory.get(ContainerId(1)).is_some());
}
