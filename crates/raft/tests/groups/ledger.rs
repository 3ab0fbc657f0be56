use bytes::Bytes;
use flotilla_raft::{Applied, Committed, Db, DbOptions, StateMachine};
use std::path::Path;
use std::sync::Arc;

/// A state machine that remembers every command, and a digest of all of them in order.
pub(crate) struct Ledger {
    db: Arc<Db>,
}

const APPLIED: &[u8] = b"applied";
const DIGEST: &[u8] = b"digest";
const COUNT: &[u8] = b"count";

impl Ledger {
    pub(crate) fn open(path: &Path) -> Ledger {
        Ledger { db: Arc::new(Db::open(path, &DbOptions::default()).expect("open the ledger's database")) }
    }

    pub(crate) fn view(&self) -> LedgerView {
        LedgerView { db: Arc::downgrade(&self.db) }
    }
}

/// What a test sees of a ledger, without keeping its database open.
#[derive(Clone)]
pub(crate) struct LedgerView {
    db: std::sync::Weak<Db>,
}

impl LedgerView {
    fn read(&self, key: &[u8]) -> u64 {
        read_u64(&self.db.upgrade().expect("the ledger is open"), key)
    }

    pub(crate) fn count(&self) -> u64 {
        self.read(COUNT)
    }

    pub(crate) fn digest(&self) -> u64 {
        self.read(DIGEST)
    }
}

fn read_u64(db: &Db, key: &[u8]) -> u64 {
    let value = db.rocks().get(key).expect("read the ledger");
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().expect("eight bytes")))
}

/// FNV-1a, continued from `digest`.
fn continue_digest(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest, |digest, &byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl StateMachine for Ledger {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.db.applied(APPLIED)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let stored = self.db.applied(APPLIED)?;
        let mut write = rocksdb::WriteBatch::default();
        let (mut digest, mut count) = (read_u64(&self.db, DIGEST), read_u64(&self.db, COUNT));
        let mut replies = Vec::new();
        for command in batch {
            assert!(
                stored.as_ref().is_none_or(|stored| stored.id < command.id),
                "{:?} came twice",
                command.id
            );
            if command.meta.starts_with(b"fail") {
                anyhow::bail!("told to fail");
            }
            digest = continue_digest(digest, &command.id.index.0.to_le_bytes());
            digest = continue_digest(digest, &command.meta);
            digest = continue_digest(digest, &command.place.body_bytes.to_le_bytes());
            count += 1;
            replies.push(Bytes::from([b"re: ".as_slice(), &command.meta].concat()));
        }
        write.put(DIGEST, digest.to_le_bytes());
        write.put(COUNT, count.to_le_bytes());
        Db::put_applied(&mut write, APPLIED, &applied);
        self.db.write(write)?;
        Ok(replies)
    }
}
