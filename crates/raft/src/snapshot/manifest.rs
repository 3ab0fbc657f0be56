//! The manifest of a snapshot says what it consists of: docs/format/snapshot.md. Little-endian.
//!
//! ```text
//! offset size field
//!      0    8 magic            "FLsnap\0\0"
//!      8    4 version          1
//!     12    4 crc              CRC32C of all bytes after this field
//!     16    8 group
//!     24   16 applied          term, index of the last entry in the state
//!     40    4 piece_bytes      262144
//!     44    4 file_count
//!     48    4 membership_bytes
//!     52    4                  zero
//!     56      membership       as in an applied position
//!             files            sorted by name: name length u8, name, bytes u64, CRC32C u32 of each piece
//! ```

use crate::Applied;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use types::{GroupId, LogId, LogIndex, Term};

/// The size of the pieces in which files are sent and checked; the last one of a file is shorter. Part of the
/// format.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// The most bytes of a manifest, which must fit into a message. Enough for one terabyte in pieces of 256 KiB.
pub(crate) const MANIFEST_BYTES_MAX: usize = 16 << 20;

/// The bytes from which on a file is large.
const LARGE_BYTES: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"FLsnap\0\0";
/// Persisted: older versions stay readable, newer ones are refused.
const VERSION: u32 = 1;
const CRC_OFFSET: usize = MAGIC.len() + 4;
const BODY_OFFSET: usize = CRC_OFFSET + 4;
const HEAD_BYTES: usize = BODY_OFFSET + 8 + 16 + 4 * 4;
const _: () = assert!(HEAD_BYTES == 56);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) group: GroupId,
    pub(crate) applied: Applied,
    /// The files, sorted by name.
    pub(crate) files: Vec<FileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The CRC of each piece.
    pub(crate) crcs: Vec<u32>,
}

/// One piece of one file of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Piece {
    pub(crate) file: u32,
    pub(crate) number: u32,
}

/// The reason why bytes are no manifest of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("the manifest of a snapshot is damaged: {0}")]
    Damaged(&'static str),
    #[error("the manifest of a snapshot has version {0}, this flotilla reads {VERSION}")]
    UnknownVersion(u32),
    #[error("a snapshot cannot have {0}")]
    Refused(String),
}

impl Manifest {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&MAGIC);
        out.put_u32_le(VERSION);
        out.put_u32_le(0);
        out.put_u64_le(self.group.to_u64());
        out.put_u64_le(self.applied.id.term.0);
        out.put_u64_le(self.applied.id.index.0);
        out.put_u32_le(PIECE_BYTES as u32);
        out.put_u32_le(self.files.len() as u32);
        out.put_u32_le(self.applied.membership.len() as u32);
        out.put_u32_le(0);
        out.put_slice(&self.applied.membership);
        for file in &self.files {
            out.put_u8(file.name.len() as u8);
            out.put_slice(file.name.as_bytes());
            out.put_u64_le(file.bytes);
            for crc in &file.crcs {
                out.put_u32_le(*crc);
            }
        }
        let crc = crc32c::crc32c(&out[BODY_OFFSET..]);
        out[CRC_OFFSET..BODY_OFFSET].copy_from_slice(&crc.to_le_bytes());
        out.freeze()
    }

    /// Takes exactly what [`Manifest::encode`] makes; nothing in it is used before the checksum agrees.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, DecodeError> {
        use DecodeError::{Damaged, Refused, UnknownVersion};
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(Refused(format!("a manifest of {} bytes", bytes.len())));
        }
        if bytes.len() < HEAD_BYTES || bytes[..MAGIC.len()] != MAGIC {
            return Err(Damaged("it has no head"));
        }
        let mut rest = &bytes[MAGIC.len()..];
        let (version, crc) = (rest.get_u32_le(), rest.get_u32_le());
        if version != VERSION {
            return Err(UnknownVersion(version));
        }
        if crc32c::crc32c(&bytes[BODY_OFFSET..]) != crc {
            return Err(Damaged("its checksum is another"));
        }
        let group = GroupId::try_from(rest.get_u64_le()).map_err(|error| Refused(error.to_string()))?;
        let id = LogId { term: Term(rest.get_u64_le()), index: LogIndex(rest.get_u64_le()) };
        let piece_bytes = rest.get_u32_le();
        if piece_bytes as usize != PIECE_BYTES {
            return Err(Refused(format!("pieces of {piece_bytes} bytes")));
        }
        let (file_count, membership_bytes) = (rest.get_u32_le(), rest.get_u32_le() as usize);
        if rest.get_u32_le() != 0 || rest.len() < membership_bytes {
            return Err(Damaged("its head is none"));
        }
        let membership = Bytes::copy_from_slice(&rest[..membership_bytes]);
        rest.advance(membership_bytes);
        let mut files: Vec<FileEntry> = Vec::new();
        for _ in 0..file_count {
            let file = FileEntry::decode(&mut rest)?;
            if files.last().is_some_and(|before| before.name >= file.name) {
                return Err(Refused("files that are not sorted".to_owned()));
            }
            files.push(file);
        }
        if !rest.is_empty() {
            return Err(Damaged("it goes on after its end"));
        }
        Ok(Manifest { group, applied: Applied { id, membership }, files })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The large files that another snapshot, if there is one, does not have under their names: the disk gets
    /// their bytes back when this snapshot goes.
    pub(crate) fn freed_beside(&self, other: Option<&Manifest>) -> Vec<FileEntry> {
        let others = other.map_or(&[][..], |other| &other.files);
        let is_others = |file: &FileEntry| others.binary_search_by(|it| it.name.cmp(&file.name)).is_ok();
        self.files.iter().filter(|file| file.bytes >= LARGE_BYTES && !is_others(file)).cloned().collect()
    }

    /// The snapshot's pieces in the order in which they are sent, from one on.
    pub(crate) fn pieces_from(&self, from: Piece) -> impl Iterator<Item = Piece> + '_ {
        let files = (0u32..).zip(&self.files).skip(from.file as usize);
        files.flat_map(move |(file, entry)| {
            let first = if file == from.file { from.number } else { 0 };
            (first..entry.crcs.len() as u32).map(move |number| Piece { file, number })
        })
    }

    /// File, offset, length and checksum of a piece; `None` when there is no such piece.
    pub(crate) fn look_up(&self, piece: Piece) -> Option<(&FileEntry, u64, usize, u32)> {
        let file = self.files.get(piece.file as usize)?;
        let crc = *file.crcs.get(piece.number as usize)?;
        let offset = u64::from(piece.number) * PIECE_BYTES as u64;
        let bytes = (file.bytes - offset).min(PIECE_BYTES as u64) as usize;
        Some((file, offset, bytes, crc))
    }

    /// Bytes in `piece` and those after it.
    pub(crate) fn bytes_from(&self, piece: Piece) -> u64 {
        let mut rest = self.files.iter().skip(piece.file as usize).map(|file| file.bytes);
        let within =
            rest.next().map_or(0, |bytes| bytes.saturating_sub(u64::from(piece.number) * PIECE_BYTES as u64));
        within + rest.sum::<u64>()
    }
}

