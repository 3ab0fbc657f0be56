//! Standard output, whose reader may leave early.

use std::io::{self, ErrorKind, Write};

/// Prints, whole. A reader who has seen enough (`| head -1`) is no error: what nobody reads need not be written.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    unless_unread(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Success where the reader is gone.
pub(crate) fn unless_unread(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_who_left_is_no_error() {
        assert!(unless_unread(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_unread(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
