//! The file `VERSION` of a data directory, docs/format/data-directory.md:
//!
//! ```text
//! flotilla data directory
//! format 1
//! disk 0123456789abcdef0123456789abcdef
//! node_uuid 00112233445566778899aabbccddeeff
//! cluster my-cluster
//! node 7
//! crc32c 1a2b3c4d
//! ```

use crate::OpenDiskError;
use std::path::Path;
use types::DiskId;

/// A data directory's stamp says what it is and whose; it is kept in its file `VERSION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub disk: DiskId,
    /// Empty until the directory has joined a cluster.
    pub cluster: String,
    /// 16 random bytes of the process that formatted it first, the same on all its directories.
    pub node_uuid: u128,
    /// The number SCM gave the node; 0 until then, and for processes that are no datanode.
    pub node: u64,
}

/// The only format so far. A directory with a higher number is refused.
pub(crate) const FORMAT: u32 = 1;

const FIRST_LINE: &str = "flotilla data directory";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DecodeStampError {
    Newer { found: u32 },
    Bad { why: String },
}

impl Stamp {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let text = format!(
            "{FIRST_LINE}\nformat {FORMAT}\ndisk {}\nnode_uuid {:032x}\ncluster {}\nnode {}\n",
            self.disk, self.node_uuid, self.cluster, self.node
        );
        let crc = crc32c::crc32c(text.as_bytes());
        format!("{text}crc32c {crc:08x}\n").into_bytes()
    }

    /// Reads a stamp's text. The format is looked at before anything else, checksum included: a newer one may
    /// do everything differently.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Stamp, DecodeStampError> {
        let text = std::str::from_utf8(bytes).map_err(|_| bad("it is not text"))?;
        let mut lines = text.split_inclusive('\n');
        if lines.next() != Some(concat_line(FIRST_LINE).as_str()) {
            return Err(bad(format!("its first line is not `{FIRST_LINE}`")));
        }
        let format: u32 = parse(field(lines.next(), "format")?, "format")?;
        if format > FORMAT {
            return Err(DecodeStampError::Newer { found: format });
        }
        let disk = parse(field(lines.next(), "disk")?, "disk")?;
        let node_uuid = u128::from_str_radix(field(lines.next(), "node_uuid")?, 16)
            .map_err(|_| bad("its node_uuid is not hexadecimal"))?;
        let cluster = field(lines.next(), "cluster")?.to_owned();
        let node = parse(field(lines.next(), "node")?, "node")?;
        let summed = text.len() - lines.clone().map(str::len).sum::<usize>();
        let stored = u32::from_str_radix(field(lines.next(), "crc32c")?, 16)
            .map_err(|_| bad("its crc32c is not hexadecimal"))?;
        let computed = crc32c::crc32c(&bytes[..summed]);
        if stored != computed {
            return Err(bad(format!("its checksum is {stored:08x}, the text's is {computed:08x}")));
        }
        if lines.next().is_some() {
            return Err(bad("there is text after its checksum"));
        }
        Ok(Stamp { disk, cluster, node_uuid, node })
    }

    /// The stamp as it is once the directory has joined a cluster as a node. A stamp that names another
    /// cluster or node is refused.
    pub(crate) fn joined(&self, root: &Path, cluster: &str, node: u64) -> Result<Stamp, OpenDiskError> {
        let path = || root.to_owned();
        Stamp::check_cluster(cluster).map_err(|why| OpenDiskError::BadStamp { path: path(), why })?;
        let other_cluster = !self.cluster.is_empty() && self.cluster != cluster;
        let other_node = self.node != 0 && node != 0 && self.node != node;
        if other_cluster || other_node {
            return Err(OpenDiskError::OtherOwner {
                path: path(),
                found: format!("node {} of cluster `{}`", self.node, self.cluster),
                asked: format!("node {node} of cluster `{cluster}`"),
            });
        }
        let node = if node == 0 { self.node } else { node };
        Ok(Stamp { cluster: cluster.to_owned(), node, ..self.clone() })
    }

    /// Checks a cluster's name, which has to stand on one line of the stamp.
    pub(crate) fn check_cluster(cluster: &str) -> Result<(), String> {
        if cluster.is_empty() || cluster.len() > 255 || cluster.chars().any(char::is_control) {
            return Err(format!(
                "{cluster:?} cannot name a cluster: 1 to 255 bytes without control characters"
            ));
        }
        Ok(())
    }
}

fn concat_line(text: &str) -> String {
    format!("{text}\n")
}

fn field<'a>(line: Option<&'a str>, name: &str) -> Result<&'a str, DecodeStampError> {
    line.and_then(|line| line.strip_suffix('\n'))
        .and_then(|line| line.strip_prefix(name))
        .and_then(|rest| rest.strip_prefix(' '))
        .ok_or_else(|| bad(format!("its line `{name}` is missing")))
}

fn parse<T: std::str::FromStr>(text: &str, name: &str) -> Result<T, DecodeStampError> {
    text.parse().map_err(|_| bad(format!("its {name} is `{text}`")))
}

fn bad(why: impl Into<String>) -> DecodeStampError {
    DecodeStampError::Bad { why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp { disk: DiskId(0x0123_4567_89ab_cdef), cluster: "blue whale".into(), node_uuid: 7, node: 3 }
    }

    #[test]
    fn version_1_reads_as_it_was_first_written() {
        let text = "flotilla data directory\nformat 1\ndisk 00000000000000000123456789abcdef\n\
                    node_uuid 00000000000000000000000000000007\ncluster blue whale\nnode 3\n\
                    crc32c cc28fcde\n";
        assert_eq!(String::from_utf8(stamp().encode()).unwrap(), text);
        assert_eq!(Stamp::decode(text.as_bytes()), Ok(stamp()));
        let unjoined = Stamp { cluster: String::new(), node: 0, ..stamp() };
        assert_eq!(Stamp::decode(&unjoined.encode()), Ok(unjoined));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let bytes = stamp().encode();
        for end in 0..bytes.len() {
            assert!(Stamp::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        let summed = bytes.len() - "crc32c 01234567\n".len();
        for at in 0..summed {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert!(Stamp::decode(&damaged).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_apart_from_damage() {
        let newer = b"flotilla data directory\nformat 2\nwhatever\n";
        assert_eq!(Stamp::decode(newer), Err(DecodeStampError::Newer { found: 2 }));
    }
}
