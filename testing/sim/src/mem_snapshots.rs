use crate::mem_tables::{MemTables, Records};
use anyhow::{Context, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use raft::{Applied, Snapshots};
use std::sync::Arc;

/// Snapshots of [`MemTables`] as files on a disk that can crash: what [`statedb::DbGenerations`] is to a
/// RocksDB.
#[derive(Clone)]
pub struct MemSnapshots {
    pub tables: MemTables,
    pub disk: Arc<dyn Disk>,
    /// The key under which the state machine keeps its applied position.
    pub applied_key: &'static [u8],
    /// Bytes beside the records, so that a snapshot takes its time.
    pub filler_bytes: usize,
    /// A planted bug: of what is in memory alone only the applied position is copied.
    pub leaves_out_unflushed: bool,
}

/// The number of files over which the records are spread.
const RECORD_FILES: usize = 2;
const FILLER: &str = "filler";
const FILLER_BYTE: u8 = 0xf1;

impl Snapshots for MemSnapshots {
    fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let this = self.clone();
        async move {
            let records = this.copy()?;
            let applied = records.get(this.applied_key).context("nothing is applied")?;
            let applied = Applied::decode(applied)?;
            this.disk.create_dir_all(&dir).await?;
            for number in 0..RECORD_FILES {
                let part = records.iter().skip(number).step_by(RECORD_FILES);
                this.write_file(&format!("{dir}/records-{number}"), encode(part)).await?;
            }
            let filler = vec![FILLER_BYTE; this.filler_bytes];
            this.write_file(&format!("{dir}/{FILLER}"), filler.into()).await?;
            this.disk.sync_dir(&dir).await?;
            this.tables.flush_all()?;
            Ok(applied)
        }
        .boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let this = self.clone();
        async move {
            let records = this.read(&dir).await?;
            Applied::decode(records.get(this.applied_key).context("there is no applied position")?)
        }
        .boxed()
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let this = self.clone();
        async move {
            let records = this.read(&dir).await?;
            ensure!(records.contains_key(this.applied_key), "{dir} has no applied position");
            this.tables.replace(records)
        }
        .boxed()
    }
}

impl MemSnapshots {
    fn copy(&self) -> anyhow::Result<Records> {
        if !self.leaves_out_unflushed {
            return Ok(self.tables.seen());
        }
        let mut records = self.tables.flushed();
        records.extend(self.tables.seen().remove_entry(self.applied_key));
        Ok(records)
    }

    async fn read(&self, dir: &str) -> anyhow::Result<Records> {
        let mut records = Records::new();
        for number in 0..RECORD_FILES {
            decode(self.read_file(&format!("{dir}/records-{number}")).await?, &mut records)?;
        }
        let filler = self.read_file(&format!("{dir}/{FILLER}")).await?;
        ensure!(filler.iter().all(|byte| *byte == FILLER_BYTE), "the filler in {dir} has other bytes");
        Ok(records)
    }

    async fn write_file(&self, path: &str, contents: Bytes) -> anyhow::Result<()> {
        let file = self.disk.open(path, true).await?;
        file.write_and_sync(0, vec![contents]).await.with_context(|| format!("write {path}"))
    }

    async fn read_file(&self, path: &str) -> anyhow::Result<Bytes> {
        let file = self.disk.open(path, false).await.with_context(|| format!("open {path}"))?;
        let bytes = file.len().await?;
        Ok(file.read_at(0, bytes as usize).await?)
    }
}

/// Each record: lengths of key and value, key, value.
pub(crate) fn encode<'a>(records: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>) -> Bytes {
    let mut out = BytesMut::new();
    for (key, value) in records {
        out.put_u32_le(key.len() as u32);
        out.put_u32_le(value.len() as u32);
        out.put_slice(key);
        out.put_slice(value);
    }
    out.freeze()
}

pub(crate) fn decode(mut bytes: Bytes, records: &mut Records) -> anyhow::Result<()> {
    while !bytes.is_empty() {
        ensure!(bytes.len() >= 8, "half a record");
        let (key, value) = (bytes.get_u32_le() as usize, bytes.get_u32_le() as usize);
        ensure!(bytes.len() >= key + value, "half a record");
        records.insert(bytes.split_to(key).to_vec(), bytes.split_to(value).to_vec());
    }
    Ok(())
}
