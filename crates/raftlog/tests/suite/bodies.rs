use crate::support::*;
use raftlog::ReadError;
use types::{CRC_CHUNK_BYTES, LogIndex, Payload};

#[tokio::test]
async fn ranges_of_bodies_come_with_sums_the_next_hop_can_check() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let sizes = [0usize, 1, 1000, CRC_CHUNK_BYTES, CRC_CHUNK_BYTES + 1, 300_000];
    append(&log, sizes.iter().enumerate().map(|(n, bytes)| entry(1, n as u64, *bytes)).collect()).await;
    let metas = log.read_meta(LogIndex(0)..LogIndex(6), 10).await.unwrap();
    for from_disk in [false, true] {
        if from_disk {
            log.close().await;
        }
        for (n, meta) in metas.iter().enumerate() {
            let bytes = sizes[n] as u32;
            let body = entry(1, n as u64, sizes[n]).body;
            for start in [0, 1, 500, 65_535, 65_536, 65_537, 131_072, 299_999] {
                for end in [0, 1, 999, 65_536, 65_537, 131_073, bytes] {
                    if start > end || end > bytes {
                        continue;
                    }
                    let pieces = space.read_body("containers", meta.place, start..end).await.unwrap();
                    check(&pieces, &body, start as usize..end as usize);
                }
            }
        }
    }
}

#[tokio::test]
async fn what_memory_lets_go_of_is_read_from_the_disk() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, (0..3).map(|n| entry(1, n, 1000)).collect()).await;
    assert!(space.metrics().cached_bytes > 3000);
    log.release_cache();
    assert_eq!(space.metrics().cached_bytes, 0);
    for meta in log.read_meta(LogIndex(0)..LogIndex(3), 10).await.unwrap() {
        let pieces = space.read_body("containers", meta.place, 0..1000).await.unwrap();
        check(&pieces, &entry(1, meta.id.index.0, 1000).body, 0..1000);
    }
    append(&log, vec![entry(1, 3, 1000)]).await;
    assert!(space.metrics().cached_bytes > 1000, "what comes then is kept again");
    log.close().await;
}

fn check(pieces: &raftlog::BodyPieces, body: &Payload, range: std::ops::Range<usize>) {
    assert_eq!(pieces.bytes, body.bytes().slice(range.clone()), "{range:?}");
    let (mut at, mut crcs) = (range.start, Vec::new());
    while at < range.end {
        let end = (at / CRC_CHUNK_BYTES * CRC_CHUNK_BYTES + CRC_CHUNK_BYTES).min(range.end);
        crcs.push(crc32c::crc32c(&body.bytes()[at..end]));
        if at == range.start {
            assert_eq!(pieces.first_piece_bytes as usize, end - at);
        }
        at = end;
    }
    assert_eq!(pieces.crcs, crcs, "{range:?}");
}

#[tokio::test]
async fn only_the_pieces_of_the_range_are_checked() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, vec![entry(1, 0, 1 << 20)]).await;
    let place = log.read_meta(LogIndex(0)..LogIndex(1), 1).await.unwrap()[0].place;
    log.close().await;
    let path = machine.segment(1000, 0);
    let mut bytes = std::fs::read(&path).unwrap();
    let body_start = bytes.len() - (1 << 20);
    bytes[body_start / 8 * 8 + 500_000] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    space.read_body("containers", place, 0..400_000).await.unwrap();
    space.read_body("containers", place, 600_000..1_000_000).await.unwrap();
    let error = space.read_body("containers", place, 499_000..499_001).await.unwrap_err();
    assert!(matches!(&error, ReadError::Damaged { why, .. } if why.contains("checksum")), "{error}");
    let wrong = raftlog::Place { offset: 8, ..place };
    assert!(matches!(space.read_body("containers", wrong, 0..10).await, Err(ReadError::Damaged { .. })));
    let long = raftlog::Place { body_bytes: 1 << 21, ..place };
    assert!(matches!(space.read_body("containers", long, 0..10).await, Err(ReadError::Damaged { .. })));
    assert!(space.read_body("containers", place, 0..(1 << 20) + 1).await.is_err());
    let missing = raftlog::Place { segment: 9, ..place };
    assert!(matches!(space.read_body("containers", missing, 0..10).await, Err(ReadError::NotFound { .. })));
}

#[tokio::test]
async fn bodies_are_readable_by_place_before_they_are_durable() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let token = log.append(entries(1, 0..100, 50_000)).unwrap();
    let metas = log.read_meta(LogIndex(0)..LogIndex(100), 100).await.unwrap();
    for (n, meta) in metas.iter().enumerate() {
        let pieces = space.read_body("containers", meta.place, 100..40_000).await.unwrap();
        assert_eq!(pieces.bytes, entry(1, n as u64, 50_000).body.bytes().slice(100..40_000));
    }
    token.durable().await.unwrap();
}
