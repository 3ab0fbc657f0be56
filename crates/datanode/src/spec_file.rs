//! A pipeline's spec beside its log, so that an index that is lost can be recreated whole:
//! docs/format/pipeline-spec.md.
//!
//! ```text
//! offset size field
//!      0    4 magic   "FLps"
//!      4    1 version 1
//!      5    3 zero
//!      8    4 bytes   of the spec, at most 1 MiB
//!     12    4 crc     CRC32C of bytes 0..12 and the spec
//!     16    n spec    protobuf PipelineSpec
//! ```

use crate::layout::GROUPS_DIR;
use anyhow::{Context, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::Disk;
use prost::Message;
use proto::datanode::PipelineSpec;
use std::io::ErrorKind;
use types::{GroupId, PipelineId};

const FILE_NAME: &str = "spec";
const MAGIC: [u8; 4] = *b"FLps";
const VERSION: u8 = 1;
const CRC_AT: usize = 12;
const HEADER_BYTES: usize = CRC_AT + 4;
const SPEC_BYTES_MAX: usize = 1 << 20;

fn dir(pipeline: PipelineId) -> String {
    format!("{GROUPS_DIR}/{}", GroupId::pipeline(pipeline))
}

/// The spec beside a pipeline's log; `None` when there is none.
pub(crate) async fn read(disk: &dyn Disk, pipeline: PipelineId) -> anyhow::Result<Option<PipelineSpec>> {
    let path = format!("{}/{FILE_NAME}", dir(pipeline));
    let file = match disk.open(&path, false).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("open {path}"))?,
    };
    let bytes =
        file.read_at(0, HEADER_BYTES + SPEC_BYTES_MAX).await.with_context(|| format!("read {path}"))?;
    let spec = decode(&bytes).with_context(|| format!("decode {path}"))?;
    ensure!(spec.pipeline == pipeline.0, "{path} is that of pipeline {}", spec.pipeline);
    Ok(Some(spec))
}

/// Writes it, durably, unless it is there already. The log must be there: its directory says that it is.
pub(crate) async fn write(disk: &dyn Disk, spec: &PipelineSpec) -> anyhow::Result<()> {
    let pipeline = PipelineId(spec.pipeline);
    if read(disk, pipeline).await.is_ok_and(|there| there.as_ref() == Some(spec)) {
        return Ok(());
    }
    let dir = dir(pipeline);
    let (path, temporary) = (format!("{dir}/{FILE_NAME}"), format!("{dir}/{FILE_NAME}.tmp"));
    let write = async {
        let file = disk.open(&temporary, true).await?;
        file.set_len(0).await?;
        file.write_and_sync(0, vec![encode(spec)]).await?;
        // Only a whole file gets the name.
        disk.rename(&temporary, &path).await?;
        disk.sync_dir(&dir).await
    };
    write.await.with_context(|| format!("write {path}"))
}

/// Removes the spec of a replica that must not come back.
pub(crate) async fn remove(disk: &dyn Disk, pipeline: PipelineId) -> anyhow::Result<()> {
    let (dir, path) = (dir(pipeline), format!("{}/{FILE_NAME}", dir(pipeline)));
    let remove = async {
        match disk.remove_file(&path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => disk.sync_dir(&dir).await,
        }
    };
    remove.await.with_context(|| format!("remove {path}"))
}

fn encode(spec: &PipelineSpec) -> Bytes {
    let spec = spec.encode_to_vec();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + spec.len());
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_slice(&[0; 3]);
    out.put_u32_le(u32::try_from(spec.len()).expect("a few members fit in 1 MiB"));
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), &spec);
    out.put_u32_le(crc);
    out.put_slice(&spec);
    out.freeze()
}

fn decode(bytes: &Bytes) -> anyhow::Result<PipelineSpec> {
    ensure!(bytes.len() >= HEADER_BYTES, "it has {} bytes", bytes.len());
    ensure!(bytes[..4] == MAGIC, "it does not begin with `FLps`");
    if bytes[4] != VERSION {
        bail!("its version {} is unknown", bytes[4]);
    }
    let mut rest = &bytes[8..];
    let (len, crc) = (rest.get_u32_le() as usize, rest.get_u32_le());
    ensure!(rest.len() == len, "the spec has {} bytes, {len} are said", rest.len());
    let computed = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CRC_AT]), rest);
    ensure!(crc == computed, "checksum mismatch: stored {crc:#010x}, computed {computed:#010x}");
    Ok(PipelineSpec::decode(rest)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::datanode::PipelineSpecMember;

    #[test]
    fn version_1_is_laid_out_as_documented_and_every_flipped_bit_is_found() {
        let member = PipelineSpecMember {
            replica: 5,
            node: 6,
            address: "h:1".to_owned(),
            disk: Bytes::from_static(&[9; 16]),
        };
        let spec = PipelineSpec { pipeline: 3, replica: 5, first_container: 7, members: vec![member] };
        let bytes = encode(&spec);
        let message = spec.encode_to_vec();
        assert_eq!(bytes[..8], *b"FLps\x01\0\0\0");
        assert_eq!(bytes[8..12], (message.len() as u32).to_le_bytes());
        assert_eq!(bytes[16..], message);
        assert_eq!(decode(&bytes).unwrap(), spec);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The three zero bytes mean nothing, but are covered by the checksum.
            assert!(decode(&damaged.into()).is_err(), "bit {bit}");
        }
    }
}
