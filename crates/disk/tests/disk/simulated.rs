//! Tests of what the simulated disk keeps, loses and breaks.

use bytes::Bytes;
use disk::sim::{CrashPoint, Keeping, Loss, SimDisk, SimOptions};
use disk::{Disk, File};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::Arc;

const OPTIONS: SimOptions =
    SimOptions { seed: 1, capacity_bytes: 1 << 30, polls_max: 0, device: None, keeping: Keeping::Contents };

fn new() -> SimDisk {
    SimDisk::new(OPTIONS)
}

fn bytes(count: usize, byte: u8) -> Vec<Bytes> {
    vec![Bytes::from(vec![byte; count])]
}

/// A file that is there after any crash.
async fn durable_file(disk: &SimDisk) -> Arc<dyn File> {
    let file = disk.open("f", true).await.unwrap();
    file.write_and_sync(0, bytes(2048, b'a')).await.unwrap();
    disk.sync_dir("").await.unwrap();
    file
}

async fn contents(disk: &SimDisk, path: &str) -> Bytes {
    disk.open(path, false).await.unwrap().read_at(0, 1 << 20).await.unwrap()
}

#[tokio::test]
async fn what_was_synced_survives_and_the_rest_may_not() {
    let disk = new();
    let file = durable_file(&disk).await;
    file.write_at(0, bytes(100, b'b')).await.unwrap();
    assert_eq!(contents(&disk, "f").await[..100], [b'b'; 100], "visible at once");
    let killed = disk.kill(OPTIONS);
    assert_eq!(contents(&killed, "f").await[..100], [b'b'; 100], "the kernel has it");
    let after = killed.lose_power(Loss::AllUnsynced, OPTIONS);
    assert_eq!(contents(&after, "f").await, vec![b'a'; 2048]);
    assert!(disk.open("f", false).await.is_err(), "a disk ends with its machine");
}

#[tokio::test]
async fn unsynced_writes_are_torn_at_sectors_and_reordered() {
    let mut found = BTreeSet::new();
    for seed in 0..400 {
        let disk = new();
        let file = durable_file(&disk).await;
        file.write_at(256, bytes(1024, b'b')).await.unwrap();
        file.write_at(1536, bytes(512, b'c')).await.unwrap();
        let after = disk.lose_power(Loss::Random(seed), OPTIONS);
        let contents = contents(&after, "f").await;
        let part = |range: std::ops::Range<usize>| {
            assert!(contents[range.clone()].iter().all(|byte| *byte == contents[range.start]), "torn sector");
            contents[range.start] as char
        };
        found.insert([
            part(0..256),
            part(256..512),
            part(512..1024),
            part(1024..1280),
            part(1280..1536),
            part(1536..2048),
        ]);
    }
    assert!(found.iter().all(|parts| parts[0] == 'a' && parts[4] == 'a'), "{found:?}");
    assert_eq!(found.len(), 16, "each of three sectors and one more write, in any combination: {found:?}");
}

#[tokio::test]
async fn a_length_is_lost_by_itself() {
    let mut lengths = BTreeSet::new();
    for seed in 0..100 {
        let disk = new();
        let file = durable_file(&disk).await;
        file.set_len(1000).await.unwrap();
        file.write_at(4096, bytes(10, b'b')).await.unwrap();
        let after = disk.lose_power(Loss::Random(seed), OPTIONS);
        let contents = contents(&after, "f").await;
        lengths.insert(contents.len());
        if contents.len() == 4106 {
            assert!(
                contents[1000..4096].iter().all(|byte| *byte == 0),
                "what was cut off does not come back"
            );
            lengths.insert(contents[4100] as usize);
        }
    }
    assert_eq!(
        lengths,
        BTreeSet::from([2048, 1000, 4106, 0, b'b' as usize]),
        "the write with its length or not"
    );
    let disk = new();
    let file = durable_file(&disk).await;
    file.set_len(1000).await.unwrap();
    file.sync_data().await.unwrap();
    assert_eq!(contents(&disk.lose_power(Loss::AllUnsynced, OPTIONS), "f").await.len(), 1000);
}

