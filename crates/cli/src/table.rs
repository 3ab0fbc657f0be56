//! Plain tables for people.

/// Rows under headings, columns as wide as their widest cell.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = headings.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(headings.iter().copied(), &widths);
    for row in rows {
        text += &line(row.iter().map(String::as_str), &widths);
    }
    text
}

fn line<'a>(cells: impl Iterator<Item = &'a str>, widths: &[usize]) -> String {
    let padded: Vec<String> = cells.zip(widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
    format!("{}\n", padded.join("  ").trim_end())
}

/// 1536 → "1.5 K", as `hadoop fs -h` prints it.
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
    fn sizes_read_like_hadoops() {
        assert_eq!(human_bytes(0), "0");
        assert_eq!(human_bytes(1023), "1023");
        assert_eq!(human_bytes(1536), "1.5 K");
        assert_eq!(human_bytes(300 << 20), "300.0 M");
    }
}
