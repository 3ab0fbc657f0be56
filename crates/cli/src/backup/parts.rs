//! The file of one group: a head, and parts, each of which is restored as one entry of a log.
//!
//! ```text
//! offset size field
//!      0    8 magic     "FLombk\0\0"
//!      8    4 version   1
//!     12    4 crc       CRC32C of the 24 bytes that follow
//!     16   16 backup    its id, big-endian
//!     32    8 group
//! ```
//!
//! and then each part, counted from 1:
//!
//! ```text
//! offset size field
//!      0    4 bytes     of the rows
//!      4    4 crc       CRC32C of backup, group, the part's number (8), bytes, and the rows
//!      8      rows      `BackupRows`
//! ```

use super::manifest::BackupId;
use anyhow::{Context, bail, ensure};
use prost::Message;
use proto::om::BackupRows;
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"FLombk\0\0";
/// Persisted: older versions stay readable, newer ones are refused.
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 40;
const PART_HEAD_BYTES: usize = 8;
/// The most bytes of a part's rows: one row may have 4 MiB, and a part some others.
const PART_BYTES_MAX: usize = 13 << 20;

/// The owner of a file: a group of a backup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) backup: BackupId,
    pub(super) group: u64,
}

impl Owner {
    fn encode(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.backup.0.to_be_bytes());
        bytes[16..].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }

    fn head(self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&crc32c::crc32c(&self.encode()).to_le_bytes());
        head[16..].copy_from_slice(&self.encode());
        head
    }

    /// The checksum that binds a part's rows to their place.
    fn crc(self, number: u64, rows: &[u8]) -> u32 {
        let crc = crc32c::crc32c(&self.encode());
        let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &(rows.len() as u32).to_le_bytes());
        crc32c::crc32c_append(crc, rows)
    }
}

/// A group's file as it is written.
pub(super) struct PartsWriter<W> {
    out: W,
    owner: Owner,
    pub(super) parts: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl<W: Write> PartsWriter<W> {
    pub(super) fn new(mut out: W, owner: Owner) -> io::Result<PartsWriter<W>> {
        out.write_all(&owner.head())?;
        Ok(PartsWriter { out, owner, parts: 0, rows: 0, bytes: HEAD_BYTES as u64 })
    }

    pub(super) fn write(&mut self, rows: &BackupRows) -> io::Result<()> {
        self.parts += 1;
        self.rows += rows.rows.len() as u64;
        let rows = rows.encode_to_vec();
        self.bytes += (PART_HEAD_BYTES + rows.len()) as u64;
        self.out.write_all(&(rows.len() as u32).to_le_bytes())?;
        self.out.write_all(&self.owner.crc(self.parts, &rows).to_le_bytes())?;
        self.out.write_all(&rows)
    }

    pub(super) fn into_inner(self) -> W {
        self.out
    }
}

/// A group's file as it is read, part by part.
pub(super) struct PartsReader<R> {
    file: R,
    owner: Owner,
    pub(super) parts: u64,
}

impl<R: Read> PartsReader<R> {
    pub(super) fn new(mut file: R, owner: Owner) -> anyhow::Result<PartsReader<R>> {
        let mut head = [0; HEAD_BYTES];
        file.read_exact(&mut head).context("read its head")?;
        ensure!(head[..8] == MAGIC, "it is no file of a backup");
        let version = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
        ensure!(
            version <= VERSION,
            "it is of version {version}, and this flotilla reads {VERSION}: take a newer one"
        );
        ensure!(head == owner.head(), "it is damaged, or of another backup or group: its head is another");
        Ok(PartsReader { file, owner, parts: 0 })
    }

