//! Comments and pages are as wide as code: rustfmt wraps none.

use super::circles::{crates, files, sources};
use std::path::Path;

/// The `max_width` of rustfmt.
const WIDTH: usize = 110;

#[test]
fn no_comment_is_wider_than_code() {
    let mut wide = Vec::new();
    for (_, src) in crates() {
        for (path, text) in sources(Path::new(&src)) {
            wide.extend(too_wide(&text).map(|line| format!("{src}/{path}:{line}")));
        }
    }
    assert!(wide.is_empty(), "wider than {WIDTH}:\n{}", wide.join("\n"));
}

#[test]
fn a_planted_wide_comment_is_found() {
    let long = "x".repeat(WIDTH);
    let text = format!("/// {long}\n//! | {long} |\n//! ```text\n//! {long}\n//! ```\n    // {long}\n");
    assert_eq!(too_wide(&text).collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn no_page_is_wider_than_code() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut wide = Vec::new();
    for place in ["README.md", "ARCHITECTURE.md", "docs", "benches", "deploy"] {
        for (path, text) in files(&root.join(place), "md") {
            wide.extend(too_wide_of_page(&text).map(|line| format!("{place}/{path}:{line}")));
        }
    }
    assert!(wide.is_empty(), "wider than {WIDTH}:\n{}", wide.join("\n"));
}

#[test]
fn a_planted_wide_paragraph_is_found() {
    let (long, command) = ("word ".repeat(WIDTH / 4), "x ".repeat(WIDTH));
    let text = format!("{long}\n# {long}\n| {long} |\n```\n{long}\n```\n* `{command}`,\n  {long}\n");
    assert_eq!(too_wide_of_page(&text).collect::<Vec<_>>(), [1, 8]);
}

#[test]
fn a_fence_has_a_line_of_its_own() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut within = Vec::new();
    for place in ["README.md", "ARCHITECTURE.md", "docs", "benches", "deploy"] {
        for (path, text) in files(&root.join(place), "md") {
            within.extend(fences_within_lines(&text).map(|line| format!("{place}/{path}:{line}")));
        }
    }
    assert!(within.is_empty(), "a fence within a line:\n{}", within.join("\n"));
}

#[test]
fn a_planted_fence_within_a_line_is_found() {
    let text = "text\n```\ncode ```\n  ```\n```sh\n``` text\n";
    assert_eq!(fences_within_lines(text).collect::<Vec<_>>(), [3, 6]);
}

/// The lines that have more than a fence, and the name of its language.
fn fences_within_lines(text: &str) -> impl Iterator<Item = usize> {
    let is_fence =
        |line: &str| line.trim().strip_prefix("```").is_some_and(|name| !name.contains([' ', '`']));
    let lines = text.lines().enumerate();
    lines.filter(move |(_, line)| line.contains("```") && !is_fence(line)).map(|(at, _)| at + 1)
}

/// The lines of prose that are too wide, and that a paragraph's code does not make so.
fn too_wide_of_page(text: &str) -> impl Iterator<Item = usize> {
    let mut draws = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let said = line.trim_start();
        let is_fence = said.starts_with("```");
        draws ^= is_fence;
        let is_prose = !draws && !is_fence && !said.starts_with(['|', '#', '<', '>']);
        let without_code: String = said.split('`').step_by(2).collect();
        let can_break = without_code.trim_start_matches(['*', '-', ' ']).contains(' ');
        (is_prose && can_break && line.chars().count() > WIDTH).then_some(at + 1)
    })
}

/// The lines whose comments are too wide, tables and drawings aside.
fn too_wide(text: &str) -> impl Iterator<Item = usize> {
    let mut draws = false;
    let comments = text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, line, comment(line)?)));
    comments.filter_map(move |(at, line, said)| {
        let is_fence = said.starts_with("```");
        draws ^= is_fence;
        let is_prose = !draws && !is_fence && !said.starts_with('|');
        (is_prose && line.chars().count() > WIDTH).then_some(at)
    })
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let said = line.trim_start().strip_prefix("//")?;
    Some(said.trim_start_matches(['/', '!']).trim_start())
}
