use statedb::{Changes, Tables};
use std::sync::Arc;

/// The part of a store whose keys begin with a group's number: several groups share one database.
pub(crate) struct Prefixed {
    tables: Arc<dyn Tables>,
    prefix: [u8; 4],
}

impl Prefixed {
    pub(crate) fn new(tables: Arc<dyn Tables>, group: u32) -> Prefixed {
        Prefixed { tables, prefix: group.to_be_bytes() }
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix[..], key].concat()
    }
}

impl Tables for Prefixed {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        self.tables.get(&self.key(key))
    }

    fn scan(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
        count_max: usize,
    ) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        // Group numbers count from 1 and stay far below the largest.
        let next_group = (u32::from_be_bytes(self.prefix) + 1).to_be_bytes().to_vec();
        let end = end.map_or(next_group, |end| self.key(end));
        let found = self.tables.scan(&self.key(from), Some(&end), count_max)?;
        Ok(found.into_iter().map(|(key, value)| (key[self.prefix.len()..].to_vec(), value)).collect())
    }

    fn write(&self, changes: Changes) -> anyhow::Result<()> {
        let mut prefixed = Changes::default();
        for (key, value) in changes {
            match value {
                Some(value) => prefixed.put(self.key(&key), value),
                None => prefixed.delete(self.key(&key)),
            }
        }
        self.tables.write(prefixed)
    }

    fn flush(&self) -> anyhow::Result<()> {
        self.tables.flush()
    }
}
