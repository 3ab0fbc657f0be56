//! The address under which the OM of a directory was known last. A copy of the directory that starts
//! elsewhere is nobody until SCM has taken it for the one that it knows: two that vote as one replica would
//! lose what was acknowledged.

use anyhow::Context;
use disk::{Disk, ReadRecordError, RecordFile};
use tracing::warn;

const FILE: RecordFile = RecordFile::of_message(b"FLoa", 1, 255);
const PATH: &str = "om-address";

/// Whether nothing says that the directory was elsewhere.
pub(crate) async fn is_as_before(disk: &dyn Disk, address: &str) -> anyhow::Result<bool> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| "it is no text".to_owned());
    match FILE.read(disk, PATH, text).await {
        Ok(before) => Ok(before.is_none_or(|before| before == address)),
        Err(error @ ReadRecordError::Damaged { .. }) => {
            warn!(%error, "OM waits for SCM before it opens what it has");
            Ok(false)
        }
        Err(error) => Err(error).context("read where this OM was before"),
    }
}

/// Notes where this OM is now, durably on return.
pub(crate) async fn note(disk: &dyn Disk, address: &str) -> anyhow::Result<()> {
    FILE.write(disk, PATH, address.as_bytes()).await.context("note where this OM is")
}
