//! Where a copied container came from, beside its segments: docs/format/imported.md.
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

use anyhow::{Context, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::Disk;
use prost::Message;
use proto::datanode::ContainerManifest;
use std::io::ErrorKind;

pub(crate) const FILE_NAME: &str = "imported";
const TEMPORARY_NAME: &str = "imported.tmp";
const MAGIC: [u8; 4] = *b"FLim";
const VERSION: u8 = 1;
const CRC_AT: usize = 12;
const HEADER_BYTES: usize = CRC_AT + 4;
/// A container has some tens of segments, and at most 65536 entries that are listed.
const MANIFEST_BYTES_MAX: usize = 4 << 20;

/// The manifest in a container's directory; `None` when there is none.
pub(crate) async fn read(disk: &dyn Disk, dir: &str) -> anyhow::Result<Option<ContainerManifest>> {
    let path = format!("{dir}/{FILE_NAME}");
    let file = match disk.open(&path, false).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("open {path}"))?,
    };
    let bytes = file.read_at(0, HEADER_BYTES + MANIFEST_BYTES_MAX).await;
    let bytes = bytes.with_context(|| format!("read {path}"))?;
    decode(&bytes).with_context(|| format!("decode {path}")).map(Some)
}

/// Writes it, durably, into a directory that is there.
pub(crate) async fn write(disk: &dyn Disk, dir: &str, manifest: &ContainerManifest) -> anyhow::Result<()> {
    let encoded = encode(manifest)?;
    let (path, temporary) = (format!("{dir}/{FILE_NAME}"), format!("{dir}/{TEMPORARY_NAME}"));
    let write = async {
        let file = disk.open(&temporary, true).await?;
        file.set_len(0).await?;
        file.write_and_sync(0, vec![encoded]).await?;
        // Only a whole file gets the name.
        disk.rename(&temporary, &path).await?;
        disk.sync_dir(dir).await
    };
    write.await.with_context(|| format!("write {path}"))
}

fn encode(manifest: &ContainerManifest) -> anyhow::Result<Bytes> {
    let manifest = manifest.encode_to_vec();
    ensure!(manifest.len() <= MANIFEST_BYTES_MAX, "a manifest of {} bytes is too large", manifest.len());
    let mut out = BytesMut::with_capacity(HEADER_BYTES + manifest.len());
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_slice(&[0; 3]);
    out.put_u32_le(manifest.len() as u32); // checked above
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), &manifest);
    out.put_u32_le(crc);
    out.put_slice(&manifest);
    Ok(out.freeze())
}

fn decode(bytes: &Bytes) -> anyhow::Result<ContainerManifest> {
    ensure!(bytes.len() >= HEADER_BYTES, "it has {} bytes", bytes.len());
    ensure!(bytes[..4] == MAGIC, "it does not begin with `FLim`");
    if bytes[4] != VERSION {
        bail!("its version {} is unknown", bytes[4]);
    }
    let mut rest = &bytes[8..];
    let (len, crc) = (rest.get_u32_le() as usize, rest.get_u32_le());
    ensure!(rest.len() == len, "the manifest has {} bytes, {len} are said", rest.len());
    let computed = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), rest);
    ensure!(crc == computed, "checksum mismatch: stored {crc:#010x}, computed {computed:#010x}");
    Ok(ContainerManifest::decode(rest)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_laid_out_as_documented_and_every_flipped_bit_is_found() {
        let manifest = ContainerManifest { container: 3, pipeline: 5, last_index: 9, ..Default::default() };
        let bytes = encode(&manifest).unwrap();
        let message = manifest.encode_to_vec();
        assert_eq!(bytes[..8], *b"FLim\x01\0\0\0");
        assert_eq!(bytes[8..12], (message.len() as u32).to_le_bytes());
        assert_eq!(bytes[16..], message);
        assert_eq!(decode(&bytes).unwrap(), manifest);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The three zero bytes mean nothing, but are covered by the checksum.
            assert!(decode(&damaged.into()).is_err(), "bit {bit}");
        }
    }
}
