//! Tests of how long the simulated disk takes, by a clock that stands still unless everybody waits.

use bytes::Bytes;
use disk::sim::{DeviceModel, Keeping, Random, SimDisk, SimOptions};
use disk::{Disk, File};
use futures::future::{join_all, try_join};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A page is transferred in a millisecond, so that everything ends at a tick of the timers.
const SLOW: DeviceModel =
    DeviceModel { positioning: Duration::from_millis(8), bytes_per_second: 4096 * 1000, parallel: 1 };

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn new(device: DeviceModel) -> SimDisk {
    SimDisk::new(SimOptions { device: Some(device), ..SimOptions::default() })
}

fn pages(count: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![7; count * 4096])]
}

async fn files(disk: &SimDisk, count: u64) -> Vec<Arc<dyn File>> {
    join_all((0..count).map(|n| async move { disk.open(&n.to_string(), true).await.unwrap() })).await
}

async fn time<T>(operation: impl Future<Output = T>) -> Duration {
    let start = Instant::now();
    operation.await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_sync_costs_a_positioning_and_what_was_written_since_the_last() {
    let disk = new(SLOW);
    let file = &files(&disk, 1).await[0];
    assert_eq!(time(disk.sync_dir("")).await, ms(8), "the name");
    assert_eq!(time(disk.sync_dir("")).await, ms(0), "nothing to do");
    assert_eq!(time(file.write_at(0, pages(10))).await, ms(0), "goes to memory");
    file.write_at(4096 * 5, pages(10)).await.unwrap();
    assert_eq!(time(file.sync_data()).await, ms(8 + 15), "the same page twice is one page");
    assert_eq!(time(file.sync_data()).await, ms(0), "nothing to do");
    assert_eq!(
        time(file.write_and_sync(100, vec![Bytes::from_static(b"x")])).await,
        ms(8 + 1),
        "whole pages"
    );
    assert_eq!(time(file.preallocate(1 << 20)).await, ms(0));
    assert_eq!(time(file.sync_data()).await, ms(8), "the length");
    assert_eq!(time(disk.create_dir_all("a/b")).await, ms(8));
    assert_eq!(disk.bytes_written(), 16 * 4096);
    assert_eq!(disk.busy(), ms(8 + 23 + 9 + 8 + 8));
}

#[tokio::test(start_paused = true)]
async fn reads_cost_a_positioning_unless_they_follow_one_another() {
    let disk = new(SLOW);
    let file = &files(&disk, 1).await[0];
    file.write_and_sync(0, pages(100)).await.unwrap();
    assert_eq!(time(file.read_at(0, 4096)).await, ms(8 + 1));
    assert_eq!(time(file.read_at(4096, 8192)).await, ms(2), "sequential");
    assert_eq!(time(file.read_at(0, 4096)).await, ms(8 + 1), "back");
    assert_eq!(time(file.read_at(1 << 30, 4096)).await, ms(0), "past the end");
}

#[tokio::test(start_paused = true)]
async fn operations_queue_and_reads_go_first() {
    let disk = new(SLOW);
    let files = files(&disk, 5).await;
    files[4].write_and_sync(0, pages(2)).await.unwrap();
    let start = Instant::now();
    let syncs = join_all(files[..4].iter().map(|file| {
        let sync = file.write_and_sync(0, pages(2));
        async move {
            sync.await.unwrap();
            start.elapsed()
        }
    }));
    let read = async {
        files[4].read_at(0, 8192).await.unwrap();
        start.elapsed()
    };
    let (syncs, read) = tokio::join!(syncs, read);
    assert_eq!(read, ms(20), "after the one that was under way");
    assert_eq!(syncs, [ms(10), ms(30), ms(40), ms(50)]);
}

#[tokio::test(start_paused = true)]
async fn several_position_at_the_same_time_and_share_the_bandwidth() {
    let disk = new(DeviceModel { parallel: 2, ..SLOW });
    let files = files(&disk, 3).await;
    let start = Instant::now();
    let syncs = files.iter().map(|file| {
        let sync = file.write_and_sync(0, pages(2));
        async move {
            sync.await.unwrap();
            start.elapsed()
        }
    });
    assert_eq!(join_all(syncs).await, [ms(10), ms(12), ms(20)]);
    assert_eq!(disk.busy(), ms(20), "while anything is under way");
}

#[tokio::test(start_paused = true)]
async fn the_device_works_whether_or_not_anybody_waits() {
    let disk = new(SLOW);
    let files = files(&disk, 3).await;
    files.iter().for_each(|file| drop(file.write_and_sync(0, pages(2))));
    tokio::time::sleep(ms(25)).await;
    assert_eq!(disk.busy(), ms(25));
    assert_eq!(time(files[0].read_at(0, 4096)).await, ms(5 + 9), "the last one was under way for 5 ms");
    tokio::time::sleep(ms(61)).await;
    assert_eq!(disk.busy(), ms(39));
}

#[tokio::test(start_paused = true)]
async fn the_two_devices() {
    let hdd = new(DeviceModel::HDD);
    let file = &files(&hdd, 1).await[0];
    file.write_and_sync(0, vec![Bytes::from(vec![1; 150 << 20])]).await.unwrap();
    let expected = DeviceModel::HDD.positioning.as_secs_f64() + f64::from(150 << 20) / 150e6;
    assert!((hdd.busy().as_secs_f64() - expected).abs() < 1e-6, "{:?}", hdd.busy());

    let ssd = new(DeviceModel::SSD.slowed_by(1000));
    let files = files(&ssd, 8).await;
    let all = time(join_all(files.iter().map(|file| file.write_and_sync(0, pages(1))))).await;
    // 80 µs and eight transfers of 4.096 µs, a thousand times as long; the last part of a millisecond is
    // waited for.
    assert_eq!((ssd.busy(), all), (Duration::from_micros(80_000 + 8 * 4096), ms(113)));
}

#[tokio::test(start_paused = true)]
async fn a_device_changes_nothing_but_the_time() {
    let run = |device, seed| async move {
        let disk = SimDisk::new(SimOptions { device, seed, ..SimOptions::default() });
        let files = files(&disk, 3).await;
        let mut random = Random::new(seed);
        for _ in 0..60 {
            let (file, offset) = (random.pick(&files), random.below(20_000));
            match random.below(4) {
                0 => file.sync_data().await.unwrap(),
                1 => file.write_and_sync(offset, pages(1)).await.unwrap(),
                2 => drop(file.read_at(offset, 4096).await.unwrap()),
                _ => file.write_at(offset, pages(2)).await.unwrap(),
            }
        }
        let found =
            disk.lose_power(disk::sim::Loss::Random(seed), SimOptions { seed, ..SimOptions::default() });
        let mut saw = format!("{:?} {:?}", disk.trace(), found.files());
        for (path, _) in found.files() {
            saw +=
                &format!("{:?}", found.open(&path, false).await.unwrap().read_at(0, 1 << 20).await.unwrap());
        }
        saw
    };
    for seed in 0..20 {
        assert!(run(None, seed).await == run(Some(DeviceModel::HDD), seed).await, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn lengths_without_contents_take_no_memory() {
    let keeping = Keeping::Lengths;
    let disk = SimDisk::new(SimOptions { device: Some(DeviceModel::HDD), keeping, ..SimOptions::default() });
    let chunk = Bytes::from(vec![1; 32 << 20]);
    const CHUNKS: u64 = 10_000; // 312.5 GiB
    let start = Instant::now();
    for file in 0..10 {
        let file = disk.open(&format!("f{file}"), true).await.unwrap();
        for n in 0..CHUNKS / 10 {
            file.write_and_sync(n * (32 << 20), vec![chunk.clone()]).await.unwrap();
        }
    }
    let expected = (8e-3 + f64::from(32 << 20) / 150e6) * CHUNKS as f64;
    let took = start.elapsed().as_secs_f64();
    assert!((expected..expected + CHUNKS as f64 / 1000.0).contains(&took), "{took} {expected}");
    assert_eq!(disk.bytes_written(), CHUNKS << 25);
    let space = disk.space().await.unwrap();
    assert_eq!(space.capacity_bytes - space.free_bytes, CHUNKS << 25);
    let file = disk.open("f3", false).await.unwrap();
    assert_eq!(file.len().await.unwrap(), (CHUNKS / 10) << 25);
    assert_eq!(file.read_at(5, 3).await.unwrap(), [0; 3][..]);
    let (hole, cut) = (file.punch_holes(vec![4096..8192, 8192..4096 + (1 << 20)]), file.set_len(1 << 30));
    try_join(hole, cut).await.unwrap();
    let found = disk.kill(SimOptions::default()).lose_power(disk::sim::Loss::Nothing, SimOptions::default());
    assert_eq!(found.files().len(), 10);
    assert_eq!(found.files()[3].1, 1 << 30);
}

#[tokio::test(start_paused = true)]
async fn small_files_keep_their_contents_also_where_large_ones_do_not() {
    let disk = SimDisk::new(SimOptions { keeping: Keeping::Lengths, ..SimOptions::default() });
    let small = disk.open("small", true).await.unwrap();
    small.write_and_sync(0, vec![Bytes::from_static(b"hard state")]).await.unwrap();
    assert_eq!(small.read_at(5, 100).await.unwrap(), b"state"[..]);
    let large = disk.open("large", true).await.unwrap();
    large.write_and_sync(0, vec![Bytes::from_static(b"record")]).await.unwrap();
    large.preallocate(1 << 20).await.unwrap();
    large.write_and_sync(6, vec![Bytes::from_static(b"another")]).await.unwrap();
    assert_eq!(large.read_at(0, 13).await.unwrap(), [0; 13][..]);
    disk.sync_dir("").await.unwrap();
    let found = disk.lose_power(disk::sim::Loss::AllUnsynced, SimOptions::default());
    let small = found.open("small", false).await.unwrap();
    assert_eq!(small.read_at(0, 100).await.unwrap(), b"hard state"[..]);
}
