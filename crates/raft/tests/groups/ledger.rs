use bytes::Bytes;
use disk::RealDisk;
use flotilla_raft::{Applied, Committed, Snapshots, StateMachine};
use statedb::{Db, DbGenerations, DbOptions};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A state machine that remembers a digest of all commands in order, and those whole that begin with `keep`.
/// One that begins with `hang` is not applied while the file [`HANGS`] is in the node's directory.
pub(crate) struct Ledger {
    dbs: Arc<DbGenerations>,
    hangs: PathBuf,
    has_snapshots: bool,
}

pub(crate) const HANGS: &str = "hangs";
const APPLIED: &[u8] = b"applied";
const DIGEST: &[u8] = b"digest";
const COUNT: &[u8] = b"count";

impl Ledger {
    pub(crate) async fn open(disk: &Arc<RealDisk>, dir: &str, has_snapshots: bool) -> Ledger {
        let dbs = DbGenerations::open(disk.clone(), dir, &DbOptions::default(), APPLIED).await;
        let hangs = disk.root().join(HANGS);
        Ledger { dbs: Arc::new(dbs.expect("open the ledger's database")), hangs, has_snapshots }
    }

    pub(crate) fn view(&self) -> LedgerView {
        LedgerView { dbs: Arc::downgrade(&self.dbs) }
    }
}

/// A ledger as a test sees it, without keeping its database open.
#[derive(Clone)]
pub(crate) struct LedgerView {
    dbs: Weak<DbGenerations>,
}

impl LedgerView {
    pub(crate) fn db(&self) -> Arc<Db> {
        self.dbs.upgrade().expect("the ledger is open").current()
    }

    pub(crate) fn count(&self) -> u64 {
        read_u64(&self.db(), COUNT)
    }

    pub(crate) fn digest(&self) -> u64 {
        read_u64(&self.db(), DIGEST)
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
        self.dbs.current().applied(APPLIED)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let db = self.dbs.current();
        let stored = db.applied(APPLIED)?;
        let mut write = rocksdb::WriteBatch::default();
        let (mut digest, mut count) = (read_u64(&db, DIGEST), read_u64(&db, COUNT));
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
            while command.meta.starts_with(b"hang") && self.hangs.exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
            if command.meta.starts_with(b"keep") {
                write.put(format!("kept {}", command.id.index.0), &command.meta);
            }
            digest = continue_digest(digest, &command.id.index.0.to_le_bytes());
            digest = continue_digest(digest, &command.meta);
            digest = continue_digest(digest, &command.place.body_bytes.to_le_bytes());
            count += 1;
            replies.push(Bytes::from(
                [b"re: ".as_slice(), &command.meta[..command.meta.len().min(40)]].concat(),
            ));
        }
        write.put(DIGEST, digest.to_le_bytes());
        write.put(COUNT, count.to_le_bytes());
        Db::put_applied(&mut write, APPLIED, &applied);
        db.write(write)?;
        Ok(replies)
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        let dbs: Arc<dyn Snapshots> = self.dbs.clone();
        self.has_snapshots.then_some(dbs)
    }
}
