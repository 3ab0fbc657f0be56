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
use anyhow::{Context, ensure};
use disk::{Disk, RecordFile};
use prost::Message;
use proto::datanode::PipelineSpec;
use std::io::ErrorKind;
use types::{GroupId, PipelineId};

const SPEC_BYTES_MAX: usize = 1 << 20;
const FILE: RecordFile = RecordFile::of_message(b"FLps", 1, SPEC_BYTES_MAX);

fn dir(pipeline: PipelineId) -> String {
    format!("{GROUPS_DIR}/{}", GroupId::pipeline(pipeline))
}

fn path(pipeline: PipelineId) -> String {
    format!("{}/spec", dir(pipeline))
}

/// The spec beside a pipeline's log; `None` when there is none.
pub(crate) async fn read(disk: &dyn Disk, pipeline: PipelineId) -> anyhow::Result<Option<PipelineSpec>> {
    let path = path(pipeline);
    let decode = |bytes: &[u8]| PipelineSpec::decode(bytes).map_err(|error| error.to_string());
    let spec = FILE.read(disk, &path, decode).await.context("read a pipeline's spec")?;
    if let Some(spec) = &spec {
        ensure!(spec.pipeline == pipeline.0, "{path} is that of pipeline {}", spec.pipeline);
    }
    Ok(spec)
}

/// Writes a pipeline's spec, durably, unless it is there already. The log must be there: its directory says
/// that it is.
pub(crate) async fn write(disk: &dyn Disk, spec: &PipelineSpec) -> anyhow::Result<()> {
    let pipeline = PipelineId(spec.pipeline);
    if read(disk, pipeline).await.is_ok_and(|there| there.as_ref() == Some(spec)) {
        return Ok(());
    }
    let path = path(pipeline);
    FILE.write(disk, &path, &spec.encode_to_vec()).await.with_context(|| format!("write {path}"))
}

/// Removes the spec of a replica that must not come back.
pub(crate) async fn remove(disk: &dyn Disk, pipeline: PipelineId) -> anyhow::Result<()> {
    let (dir, path) = (dir(pipeline), path(pipeline));
    let remove = async {
        match disk.remove_file(&path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => disk.sync_dir(&dir).await,
        }
    };
    remove.await.with_context(|| format!("remove {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
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
        let message = spec.encode_to_vec();
        let bytes = FILE.encode(&message);
        assert_eq!(bytes[..8], *b"FLps\x01\0\0\0");
        assert_eq!(bytes[8..12], (message.len() as u32).to_le_bytes());
        assert_eq!(bytes[16..], message);
        assert_eq!(PipelineSpec::decode(FILE.decode(&bytes).unwrap()).unwrap(), spec);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The three zero bytes mean nothing, but are covered by the checksum.
            assert!(FILE.decode(&damaged).is_err(), "bit {bit}");
        }
    }
}
