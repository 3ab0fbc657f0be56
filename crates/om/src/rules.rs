//! Rules of what the namespace accepts: S3's, checked on the leader before a command is proposed.

use prost::Message;
use proto::om::{BlockPiece, KeyAttributes};
use proto::{Code, Failure};

/// The volume that S3 sees. It is there without being made.
pub(crate) const VOLUME: &str = "s3v";
pub(crate) const KEY_BYTES_MAX: usize = 1024;
pub(crate) const USER_METADATA_BYTES_MAX: usize = 2 << 10;
pub(crate) const ATTRIBUTES_BYTES_MAX: usize = 8 << 10;
const ETAG_BYTES_MAX: usize = 256;
/// The most entries of a page, for every list.
pub(crate) const PAGE_ENTRIES_MAX: u32 = 1000;
pub(crate) const PARTS_MAX: u32 = 10_000;
/// The fewest bytes of a part of an upload, unless it is the last.
pub(crate) const PART_BYTES_MIN: u64 = 5 << 20;
/// The most bytes of a command, which stands whole in the log and in memory. 10 000 parts are half a
/// megabyte, 20 000 pieces (5 TiB in blocks of 256 MiB) less than one.
pub(crate) const COMMAND_BYTES_MAX: usize = 4 << 20;

/// The most bytes of a command that takes rows in: one row of [`KEY_PIECES_MAX`] pieces, and others beside
/// it.
pub(crate) const ROWS_BYTES_MAX: usize = 12 << 20;
/// The bytes with which a part of a bucket that moves, or of a backup, is full: small beside what a group
/// applies in a second, so that its other buckets do not wait. The last row may be much longer.
pub(crate) const ROWS_PART_BYTES: usize = 512 << 10;

/// Refuses a volume that cannot be there.
pub(crate) fn check_volume(volume: &str) -> Result<(), Failure> {
    volume_name_broken(volume).map_or(Ok(()), |_| Err(no_such_volume(volume)))
}

pub(crate) fn no_such_volume(volume: &str) -> Failure {
    Failure::new(Code::NoSuchVolume, format!("no volume `{volume}`"))
}

/// Ozone's rules for the names of volumes.
pub(crate) fn check_volume_name(name: &str) -> Result<(), Failure> {
    let broken = volume_name_broken(name);
    broken.map_or(Ok(()), |rule| Err(Failure::invalid(format!("volume name `{name}` {rule}"))))
}

fn volume_name_broken(name: &str) -> Option<&'static str> {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    if !(3..=63).contains(&bytes.len()) {
        Some("must have 3 to 63 characters")
    } else if !bytes.iter().all(|byte| inner(byte) || matches!(byte, b'.' | b'-')) {
        Some("may only have lower case letters, digits, dots and hyphens")
    } else if ![bytes.first(), bytes.last()].into_iter().flatten().all(inner) {
        Some("must begin and end with a letter or digit")
    } else if ["..", ".-", "-."].iter().any(|pair| name.contains(pair)) {
        Some("must not have a dot beside a dot or a hyphen")
    } else if name.parse::<std::net::Ipv4Addr>().is_ok() {
        Some("must not be an IP address")
    } else {
        None
    }
}

/// S3's rules for the names of general purpose buckets.
pub(crate) fn check_bucket_name(name: &str) -> Result<(), Failure> {
    let broken = bucket_name_broken(name);
    broken.map_or(Ok(()), |rule| Err(Failure::invalid(format!("bucket name `{name}` {rule}"))))
}

fn bucket_name_broken(name: &str) -> Option<&'static str> {
    const PREFIXES: [&str; 3] = ["xn--", "sthree-", "amzn-s3-demo-"];
    const SUFFIXES: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    if !(3..=63).contains(&bytes.len()) {
        Some("must have 3 to 63 characters")
    } else if !bytes.iter().all(|byte| inner(byte) || matches!(byte, b'.' | b'-')) {
        Some("may only have lower case letters, digits, dots and hyphens")
    } else if ![bytes.first(), bytes.last()].into_iter().flatten().all(inner) {
        Some("must begin and end with a letter or digit")
    } else if name.contains("..") {
        Some("must not have two dots in a row")
    } else if name.parse::<std::net::Ipv4Addr>().is_ok() {
        Some("must not be an IP address")
    } else if PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        Some("has a reserved prefix")
    } else if SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
        Some("has a reserved suffix")
    } else {
        None
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), Failure> {
    match key.len() {
        0 => Err(Failure::invalid("a key must not be empty")),
        1..=KEY_BYTES_MAX => Ok(()),
        bytes => {
            let message = format!("the key has {bytes} bytes, at most {KEY_BYTES_MAX} are allowed");
            Err(Failure::new(Code::TooLarge, message))
        }
    }
}

