use crate::ReadRecordError;
use std::io;

/// The fault of a failed read: what it says of what was to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// The medium cannot give the bytes back, or the file system found what it keeps of them damaged.
    Medium,
    /// The process or the machine ran out of something, or was interrupted. It passes, and says nothing of
    /// the disk.
    Shortage,
    /// Anything else: nobody can tell what it says.
    Other,
}

/// The errors of a medium: EIO; ENODATA, EREMOTEIO and EILSEQ of block devices that name the sector or the
/// protection of its bytes; EBADMSG and EUCLEAN, which ext4 and xfs have for a checksum that does not match
/// and for a structure that cannot be.
const MEDIUM: [i32; 6] =
    [libc::EIO, libc::ENODATA, libc::EREMOTEIO, libc::EILSEQ, libc::EBADMSG, libc::EUCLEAN];
const SHORTAGE: [i32; 6] =
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EINTR, libc::EAGAIN];

/// Whether a file was read, and is not what its checksum says.
fn is_damage(error: &io::Error) -> bool {
    let record = error.get_ref().and_then(|inner| inner.downcast_ref::<ReadRecordError>());
    matches!(record, Some(ReadRecordError::Damaged { .. }))
}

impl ReadFault {
    pub fn of(error: &io::Error) -> ReadFault {
        match error.raw_os_error() {
            Some(code) if MEDIUM.contains(&code) => ReadFault::Medium,
            Some(code) if SHORTAGE.contains(&code) => ReadFault::Shortage,
            Some(_) => ReadFault::Other,
            None if is_damage(error) => ReadFault::Medium,
            None => match error.kind() {
                io::ErrorKind::OutOfMemory | io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {
                    ReadFault::Shortage
                }
                _ => ReadFault::Other,
            },
        }
    }

    /// The fault of an error that is left in words alone, as [`ReadFault::of`]: a library has put the
    /// system's name for it into its own sentence.
    pub fn in_words(words: &str) -> ReadFault {
        let names = |codes: &[i32]| codes.iter().any(|&code| words.contains(&name_of(code)));
        match () {
            () if names(&MEDIUM) => ReadFault::Medium,
            () if names(&SHORTAGE) => ReadFault::Shortage,
            () => ReadFault::Other,
        }
    }
}

/// The system's name of an error: what std says of it, without the number.
fn name_of(code: i32) -> String {
    let said = io::Error::from_raw_os_error(code).to_string();
    said.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_names_the_medium_is_held_against_it() {
        let check = |code: i32, expect: ReadFault| {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(ReadFault::of(&error), expect, "{error}");
            let words = format!("IO error: While pread offset 7: {}", name_of(code));
            assert_eq!(ReadFault::in_words(&words), expect, "{words}");
        };
        check(libc::EIO, ReadFault::Medium);
        check(libc::EBADMSG, ReadFault::Medium);
        check(libc::EUCLEAN, ReadFault::Medium);
        check(libc::ENODATA, ReadFault::Medium);
        check(libc::EMFILE, ReadFault::Shortage);
        check(libc::ENFILE, ReadFault::Shortage);
        check(libc::ENOMEM, ReadFault::Shortage);
        check(libc::EINTR, ReadFault::Shortage);
        check(libc::EACCES, ReadFault::Other);
        check(libc::ENODEV, ReadFault::Other);
        assert_eq!(ReadFault::of(&io::Error::other("the disk failed earlier")), ReadFault::Other);
    }
}
