//! Pages name files that are there: a file that is renamed is renamed in them too.

use super::circles::{crates, files};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn files_that_pages_name_are_there() {
    let there = sources();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut gone = Vec::new();
    for place in ["README.md", "ARCHITECTURE.md", "docs", "benches"] {
        for (path, text) in files(&root.join(place), "md") {
            let named = text.lines().flat_map(named).filter(|file| !is_there(&there, file));
            gone.extend(named.map(|file| format!("{place}/{path}: {file}")));
        }
    }
    assert!(gone.is_empty(), "named, and not there:\n{}", gone.join("\n"));
}

#[test]
fn a_planted_file_that_is_gone_is_found() {
    let there =
        BTreeSet::from(["om/src/moves/sender.rs".to_owned(), "raft/tests/groups/reads.rs".to_owned()]);
    let line = "see `moves/sender.rs`, `om/src/moves/sender.rs`, `om/moves/sender.rs`, `raft/groups/reads.rs`, `src/moves/sender.rs`";
    assert!(named(line).all(|file| is_there(&there, file)));
    assert_eq!(
        named("`om/lane.rs` `send` `a.rs` and `oves/sender.rs`").collect::<Vec<_>>(),
        ["om/lane.rs", "oves/sender.rs"]
    );
    assert!(named("`om/lane.rs` `oves/sender.rs`").all(|file| !is_there(&there, file)));
}

/// All sources, by the names of their crates' directories and their paths in these.
fn sources() -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    for (_, src) in crates() {
        let directory = Path::new(&src).parent().expect("a crate has a directory");
        let name = directory.file_name().expect("it has a name").to_string_lossy();
        there.extend(files(directory, "rs").into_keys().map(|path| format!("{name}/{path}")));
    }
    there
}

/// The files of Rust in backticks that are named with a directory.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_/.".contains(&byte);
    let words = line.split('`').skip(1).step_by(2);
    words.filter(move |word| word.ends_with(".rs") && word.contains('/') && word.bytes().all(is_path))
}

/// Whether a file is called so. Pages leave out `crates`, `src`, `tests` and directories in front, as they
/// like.
fn is_there(there: &BTreeSet<String>, file: &str) -> bool {
    let bare = |path: &str| {
        let parts: Vec<&str> = path
            .split('/')
            .filter(|part| !matches!(*part, "crates" | "testing" | "src" | "tests" | ".."))
            .collect();
        format!("/{}", parts.join("/"))
    };
    let file = bare(file);
    there.iter().any(|path| bare(path).ends_with(&file))
}