#[tokio::test]
async fn names_are_durable_after_a_sync_of_their_directory() {
    let disk = new();
    disk.create_dir_all("d/e").await.unwrap();
    let file = disk.open("d/e/tmp", true).await.unwrap();
    file.write_and_sync(0, bytes(10, b'x')).await.unwrap();
    let lost = disk.kill(OPTIONS).lose_power(Loss::AllUnsynced, OPTIONS);
    assert_eq!(lost.files(), [], "a synced file without a name");
    assert_eq!(lost.list("d").await.unwrap(), ["e"], "created directories are durable");

    let disk = lost;
    let file = disk.open("d/e/tmp", true).await.unwrap();
    file.write_and_sync(0, bytes(10, b'x')).await.unwrap();
    disk.sync_dir("d/e").await.unwrap();
    disk.rename("d/e/tmp", "d/e/final").await.unwrap();
    let lost = disk.lose_power(Loss::AllUnsynced, OPTIONS);
    assert_eq!(lost.files(), [("d/e/tmp".to_owned(), 10)]);
    lost.rename("d/e/tmp", "d/e/final").await.unwrap();
    lost.sync_dir("d/e").await.unwrap();
    lost.remove_dir_all("d/e").await.unwrap();
    let kept = lost.lose_power(Loss::AllUnsynced, OPTIONS);
    assert_eq!(kept.files(), [("d/e/final".to_owned(), 10)]);
    kept.remove_dir_all("d/e").await.unwrap();
    kept.sync_dir("d").await.unwrap();
    assert_eq!(kept.lose_power(Loss::AllUnsynced, OPTIONS).files(), []);
}

#[tokio::test]
async fn a_write_that_was_under_way_may_miss_the_sync() {
    let mut found = BTreeSet::new();
    for seed in 0..50 {
        let disk = SimDisk::new(SimOptions { seed, ..OPTIONS });
        let file = durable_file(&disk).await;
        let under_way = file.write_at(0, bytes(512, b'b'));
        file.sync_data().await.unwrap();
        drop(under_way);
        found.insert(contents(&disk.lose_power(Loss::AllUnsynced, OPTIONS), "f").await[0]);
    }
    assert_eq!(found, BTreeSet::from([b'a', b'b']));
}

#[tokio::test]
async fn a_crash_comes_before_or_after_a_step() {
    for (point, survives) in [(CrashPoint::Before(4), false), (CrashPoint::After(4), true)] {
        let disk = new();
        let file = durable_file(&disk).await;
        assert_eq!(disk.steps(), 4, "create, write, sync, sync of the directory");
        disk.crash_at(point);
        let written = file.write_at(0, bytes(10, b'b')).await;
        assert!(written.is_err() && disk.is_down());
        assert!(file.read_at(0, 1).await.is_err() && disk.failure().is_some());
        let found = contents(&disk.lose_power(Loss::Nothing, OPTIONS), "f").await;
        assert_eq!(found[0] == b'b', survives);
    }
}

#[tokio::test]
async fn an_io_error_fails_the_disk_until_restart() {
    for step in 4..6 {
        let disk = new();
        let file = durable_file(&disk).await;
        disk.fail_at(step);
        assert!(file.write_and_sync(0, bytes(10, b'b')).await.is_err());
        assert!(file.write_at(0, bytes(10, b'b')).await.is_err());
        assert!(disk.failure().unwrap().contains(" f: "), "{:?}", disk.failure());
        let again = disk.kill(OPTIONS);
        assert_eq!(again.failure(), None);
        again.open("f", false).await.unwrap().write_and_sync(0, bytes(10, b'c')).await.unwrap();
    }
}

