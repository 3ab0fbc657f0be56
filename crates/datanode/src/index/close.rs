//! Closing a quasi-closed replica that is what its container is.

use super::records::{ContainerRecord, ContainerState};
use super::{Index, keys};
use rocksdb::WriteBatch;
use types::{ContainerId, LogId};

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// It is closed, durably; perhaps it was before.
    Closed,
    NotHere,
    StillOpen,
    /// It is not what the container is.
    EndsElsewhere(Option<LogId>),
}

impl Index {
    pub(crate) fn close_replica(&self, container: ContainerId, last: LogId) -> anyhow::Result<Closing> {
        let Some(record) = self.container(container)? else { return Ok(Closing::NotHere) };
        match record.state {
            ContainerState::Open => return Ok(Closing::StillOpen),
            _ if record.last.is_some() && record.last != Some(last) => {
                return Ok(Closing::EndsElsewhere(record.last));
            }
            ContainerState::Closed => return Ok(Closing::Closed),
            ContainerState::QuasiClosed if record.last.is_none() => return Ok(Closing::EndsElsewhere(None)),
            ContainerState::QuasiClosed => {}
        }
        let mut batch = WriteBatch::default();
        let closed = ContainerRecord { state: ContainerState::Closed, ..record };
        batch.put(keys::container(container), closed.encode());
        self.db.write(batch)?;
        self.flush()?;
        Ok(Closing::Closed)
    }
}
