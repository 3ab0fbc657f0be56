//! The disk of an OM is full, hangs, or fails: names go on where others have them, and say why where nobody
//! has.

use crate::commands::flotilla;
use crate::om_members::{GROUPS, Names};
use crate::small_disk::SmallDisk;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Enough for a new OM and for what it keeps free.
const DISK_BYTES: u64 = 256 << 20;
/// Less than an OM keeps free.
const LEFT_BYTES: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// The most time of a refusal at once, on a machine that does other things too; `fs` gives up after ten
/// seconds.
const AT_ONCE: Duration = Duration::from_secs(8);
const HANGS_FOR: Duration = Duration::from_secs(5);

fn om_on(disk: &SmallDisk) -> PathBuf {
    disk.root().join("om")
}

/// Three OMs of which the first has that disk, and leads the root.
fn three_on(disk: &SmallDisk) -> Names {
    let names = Names::start_on(vec![om_on(disk)], 3, "");
    names.until_whole(3);
    let first = names.number_of(0).to_string();
    if names.leader() != 0 {
        names.transfer_until(&["--to", &first], |leader| leader == 0);
    }
    names
}

/// Makes a bucket, and answers how long that took.
fn make_bucket(names: &Names, bucket: &str) -> Duration {
    let begun = Instant::now();
    names.until_fs(&["-mkdir", "-p", &format!("/s3v/{bucket}")]);
    begun.elapsed()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn status(names: &Names) -> String {
    let told = flotilla(&["admin", "--scm", &names.scm, "--json", "status"], None);
    String::from_utf8_lossy(&told.stdout).into_owned()
}

fn replicas(group: &Value) -> &[Value] {
    group["replicas"].as_array().expect("a group has replicas")
}

/// Waits until three members have the same of each group.
fn until_even(names: &Names) {
    until("all have everything", || {
        names.until_whole(3);
        let is_even = |group: &Value| {
            let applied = |replica: &Value| replica["applied_index"].as_u64().expect("a member tells it");
            replicas(group).windows(2).all(|two| applied(&two[0]) == applied(&two[1]))
        };
        names.groups().iter().all(is_even)
    });
}

fn has_buckets(names: &Names, buckets: &[&str]) {
    let listed = names.fs(&["-ls", "/s3v"]);
    assert!(buckets.iter().all(|bucket| listed.contains(bucket)), "{listed}");
}

#[test]
fn others_lead_while_the_disk_of_an_om_is_full_and_it_comes_back_without_a_restart() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    let names = three_on(&disk);
    make_bucket(&names, "before");
    let mut asked = 0;
    until("another one leads", || {
        // A segment that was being made, and finds no room, gives back what it had.
        disk.fill_but(LEFT_BYTES);
        asked += 1;
        println!("a bucket after {:?} on a full disk", make_bucket(&names, &format!("meanwhile{asked}")));
        names.leader() != 0
    });
    until("an operator sees it", || status(&names).contains("disk full"));
    make_bucket(&names, "later");
    disk.make_room();
    until_even(&names);
    until("nobody complains", || !status(&names).contains("disk full"));
    has_buckets(&names, &["before", "meanwhile1", "later"]);
}

/// Asks for buckets until one is refused at once, while all these disks are full.
fn until_refused(names: &Names, disks: &[&SmallDisk]) {
    let mut asked = 0;
    until("changes are refused", || {
        disks.iter().for_each(|disk| disk.fill_but(LEFT_BYTES));
        asked += 1;
        let begun = Instant::now();
        let bucket = format!("/s3v/meanwhile{asked}");
        let refused = flotilla(&["fs", "--scm", &names.scm, "-mkdir", &bucket], None);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        println!("{:?}: {why}", begun.elapsed());
        !refused.status.success() && begun.elapsed() < AT_ONCE && why.contains("full")
    });
}

#[test]
fn the_only_om_refuses_changes_while_its_disk_is_full_and_reads_go_on() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    let names = Names::start_on(vec![om_on(&disk)], 1, "");
    names.until_whole(1);
    make_bucket(&names, "before");
    until_refused(&names, &[&disk]);
    has_buckets(&names, &["before"]);
    disk.make_room();
    make_bucket(&names, "later");
    has_buckets(&names, &["before", "later"]);
}

#[test]
fn changes_are_refused_at_once_while_two_of_three_disks_are_full() {
    let (Some(first), Some(second)) = (SmallDisk::mount(DISK_BYTES), SmallDisk::mount(DISK_BYTES)) else {
        return;
    };
    let names = Names::start_on(vec![om_on(&first), om_on(&second)], 3, "");
    names.until_whole(3);
    let third = names.number_of(2).to_string();
    if names.leader() != 2 {
        names.transfer_until(&["--to", &third], |leader| leader == 2);
    }
    make_bucket(&names, "before");
    until_refused(&names, &[&first, &second]);
    has_buckets(&names, &["before"]);
    first.make_room();
    make_bucket(&names, "later");
    second.make_room();
    until_even(&names);
    has_buckets(&names, &["before", "later"]);
}

#[test]
fn nothing_is_lost_while_the_disk_of_an_om_hangs_for_some_seconds() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    let names = three_on(&disk);
    make_bucket(&names, "before");
    let took = {
        let Some(frozen) = disk.freeze() else { return };
        let making = std::thread::scope(|scope| {
            let making = scope.spawn(|| make_bucket(&names, "meanwhile"));
            std::thread::sleep(HANGS_FOR);
            drop(frozen);
            making.join()
        });
        making.unwrap()
    };
    println!("a bucket after {took:?}, while a disk hung for {HANGS_FOR:?}");
    make_bucket(&names, "later");
    until_even(&names);
    has_buckets(&names, &["before", "meanwhile", "later"]);
}

#[test]
fn others_lead_where_the_disk_of_an_om_fails() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    let names = three_on(&disk);
    make_bucket(&names, "before");
    disk.turn_read_only();
    println!("a bucket after {:?} on a disk that failed", make_bucket(&names, "meanwhile"));
    let failed = names.number_of(0);
    until("others lead all groups", || {
        let is_led =
            |group: &Value| replicas(group).iter().any(|it| it["role"] == "leader" && it["om"] != failed);
        let groups = names.groups();
        groups.len() == GROUPS && groups.iter().all(is_led)
    });
    make_bucket(&names, "later");
    println!("{}", status(&names));
    has_buckets(&names, &["before", "meanwhile", "later"]);
}