pub(crate) fn check_attributes(attributes: Option<&KeyAttributes>) -> Result<(), Failure> {
    let Some(attributes) = attributes else { return Ok(()) };
    let user_bytes: usize =
        attributes.user_metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if user_bytes > USER_METADATA_BYTES_MAX {
        let message =
            format!("user metadata has {user_bytes} bytes, at most {USER_METADATA_BYTES_MAX} are allowed");
        return Err(Failure::new(Code::TooLarge, message));
    }
    if let Some(broken) = texts(attributes).find(|text| text.contains(is_no_text)) {
        return Err(Failure::invalid(format!("{broken:?} cannot stand in a header")));
    }
    let bytes = attributes.encoded_len();
    if bytes > ATTRIBUTES_BYTES_MAX {
        let message =
            format!("the key's attributes have {bytes} bytes, at most {ATTRIBUTES_BYTES_MAX} are allowed");
        return Err(Failure::new(Code::TooLarge, message));
    }
    Ok(())
}

/// The texts of a key's attributes that go into headers as they are.
fn texts(attributes: &KeyAttributes) -> impl Iterator<Item = &String> {
    let KeyAttributes { content_type, cache_control, content_disposition, .. } = attributes;
    let KeyAttributes { content_encoding, content_language, expires, .. } = attributes;
    let fixed =
        [content_type, cache_control, content_disposition, content_encoding, content_language, expires];
    fixed.into_iter().chain(attributes.user_metadata.iter().flat_map(|(name, value)| [name, value]))
}

/// Whether no header may have this character.
fn is_no_text(character: char) -> bool {
    character.is_ascii_control() && character != '\t'
}

/// The most pieces of one key: its row, however long its numbers are, fits into one command of a move beside
/// what else that has, and into a part of a backup. With blocks of 256 MiB an object of 5 TiB has a seventh
/// of that.
pub(crate) const KEY_PIECES_MAX: usize = 150_000;

/// Checks that the pieces of a key or part name blocks and add up to its size.
pub(crate) fn check_pieces(pieces: &[BlockPiece], size: u64) -> Result<(), Failure> {
    let mut sum: u64 = 0;
    for piece in pieces {
        let names_block = piece.block.as_ref().is_some_and(|block| block.nonce.len() == 16);
        if !names_block || piece.length == 0 || piece.offset.checked_add(piece.length).is_none() {
            return Err(Failure::invalid(format!(
                "a piece must be a non-empty range of a block, got {piece:?}"
            )));
        }
        sum = sum.checked_add(piece.length).ok_or_else(|| Failure::invalid("pieces overflow 64 bits"))?;
    }
    if sum != size {
        return Err(Failure::invalid(format!("the pieces have {sum} bytes, the size is {size}")));
    }
    Ok(())
}

pub(crate) fn check_etag(etag: &str) -> Result<(), Failure> {
    let fits = (1..=ETAG_BYTES_MAX).contains(&etag.len()) && !etag.contains('"');
    if fits { Ok(()) } else { Err(Failure::invalid(format!("`{etag}` is no etag without its quotes"))) }
}

/// Reads the etag of a part: its MD5 in hexadecimal, because the whole object's etag is computed from those.
pub(crate) fn part_md5(etag: &str) -> Result<[u8; 16], Failure> {
    let digits = etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parsed = u128::from_str_radix(etag, 16).ok().filter(|_| digits);
    let parsed =
        parsed.ok_or_else(|| Failure::invalid(format!("a part's etag must be its MD5, got `{etag}`")))?;
    Ok(parsed.to_be_bytes())
}

