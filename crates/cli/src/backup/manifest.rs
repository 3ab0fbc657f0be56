//! The manifest says what belongs to a backup. It is written last: without it there is none.
//!
//! ```text
//! flotilla-om-backup 1 CRC32C
//! { … }
//! ```
//!
//! The number is the version; the checksum, in eight hexadecimal digits, is of all that follows the first
//! line.

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

const MAGIC: &str = "flotilla-om-backup";
/// Persisted: older versions stay readable, newer ones are refused.
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) cluster: String,
    pub(crate) backup: BackupId,
    /// The time of the backup, since the Unix epoch.
    pub(crate) taken_ms: u64,
    /// The version of the software that has taken the backup.
    pub(crate) flotilla: String,
    pub(crate) tables_format: u32,
    /// The groups of names, by number.
    pub(crate) groups: Vec<GroupBackup>,
}

/// The rows of one group, which are in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupBackup {
    pub(crate) group: u64,
    /// The term of the last entry of the group's log that is in the rows; below it, the entry's index.
    pub(crate) term: u64,
    pub(crate) index: u64,
    /// Entries that the group's names have had.
    pub(crate) entries: u64,
    pub(crate) parts: u64,
    pub(crate) rows: u64,
    /// The bytes of the group's file.
    pub(crate) bytes: u64,
}

/// Sixteen random bytes, which tell a backup from any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct BackupId(pub(crate) u128);

impl BackupId {
    pub(crate) fn new() -> BackupId {
        BackupId(Uuid::new_v4().as_u128())
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_u128(self.0).fmt(f)
    }
}

impl From<BackupId> for String {
    fn from(id: BackupId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for BackupId {
    type Error = String;

    fn try_from(id: String) -> Result<BackupId, String> {
        Uuid::parse_str(&id).map(|id| BackupId(id.as_u128())).map_err(|error| format!("`{id}`: {error}"))
    }
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body =
            format!("{}\n", serde_json::to_string_pretty(self).expect("it has text and numbers alone"));
        [first_line(body.as_bytes()).as_bytes(), body.as_bytes()].concat()
    }

    /// Takes what [`Manifest::encode`] makes; nothing in it is used before the checksum agrees.
    pub(crate) fn decode(bytes: &[u8]) -> anyhow::Result<Manifest> {
        let end = bytes.iter().position(|byte| *byte == b'\n').context("it has no first line")?;
        let (first, body) = bytes.split_at(end + 1);
        let first = std::str::from_utf8(first).context("its first line is no text")?;
        let mut words = first.split_whitespace();
        ensure!(words.next() == Some(MAGIC), "its first line is not that of a backup of names");
        let version: u32 =
            words.next().and_then(|word| word.parse().ok()).context("its first line has no version")?;
        if version > VERSION {
            bail!("it is of version {version}, and this flotilla reads {VERSION}: take a newer one");
        }
        ensure!(first == first_line(body), "it is damaged: its checksum is another");
        serde_json::from_slice(body).context("read what it says")
    }

    pub(crate) fn group(&self, group: u64) -> Option<&GroupBackup> {
        self.groups.iter().find(|known| known.group == group)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.groups.iter().map(|group| group.rows).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.bytes).sum()
    }
}

fn first_line(body: &[u8]) -> String {
    format!("{MAGIC} {VERSION} {:08x}\n", crc32c::crc32c(body))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn manifest() -> Manifest {
        let group =
            |group| GroupBackup { group, term: 3, index: 41, entries: 42, parts: 2, rows: 3, bytes: 99 };
        Manifest {
            cluster: "113bfdd8-ef21-4bbf-86e4-c3a42c45903f".to_owned(),
            backup: BackupId(7),
            taken_ms: 1_700_000_000_000,
            flotilla: "0.1.0".to_owned(),
            tables_format: 7,
            groups: vec![group(0), group(3)],
        }
    }

    /// The bytes of docs/format/om-backup.md: a failure here means that backups cannot be read any more.
    #[test]
    fn a_manifest_keeps_its_bytes() {
        let golden = include_bytes!("manifest.v1");
        assert_eq!(String::from_utf8_lossy(&manifest().encode()), String::from_utf8_lossy(golden));
        assert_eq!(Manifest::decode(golden).unwrap(), manifest());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = manifest().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_newer_version_is_said_to_be_one() {
        let newer = String::from_utf8(manifest().encode()).unwrap().replacen(" 1 ", " 2 ", 1);
        let why = Manifest::decode(newer.as_bytes()).unwrap_err().to_string();
        assert!(why.contains("version 2") && why.contains("newer"), "{why}");
    }
}
