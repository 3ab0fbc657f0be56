//! One suite for every implementation: each test makes a disk and gives it to a check.

use bytes::Bytes;
use disk::{Disk, RealDisk};
use std::io::ErrorKind;
use std::sync::Arc;

/// Runs a check on each implementation.
async fn on_each<F: Future<Output = ()>>(check: impl Fn(Arc<dyn Disk>) -> F) {
    let dir = tempfile::tempdir().unwrap();
    check(Arc::new(RealDisk::open(dir.path(), 1).unwrap())).await;
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
        file.punch_hole(1000, 2000).await.unwrap();
        let mut expected = pattern(10_000, 1).to_vec();
        expected[1000..3000].fill(0);
        assert_eq!(file.read_at(0, 10_000).await.unwrap(), expected);
        file.punch_hole(1 << 19, 1 << 40).await.unwrap();
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
async fn space_left_is_less_than_all() {
    on_each(|disk| async move {
        let space = disk.space().await.unwrap();
        assert!(0 < space.free_bytes && space.free_bytes <= space.capacity_bytes, "{space:?}");
    })
    .await;
}
