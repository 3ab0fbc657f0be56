//! The manifest of a container: what it consists of, as its source says; checked once, trusted after that.

use anyhow::{Context, ensure};
use proto::datanode::{ContainerFile, ContainerManifest};
use raftlog::Compacted;
use std::collections::BTreeSet;
use types::{ContainerId, LogId, LogIndex, OwnerId, PipelineId, Term};

/// The most files of a container: one of 2 GiB has 16 segments of 128 MiB; those of tests are smaller.
const FILES_MAX: usize = 4096;
/// The most entries of repeated first chunks, which are those that writers had under way when a leader was
/// lost.
pub(crate) const REPEATS_MAX: usize = 65_536;
/// The name of the list of discarded bodies, beside the segments.
const DISCARDED: &str = "discarded";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFile {
    pub name: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub container: ContainerId,
    pub pipeline: PipelineId,
    pub last: LogId,
    /// The container's hash in hexadecimal digits. Empty: another version computed another one (the file
    /// `imported` of a copy that was made by one).
    pub hash: String,
    pub files: Vec<SegmentFile>,
    /// First chunks that began no block, as their block had begun in the container before.
    pub repeats: BTreeSet<LogIndex>,
    /// The source's word on the records that were left out, if the container was compacted.
    pub compacted: Option<Compacted>,
    message: ContainerManifest,
}

impl Manifest {
    pub(crate) fn parse(message: ContainerManifest) -> anyhow::Result<Manifest> {
        ensure!(message.files.len() <= FILES_MAX, "{} files are more than {FILES_MAX}", message.files.len());
        ensure!(message.repeats.len() <= REPEATS_MAX, "{} repeats are too many", message.repeats.len());
        let has_hash = message.hash.len() == 64 || message.hash.is_empty();
        ensure!(has_hash, "`{}` is no hash", message.hash);
        let owner = OwnerId(message.container);
        let compacted = match message.compacted.is_empty() {
            true => None,
            false => Some(Compacted::decode(owner, &message.compacted).map_err(anyhow::Error::msg)),
        };
        let compacted = compacted.transpose().context("read how it was compacted")?;
        let first = compacted.as_ref().map_or(0, |compacted| compacted.segments.start);
        let mut files: Vec<SegmentFile> = Vec::new();
        let mut segments = first;
        for ContainerFile { name, bytes } in &message.files {
            let is_first = files.is_empty();
            if *name == segment_name(segments) {
                segments += 1;
            } else {
                ensure!(is_first && name == DISCARDED, "a container has no file `{name}` in this place");
            }
            files.push(SegmentFile { name: name.clone(), bytes: *bytes });
        }
        ensure!(segments > first, "there are no segments");
        Ok(Manifest {
            container: ContainerId(message.container),
            pipeline: PipelineId(message.pipeline),
            last: LogId { term: Term(message.last_term), index: LogIndex(message.last_index) },
            hash: message.hash.clone(),
            files,
            repeats: message.repeats.iter().map(|index| LogIndex(*index)).collect(),
            compacted: compacted.map(|compacted| compacted.without_end()),
            message,
        })
    }

    pub(crate) fn message(&self) -> &ContainerManifest {
        &self.message
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

fn segment_name(number: u32) -> String {
    format!("{number:08x}.seg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_container_are_taken() {
        let parse = |names: &[&str]| {
            let file = |name: &&str| ContainerFile { name: name.to_string(), bytes: 8 };
            let files = names.iter().map(file).collect();
            Manifest::parse(ContainerManifest { files, hash: "0".repeat(64), ..Default::default() })
        };
        assert!(parse(&["00000000.seg", "00000001.seg"]).is_ok());
        let compacted = Compacted { segments: 2..3, ..Compacted::NEVER }.encode(OwnerId(0)).into();
        let file = |name: &str| ContainerFile { name: name.to_owned(), bytes: 8 };
        let parse_compacted = |names: [&str; 2]| {
            let files = names.map(file).to_vec();
            let compacted = bytes::Bytes::clone(&compacted);
            Manifest::parse(ContainerManifest { files, compacted, ..Default::default() })
        };
        let parsed = parse_compacted(["discarded", "00000002.seg"]).unwrap();
        assert_eq!(parsed.compacted, Some(Compacted { segments: 2..u32::MAX, ..Compacted::NEVER }));
        assert!(parse_compacted(["discarded", "00000000.seg"]).is_err());
        assert!(parse_compacted(["00000001.seg", "00000002.seg"]).is_err());
        assert_eq!(parse(&["discarded", "00000000.seg"]).unwrap().bytes(), 16);
        for names in [
            &[][..],
            &["discarded"],
            &["00000001.seg"],
            &["00000000.seg", "00000002.seg"],
            &["00000000.seg", "discarded"],
            &["../../VERSION", "00000000.seg"],
            &["00000000.seg", "00000000.idx"],
        ] {
            assert!(parse(names).is_err(), "{names:?}");
        }
    }
}
