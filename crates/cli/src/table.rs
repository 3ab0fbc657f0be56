//! Plain tables for people.

use crate::output::{GREEN, NO_COLOUR, RED, YELLOW, printable};
use std::io::IsTerminal;

/// The meaning of a cell. It is shown as a colour, and only on a terminal; `NO_COLOR` turns it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// The cell's text, in one line, and as a terminal may have it.
    text: String,
    tone: Tone,
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Cell {
        Cell { text: printable(&text.into()), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::toned(text, Tone::Plain)
    }
}

/// Rows under headings, columns as wide as their widest cell.
pub(crate) fn table<const N: usize, C: Clone + Into<Cell>>(headings: [&str; N], rows: &[[C; N]]) -> String {
    let has_colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let rows: Vec<[Cell; N]> = rows.iter().map(|row| row.clone().map(Into::into)).collect();
    render(headings, &rows, has_colours)
}

fn render<const N: usize>(headings: [&str; N], rows: &[[Cell; N]], has_colours: bool) -> String {
    let mut widths = headings.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.text.chars().count());
        }
    }
    let mut text = line(&headings.map(Cell::from), &widths, has_colours);
    for row in rows {
        text += &line(row, &widths, has_colours);
    }
    text
}

fn line<const N: usize>(cells: &[Cell; N], widths: &[usize; N], has_colours: bool) -> String {
    let mut text = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let colour = match cell.tone {
            Tone::Good => GREEN,
            Tone::Warning => YELLOW,
            Tone::Bad => RED,
            Tone::Plain => "",
        };
        match has_colours && !colour.is_empty() {
            true => text += &format!("{colour}{}{NO_COLOUR}", cell.text),
            false => text += &cell.text,
        }
        let is_last = cells[at + 1..].iter().all(|cell| cell.text.is_empty());
        if is_last {
            break;
        }
        text += &" ".repeat(width - cell.text.chars().count() + 2);
    }
    text + "\n"
}

/// Bytes for people: 1536 → "1.5 K", as `hadoop fs -h` prints it.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["12345".to_owned(), "x".to_owned()], ["1".to_owned(), String::new()]];
        assert_eq!(table(["A", "B"], &rows), "A      B\n12345  x\n1\n");
    }

    #[test]
    fn colours_take_no_room() {
        let rows = [[Cell::toned("dead", Tone::Bad), "1".into()], ["healthy".into(), "2".into()]];
        assert_eq!(render(["S", "N"], &rows, true), "S        N\n\x1b[31mdead\x1b[0m     1\nhealthy  2\n");
        assert_eq!(render(["S", "N"], &rows, false), "S        N\ndead     1\nhealthy  2\n");
    }

    #[test]
    fn what_others_chose_neither_commands_a_terminal_nor_adds_a_row() {
        let rows = [["h:1\x1b[2J\x1b[32m:7400\nb".into(), Cell::toned("\u{9b}2J", Tone::Bad)]];
        let shown = "A                               B\nh:1\\u001b[2J\\u001b[32m:7400\\nb  ";
        assert_eq!(render(["A", "B"], &rows, false), format!("{shown}\\u009b2J\n"));
        assert_eq!(render(["A", "B"], &rows, true), format!("{shown}\x1b[31m\\u009b2J\x1b[0m\n"));
    }

    #[test]
    fn sizes_read_like_hadoops() {
        assert_eq!(human_bytes(0), "0");
        assert_eq!(human_bytes(1023), "1023");
        assert_eq!(human_bytes(1536), "1.5 K");
        assert_eq!(human_bytes(300 << 20), "300.0 M");
    }
}
