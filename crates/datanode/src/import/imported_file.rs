//! The origin of a copied container, in a file beside its segments: docs/format/imported.md.
//!
//! ```text
//! offset size field
//!      0    4 magic    "FLim"
//!      4    1 version  1
//!      5    3 zero
//!      8    4 bytes    of the manifest, at most 4 MiB
//!     12    4 crc      CRC32C of bytes 0..12 and the manifest
//!     16    n manifest protobuf ContainerManifest
//! ```

use anyhow::{Context, ensure};
use disk::{Disk, ReadRecordError, RecordFile};
use prost::Message;
use proto::datanode::ContainerManifest;

pub(crate) const FILE_NAME: &str = "imported";
/// The most bytes of a manifest: a container has some tens of segments, and at most 65536 entries that are
/// listed.
const MANIFEST_BYTES_MAX: usize = 4 << 20;
const FILE: RecordFile = RecordFile::of_message(b"FLim", 1, MANIFEST_BYTES_MAX);

/// The manifest in a container's directory; `None` when there is none.
pub(crate) async fn read(disk: &dyn Disk, dir: &str) -> anyhow::Result<Option<ContainerManifest>> {
    let decode = |bytes: &[u8]| ContainerManifest::decode(bytes).map_err(|error| error.to_string());
    FILE.read(disk, &format!("{dir}/{FILE_NAME}"), decode).await.context("read a manifest")
}

/// Whether a manifest was read, and is damaged: any other failure leaves open whether there is one.
pub(crate) fn is_damaged(failure: &anyhow::Error) -> bool {
    matches!(failure.downcast_ref(), Some(ReadRecordError::Damaged { .. }))
}

/// Writes a manifest, durably, into a directory that is there.
pub(crate) async fn write(disk: &dyn Disk, dir: &str, manifest: &ContainerManifest) -> anyhow::Result<()> {
    let (path, manifest) = (format!("{dir}/{FILE_NAME}"), manifest.encode_to_vec());
    ensure!(manifest.len() <= MANIFEST_BYTES_MAX, "a manifest of {} bytes is too large", manifest.len());
    FILE.write(disk, &path, &manifest).await.with_context(|| format!("write {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_laid_out_as_documented_and_every_flipped_bit_is_found() {
        let manifest = ContainerManifest { container: 3, pipeline: 5, last_index: 9, ..Default::default() };
        let message = manifest.encode_to_vec();
        let bytes = FILE.encode(&message);
        assert_eq!(bytes[..8], *b"FLim\x01\0\0\0");
        assert_eq!(bytes[8..12], (message.len() as u32).to_le_bytes());
        assert_eq!(bytes[16..], message);
        assert_eq!(ContainerManifest::decode(FILE.decode(&bytes).unwrap()).unwrap(), manifest);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The three zero bytes mean nothing, but are covered by the checksum.
            assert!(FILE.decode(&damaged).is_err(), "bit {bit}");
        }
    }
}