    /// Reads the next part; `None` at the end of the file.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<BackupRows>> {
        let mut head = [0; PART_HEAD_BYTES];
        let number = self.parts + 1;
        let begun = read_up_to(&mut self.file, &mut head).with_context(|| format!("read part {number}"))?;
        if begun == 0 {
            return Ok(None);
        }
        ensure!(begun == PART_HEAD_BYTES, "it ends within part {number}");
        let [bytes, crc] =
            [&head[..4], &head[4..]].map(|it| u32::from_le_bytes(it.try_into().expect("four bytes")));
        let bytes = bytes as usize;
        ensure!(bytes <= PART_BYTES_MAX, "part {number} is damaged: no part has {bytes} bytes");
        let mut rows = vec![0; bytes];
        let come = read_up_to(&mut self.file, &mut rows).with_context(|| format!("read part {number}"))?;
        ensure!(come == bytes, "it ends within part {number}");
        if self.owner.crc(number, &rows) != crc {
            bail!("part {number} is damaged: its checksum is another");
        }
        self.parts = number;
        BackupRows::decode(&rows[..]).map(Some).with_context(|| format!("decode part {number}"))
    }
}

/// Reads as much as there is, up to the end of `into`.
fn read_up_to(file: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut come = 0;
    while come < into.len() {
        match file.read(&mut into[come..]) {
            Ok(0) => break,
            Ok(bytes) => come += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(come)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::om::MovedRow;

    const OWNER: Owner = Owner { backup: BackupId(7), group: 3 };

    fn rows(key: &'static str) -> BackupRows {
        BackupRows { rows: vec![MovedRow { key: key.into(), value: Some("value".into()) }] }
    }

    fn written(owner: Owner, keys: &[&'static str]) -> Vec<u8> {
        let mut writer = PartsWriter::new(Vec::new(), owner).unwrap();
        keys.iter().for_each(|key| writer.write(&rows(key)).unwrap());
        let bytes = writer.bytes;
        let file = writer.into_inner();
        assert_eq!(file.len() as u64, bytes);
        file
    }

    fn read(file: &[u8]) -> anyhow::Result<Vec<BackupRows>> {
        let mut reader = PartsReader::new(file, OWNER)?;
        let mut parts = Vec::new();
        while let Some(part) = reader.next()? {
            parts.push(part);
        }
        Ok(parts)
    }

    /// The bytes of docs/format/om-backup.md: a failure here means that backups cannot be read any more.
    #[test]
    fn a_file_keeps_its_bytes() {
        let golden: &[u8] = b"FLombk\0\0\x01\0\0\0\x9d\xa5\xdf\x98\
            \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x07\x03\0\0\0\0\0\0\0\
            \x0d\0\0\0\xb5{\xac\xae\x0a\x0b\x0a\x02ka\x12\x05value";
        assert_eq!(written(OWNER, &["ka"]).escape_ascii().to_string(), golden.escape_ascii().to_string());
    }

    #[test]
    fn what_was_written_is_read_and_every_flipped_byte_is_found() {
        let file = written(OWNER, &["a", "b", "c"]);
        assert_eq!(read(&file).unwrap(), ["a", "b", "c"].map(rows));
        for at in 0..file.len() {
            for mask in [1, 0x80, 0xff] {
                let mut flipped = file.clone();
                flipped[at] ^= mask;
                assert!(read(&flipped).is_err(), "byte {at} ^ {mask}");
            }
        }
    }

    #[test]
    fn cuts_within_a_part_are_found_and_others_are_for_the_manifest_to_tell() {
        let file = written(OWNER, &["a", "b"]);
        let whole: Vec<usize> = (0..=2).map(|count| written(OWNER, &["a", "b"][..count]).len()).collect();
        for cut in 0..=file.len() {
            assert_eq!(read(&file[..cut]).is_ok(), whole.contains(&cut), "cut at {cut}");
        }
    }

    #[test]
    fn parts_of_other_places_are_none() {
        for other in [Owner { group: 4, ..OWNER }, Owner { backup: BackupId(8), ..OWNER }] {
            assert!(read(&written(other, &["a"])).is_err());
            // The other file's parts behind this file's head.
            let mixed = [&written(OWNER, &[])[..], &written(other, &["a"])[HEAD_BYTES..]].concat();
            assert!(read(&mixed).unwrap_err().to_string().contains("part 1 is damaged"));
        }
        let file = written(OWNER, &["a", "b"]);
        let (head, parts) = file.split_at(HEAD_BYTES);
        let (first, second) = parts.split_at(parts.len() / 2);
        assert!(read(&[head, second, first].concat()).is_err(), "in another order");
    }
}
