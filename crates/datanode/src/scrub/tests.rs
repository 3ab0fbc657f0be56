use super::*;
use crate::compaction::tests as compaction;
use crate::index::keys;
use crate::index::records::{BlockRecord, ChunkPlace};
use crate::inventory::Inventory;
use crate::offline::tests::{FIRST, Left, SEGMENT, SMALL_BLOCKS};
use crate::options::DatanodeOptions;
use disk::RealDisk;
use diskhooks::{Act, HookedDisk, Operation};
use raftlog::ReadError;
use std::io;
use std::sync::atomic::AtomicI32;
use types::{ManualClock, Nonce, OwnerId};

const EIO: i32 = 5;
const EMFILE: i32 = 24;

const SECOND_SEGMENT: &str = "containers/0000000000000064/00000001.seg";

/// A disk that does not open segments while there is an error to answer with.
fn refusing(disk: Arc<RealDisk>, errno: Arc<AtomicI32>) -> HookedDisk {
    HookedDisk::new(disk, move |call| {
        let is_segment = matches!(call.operation, Operation::Open { .. }) && call.path.ends_with(".seg");
        match errno.load(Ordering::SeqCst) {
            errno if errno != 0 && is_segment => Act::Fail(io::Error::from_raw_os_error(errno)),
            _ => Act::Pass,
        }
    })
}

async fn opened(left: &Left, bytes_per_second: u64) -> Scrubber {
    opened_refusing(left, bytes_per_second, &Arc::default()).await
}

async fn opened_refusing(left: &Left, bytes_per_second: u64, errno: &Arc<AtomicI32>) -> Scrubber {
    let real = Arc::new(RealDisk::open(&left.root(), 1).unwrap());
    let refusing = Arc::new(refusing(real.clone(), errno.clone()));
    let options = DatanodeOptions::default();
    let disk = DatanodeDisk::open_over(real, refusing, &options, Inventory::default()).await.unwrap();
    let options = ScrubOptions { bytes_per_second, interval: Duration::ZERO };
    let clock = Arc::new(ManualClock::at_ms(5000));
    Scrubber::new(Arc::new(disk), options, clock)
}

#[tokio::test]
async fn a_whole_disk_is_read_to_its_end_and_so_it_is_said() {
    let left = Left::new().await;
    let mut scrubber = opened(&left, 1 << 30).await;
    scrubber.pass().await.unwrap();
    scrubber.pass().await.unwrap();
    let stats = scrubber.disk.counters.stats(scrubber.disk.id);
    assert_eq!((stats.scrub_passes, stats.scrub_findings, stats.scrub_last_pass_ms), (2, 0, 5000));
    assert!(stats.scrubbed_bytes > 2 * 600_000, "{stats:?}");
    assert_eq!(scrubber.disk.index.scrub_position().unwrap().unwrap().last_pass_ms, 5000);
}

#[tokio::test]
async fn a_flipped_byte_is_found_and_remembered() {
    let left = Left::new().await;
    left.flip(SECOND_SEGMENT, 100_000);
    let mut scrubber = opened(&left, 1 << 30).await;
    scrubber.pass().await.unwrap();
    let found = scrubber.disk.index.unhealthy(FIRST).unwrap().unwrap();
    assert!(found.contains(SECOND_SEGMENT) && found.contains("mismatch"), "{found}");
    scrubber.pass().await.unwrap();
    let stats = scrubber.disk.counters.stats(scrubber.disk.id);
    assert_eq!((stats.scrub_findings, stats.marked_unhealthy), (1, 1), "what is known is not found again");
    drop(scrubber);
    let after = opened(&left, 1 << 30).await;
    assert_eq!(after.disk.index.unhealthy(FIRST).unwrap().unwrap(), found);
    assert!(!after.disk.mark_unhealthy(FIRST, "again".to_owned()).await);
}

/// A process that has no file left for a while must not condemn each replica that it looks at meanwhile.
#[tokio::test(start_paused = true)]
async fn only_an_error_of_the_medium_condemns_a_replica() {
    let left = Left::new().await;
    let errno = Arc::new(AtomicI32::new(EMFILE));
    let mut scrubber = opened_refusing(&left, 1 << 30, &errno).await;
    scrubber.pass().await.unwrap();
    let stats = |scrubber: &Scrubber| {
        let stats = scrubber.disk.counters.stats(scrubber.disk.id);
        (stats.scrub_findings, u32::try_from(stats.scrub_unread).unwrap(), stats.scrub_passes)
    };
    assert_eq!(stats(&scrubber), (0, TRIES_MAX, 1), "it is tried again, and then with the next pass");
    assert_eq!(scrubber.disk.index.unhealthy(FIRST).unwrap(), None);
    errno.store(0, Ordering::SeqCst);
    scrubber.pass().await.unwrap();
    assert_eq!(stats(&scrubber), (0, TRIES_MAX, 2), "it is whole");
    errno.store(EIO, Ordering::SeqCst);
    scrubber.pass().await.unwrap();
    assert_eq!(stats(&scrubber), (1, TRIES_MAX, 3));
    let found = scrubber.disk.index.unhealthy(FIRST).unwrap().unwrap();
    assert!(found.contains("os error 5"), "{found}");
}

#[tokio::test]
async fn it_goes_on_where_it_was() {
    let left = Left::new().await;
    left.flip(SEGMENT, 100_000);
    let mut scrubber = opened(&left, 1 << 30).await;
    let position = ScrubPosition { container: FIRST, segment: 1, began_ms: 1, last_pass_ms: 0 };
    scrubber.disk.index.save_scrub_position(position).unwrap();
    drop(scrubber);
    scrubber = opened(&left, 1 << 30).await;
    scrubber.pass().await.unwrap();
    assert_eq!(scrubber.disk.index.unhealthy(FIRST).unwrap(), None, "the first segment was done before");
    scrubber.pass().await.unwrap();
    assert!(scrubber.disk.index.unhealthy(FIRST).unwrap().is_some());
}