impl FileEntry {
    fn decode(rest: &mut &[u8]) -> Result<FileEntry, DecodeError> {
        let short = || DecodeError::Damaged("it ends in the middle of a file");
        let name_bytes = usize::from(*rest.first().ok_or_else(short)?);
        rest.advance(1);
        if rest.len() < name_bytes + 8 {
            return Err(short());
        }
        let name = String::from_utf8_lossy(&rest[..name_bytes]).into_owned();
        check_name(&name).map_err(DecodeError::Refused)?;
        rest.advance(name_bytes);
        let bytes = rest.get_u64_le();
        let count = bytes.div_ceil(PIECE_BYTES as u64);
        if (rest.len() as u64) / 4 < count {
            return Err(short());
        }
        let crcs = (0..count).map(|_| rest.get_u32_le()).collect();
        Ok(FileEntry { name, bytes, crcs })
    }
}

/// Refuses a name that is not plain: a peer's names become paths here.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if name.is_empty() || name.len() > 255 || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(format!("a file `{}`", name.escape_debug()));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn manifest() -> Manifest {
        let id = LogId { term: Term(3), index: LogIndex(0x0102) };
        let applied = Applied { id, membership: Bytes::from_static(b"mm") };
        let file = |name: &str, bytes: u64, crcs: &[u32]| FileEntry {
            name: name.to_owned(),
            bytes,
            crcs: crcs.to_vec(),
        };
        let files = vec![
            file("a.sst", PIECE_BYTES as u64 + 1, &[0x0a0b_0c0d, 7]),
            file("empty", 0, &[]),
            file("z", 5, &[9]),
        ];
        Manifest { group: GroupId::om(0), applied, files }
    }

    /// Bytes written by the first version (docs/format/snapshot.md). A failure here means that snapshots on
    /// disks and of members of another version cannot be read.
    #[test]
    fn a_manifest_keeps_its_bytes() {
        let golden: &[u8] = b"FLsnap\0\0\x01\0\0\0\xf1\x1f\x0a\x2b\
            \0\0\0\0\0\0\0\x02\x03\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0\
            \0\0\x04\0\x03\0\0\0\x02\0\0\0\0\0\0\0mm\
            \x05a.sst\x01\0\x04\0\0\0\0\0\x0d\x0c\x0b\x0a\x07\0\0\0\
            \x05empty\0\0\0\0\0\0\0\0\
            \x01z\x05\0\0\0\0\0\0\0\x09\0\0\0";
        assert_eq!(manifest().encode().escape_ascii().to_string(), golden.escape_ascii().to_string());
        assert_eq!(Manifest::decode(golden).unwrap(), manifest());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = manifest().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn what_a_peer_must_not_name_is_refused() {
        for bad in ["..", ".hidden", "a/b", "", "a\0", "ä"] {
            let mut manifest = manifest();
            manifest.files[0].name = bad.to_owned();
            let refused = Manifest::decode(&manifest.encode());
            assert!(matches!(refused, Err(DecodeError::Refused(_))), "{bad:?}: {refused:?}");
        }
        let mut twice = manifest();
        twice.files[1].name = "a.sst".to_owned();
        assert!(matches!(Manifest::decode(&twice.encode()), Err(DecodeError::Refused(_))));
    }

    #[test]
    fn pieces_cover_the_files_in_order() {
        let manifest = manifest();
        let all: Vec<_> = manifest.pieces_from(Piece { file: 0, number: 0 }).collect();
        let pieces = [(0, 0), (0, 1), (2, 0)].map(|(file, number)| Piece { file, number });
        assert_eq!(all, pieces);
        let bytes = |piece| manifest.look_up(piece).map(|(_, offset, bytes, _)| (offset, bytes));
        assert_eq!(bytes(pieces[1]), Some((PIECE_BYTES as u64, 1)));
        assert_eq!(bytes(pieces[2]), Some((0, 5)));
        assert_eq!(bytes(Piece { file: 1, number: 0 }), None);
        assert_eq!(manifest.bytes_from(pieces[1]), 6);
        assert_eq!(manifest.bytes_from(pieces[0]), manifest.bytes());
    }
}
