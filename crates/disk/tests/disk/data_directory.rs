use super::real_io;
use bytes::Bytes;
use disk::{Disk, OpenDiskError, RealDisk};
use std::error::Error as _;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

#[tokio::test]
async fn a_new_directory_is_stamped_and_keeps_its_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("not/there/yet");
    assert_eq!(RealDisk::peek(&root).unwrap(), None);
    let disk = RealDisk::open(&root, 42).unwrap();
    let stamp = disk.stamp();
    assert_eq!((stamp.node_uuid, stamp.cluster.as_str(), stamp.node), (42, "", 0));
    disk.join_cluster("blue", 0).unwrap();
    disk.join_cluster("blue", 7).unwrap();
    disk.join_cluster("blue", 7).unwrap();
    disk.join_cluster("blue", 0).unwrap();
    drop(disk);
    let found = RealDisk::peek(&root).unwrap().unwrap();
    assert_eq!(
        (found.disk, found.node_uuid, found.cluster.as_str(), found.node),
        (stamp.disk, 42, "blue", 7)
    );
    let disk = RealDisk::open(&root, 99).unwrap();
    assert_eq!(disk.stamp(), found, "the uuid of whoever formatted it stays");
    for (cluster, node) in [("green", 7), ("blue", 8)] {
        let error = disk.join_cluster(cluster, node).unwrap_err();
        assert!(matches!(error, OpenDiskError::OtherOwner { .. }), "{error}");
    }
    for cluster in ["", "two\nlines"] {
        assert!(matches!(disk.join_cluster(cluster, 7), Err(OpenDiskError::BadStamp { .. })));
    }
    assert_eq!(disk.stamp(), found);
}

#[tokio::test]
async fn a_directory_is_used_by_one_until_its_last_file_is_closed() {
    for io in real_io() {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open_with(dir.path(), 1, io).unwrap();
        assert_eq!(disk.io(), io);
        let file = disk.open("a", true).await.unwrap();
        assert!(matches!(RealDisk::open(dir.path(), 1), Err(OpenDiskError::InUse { .. })));
        drop(disk);
        let again = RealDisk::open_once_free(dir.path(), 1, Duration::from_millis(20)).await;
        assert!(matches!(again, Err(OpenDiskError::InUse { .. })));
        // What is under way when the last handle goes is finished before the lock is free.
        let bytes = Bytes::from(vec![7; 1 << 20]);
        (0..100).for_each(|n| drop(file.write_and_sync(n << 20, vec![bytes.clone()])));
        drop(file);
        let disk = RealDisk::open_with(dir.path(), 1, io).unwrap();
        assert_eq!(disk.open("a", false).await.unwrap().len().await.unwrap(), 100 << 20);
    }
}

#[test]
fn what_is_no_data_directory_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
    let error = RealDisk::open(dir.path(), 1).err().unwrap();
    assert!(matches!(error, OpenDiskError::NotEmpty { .. }), "{error}");
    assert!(!dir.path().join("VERSION").exists());

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("VERSION"), "flotilla data directory\nformat 9\n").unwrap();
    let error = RealDisk::open(dir.path(), 1).err().unwrap();
    assert!(matches!(error, OpenDiskError::NewerFormat { found: 9, known: 1, .. }), "{error}");
    fs::write(dir.path().join("VERSION"), "").unwrap();
    assert!(matches!(RealDisk::open(dir.path(), 1), Err(OpenDiskError::BadStamp { .. })));
}

#[test]
fn a_crash_while_formatting_leaves_a_directory_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("LOCK"), "").unwrap();
    fs::write(dir.path().join("VERSION.tmp"), "flotilla da").unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    RealDisk::open(dir.path(), 1).unwrap();
    assert!(RealDisk::peek(dir.path()).unwrap().is_some());
}

#[tokio::test]
async fn a_tool_looks_at_a_file_in_use_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path(), 1).unwrap();
    let written = disk.open("a", true).await.unwrap();
    written.write_and_sync(0, vec![Bytes::from_static(b"record")]).await.unwrap();

    let file = disk::open_read_only(&dir.path().join("a")).unwrap();
    assert_eq!(file.read_at(2, 100).await.unwrap(), b"cord"[..]);
    assert_eq!(file.len().await.unwrap(), 6);
    for change in [
        file.write_at(0, vec![Bytes::from_static(b"x")]),
        file.write_and_sync(0, vec![Bytes::from_static(b"x")]),
        file.sync_data(),
        file.preallocate(100),
        file.set_len(0),
        file.punch_holes(vec![0..2, 2..6]),
    ] {
        assert_eq!(change.await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"record");
    let kind = |path| disk::open_read_only(&dir.path().join(path)).err().map(|error| error.kind());
    assert_eq!((kind(""), kind("b")), (Some(ErrorKind::IsADirectory), Some(ErrorKind::NotFound)));
    assert!(!dir.path().join("b").exists());
}

#[test]
fn a_tool_looks_at_regular_files_only() {
    for device in ["/dev/zero", "/dev/null"] {
        let error = disk::open_read_only(Path::new(device)).err().unwrap();
        assert_eq!(error.to_string(), "is no regular file");
    }
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Opening it would wait for whoever writes.
    let (sender, opened) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(disk::open_read_only(&fifo).err().unwrap().to_string()));
    assert_eq!(opened.recv_timeout(Duration::from_secs(30)).unwrap(), "is no regular file");
}

#[test]
fn an_error_says_the_systems_words_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let error = RealDisk::open(&dir.path().join("file/d"), 1).err().unwrap();
    assert!(matches!(error, OpenDiskError::Io { .. }), "{error}");
    assert!(error.to_string().contains("File exists"), "{error}");
    assert!(error.source().is_none(), "printed with its sources it would repeat itself");
}
