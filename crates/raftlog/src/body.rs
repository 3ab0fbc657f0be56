//! Reading bodies by place, whether or not a log still knows them.

use crate::read::read_error;
use crate::record::{DecodeError, HEADER_BYTES, Head, Header, check_field, head_bytes, record_bytes};
use crate::scan::{ScanError, SegmentReader};
use crate::segment::SegmentId;
use crate::{BodyPieces, EntryMeta, LogSpace, Place, ReadError};
use bytes::Bytes;
use disk::File;
use std::ops::Range;
use std::sync::Arc;
use types::{CRC_CHUNK_BYTES, ChecksumMismatch, PayloadError};

/// The bytes of meta that are read with a header: meta is seldom longer, and then a head is one read.
const META_GUESS_BYTES: usize = 256;

/// The largest record that is read whole with its head.
const WHOLE_RECORD_BYTES_MAX: u64 = 128 << 10;

impl LogSpace {
    /// Reads `range` of a record's body, verified; reads and checks only the 64 KiB pieces it touches.
    /// Entries that a log of this space has in memory are not read from the disk.
    pub async fn read_body(
        &self,
        owners_dir: &str,
        place: Place,
        range: Range<u32>,
    ) -> Result<BodyPieces, ReadError> {
        let id = SegmentId { owner: place.owner, segment: place.segment };
        if range.start > range.end || range.end > place.body_bytes {
            let why = format!("bytes {range:?} of a body of {} bytes", place.body_bytes);
            return Err(ReadError::Damaged { file: id.path(owners_dir), offset: place.offset, why });
        }
        let range = range.start as usize..range.end as usize;
        if let Some(entry) = self.cached_at(owners_dir, &place) {
            let (bytes, crcs) = entry.body.into_parts();
            return Ok(BodyPieces { meta: entry.meta, ..cut_pieces(&bytes, &crcs, 0, range) });
        }
        let file = id.path(owners_dir);
        let explain = |error| read_error(file.clone(), place.offset, error);
        let segment = self.files().open(&file).await.map_err(|error| explain(error.into()))?;
        match read_pieces(segment, place, range).await {
            // The segment was deleted while it was read, and its file is another segment's by now.
            Err(ScanError::Bad(_)) if self.is_missing(&file).await => Err(ReadError::NotFound { file }),
            read => read.map_err(explain),
        }
    }

    /// Reads everything of a record but its body, verified, whether or not a log still knows it.
    pub async fn read_head(&self, owners_dir: &str, place: Place) -> Result<EntryMeta, ReadError> {
        let id = SegmentId { owner: place.owner, segment: place.segment };
        let path = id.path(owners_dir);
        let read = async {
            let file = self.files().open(&path).await?;
            let Head { header, meta, .. } = SegmentReader::new(file, id).head(place.offset).await?;
            check_field("body length", header.place.body_bytes.into(), place.body_bytes.into())?;
            Ok(EntryMeta { id: header.id, kind: header.kind, meta, roll_to: header.roll_to, place })
        };
        read.await.map_err(|error| read_error(path.clone(), place.offset, error))
    }

    async fn is_missing(&self, file: &str) -> bool {
        let opened = self.disk().open(file, false).await;
        opened.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    }

    fn cached_at(&self, owners_dir: &str, place: &Place) -> Option<crate::Entry> {
        let cores = self.cores();
        cores.iter().filter(|core| core.spec.owners_dir == owners_dir).find_map(|core| core.cached_at(place))
    }
}

