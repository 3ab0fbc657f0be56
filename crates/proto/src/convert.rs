use crate::{Failure, datanode};
use bytes::Bytes;
use types::{BlockId, BlockName, DiskId, Nonce};

/// Reads a 16-byte id; `what` names the field in the error.
pub fn bytes16(bytes: &[u8], what: &str) -> Result<[u8; 16], Failure> {
    bytes
        .try_into()
        .map_err(|_| Failure::invalid(format!("{what} must have 16 bytes, it has {}", bytes.len())))
}

pub fn disk_id(bytes: &[u8]) -> Result<DiskId, Failure> {
    Ok(DiskId(u128::from_be_bytes(bytes16(bytes, "disk id")?)))
}

pub fn uuid_bytes(id: u128) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

impl From<BlockId> for datanode::BlockId {
    fn from(block: BlockId) -> Self {
        datanode::BlockId { container: block.container.0, local: block.local }
    }
}

impl From<datanode::BlockId> for BlockId {
    fn from(block: datanode::BlockId) -> Self {
        BlockId { container: block.container.into(), local: block.local }
    }
}

impl From<BlockName> for datanode::BlockName {
    fn from(block: BlockName) -> Self {
        datanode::BlockName {
            container: block.container.0,
            local: block.local,
            nonce: uuid_bytes(block.nonce.0),
        }
    }
}

impl TryFrom<&datanode::BlockName> for BlockName {
    type Error = Failure;

    fn try_from(block: &datanode::BlockName) -> Result<Self, Failure> {
        let nonce = Nonce(u128::from_be_bytes(bytes16(&block.nonce, "nonce")?));
        Ok(BlockName { container: block.container.into(), local: block.local, nonce })
    }
}

impl datanode::WriteChunk {
    pub fn nonce_parsed(&self) -> Result<Nonce, Failure> {
        Ok(Nonce(u128::from_be_bytes(bytes16(&self.nonce, "nonce")?)))
    }
}