#[tokio::test]
async fn rows_that_are_wrong_or_missing_are_found() {
    let block = BlockId { container: FIRST, local: 3 };
    let check = async |says: &str, change: &dyn Fn(&mut rocksdb::WriteBatch)| {
        let left = Left::new().await;
        left.change(change);
        let mut scrubber = opened(&left, 1 << 30).await;
        scrubber.pass().await.unwrap();
        let found = scrubber.disk.index.unhealthy(FIRST).unwrap().unwrap_or_default();
        assert!(found.contains(says), "`{says}` is not in `{found}`");
    };
    check("block 100/3 has 1 of 2 chunks", &|batch| batch.delete(keys::chunk(block, 300_000))).await;
    check("blocks: 1", &|batch| batch.delete(keys::block(BlockId { container: FIRST, local: 2 }))).await;
    // The place of another record.
    check("body length is 0, expected 300000", &|batch| {
        let first = ChunkPlace { segment: 0, offset: 0, body_bytes: 300_000 };
        let record = BlockRecord { sealed: true, chunks: 2, length: 500_000, first, nonce: Nonce(3) };
        batch.put(keys::block(block), record.encode());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn it_reads_no_faster_than_it_is_told() {
    let left = Left::new().await;
    let mut scrubber = opened(&left, 100_000).await;
    let start = Instant::now();
    scrubber.pass().await.unwrap();
    let bytes = scrubber.disk.counters.stats(scrubber.disk.id).scrubbed_bytes;
    // The last read may begin at once when the one before it is paid for.
    let at_least = Duration::from_millis((bytes - 120_000) / 100);
    assert!(start.elapsed() >= at_least, "{bytes} bytes in {:?}", start.elapsed());
}

/// Deletions that a crash interrupted after each of their steps.
#[tokio::test]
async fn deletions_that_were_begun_are_finished() {
    let block = BlockId { container: FIRST, local: 3 };
    for rows_are_gone in [false, true] {
        let left = Left::new().await;
        let mut scrubber = opened(&left, 1 << 30).await;
        let (disk, owner) = (scrubber.disk.clone(), OwnerId::from(FIRST));
        let places = disk.index.places(block).unwrap();
        let discard = |place| raftlog::Discard { tag: block.local, name: 2, place };
        let records: Vec<_> = places.iter().copied().map(discard).collect();
        disk.space.remember_discards(OWNERS_DIR, owner, &records).await.unwrap();
        if rows_are_gone {
            assert_eq!(disk.index.forget_blocks(FIRST, [block.local], 0).unwrap(), 1);
        }
        let read = async || disk.space.read_body(OWNERS_DIR, places[0], 0..300_000).await;
        assert!(read().await.is_ok(), "no hole yet");
        scrubber.pass().await.unwrap();
        assert_eq!(disk.index.block_record(block).unwrap(), None);
        assert!(matches!(read().await, Err(ReadError::Damaged { .. })), "a hole");
        assert_eq!(disk.index.unhealthy(FIRST).unwrap(), None);
        let rest = disk.index.container(FIRST).unwrap().unwrap();
        assert_eq!((rest.blocks, rest.payload_bytes), (1, 10));
        // Once more changes nothing.
        scrubber.pass().await.unwrap();
        assert_eq!(disk.index.unhealthy(FIRST).unwrap(), None);
        drop((disk, scrubber));
        left.check(&[]).await;
    }
}

/// It held the scrubber up for minutes, as something that it could not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_has_lost_its_end_is_a_finding_like_any_other() {
    let left = Left::of_small_blocks().await;
    let disk = compaction::open(&left).await;
    compaction::delete(&disk, 10..40).await;
    drop(disk);
    left.flip(&format!("containers/{:016x}/discarded", FIRST.0), 100);
    let disk = compaction::open(&left).await;
    let options = ScrubOptions { bytes_per_second: 1 << 30, interval: Duration::ZERO };
    let mut scrubber = Scrubber::new(disk.clone(), options, Arc::new(ManualClock::at_ms(5000)));
    scrubber.pass().await.unwrap();
    assert!(disk.index.unhealthy(FIRST).unwrap().is_some());
    assert_eq!(disk.counters.stats(disk.id).scrub_findings, 1);
}

/// A scrub takes its time between its looks at a block.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_one_compaction_after_the_other_moves_is_followed() {
    let left = Left::of_small_blocks().await;
    let disk = compaction::open(&left).await;
    let (deleted, stays) = ([SMALL_BLOCKS.start, SMALL_BLOCKS.start + 1], SMALL_BLOCKS.start + 2);
    let rows = read_rows(&disk.index, FIRST, stays).unwrap();
    let row = rows.into_iter().find(|row| row.block.local == stays).unwrap();
    let compact_without = async |local| {
        compaction::delete(&disk, [local]).await;
        compaction::compacted(&disk).await.unwrap().unwrap();
    };
    compact_without(deleted[0]).await;
    let options = ScrubOptions { bytes_per_second: HEAD_READ_BYTES / 2, interval: Duration::ZERO };
    let mut scrubber = Scrubber::new(disk.clone(), options, Arc::new(ManualClock::at_ms(5000)));
    let (scrubbed, ()) = tokio::join!(scrubber.scrub_row(row), compact_without(deleted[1]));
    scrubbed.unwrap();
    // Three times, unless the compaction took longer than the scrub's pause.
    let looks = disk.counters.stats(disk.id).scrubbed_bytes / HEAD_READ_BYTES;
    assert!((2..=3).contains(&looks), "it looked {looks} times");
}