async fn read_pieces(
    file: Arc<dyn File>,
    place: Place,
    range: Range<usize>,
) -> Result<BodyPieces, ScanError> {
    let body_bytes = place.body_bytes as usize;
    // Whole pieces, as only they can be verified.
    let first_piece = range.start / CRC_CHUNK_BYTES;
    let pieces = first_piece * CRC_CHUNK_BYTES..range.end.next_multiple_of(CRC_CHUNK_BYTES).min(body_bytes);
    let pieces = pieces.start..pieces.end.max(pieces.start);
    let start = read_start(&*file, place, &pieces).await?;
    let header = Header::decode(&start)?;
    header.check_place(place.owner, place.segment, place.offset)?;
    check_field("body length", header.place.body_bytes.into(), place.body_bytes.into())?;
    let head = if (header.head_bytes() as usize) <= start.len() {
        Head::decode(header, &start)?
    } else {
        Head::decode(header, &file.read_at(place.offset, header.head_bytes() as usize).await?)?
    };
    let body_start = header.head_bytes() as usize;
    let in_start = body_start + pieces.start..body_start + pieces.end;
    let bytes = if in_start.end <= start.len() {
        start.slice(in_start)
    } else {
        file.read_at(place.offset + in_start.start as u64, pieces.len()).await?
    };
    if bytes.len() < pieces.len() {
        return Err(DecodeError::Cut.into());
    }
    verify(&bytes, &head.body_crcs, first_piece)?;
    let crcs = &head.body_crcs[first_piece.min(head.body_crcs.len())..];
    Ok(BodyPieces { meta: head.meta, ..cut_pieces(&bytes, crcs, pieces.start, range) })
}

/// Reads a record's head, and the body with it when it is small, or as much of it as is wanted where that
/// begins with it: one read of the disk instead of two.
async fn read_start(file: &dyn File, place: Place, wanted: &Range<usize>) -> Result<Bytes, ScanError> {
    let body_bytes = place.body_bytes as usize;
    let (whole, head) =
        (record_bytes(META_GUESS_BYTES, body_bytes), head_bytes(META_GUESS_BYTES, body_bytes) as usize);
    let bytes = match wanted.start {
        _ if whole <= WHOLE_RECORD_BYTES_MAX => whole as usize,
        0 => head + wanted.end,
        _ => head,
    };
    debug_assert!(bytes >= HEADER_BYTES);
    Ok(file.read_at(place.offset, bytes).await?)
}

fn verify(bytes: &Bytes, crcs: &[u32], first_piece: usize) -> Result<(), DecodeError> {
    for (nth, piece) in bytes.chunks(CRC_CHUNK_BYTES).enumerate() {
        let (stored, computed) = (crcs[first_piece + nth], crc32c::crc32c(piece));
        if stored != computed {
            let chunk_offset = (first_piece + nth) * CRC_CHUNK_BYTES;
            let mismatch = ChecksumMismatch { chunk_offset, stored, computed };
            return Err(DecodeError::Body(PayloadError::Mismatch(mismatch)));
        }
    }
    Ok(())
}

/// Cuts a range of the body out of `bytes`, which begin at `bytes_start`, a multiple of 64 KiB, and whose
/// sums begin with theirs. Sums of pieces that stay whole are kept, so that what the disk stored is what the
/// next hop checks. The meta is left to the caller.
fn cut_pieces(bytes: &Bytes, crcs: &[u32], bytes_start: usize, range: Range<usize>) -> BodyPieces {
    let body_end = bytes_start + bytes.len();
    let cut = bytes.slice(range.start - bytes_start..range.end - bytes_start);
    let mut piece_start = range.start;
    let mut cut_crcs = Vec::new();
    let mut first_piece_bytes = 0;
    while piece_start < range.end {
        let nth = (piece_start - bytes_start) / CRC_CHUNK_BYTES;
        let whole_start = bytes_start + nth * CRC_CHUNK_BYTES;
        let whole_end = (whole_start + CRC_CHUNK_BYTES).min(body_end);
        let piece_end = whole_end.min(range.end);
        let is_whole = piece_start == whole_start && piece_end == whole_end;
        cut_crcs.push(if is_whole {
            crcs[nth]
        } else {
            crc32c::crc32c(&cut[piece_start - range.start..piece_end - range.start])
        });
        if piece_start == range.start {
            first_piece_bytes = (piece_end - piece_start) as u32;
        }
        piece_start = piece_end;
    }
    BodyPieces { bytes: cut, crcs: cut_crcs, first_piece_bytes, meta: Bytes::new() }
}
