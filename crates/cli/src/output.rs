//! Standard output, whose reader may leave early, and which is mostly a terminal, as is standard error. What
//! is said there is partly in the words of others: names of objects, addresses, errors.

use std::io::{self, ErrorKind, Write};

/// The colours of a terminal, and the end of one.
pub(crate) const RED: &str = "\x1b[31m";
pub(crate) const GREEN: &str = "\x1b[32m";
pub(crate) const YELLOW: &str = "\x1b[33m";
pub(crate) const NO_COLOUR: &str = "\x1b[0m";

/// Prints lines as [`printable_lines`] has them.
pub(crate) fn print(text: &str) -> io::Result<()> {
    print_as_it_is(&printable_lines(text))
}

/// Says lines as [`printable_lines`] has them, on standard error.
pub(crate) fn complain(text: &str) {
    eprintln!("{}", printable_lines(text));
}

/// Prints a text, whole. A reader who has seen enough (`| head -1`) is no error: what nobody reads need not
/// be written.
pub(crate) fn print_as_it_is(text: &str) -> io::Result<()> {
    print_while_read(text).map(drop)
}

/// A name as a terminal may have it: characters that would move its cursor, or turn the direction of what
/// follows, are escaped. Anybody who may write to the store chooses names.
pub(crate) fn printable(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    name.chars().for_each(|c| push_printable(&mut shown, c));
    shown
}

/// Lines as a terminal may have them: beside ends of lines and the colours of tables, all is escaped that
/// [`printable`] escapes. Whoever chooses a word may colour it, and no more; in a table not even that.
pub(crate) fn printable_lines(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let kept = ["\n", RED, GREEN, YELLOW, NO_COLOUR].into_iter().find(|kept| rest.starts_with(kept));
        match kept {
            Some(kept) => shown.push_str(kept),
            None => push_printable(&mut shown, c),
        }
        rest = &rest[kept.map_or(c.len_utf8(), str::len)..];
    }
    shown
}

/// Adds a character, or its escape in place of one that `printable` escapes. Escapes are as JSON has them, so
/// that JSON which goes through this stays what it is.
fn push_printable(shown: &mut String, c: char) {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match c {
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        _ if c.is_control() || turns => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
        _ => shown.push(c),
    }
}

/// Prints a text, whole. Returns whether anybody reads it, for a caller who would go on.
pub(crate) fn print_while_read(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

/// Makes a success of an error that is only that the reader is gone.
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
            "a\\u001b]0;t\\u0007b\\r\\nc\\u009b2J\\u202ed"
        );
    }

    #[test]
    fn lines_keep_their_ends_and_colours_and_nothing_else() {
        let coloured = format!("a {RED}b{NO_COLOUR}\n{GREEN}é{NO_COLOUR} {YELLOW}c{NO_COLOUR}\n");
        assert_eq!(printable_lines(&coloured), coloured);
        assert_eq!(printable_lines("\x1b[2Ja\tb\r\n\x1b[1;31mc"), "\\u001b[2Ja\\tb\\r\n\\u001b[1;31mc");
        assert_eq!(printable_lines("\u{9b}2J\x1b"), "\\u009b2J\\u001b");
    }

    #[test]
    fn json_stays_what_it_is() {
        let said = serde_json::json!({ "output": "\u{9b}2J\u{7f}\x1b\n\u{202e}\" \\" });
        for text in [format!("{said}"), format!("{said:#}")] {
            let shown = printable_lines(&text);
            assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), said);
        }
    }

    #[test]
    fn only_a_reader_who_left_is_no_error() {
        assert!(unless_unread(Err(ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_unread(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
