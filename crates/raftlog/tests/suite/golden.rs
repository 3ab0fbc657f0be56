//! Version 1 of the segment format, byte by byte: golden/segment-v1.seg was written by the first version and
//! is explained in docs/format/segment.md. It never changes.

use crate::support::*;
use bytes::Bytes;
use raftlog::Entry;
use types::{OwnerId, Payload};

const GOLDEN: &[u8] = include_bytes!("../golden/segment-v1.seg");

fn golden_entries() -> Vec<Entry> {
    let text = |text: &'static str| Payload::checksummed(Bytes::from_static(text.as_bytes()));
    vec![
        Entry { id: id(1, 0), kind: 1, meta: Bytes::new(), body: Payload::default(), roll_to: None },
        Entry { id: id(1, 1), kind: 2, meta: "meta".into(), body: text("a body"), roll_to: None },
        Entry {
            id: id(2, 2),
            kind: 255,
            meta: "two pieces".into(),
            body: entry(2, 2, 65_600).body,
            roll_to: None,
        },
        Entry {
            id: id(3, 3),
            kind: 0,
            meta: "roll".into(),
            body: Payload::default(),
            roll_to: Some(OwnerId(2000)),
        },
    ]
}

#[tokio::test]
async fn version_1_is_still_written() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, golden_entries()).await;
    log.close().await;
    let written = std::fs::read(machine.segment(1000, 0)).unwrap();
    assert!(written == GOLDEN, "the format has changed: that is a new version, see docs/format/segment.md");
}

#[tokio::test]
async fn version_1_is_still_read() {
    let machine = Machine::new();
    let space = machine.start();
    space.open(spec(1)).await.unwrap().close().await;
    std::fs::create_dir_all(machine.segment(1000, 0).parent().unwrap()).unwrap();
    std::fs::write(machine.segment(1000, 0), GOLDEN).unwrap();
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await, golden_entries());
    assert_eq!(log.state().owner, OwnerId(2000));
}