/// The most entries of the page that answers a request: one that sets no limit gets whole pages.
pub(crate) fn page_limit(limit: u32) -> usize {
    let limit = if limit == 0 { PAGE_ENTRIES_MAX } else { limit.min(PAGE_ENTRIES_MAX) };
    limit as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::datanode::BlockName;
    use proto::om::Key;

    #[test]
    fn bucket_names_follow_s3() {
        for good in ["abc", "my-bucket.2026", "1-2-3", "a.b.c", &"a".repeat(63)] {
            assert_eq!(check_bucket_name(good), Ok(()), "{good}");
        }
        let long = "a".repeat(64);
        let bad = [
            "",
            "ab",
            &long,
            "Abc",
            "a_b",
            "-abc",
            "abc-",
            ".abc",
            "abc.",
            "a..b",
            "192.168.5.4",
            "xn--abc",
            "sthree-x",
            "amzn-s3-demo-x",
            "abc-s3alias",
            "abc--ol-s3",
            "abc.mrap",
            "abc--x-s3",
            "größe",
            "a/b",
            "a\0b",
        ];
        for bad in bad {
            assert_eq!(check_bucket_name(bad).map_err(|failure| failure.code), Err(Code::Invalid), "{bad}");
        }
    }

    #[test]
    fn volume_names_follow_ozone() {
        for good in ["s3v", "vol1", "my-volume.2026", "1-2-3", &"a".repeat(63)] {
            assert_eq!(check_volume_name(good), Ok(()), "{good}");
            assert_eq!(check_volume(good), Ok(()), "{good}");
        }
        let long = "a".repeat(64);
        for bad in [
            "", "ab", &long, "Vol", "a_b", "-abc", "abc-", ".abc", "a..b", "a.-b", "a-.b", "10.0.0.1", "a/b",
            "a\0b", "größe",
        ] {
            assert_eq!(check_volume_name(bad).map_err(|failure| failure.code), Err(Code::Invalid), "{bad}");
            assert_eq!(check_volume(bad).map_err(|failure| failure.code), Err(Code::NoSuchVolume), "{bad}");
        }
    }

    #[test]
    fn keys_have_1_to_1024_bytes() {
        assert_eq!(check_key(&[0xff]), Ok(()));
        assert_eq!(check_key(&[b'a'; 1024]), Ok(()));
        assert_eq!(check_key(b"").unwrap_err().code, Code::Invalid);
        assert_eq!(check_key(&[b'a'; 1025]).unwrap_err().code, Code::TooLarge);
    }

    #[test]
    fn attributes_are_limited() {
        let user = |bytes: usize| KeyAttributes {
            user_metadata: [("k".to_owned(), "v".repeat(bytes - 1))].into(),
            ..KeyAttributes::default()
        };
        assert_eq!(check_attributes(None), Ok(()));
        assert_eq!(check_attributes(Some(&user(2048))), Ok(()));
        assert_eq!(check_attributes(Some(&user(2049))).unwrap_err().code, Code::TooLarge);
        let broken = |name: &str, value: &str| KeyAttributes {
            user_metadata: [(name.to_owned(), value.to_owned())].into(),
            ..KeyAttributes::default()
        };
        assert_eq!(check_attributes(Some(&broken("name", "ä\tb"))), Ok(()));
        for broken in [broken("name", "a\r\nb"), broken("na\nme", "b"), broken("name", "\0")] {
            assert_eq!(check_attributes(Some(&broken)).unwrap_err().code, Code::Invalid);
        }
        let large = KeyAttributes { content_type: "t".repeat(8193), ..KeyAttributes::default() };
        assert_eq!(check_attributes(Some(&large)).unwrap_err().code, Code::TooLarge);
    }

    #[test]
    fn pieces_add_up_to_the_size() {
        let piece = |offset, length| BlockPiece {
            block: Some(BlockName { container: 1, local: 2, nonce: proto::uuid_bytes(3) }),
            offset,
            length,
            commit_index: 0,
            crc: 0,
        };
        assert_eq!(check_pieces(&[], 0), Ok(()));
        assert_eq!(check_pieces(&[piece(0, 3), piece(9, 4)], 7), Ok(()));
        assert!(check_pieces(&[piece(0, 3)], 4).is_err());
        assert!(check_pieces(&[piece(0, 0)], 0).is_err());
        assert!(check_pieces(&[piece(u64::MAX, 2)], 2).is_err());
        assert!(check_pieces(&[piece(0, u64::MAX), piece(0, 1)], 0).is_err());
        assert!(check_pieces(&[BlockPiece { length: 1, ..BlockPiece::default() }], 1).is_err());
        let nameless = Some(BlockName { container: 1, local: 2, nonce: bytes::Bytes::new() });
        assert!(check_pieces(&[BlockPiece { block: nameless, ..piece(0, 1) }], 1).is_err());
    }

    #[test]
    fn the_longest_row_fits_into_a_command_that_takes_rows_in() {
        let block =
            Some(BlockName { container: u64::MAX, local: u64::MAX, nonce: proto::uuid_bytes(u128::MAX) });
        let (offset, length, commit_index) = (u64::MAX, u64::MAX, u64::MAX);
        let piece = BlockPiece { block, offset, length, commit_index, crc: u32::MAX };
        let key = Key {
            key: vec![b'k'; KEY_BYTES_MAX].into(),
            size: u64::MAX,
            etag: "e".repeat(ETAG_BYTES_MAX),
            modified_ms: u64::MAX,
            attributes: Some(KeyAttributes {
                content_type: "t".repeat(ATTRIBUTES_BYTES_MAX),
                ..KeyAttributes::default()
            }),
            pieces: vec![piece; KEY_PIECES_MAX],
            part_sizes: vec![u64::MAX; PARTS_MAX as usize],
            upload: "u".repeat(KEY_BYTES_MAX),
        };
        let beside = ROWS_PART_BYTES + (64 << 10);
        assert!(key.encoded_len() + beside < ROWS_BYTES_MAX, "{}", key.encoded_len());
    }

    #[test]
    fn a_parts_etag_is_an_md5() {
        assert_eq!(part_md5("000102030405060708090A0b0c0d0e0f").unwrap()[10], 10);
        for bad in ["", "00", "+00102030405060708090a0b0c0d0e0f", "zz0102030405060708090a0b0c0d0e0f"] {
            assert!(part_md5(bad).is_err(), "{bad}");
        }
    }
}
