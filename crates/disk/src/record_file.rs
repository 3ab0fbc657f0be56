//! Small files that are read whole and replaced whole: magic, version, contents, checksum. Little-endian.
//!
//! ```text
//! fields                            message
//! offset size field                 offset size field
//!      0    4 magic                      0    4 magic
//!      4    1 version                    4    1 version
//!      5    n contents                   5    3 zero
//!    5+n    4 crc  of all before         8    4 bytes     of the contents
//!                                       12    4 crc       of bytes 0..12 and the contents
//!                                       16    n contents
//! ```

use crate::Disk;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::io;

const VERSION_AT: usize = 4;
const FIELDS_AT: usize = VERSION_AT + 1;
const BYTES_AT: usize = 8;
const MESSAGE_CRC_AT: usize = 12;
const CRC_BYTES: usize = 4;
const MESSAGE_AT: usize = MESSAGE_CRC_AT + CRC_BYTES;

/// The format of a file.
#[derive(Clone, Copy, Debug)]
pub struct RecordFile {
    magic: [u8; 4],
    version: u8,
    /// The most bytes that the contents may have.
    bytes_max: usize,
    layout: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Fields,
    Message,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadRecordError {
    #[error("read {path}")]
    Io { path: String, source: io::Error },
    /// The file is no whole one of the format, or its contents mean nothing.
    #[error("{path}: {why}")]
    Damaged { path: String, why: String },
}

impl From<ReadRecordError> for io::Error {
    fn from(error: ReadRecordError) -> io::Error {
        match error {
            ReadRecordError::Io { source, .. } => source,
            damaged @ ReadRecordError::Damaged { .. } => io::Error::new(io::ErrorKind::InvalidData, damaged),
        }
    }
}

impl RecordFile {
    /// A format whose contents say how long they are.
    pub const fn of_fields(magic: &[u8; 4], version: u8, bytes_max: usize) -> RecordFile {
        RecordFile { magic: *magic, version, bytes_max, layout: Layout::Fields }
    }

    /// A format whose contents are of any length.
    pub const fn of_message(magic: &[u8; 4], version: u8, bytes_max: usize) -> RecordFile {
        RecordFile { magic: *magic, version, bytes_max, layout: Layout::Message }
    }

    /// The bytes of a file with these contents.
    pub fn encode(&self, contents: &[u8]) -> Bytes {
        assert!(contents.len() <= self.bytes_max, "{} bytes, at most {}", contents.len(), self.bytes_max);
        let mut out = BytesMut::with_capacity(MESSAGE_AT + contents.len());
        out.put_slice(&self.magic);
        out.put_u8(self.version);
        if self.layout == Layout::Message {
            out.put_slice(&[0; BYTES_AT - FIELDS_AT]);
            out.put_u32_le(contents.len() as u32); // at most bytes_max
            out.put_u32_le(crc32c::crc32c_append(crc32c::crc32c(&out), contents));
        }
        out.put_slice(contents);
        if self.layout == Layout::Fields {
            out.put_u32_le(crc32c::crc32c(&out));
        }
        out.freeze()
    }

    /// The contents of a file with these bytes. The version is looked at before the checksum, which a newer
    /// one may have elsewhere.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let head_bytes = if self.layout == Layout::Message { MESSAGE_AT } else { FIELDS_AT + CRC_BYTES };
        if bytes.len() < head_bytes {
            return Err(format!("it has only {} bytes", bytes.len()));
        }
        if bytes[..VERSION_AT] != self.magic {
            return Err(format!("it does not begin with `{}`", self.magic.escape_ascii()));
        }
        if bytes[VERSION_AT] != self.version {
            return Err(format!("its version {} is unknown", bytes[VERSION_AT]));
        }
        let (contents, mut crc, computed) = match self.layout {
            Layout::Fields => {
                let (summed, crc) = bytes.split_at(bytes.len() - CRC_BYTES);
                (&summed[FIELDS_AT..], crc, crc32c::crc32c(summed))
            }
            Layout::Message => {
                let (head, contents) = bytes.split_at(MESSAGE_AT);
                let (head, crc) = head.split_at(MESSAGE_CRC_AT);
                let said = (&head[BYTES_AT..]).get_u32_le() as usize;
                if contents.len() != said {
                    return Err(format!("its contents have {} bytes, {said} are said", contents.len()));
                }
                (contents, crc, crc32c::crc32c_append(crc32c::crc32c(head), contents))
            }
        };
        let stored = crc.get_u32_le();
        if stored != computed {
            return Err(format!("checksum mismatch: stored {stored:#010x}, computed {computed:#010x}"));
        }
        Ok(contents)
    }

