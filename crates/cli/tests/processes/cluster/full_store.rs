use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use crate::drills::assert_all_there;
use crate::small_disk::SmallDisk;
use std::time::{Duration, Instant};

/// The size of the one file system that the disks of all datanodes are on: three times two pipelines with
/// segments of 128 MiB, and what they recycle.
const DISK_BYTES: u64 = 2 << 30;
const RESERVE: &str = "--reserve-bytes 67108864";
/// The room that is left: half of the reserve, which is there for what cannot be refused.
const LEFT_BYTES: u64 = 32 << 20;
/// A write that does not hear that the store is full hears in so long that nobody takes it.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// Longer than a disk may be broken until SCM gives it up: a full one is no broken one.
const FULL_FOR: Duration = Duration::from_secs(10);

/// Writes that hear `StorageFull`, one after the other until `since` is so long ago. The longest that one of
/// them took.
async fn refused_until(drill: &Drill, since: Instant, full_for: Duration) -> Duration {
    let mut longest = Duration::ZERO;
    let mut first = true;
    while first || since.elapsed() < full_for {
        first = false;
        for (key, bytes) in [("small", 5000), ("large", 3 << 20)] {
            let begun = Instant::now();
            let refused = drill.s3.put(key, vec![7; bytes]).await.expect_err("there is no room");
            longest = longest.max(begun.elapsed());
            assert!(refused.starts_with("507") && refused.contains("<Code>StorageFull</Code>"), "{refused}");
        }
    }
    longest
}

/// All disks run full at once: writers hear so within seconds, and not only that nobody took it; all that was
/// acknowledged is read; and with room there are writes again.
pub(super) async fn run() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let setup =
        Setup { datanodes: 3, disks_at: Some(disk.root()), datanode_args: RESERVE, ..Setup::default() };
    let drill = Drill::start(setup).await;
    let written = drill.load().await.stop().await;
    assert_eq!(written.errors, Vec::<String>::new());

    disk.fill_but(LEFT_BYTES);
    let filled = Instant::now();
    // Datanodes look how much is free now and then, and what they have of it is written first.
    let mut taken = Vec::new();
    let refusal = async |taken: &mut Vec<String>| {
        let key = format!("taken-{}", taken.len());
        let answer = drill.s3.put(&key, vec![8; 5000]).await;
        if answer.is_ok() {
            taken.push(key);
        }
        answer.err()
    };
    let first = loop {
        if let Some(refused) = refusal(&mut taken).await {
            break refused;
        }
        assert!(filled.elapsed() < REPAIRED_WITHIN, "a full store takes writes");
    };
    assert!(first.starts_with("507"), "{first}");
    let noticed = filled.elapsed();
    let refused = refused_until(&drill, filled, FULL_FOR).await;
    assert!(refused < WRITE_DEADLINE, "it took {refused:?} to say so");
    assert_all_there(&drill.s3, &written.acknowledged).await;
    for key in &taken {
        assert_eq!(drill.s3.get(key).await.unwrap(), Some(vec![8; 5000]), "{key}");
    }
    for key in ["small", "large"] {
        assert_eq!(drill.s3.get(key).await.unwrap(), None, "{key} was refused");
    }

    disk.make_room();
    let room = Instant::now();
    let takes = async || drill.s3.put("small", vec![9; 5000]).await;
    drill.until("writes", REPAIRED_WITHIN, takes).await;
    let back = room.elapsed();
    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    assert_all_there(&drill.s3, &written.acknowledged).await;
    drop(drill);
    Some(Shown {
        objects: written.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("noticed_s", noticed.as_secs_f64()),
            ("refused_after_s", refused.as_secs_f64()),
            ("back_after_room_s", back.as_secs_f64()),
        ],
    })
}
