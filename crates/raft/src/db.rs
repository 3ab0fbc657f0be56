use crate::Applied;
use std::path::Path;

/// Memory and behaviour of a RocksDB that holds state derived from Raft logs.
#[derive(Clone, Debug)]
pub struct DbOptions {
    pub block_cache_bytes: usize,
    pub write_buffer_bytes: usize,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self { block_cache_bytes: 32 << 20, write_buffer_bytes: 16 << 20 }
    }
}

/// A RocksDB without a WAL of its own: the Raft logs are its WAL. What a crash takes from its memory is applied
/// again from the log, from the applied position that stands in the same batch as the effects. One column family,
/// so that batches are atomic on disk too.
pub struct Db {
    rocks: rocksdb::DB,
}

impl Db {
    pub fn open(path: &Path, options: &DbOptions) -> anyhow::Result<Db> {
        let _ = (path, options);
        todo!()
    }

    /// For reads and iterators.
    pub fn rocks(&self) -> &rocksdb::DB {
        &self.rocks
    }

    /// Writes a batch to memory: readable on return, durable once flushed.
    pub fn write(&self, _batch: rocksdb::WriteBatch) -> anyhow::Result<()> {
        todo!()
    }

    /// Adds a group's applied position to a batch; `key` is the caller's place for it.
    pub fn put_applied(_batch: &mut rocksdb::WriteBatch, _key: &[u8], _applied: &Applied) {
        todo!()
    }

    pub fn applied(&self, _key: &[u8]) -> anyhow::Result<Option<Applied>> {
        todo!()
    }

    /// Makes everything written so far durable.
    pub fn flush(&self) -> anyhow::Result<()> {
        todo!()
    }
}
