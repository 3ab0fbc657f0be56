//! The containers of which this replica is bad. A fact of this disk, not of the log: a rebuilt index has none
//! of these rows, and what is bad is found again.

use super::{Index, keys};
use anyhow::{Context, ensure};
use rocksdb::{Direction, IteratorMode, WriteBatch};
use std::collections::BTreeMap;
use types::ContainerId;

const VERSION: u8 = 1;
/// The longest reason, which names a file and a place in it.
const WHY_BYTES_MAX: usize = 1024;

/// Puts the mark of an unhealthy replica into a batch, with the reason, which is cut where it is long.
pub(super) fn put_unhealthy(batch: &mut WriteBatch, container: ContainerId, why: &str) {
    let end = (0..=why.len().min(WHY_BYTES_MAX)).rev().find(|&end| why.is_char_boundary(end)).unwrap_or(0);
    batch.put(keys::unhealthy(container), [&[VERSION], &why.as_bytes()[..end]].concat());
}

impl Index {
    /// Marks a container's replica, durably; true when it was not marked before. The first reason stays.
    pub(crate) fn mark_unhealthy(&self, container: ContainerId, why: &str) -> anyhow::Result<bool> {
        if self.unhealthy(container)?.is_some() {
            return Ok(false);
        }
        let mut batch = WriteBatch::default();
        put_unhealthy(&mut batch, container, why);
        self.db.write(batch)?;
        self.db.flush()?;
        Ok(true)
    }

    /// The reason why a container's replica is unhealthy, if it is.
    pub(crate) fn unhealthy(&self, container: ContainerId) -> anyhow::Result<Option<String>> {
        self.get(&keys::unhealthy(container), decode)
    }

    /// The containers whose replica on this disk is unhealthy, each with the reason.
    pub(crate) fn all_unhealthy(&self) -> anyhow::Result<BTreeMap<ContainerId, String>> {
        let mut all = BTreeMap::new();
        let start = keys::unhealthy(ContainerId(0));
        for item in self.db.rocks().iterator(IteratorMode::From(&start, Direction::Forward)) {
            let (key, value) = item.context("list unhealthy containers")?;
            if key.first() != start.first() {
                break;
            }
            let id = keys::parse_id(&key).context("a key of no container among unhealthy ones")?;
            all.insert(ContainerId(id), decode(&value)?);
        }
        Ok(all)
    }
}

fn decode(value: &[u8]) -> anyhow::Result<String> {
    let (version, why) = value.split_first().context("decode why a container is unhealthy: it is empty")?;
    ensure!(*version == VERSION, "the version {version} of an unhealthy record is unknown");
    Ok(String::from_utf8_lossy(why).into_owned())
}