    /// Reads a file, and its contents by `decode`; `None` when there is none.
    pub async fn read<T>(
        &self,
        disk: &dyn Disk,
        path: &str,
        decode: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Option<T>, ReadRecordError> {
        let read = async {
            let file = disk.open(path, false).await?;
            // One byte more than there may be, to see that there is none.
            file.read_at(0, MESSAGE_AT + self.bytes_max + 1).await
        };
        let path = || path.to_owned();
        let bytes = match read.await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| ReadRecordError::Io { path: path(), source })?,
        };
        let decoded = self.decode(&bytes).and_then(decode);
        decoded.map(Some).map_err(|why| ReadRecordError::Damaged { path: path(), why })
    }

    /// Replaces a file of a directory that is there. Durable on return; a crash before leaves the old file or
    /// the new one. Not for two writers of one file at the same time.
    pub async fn write(&self, disk: &dyn Disk, path: &str, contents: &[u8]) -> io::Result<()> {
        let (dir, temporary) = (path.rsplit_once('/').map_or("", |(dir, _)| dir), format!("{path}.tmp"));
        let file = disk.open(&temporary, true).await?;
        file.set_len(0).await?;
        // The contents are synced before the rename: else a crash could leave the new name with nothing
        // behind it.
        file.write_and_sync(0, vec![self.encode(contents)]).await?;
        disk.rename(&temporary, path).await?;
        disk.sync_dir(dir).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimDisk, SimOptions};

    const FORMATS: [RecordFile; 2] =
        [RecordFile::of_fields(b"FLff", 3, 8), RecordFile::of_message(b"FLmm", 1, 8)];

    #[test]
    fn files_are_laid_out_as_documented_and_every_flipped_bit_and_cut_is_found() {
        let [fields, message] = FORMATS.map(|format| format.encode(b"12345"));
        assert_eq!((&fields[..10], fields.len()), (&b"FLff\x0312345"[..], 14));
        assert_eq!(fields[10..], crc32c::crc32c(b"FLff\x0312345").to_le_bytes());
        assert_eq!((&message[..12], message.len()), (&b"FLmm\x01\0\0\0\x05\0\0\0"[..], 21));
        let crc = crc32c::crc32c(b"FLmm\x01\0\0\0\x05\0\0\x0012345");
        assert_eq!((&message[12..16], &message[16..]), (&crc.to_le_bytes()[..], &b"12345"[..]));
        for (format, bytes) in FORMATS.iter().zip([fields, message]) {
            assert_eq!(format.decode(&bytes).unwrap(), b"12345");
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(format.decode(&damaged).is_err(), "{format:?} bit {bit}");
            }
            for cut in 0..bytes.len() {
                assert!(format.decode(&bytes[..cut]).is_err(), "{format:?} cut at {cut}");
            }
            assert!(format.decode(&[&bytes[..], b"0"].concat()).is_err(), "{format:?} and one byte more");
            assert_eq!(format.decode(&format.encode(b"")).unwrap(), b"");
        }
    }

    #[test]
    fn a_newer_version_is_told_apart_from_damage() {
        for format in FORMATS {
            let newer = RecordFile { version: 9, ..format }.encode(b"1");
            assert_eq!(format.decode(&newer).unwrap_err(), "its version 9 is unknown");
        }
    }

    /// Whatever step a full disk refuses, what was there stays, and the next try succeeds.
    #[tokio::test]
    async fn a_file_is_replaced_whole_or_not_at_all() {
        let sim = SimDisk::new(SimOptions::default());
        sim.create_dir_all("a").await.unwrap();
        let read = async |format: RecordFile| {
            let decode = |bytes: &[u8]| match bytes {
                b"bad" => Err("they are bad".to_owned()),
                bytes => Ok(bytes.to_vec()),
            };
            format.read(&sim, "a/file", decode).await
        };
        for format in FORMATS {
            assert_eq!(read(format).await.unwrap(), None);
            format.write(&sim, "a/file", b"one").await.unwrap();
            sim.set_free_bytes(0);
            assert!(format.write(&sim, "a/file", b"two").await.is_err());
            assert_eq!(read(format).await.unwrap().unwrap(), b"one");
            sim.set_free_bytes(1 << 20);
            format.write(&sim, "a/file", b"three").await.unwrap();
            assert_eq!(read(format).await.unwrap().unwrap(), b"three");
            assert_eq!(sim.list("a").await.unwrap(), ["file"], "nothing temporary stays");
            format.write(&sim, "a/file", b"bad").await.unwrap();
            let refused = read(format).await.unwrap_err();
            assert!(matches!(refused, ReadRecordError::Damaged { .. }), "{refused}");
            let refused = io::Error::from(refused);
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            assert_eq!(refused.to_string(), "a/file: they are bad");
            sim.remove_file("a/file").await.unwrap();
        }
    }
}
