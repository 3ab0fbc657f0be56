//! The store of a state machine as the state machine sees it: RocksDB ([`crate::Db`]), or memory in a
//! simulation.

/// Ordered records. What a crash takes is the newest batches, whole: the log has them still.
pub trait Tables: Send + Sync + 'static {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>>;

    /// Records from `from` on and below `end`, in order, at most `count_max`.
    fn scan(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
        count_max: usize,
    ) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Writes all changes or none. They are readable on return, and durable once flushed.
    fn write(&self, changes: Changes) -> anyhow::Result<()>;

    /// Makes everything written so far durable.
    fn flush(&self) -> anyhow::Result<()>;
}

/// Changes to be written as one; later ones win.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Changes {
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), Some(value.into())));
    }

    pub fn delete(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), None));
    }
}

impl IntoIterator for Changes {
    type Item = (Vec<u8>, Option<Vec<u8>>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.changes.into_iter()
    }
}