#[tokio::test]
async fn what_a_failed_sync_lost_is_seen_until_the_file_settles() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..20 {
        let disk = SimDisk::new(SimOptions { seed, ..OPTIONS });
        let file = durable_file(&disk).await;
        let before = contents(&disk, "f").await;
        // The write is one step, the sync the next.
        disk.fail_at(disk.steps() + 1);
        assert!(file.write_and_sync(0, bytes(10, b'b')).await.is_err());
        let again = disk.kill(OPTIONS);
        assert_eq!(contents(&again, "f").await[..10], [b'b'; 10], "the page cache has it");
        let file = again.open("f", false).await.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(contents(&again, "f").await[..10], [b'b'; 10], "and a later sync says nothing");
        file.settle().await.unwrap();
        let settled = contents(&again, "f").await;
        let after_power_loss = contents(&again.lose_power(Loss::AllUnsynced, OPTIONS), "f").await;
        assert_eq!(settled, after_power_loss);
        match settled == before {
            true => lost += 1,
            false => kept += 1,
        }
    }
    assert!(lost > 0 && kept > 0, "{lost} lost, {kept} kept");
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on() {
    let disk = SimDisk::new(SimOptions { capacity_bytes: 40_960, ..OPTIONS });
    let file = disk.open("a", true).await.unwrap();
    assert_eq!(file.preallocate(50_000).await.unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(file.len().await.unwrap(), 0, "nothing is changed");
    file.preallocate(20_480).await.unwrap();
    assert_eq!(disk.space().await.unwrap().free_bytes, 20_480);
    file.write_and_sync(0, bytes(20_480, b'x')).await.unwrap();
    assert_eq!(file.write_at(20_000, bytes(30_000, b'y')).await.unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(disk.space().await.unwrap().free_bytes, 0);
    assert_eq!(disk.failure(), None);
    file.punch_holes(vec![0..4096, 4096..8192]).await.unwrap();
    assert_eq!(disk.space().await.unwrap().free_bytes, 8192);
    file.set_len(0).await.unwrap();
    assert_eq!(disk.space().await.unwrap().free_bytes, 40_960);
    disk.open("b", true).await.unwrap().write_at(0, bytes(40_960, b'z')).await.unwrap();
    disk.remove_file("b").await.unwrap();
    assert_eq!(disk.space().await.unwrap().free_bytes, 40_960);
}

#[tokio::test]
async fn bits_flip_on_read_or_for_good() {
    let disk = new();
    let file = durable_file(&disk).await;
    disk.flip_bits_on_read(Some(1));
    let wrong: u32 = file.read_at(0, 2048).await.unwrap().iter().map(|byte| (byte ^ b'a').count_ones()).sum();
    assert_eq!(wrong, 1);
    disk.flip_bits_on_read(None);
    assert_eq!(file.read_at(0, 2048).await.unwrap(), vec![b'a'; 2048]);
    disk.flip_stored_bit("f", 7, 1).unwrap();
    let after = disk.lose_power(Loss::AllUnsynced, OPTIONS);
    assert_eq!(contents(&after, "f").await[..9], *b"aaaaaaaca");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_run() {
    let run = |seed| async move {
        let disk = SimDisk::new(SimOptions { seed, polls_max: 5, ..OPTIONS });
        let files = [disk.open("a", true).await.unwrap(), disk.open("b", true).await.unwrap()];
        for n in 0..50u64 {
            files[n as usize % 2].write_at(n * 700, bytes(2000, n as u8)).await.unwrap();
            if n % 11 == 0 {
                disk.sync_dir("").await.unwrap();
                files[0].sync_data().await.unwrap();
            }
        }
        let after = disk.lose_power(Loss::Random(seed), OPTIONS);
        let mut all = format!("{:?}", after.files());
        for (path, _) in after.files() {
            all += &format!("{:?}", contents(&after, &path).await);
        }
        all
    };
    assert_eq!(run(3).await, run(3).await);
    assert_ne!(run(3).await, run(4).await);
}
