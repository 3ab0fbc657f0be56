//! Numbers of docs/format, compared with the code's.
//!
//! Each page with a byte table names its code, which opens with the same table: rows must be equal, and each
//! must begin where the one before ends. Magic and version are looked up in the code, and limits that a page
//! states are compared with the constants that carry them.

#![allow(clippy::disallowed_methods)] // reads documents and sources
#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

use std::path::Path;

/// Pages with a byte table, and the file that opens with the same.
const TABLES: &[(&str, &str)] = &[
    ("segment.md", "raftlog/src/record.rs"),
    ("segment-index.md", "raftlog/src/segment_index.rs"),
    ("hard-state.md", "raftlog/src/hard_state.rs"),
    ("discarded.md", "raftlog/src/discards/block.rs"),
    ("compacted.md", "raftlog/src/compacted.rs"),
    ("container-end.md", "datanode/src/container_end.rs"),
    ("imported.md", "datanode/src/import/imported_file.rs"),
    ("pipeline-spec.md", "datanode/src/spec_file.rs"),
    ("replica.md", "raft/src/replica/identity.rs"),
    ("snapshot.md", "raft/src/snapshot/manifest.rs"),
    ("om-backup.md", "cli/src/backup/parts.rs"),
];

/// A page's words, whose last number is that of a constant.
const LIMITS: &[(&str, &str, &str, &str)] = &[
    ("segment.md", "meta_bytes | at most 16 MiB", "raftlog/src/record.rs", "META_BYTES_MAX"),
    ("segment.md", "body_bytes | at most 64 MiB", "raftlog/src/record.rs", "BODY_BYTES_MAX"),
    ("segment.md", "| index | at most 2⁶²", "raftlog/src/segment.rs", "NUMBER_MAX"),
    ("segment.md", "at least 4 MiB", "raftlog/src/segment.rs", "ALLOCATION_STEP_BYTES_MIN"),
    ("segment.md", "4 MiB and at most 64 MiB", "raftlog/src/segment.rs", "ALLOCATION_STEP_BYTES_MAX"),
    ("segment.md", "takes them all, up to 16 MiB", "raftlog/src/core.rs", "FLUSH_BYTES_MAX"),
    ("segment-index.md", "count | 1 to 65536", "raftlog/src/segment_index.rs", "COUNT_MAX"),
    ("segment-index.md", "when 4096 records", "raftlog/src/segment_index.rs", "PENDING_RECORDS_MAX"),
    ("segment-index.md", "or records of 8 MiB", "raftlog/src/segment_index.rs", "PENDING_BYTES_MAX"),
    ("hard-state.md", "8192 bytes", "raftlog/src/hard_state.rs", "FILE_BYTES"),
    ("hard-state.md", "Two slots of 512 bytes", "raftlog/src/hard_state.rs", "SLOT_BYTES"),
    ("hard-state.md", "sequence or count above 2⁶²", "raftlog/src/segment.rs", "NUMBER_MAX"),
    ("discarded.md", "of records, 1 to 65 536", "raftlog/src/discards/block.rs", "COUNT_MAX"),
    ("discarded.md", "The file is at most 256 MiB", "raftlog/src/discards/mod.rs", "FILE_BYTES_MAX"),
    ("discarded.md", "whole 4096-byte blocks", "raftlog/src/discards/record.rs", "HOLE_BLOCK_BYTES"),
    ("compacted.md", "of the container, below; at most 4 MiB", "raftlog/src/compacted.rs", "NOTES_BYTES_MAX"),
    ("imported.md", "manifest, at most 4 MiB", "datanode/src/import/imported_file.rs", "MANIFEST_BYTES_MAX"),
    ("pipeline-spec.md", "of the spec, at most 1 MiB", "datanode/src/spec_file.rs", "SPEC_BYTES_MAX"),
    ("replica.md", "of lost replicas, at most 1024", "raft/src/replica/identity.rs", "LOST_MAX"),
    ("snapshot.md", "piece_bytes | 262144", "raft/src/snapshot/manifest.rs", "PIECE_BYTES"),
    ("snapshot.md", "A manifest is at most 16 MiB", "raft/src/snapshot/manifest.rs", "MANIFEST_BYTES_MAX"),
    ("om-backup.md", "of the rows, at most 13 MiB", "cli/src/backup/parts.rs", "PART_BYTES_MAX"),
    ("om-backup.md", "at most 4 096", "om/src/backup.rs", "PART_ROWS_MAX"),
    ("om-tables.md", "| key | 1 to 1024", "om/src/rules.rs", "KEY_BYTES_MAX"),
    ("om-tables.md", "names and values | 2 KiB", "om/src/rules.rs", "USER_METADATA_BYTES_MAX"),
    ("om-tables.md", "of a key, encoded | 8 KiB", "om/src/rules.rs", "ATTRIBUTES_BYTES_MAX"),
    ("om-tables.md", "parts of an upload | 10 000", "om/src/rules.rs", "PARTS_MAX"),
    ("om-tables.md", "the last have at least 5 MiB", "om/src/rules.rs", "PART_BYTES_MIN"),
    ("om-tables.md", "entries of a page | 1 000", "om/src/rules.rs", "PAGE_ENTRIES_MAX"),
    ("om-tables.md", "a command, encoded | 4 MiB", "om/src/rules.rs", "COMMAND_BYTES_MAX"),
    ("om-tables.md", "pieces of a key | 150 000", "om/src/rules.rs", "KEY_PIECES_MAX"),
    ("om-tables.md", "or of a backup | 12 MiB", "om/src/rules.rs", "ROWS_BYTES_MAX"),
    ("om-tables.md", "remembered requests | 10 million", "om/src/ops/requests.rs", "REMEMBERED_MAX"),
    ("om-tables.md", "10 million, and 2 GiB", "om/src/ops/requests.rs", "REMEMBERED_BYTES_MAX"),
    ("om-tables.md", "one `ForgetBlocks` | 2048", "om/src/ops/row_portion.rs", "PIECES_AT_ONCE"),
    ("om-tables.md", "`FenceContainers` | 1 000", "om/src/ops/fence_containers.rs", "FENCED_AT_ONCE"),
    ("om-tables.md", "one `FileOrphans` | 1 024", "om/src/sweep/look_through.rs", "FILED_AT_ONCE"),
    ("scm-tables.md", "text of 1 to 255", "scm/src/ops/set_racks.rs", "NAME_BYTES_MAX"),
    ("scm-tables.md", "bytes. At most 10 000", "scm/src/ops/set_racks.rs", "HOSTS_MAX"),
    ("scm-tables.md", "to be founded; at most 256", "scm/src/tables/oms.rs", "OM_GROUPS_MAX"),
    ("frames.md", "Both numbers are from 65 536", "rpc/src/frames/head.rs", "WINDOW_MIN"),
    ("frames.md", "both | at most 1 MiB", "rpc/src/frames/head.rs", "DATA_BYTES_MAX"),
    ("frames.md", "1, 2 and 4 are at most 16 KiB", "rpc/src/frames/head.rs", "META_BYTES_MAX"),
    ("frames.md", "where each header counts 32", "rpc/src/frames/headers.rs", "HEADER_WEIGHT"),
    ("frames.md", "its message cut at 2 KiB", "rpc/src/frames/headers.rs", "SENTENCE_BYTES_MAX"),
    ("frames.md", "takes its length and 64", "rpc/src/frames/flow.rs", "FRAME_COST"),
    ("frames.md", "has credit for 66 KiB", "rpc/src/frames/flow.rs", "SMALL_MESSAGE_BYTES"),
    ("frames.md", "Data of up to 2 KiB", "rpc/src/frames/queue.rs", "COPIED_BYTES_MAX"),
    ("block-index.md", "as text of at most 1024 bytes", "datanode/src/index/unhealthy.rs", "WHY_BYTES_MAX"),
];

