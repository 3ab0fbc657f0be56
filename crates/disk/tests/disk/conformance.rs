//! One suite for every implementation: each test makes a disk and gives it to a check.

use super::real_io;
use bytes::Bytes;
use disk::sim::{Random, SimDisk, SimOptions};
use disk::{Disk, File, RealDisk};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Runs a check on each implementation.
async fn on_each<F: Future<Output = ()>>(check: impl Fn(Arc<dyn Disk>) -> F) {
    for io in real_io() {
        let dir = tempfile::tempdir().unwrap();
        check(Arc::new(RealDisk::open_with(dir.path(), 1, io).unwrap())).await;
    }
    check(Arc::new(SimDisk::new(SimOptions::default()))).await;
}

fn pattern(bytes: usize, seed: u8) -> Bytes {
    (0..bytes).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[tokio::test]
async fn buffers_are_written_one_after_another() {
    on_each(|disk| async move {
        let file = disk.open("a", true).await.unwrap();
        // More than one system call takes, empty ones among them.
        let buffers: Vec<_> = (0..3000).map(|n| pattern(n % 50, n as u8)).collect();
        let whole = Bytes::from(buffers.concat());
        file.write_at(1000, buffers.clone()).await.unwrap();
        file.write_and_sync(200_000, buffers).await.unwrap();
        assert_eq!(file.read_at(1000, whole.len()).await.unwrap(), whole);
        assert_eq!(
            file.read_at(200_000, 1 << 20).await.unwrap(),
            whole,
            "fewer bytes at the end of the file"
        );
        assert_eq!(file.read_at(0, 1000).await.unwrap(), vec![0; 1000]);
        assert_eq!(file.len().await.unwrap(), 200_000 + whole.len() as u64);
        assert!(file.read_at(1 << 30, 10).await.unwrap().is_empty());
        file.write_at(0, vec![]).await.unwrap();
        file.settle().await.unwrap();
        assert_eq!(file.read_at(1000, whole.len()).await.unwrap(), whole);
    })
    .await;
}

/// A log's way of writing: ranges that begin where the last one ended, some of them again; and read
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_small_writes_in_odd_places_leave_what_was_written() {
    const SEED: u64 = 7;
    const FILE_BYTES: usize = 16 << 20;
    on_each(|disk| async move {
        println!("seed {SEED}");
        let mut random = Random::new(SEED);
        let file = disk.open("a", true).await.unwrap();
        file.preallocate(FILE_BYTES as u64).await.unwrap();
        let mut expected = vec![0; FILE_BYTES];
        let mut end = 0;
        for n in 0.. {
            let back = if random.below(4) == 0 { random.below(100_000) as usize } else { 0 };
            let at = usize::saturating_sub(end, back);
            let limit = [10, 5000, 70_000, 700_000][random.below(4) as usize];
            let buffers: Vec<Bytes> =
                (0..1 + random.below(5)).map(|_| pattern(random.below(limit) as usize, n as u8)).collect();
            let written = buffers.concat();
            if at + written.len() > FILE_BYTES {
                break;
            }
            let (reader, known) = (file.clone(), Bytes::copy_from_slice(&expected[..at]));
            let reading = tokio::spawn(async move {
                assert!(reader.read_at(0, known.len()).await.unwrap() == known, "write {n} changed others");
            });
            match n % 2 {
                0 => file.write_at(at as u64, buffers).await.unwrap(),
                _ => file.write_and_sync(at as u64, buffers).await.unwrap(),
            }
            expected[at..at + written.len()].copy_from_slice(&written);
            reading.await.unwrap();
            let around = at.saturating_sub(10_000)..(at + written.len() + 10_000).min(FILE_BYTES);
            let found = file.read_at(around.start as u64, around.len()).await.unwrap();
            assert!(found == expected[around], "write {n}");
            end = end.max(at + written.len());
        }
        assert!(file.read_at(0, FILE_BYTES + 1).await.unwrap() == expected);
        assert_eq!(disk.failure(), None);
    })
    .await;
}

#[tokio::test]
async fn two_handles_see_one_file() {
    on_each(|disk| async move {
        let (one, two) = (disk.open("a", true).await.unwrap(), disk.open("a", false).await.unwrap());
        one.write_at(0, vec![pattern(10, 1)]).await.unwrap();
        assert_eq!(two.read_at(0, 10).await.unwrap(), pattern(10, 1));
    })
    .await;
}

#[tokio::test]
async fn space_is_allocated_cut_and_given_back_as_zeros() {
    on_each(|disk| async move {
        let file = disk.open("a", true).await.unwrap();
        file.write_at(0, vec![pattern(10_000, 1)]).await.unwrap();
        file.preallocate(1 << 20).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 1 << 20);
        assert_eq!(file.read_at(0, 10_000).await.unwrap(), pattern(10_000, 1));
        assert!(file.read_at(10_000, 1 << 20).await.unwrap().iter().all(|byte| *byte == 0));
        file.preallocate(10).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 1 << 20, "never shortens");
        file.punch_holes(vec![1000..3000, 5000..5000]).await.unwrap();
        let mut expected = pattern(10_000, 1).to_vec();
        expected[1000..3000].fill(0);
        assert_eq!(file.read_at(0, 10_000).await.unwrap(), expected);
        file.punch_holes(vec![1 << 19..1 << 20, 1 << 20..1 << 40]).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 1 << 20, "a hole does not change the length");
        // What was cut off does not come back when the file grows again.
        file.set_len(5001).await.unwrap();
        file.set_len(10_000).await.unwrap();
        expected[5001..].fill(0);
        assert_eq!(file.read_at(0, 20_000).await.unwrap(), expected);
        file.sync_data().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn directories_files_and_renames() {
    on_each(|disk| async move {
        assert_eq!(disk.open("d/a", true).await.err().unwrap().kind(), ErrorKind::NotFound);
        disk.create_dir_all("d/e").await.unwrap();
        disk.create_dir_all("d/e").await.unwrap();
        assert_eq!(disk.open("d/a", false).await.err().unwrap().kind(), ErrorKind::NotFound);
        let file = disk.open("d/a", true).await.unwrap();
        file.write_at(0, vec![pattern(5, 1)]).await.unwrap();
        disk.open("d/b", true).await.unwrap();
        disk.rename("d/a", "d/b").await.unwrap();
        disk.sync_dir("d").await.unwrap();
        let mut names = disk.list("d").await.unwrap();
        names.sort();
        assert_eq!(names, ["b", "e"]);
        assert_eq!(disk.open("d/b", false).await.unwrap().read_at(0, 9).await.unwrap(), pattern(5, 1));
        disk.remove_file("d/b").await.unwrap();
        assert_eq!(disk.remove_file("d/b").await.unwrap_err().kind(), ErrorKind::NotFound);
        // An open file outlives its name.
        assert_eq!(file.read_at(0, 9).await.unwrap(), pattern(5, 1));
        disk.open("d/e/f", true).await.unwrap();
        disk.remove_dir_all("d").await.unwrap();
        disk.remove_dir_all("d").await.unwrap();
        assert!(disk.list("d").await.unwrap().is_empty());
        assert_eq!(disk.sync_dir("d").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(disk.failure(), None, "none of this is the disk's fault");
    })
    .await;
}

#[tokio::test]
async fn paths_outside_are_refused() {
    on_each(|disk| async move {
        for path in ["../x", "/x", "a/../../x", "a//b"] {
            assert_eq!(disk.open(path, true).await.err().unwrap().kind(), ErrorKind::InvalidInput, "{path}");
            assert_eq!(disk.create_dir_all(path).await.unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(disk.rename("a", path).await.unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(disk.remove_dir_all(path).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(disk.remove_dir_all("").await.unwrap_err().kind(), ErrorKind::InvalidInput);
    })
    .await;
}

#[tokio::test]
async fn operations_on_disjoint_ranges_run_at_the_same_time() {
    on_each(|disk| async move {
        let file = disk.open("a", true).await.unwrap();
        let writes: Vec<_> =
            (0..200).map(|n| file.write_and_sync(n * 1000, vec![pattern(1000, n as u8)])).collect();
        for write in writes {
            write.await.unwrap();
        }
        for n in 0..200 {
            assert_eq!(file.read_at(n * 1000, 1000).await.unwrap(), pattern(1000, n as u8));
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_file_takes_is_free_no_more() {
    const FILE_BYTES: u64 = 64 << 20;
    const ATTEMPTS: u32 = 20;
    on_each(|disk| async move {
        // Others write to the same file system, and free what they wrote.
        for attempt in 1.. {
            let before = disk.space().await.unwrap();
            let file = disk.open("a", true).await.unwrap();
            file.preallocate(FILE_BYTES).await.unwrap();
            let with_file = disk.space().await.unwrap();
            drop(file);
            disk.remove_file("a").await.unwrap();
            assert_eq!(with_file.capacity_bytes, before.capacity_bytes);
            let taken = before.free_bytes.saturating_sub(with_file.free_bytes);
            if (FILE_BYTES / 4 * 3..FILE_BYTES / 4 * 5).contains(&taken) {
                return;
            }
            assert!(attempt < ATTEMPTS, "{before:?}, and with a file of {FILE_BYTES} bytes {with_file:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_wrong_kind_of_thing_is_refused() {
    on_each(|disk| async move {
        disk.create_dir_all("d/e").await.unwrap();
        disk.open("d/f", true).await.unwrap();
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(disk.open("d/e", true).await.map(drop)), ErrorKind::IsADirectory);
        assert_eq!(kind(disk.open("d/f/g", true).await.map(drop)), ErrorKind::NotADirectory);
        assert_eq!(kind(disk.list("d/f").await.map(drop)), ErrorKind::NotADirectory);
        assert_eq!(kind(disk.create_dir_all("d/f").await), ErrorKind::AlreadyExists);
        assert_eq!(kind(disk.create_dir_all("d/f/g").await), ErrorKind::NotADirectory);
        assert_eq!(kind(disk.remove_file("d/e").await), ErrorKind::IsADirectory);
        assert_eq!(kind(disk.rename("d/nothing", "d/g").await), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename("d/f", "x/g").await), ErrorKind::NotFound);
        assert_eq!(kind(disk.rename("d/f", "d/e").await), ErrorKind::IsADirectory);
        assert_eq!(kind(disk.rename("d/f", "d").await), ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind(disk.rename("d/f", "").await), ErrorKind::DirectoryNotEmpty);
        assert_eq!(kind(disk.rename("d/nothing", "d").await), ErrorKind::NotFound);
        assert_eq!(disk.failure(), None, "none of this is the disk's fault");
    })
    .await;
}

/// Random operations on a few names, carried out on two disks; whatever can be seen must be the same.
#[tokio::test]
async fn the_simulated_disk_answers_like_the_real_one() {
    for (seed, io) in (0..24).flat_map(|seed| real_io().into_iter().map(move |io| (seed, io))) {
        let dir = tempfile::tempdir().unwrap();
        let real = RealDisk::open_with(dir.path(), 1, io).unwrap();
        let sim = SimDisk::new(SimOptions { seed, ..SimOptions::default() });
        real.create_dir_all("d").await.unwrap();
        sim.create_dir_all("d").await.unwrap();
        let mut open = Vec::new();
        let mut random = Random::new(seed);
        for step in 0..150 {
            let (real_saw, sim_saw) = random_operation(&mut random, &real, &sim, &mut open).await;
            assert_eq!(real_saw, sim_saw, "seed {seed}, {io}, step {step}: {:?}", sim.trace().last());
        }
    }
}

type Pair = (Arc<dyn File>, Arc<dyn File>);

async fn random_operation(
    random: &mut Random,
    real: &dyn Disk,
    sim: &dyn Disk,
    open: &mut Vec<Pair>,
) -> (String, String) {
    const NAMES: [&str; 8] = ["d/a", "d/b", "d/e", "d/e/a", "d/e/b", "d/a/x", "f", "d"];
    let (path, other) = (*random.pick(&NAMES), *random.pick(&NAMES));
    let (offset, bytes) = (random.below(20_000), random.below(9_000));
    let choice = random.below(16);
    if choice < 7 && !open.is_empty() {
        let (real, sim) = &open[random.below(open.len() as u64) as usize];
        let data = pattern(bytes as usize, offset as u8);
        return (
            file_operation(&**real, choice, offset, data.clone()).await,
            file_operation(&**sim, choice, offset, data).await,
        );
    }
    match choice {
        0..=9 => {
            let create = random.one_in(2);
            let opened = (real.open(path, create).await, sim.open(path, create).await);
            let saw = (seen(&opened.0.as_ref().map(drop)), seen(&opened.1.as_ref().map(drop)));
            if let (Ok(real), Ok(sim)) = opened {
                open.push((real, sim));
            }
            saw
        }
        10 => (seen(&real.create_dir_all(path).await), seen(&sim.create_dir_all(path).await)),
        11 => (seen(&real.remove_file(path).await), seen(&sim.remove_file(path).await)),
        12 if path != "d" => (seen(&real.remove_dir_all(path).await), seen(&sim.remove_dir_all(path).await)),
        13 if path != "d" => (seen(&real.rename(path, other).await), seen(&sim.rename(path, other).await)),
        _ => (names(real, path).await, names(sim, path).await),
    }
}

async fn file_operation(file: &dyn File, choice: u64, offset: u64, data: Bytes) -> String {
    let bytes = data.len() as u64;
    let result = match choice {
        0 => file.write_at(offset, vec![data.slice(..data.len() / 2), data.slice(data.len() / 2..)]).await,
        1 => file.write_and_sync(offset, vec![data]).await,
        2 => file.set_len(offset).await,
        3 => file.preallocate(offset).await,
        4 => file.punch_holes(vec![offset..offset + bytes, 0..0]).await,
        5 => file.sync_data().await,
        _ => Ok(()),
    };
    let contents = file.read_at(0, 1 << 20).await.unwrap();
    format!("{} {} {}", seen(&result), file.len().await.unwrap(), digest(&contents))
}

fn digest(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7, |sum: u32, byte| sum.wrapping_mul(0x0100_0193) ^ u32::from(*byte))
}

async fn names(disk: &dyn Disk, path: &str) -> String {
    match disk.list(path).await {
        Ok(mut names) => {
            names.sort();
            format!("{names:?}")
        }
        Err(error) => seen(&Err::<(), _>(error)),
    }
}

fn seen<T, E: std::borrow::Borrow<io::Error>>(result: &Result<T, E>) -> String {
    result.as_ref().map_or_else(|error| format!("{:?}", error.borrow().kind()), |_| "ok".to_owned())
}
