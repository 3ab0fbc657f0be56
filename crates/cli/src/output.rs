//! Standard output, whose reader may leave early.

use std::io::{self, ErrorKind, Write};

/// Prints, whole. A reader who has seen enough (`| head -1`) is no error: what nobody reads need not be
/// written.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    unless_unread(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// A name as a terminal may have it: characters that would move its cursor, or turn the direction of what
/// follows, are escaped. Anybody who may write to the store chooses names.
pub(crate) fn printable(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for c in name.chars() {
        let turns = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
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
    fn names_cannot_command_a_terminal() {
        assert_eq!(printable("plain é 日本 \\ ok"), "plain é 日本 \\ ok");
        assert_eq!(
            printable("a\x1b]0;t\x07b\r\nc\u{9b}2J\u{202e}d"),
            "a\\u{1b}]0;t\\u{7}b\\r\\nc\\u{9b}2J\\u{202e}d"
        );
    }

    #[test]
    fn only_a_reader_who_left_is_no_error() {
        assert!(unless_unread(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_unread(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