#[test]
fn byte_tables_of_docs_and_code_are_equal() {
    let mut wrong = Vec::new();
    for (page, code) in TABLES {
        let differs = compare(&page_text(page), &code_text(code));
        wrong.extend(differs.into_iter().map(|what| format!("docs/format/{page}, crates/{code}: {what}")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn limits_of_docs_are_the_codes() {
    for (page, words, code, constant) in LIMITS {
        let text = page_text(page).split_whitespace().collect::<Vec<_>>().join(" ");
        // "at most 1" stands in "at most 16", and in "at most 1 024".
        let goes_on = |rest: &str| rest.trim_start_matches(' ').starts_with(|it: char| it.is_ascii_digit());
        let is_said = text.match_indices(words).any(|(at, _)| !goes_on(&text[at + words.len()..]));
        assert!(is_said, "docs/format/{page} does not say `{words}`");
        let value = value_of(&code_text(code), constant);
        let value = value.unwrap_or_else(|| panic!("crates/{code} has no number {constant}"));
        assert_eq!(
            last_number(words),
            value,
            "docs/format/{page} says `{words}`; {constant} of crates/{code}"
        );
    }
}

#[test]
fn every_page_with_a_byte_table_is_compared() {
    for entry in std::fs::read_dir(root().join("docs/format")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let has_table = !of_page(&page_text(&name)).is_empty();
        assert_eq!(TABLES.iter().any(|(page, _)| *page == name), has_table, "docs/format/{name}");
    }
}

#[test]
fn a_planted_difference_is_found() {
    let page = "| offset | size | field | |\n|---|---|---|---|\n| 0 | 4 | magic | `FLxx` |\n| 4 | 1 | version | 2 |\n\
                | 5 | 3 | | zero |\n| 8 | 8·n | list | |\n";
    let code = "//! offset size field\n//!      0    4 magic \"FLxx\"\n//!      4    1 version 2\n//!      5    3 zero\n\
                //!      8  8·n list\n//! ```\nconst MAGIC: [u8; 4] = *b\"FLxx\";\nconst VERSION: u8 = 2;\n";
    assert_eq!(compare(page, code), Vec::<String>::new());
    let plants = [
        ("| 4 | magic", "| 5 | magic"),
        ("| version | 2", "| version | 3"),
        ("FLxx", "FLxy"),
        ("| list", "| lost"),
        ("8·n", "9·n"),
        ("| 8 | 8·n", "| 9 | 8·n"),
    ];
    for (right, planted) in plants {
        assert!(!compare(&page.replace(right, planted), code).is_empty(), "{planted}");
    }
    assert_eq!(last_number("1 to 65 536"), 1 << 16);
    assert_eq!(last_number("at least 4 MiB and at most 64 MiB"), 64 << 20);
    assert_eq!(last_number("above 2⁶²"), 1 << 62);
    assert_eq!(["2 KiB", "3 GiB", "4 million"].map(last_number), [2 << 10, 3 << 30, 4_000_000]);
    assert_eq!(value_of("const A: u64 = 256 << 10;", "A"), Some(262_144));
    assert_eq!(value_of("const A_MAX: u64 = 1_000;", "A"), None);
}

/// One row of a byte table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    offset: u64,
    /// Empty where the size is nowhere said in figures.
    size: String,
    name: String,
    /// All that is said of the field.
    about: String,
}

/// The differences between the table of a page, that of its code, and the code's constants, in words.
fn compare(page: &str, code: &str) -> Vec<String> {
    let (of_page, of_code) = (of_page(page), of_code(code));
    let mut wrong = Vec::new();
    for (row, next) in of_page.iter().zip(of_page.iter().skip(1)) {
        if row.size.parse::<u64>().is_ok_and(|size| row.offset + size != next.offset) {
            wrong.push(format!("{} does not begin where {} ends", next.name, row.name));
        }
    }
    let fields = |rows: &[Row]| -> Vec<_> {
        rows.iter().map(|row| (row.offset, row.size.clone(), row.name.clone())).collect()
    };
    if of_page.is_empty() || fields(&of_page) != fields(&of_code) {
        wrong.push(format!("{:?} and {:?}", fields(&of_page), fields(&of_code)));
    }
    for row in of_page.iter().filter(|row| row.name == "magic") {
        let magic = row.about.split('`').nth(1).unwrap_or_default();
        if magic.is_empty() || !code.contains(&format!("b\"{magic}")) {
            wrong.push(format!("magic {magic}"));
        }
    }
    for row in of_page.iter().filter(|row| row.name == "version") {
        let version: String = row.about.chars().take_while(char::is_ascii_digit).collect();
        let is_constant = value_of(code, "VERSION").is_some_and(|value| value.to_string() == version);
        let is_given = ["of_fields", "of_message"].iter().any(|of| {
            let given = code.split_once(&format!("RecordFile::{of}(b\"")).map(|(_, rest)| rest);
            given.is_some_and(|rest| rest.split(", ").nth(1) == Some(&version))
        });
        if !is_constant && !is_given {
            wrong.push(format!("version {version}"));
        }
    }
    wrong
}

/// The rows of a page's first byte table, but for those whose offset depends on others' sizes.
fn of_page(text: &str) -> Vec<Row> {
    let rows = text.lines().skip_while(|line| *line != "| offset | size | field | |").skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [offset, size, name, about] = cells[..] else { panic!("no row of four cells: {line}") };
        row(offset, size, if name.is_empty() { about } else { name }, about)
    })
    .collect()
}

/// The same of the table that a file of code opens with.
fn of_code(text: &str) -> Vec<Row> {
    let rows = text.lines().skip_while(|line| *line != "//! offset size field").skip(1);
    let rows = rows.take_while(|line| !line.contains("```"));
    rows.filter_map(|line| {
        let line = line.trim_start_matches("//!").trim();
        let (offset, rest) = line.split_once(' ')?;
        let rest = rest.trim();
        let (first, others) = rest.split_once(' ').unwrap_or((rest, ""));
        let is_size = first == "n" || first.starts_with(|first: char| first.is_ascii_digit());
        let (size, rest) = if is_size { (first, others.trim()) } else { ("", rest) };
        let (name, about) = rest.split_once([' ', ':']).unwrap_or((rest, ""));
        row(offset, size, name, about.trim())
    })
    .collect()
}

fn row(offset: &str, size: &str, name: &str, about: &str) -> Option<Row> {
    let size = size.replace(' ', "").replace('×', "·").replace("count", "n");
    let name = name.trim_matches('`').to_owned();
    Some(Row { offset: offset.parse().ok()?, size, name, about: about.to_owned() })
}

/// The number that a constant is declared with, as a number or shifted by one.
fn value_of(code: &str, constant: &str) -> Option<u64> {
    let (_, rest) = code.split_once(&format!("const {constant}: "))?;
    let value = rest.split_once(" = ")?.1.split_once(';')?.0.replace('_', "");
    match value.split_once(" << ") {
        Some((number, by)) => Some(number.parse::<u64>().ok()? << by.parse::<u32>().ok()?),
        None => value.parse().ok(),
    }
}

/// The last number of some words, times its unit.
fn last_number(words: &str) -> u64 {
    let words = words.replace("2⁶²", &(1u64 << 62).to_string());
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("million", 1_000_000)];
    let unit = units.iter().find(|(name, _)| words.ends_with(name)).map_or(1, |(_, unit)| *unit);
    let end = words.rfind(|it: char| it.is_ascii_digit()).expect("there is a number") + 1;
    let start = words[..end].rfind(|it: char| !it.is_ascii_digit() && it != ' ').map_or(0, |at| at + 1);
    let digits = words[start..end].trim();
    // Thousands are set apart by a space: "1 to 65 536".
    digits.replace(' ', "").parse::<u64>().expect("digits") * unit
}

fn page_text(page: &str) -> String {
    std::fs::read_to_string(root().join("docs/format").join(page)).unwrap()
}

fn code_text(path: &str) -> String {
    std::fs::read_to_string(root().join("crates").join(path)).unwrap()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
