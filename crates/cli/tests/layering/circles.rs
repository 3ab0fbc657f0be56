//! Circles of imports within a crate. Whoever reads a file of a circle has to read all of them, so there is
//! none of more than three files.
//!
//! A file imports another where it names it: by `crate::…`, `super::…` or `self::…`, or by the name of a
//! module that it declares. A name that a module re-exports is imported from the file that has it. `mod`,
//! `pub use` and all that is `#[cfg(test)]` import nothing.

use cargo_metadata::MetadataCommand;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FILES_MAX: usize = 3;

/// `crate::a::b` is `["a", "b"]`.
type Module = Vec<String>;

#[test]
fn no_crate_has_a_circle_of_imports_of_more_than_three_files() {
    let mut wrong = Vec::new();
    for (name, src) in crates() {
        let imports = Imports::of(&sources(Path::new(&src)));
        let circles = imports.circles();
        println!(
            "{name}: {} files, circles of {:?}",
            imports.of.len(),
            circles.iter().map(BTreeSet::len).collect::<Vec<_>>()
        );
        let larger = circles.iter().filter(|files| files.len() > FILES_MAX);
        wrong.extend(larger.map(|files| format!("{name}: {}", imports.drawn(files))));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn planted_circles_are_found() {
    let check = |files: &[(&str, &str)], expect: &[&[&str]]| {
        let sources = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        let found = Imports::of(&sources).circles();
        let found: Vec<Vec<String>> =
            found.iter().map(|files| files.iter().map(|file| file.join("::")).collect()).collect();
        assert_eq!(found, expect, "{files:?}");
    };
    check(
        &[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { crate::a::g() }")],
        &[&["a", "b"]],
    );
    check(
        &[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod c; fn f() { c::g() }"),
            ("a/c.rs", "use super::{x, self as a};"),
        ],
        &[&["a", "a::c"]],
    );
    // The name is the child's.
    let parent = "mod c; mod d; pub(crate) use c::C; pub use d::{D as E};";
    check(
        &[("lib.rs", "mod a;"), ("a.rs", parent), ("a/c.rs", "use super::E;"), ("a/d.rs", "struct D;")],
        &[],
    );
    check(
        &[
            ("lib.rs", "mod a;"),
            ("a.rs", parent),
            ("a/c.rs", "use super::E;"),
            ("a/d.rs", "use crate::a::C;"),
        ],
        &[&["a::c", "a::d"]],
    );
    // Neither comments, nor texts, nor tests.
    let named = "/* crate::b::f */ // crate::b::f\nfn f<'a>(c: char) { c == '\"'; \"crate::b::f\"; r#\"\" crate::b::f\"#; }";
    let tested = "#[cfg(test)]\nmod tests { use crate::b::B; } #[cfg(test)] use crate::b::C; #[cfg(test)] mod planted;";
    let test = "use crate::b::B;";
    check(&[("lib.rs", "mod a; mod b;"), ("a.rs", named), ("b.rs", "use crate::a::f;")], &[]);
    check(
        &[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", tested),
            ("a/planted.rs", test),
            ("b.rs", "use crate::a::f;"),
        ],
        &[],
    );
}

/// The crates of the workspace, each with its directory of sources.
pub(super) fn crates() -> Vec<(String, String)> {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads this very workspace");
    let src = |path: &cargo_metadata::camino::Utf8Path| path.parent().map(|dir| dir.join("src").to_string());
    let packages = metadata.packages.iter();
    packages.filter_map(|package| Some((package.name.to_string(), src(&package.manifest_path)?))).collect()
}

/// The sources below a directory, by their paths relative to it.
pub(super) fn sources(src: &Path) -> BTreeMap<String, String> {
    files(src, "rs")
}

#[allow(clippy::disallowed_methods)] // sources are no data
/// The files with this extension below a directory, or the one that it is, by their paths relative to it.
pub(super) fn files(root: &Path, extension: &str) -> BTreeMap<String, String> {
    let (mut found, mut paths) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = paths.pop() {
        if let Ok(entries) = std::fs::read_dir(&path) {
            paths.extend(entries.map(|entry| entry.expect("list sources").path()));
        } else if path.extension().is_some_and(|it| it == extension) {
            let name = path.strip_prefix(root).expect("it is below").to_string_lossy().into_owned();
            found.insert(name, std::fs::read_to_string(&path).expect("read a source"));
        }
    }
    found
}

/// The files of a crate, each with those that it names.
struct Imports {
    of: BTreeMap<Module, BTreeSet<Module>>,
}

impl Imports {
    fn of(sources: &BTreeMap<String, String>) -> Imports {
        let mut files: BTreeMap<Module, Source> =
            sources.iter().map(|(path, text)| (module_of(path), Source::parse(text))).collect();
        let tests: Vec<Module> = files
            .iter()
            .flat_map(|(module, source)| {
                source.tests.iter().map(move |name| joined(module, std::slice::from_ref(name)))
            })
            .collect();
        files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        let of = files.iter().map(|(module, source)| {
            let named = source.named.iter().filter_map(|path| absolute(&files, module, path));
            let imported =
                named.map(|path| file_of(&files, path, RE_EXPORTS_MAX)).filter(|file| file != module);
            (module.clone(), imported.collect())
        });
        Imports { of: of.collect() }
    }

    /// Files of which each imports each, if not directly; the largest first.
    fn circles(&self) -> Vec<BTreeSet<Module>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.of.keys().map(|file| (file, self.reached_from(file))).collect();
        let mut circles = BTreeSet::new();
        for (file, reaches) in reached.iter().filter(|(file, reaches)| reaches.contains(*file)) {
            let circle = reaches.iter().filter(|other| reached[*other].contains(file));
            circles.insert(circle.map(|file| (*file).clone()).collect::<BTreeSet<_>>());
        }
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|files| std::cmp::Reverse(files.len()));
        circles
    }

    fn reached_from<'a>(&'a self, file: &'a Module) -> BTreeSet<&'a Module> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
        while let Some(file) = open.pop() {
            open.extend(self.of[file].iter().filter(|imported| reached.insert(*imported)));
        }
        reached
    }

    fn drawn(&self, circle: &BTreeSet<Module>) -> String {
        let mut text = format!("a circle of {} files:", circle.len());
        for file in circle {
            let within = self.of[file].intersection(circle).map(|file| file.join("::"));
            text += &format!("\n    {} → {}", file.join("::"), within.collect::<Vec<_>>().join(", "));
        }
        text
    }
}

/// Re-exports of re-exports that are followed.
const RE_EXPORTS_MAX: usize = 5;

fn module_of(path: &str) -> Module {
    let path = path.strip_suffix(".rs").expect("a source");
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

fn joined(module: &[String], path: &[String]) -> Module {
    module.iter().chain(path).cloned().collect()
}

/// A path as seen from the root of the crate; `None` for one into another crate, or to a local name.
fn absolute(files: &BTreeMap<Module, Source>, module: &Module, path: &[String]) -> Option<Module> {
    match path[0].as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some(joined(module, &path[1..])),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            Some(joined(&module[..module.len().saturating_sub(up)], &path[up..]))
        }
        _ => Some(joined(module, path)).filter(|path| files.contains_key(&path[..module.len() + 1])),
    }
}

/// The file that has what a path names.
fn file_of(files: &BTreeMap<Module, Source>, path: Module, re_exports_max: usize) -> Module {
    let is_file = |length: &usize| files.contains_key(&path[..*length]);
    let length = (0..=path.len()).rev().find(is_file).unwrap_or(0);
    let (module, rest) = path.split_at(length);
    let re_exported = rest.first().and_then(|name| files.get(module)?.re_exports.get(name));
    match re_exported.and_then(|path| absolute(files, &module.to_vec(), path)) {
        Some(path) if re_exports_max > 0 => file_of(files, joined(&path, &rest[1..]), re_exports_max - 1),
        _ => module.to_vec(),
    }
}

/// The other files that one names, hands on, or has for tests.
#[derive(Default)]
struct Source {
    named: Vec<Vec<String>>,
    re_exports: BTreeMap<String, Vec<String>>,
    /// Modules that are for tests.
    tests: Vec<String>,
}

impl Source {
    fn parse(text: &str) -> Source {
        let tokens = tokens(text);
        let (mut source, mut at) = (Source::default(), 0);
        while at < tokens.len() {
            at = source.take(&tokens, at);
        }
        source
    }

    /// Takes in what begins at a token; answers where the next thing begins.
    fn take(&mut self, tokens: &[String], at: usize) -> usize {
        let is = |at: usize, token: &str| tokens.get(at).is_some_and(|found| found == token);
        if ["#", "[", "cfg", "(", "test", ")", "]"].iter().enumerate().all(|(n, token)| is(at + n, token)) {
            return self.take_test(tokens, at + 7);
        }
        // `use<'_>` is what a type captures.
        if is(at, "use") && !is(at + 1, "<") {
            let end = (at..tokens.len()).find(|end| is(*end, ";")).unwrap_or(tokens.len());
            let paths = use_paths(&tokens[at + 1..end]);
            let is_public = at > 0 && (is(at - 1, "pub") || is(at - 1, ")"));
            for (path, name) in paths {
                match is_public {
                    true => drop(self.re_exports.insert(name, path)),
                    false => self.named.push(path),
                }
            }
            return end + 1;
        }
        let mut path = vec![tokens[at].clone()];
        let mut end = at + 1;
        while is_word(&tokens[at]) && is(end, "::") && tokens.get(end + 1).is_some_and(|token| is_word(token))
        {
            path.push(tokens[end + 1].clone());
            end += 2;
        }
        if path.len() > 1 && !(at > 0 && is(at - 1, "::")) {
            self.named.push(path);
        }
        end
    }

    /// Skips an item that is for tests; a module is in another file or in braces.
    fn take_test(&mut self, tokens: &[String], mut at: usize) -> usize {
        let begins = |token: &String| {
            ["mod", "use", "fn", "impl", "struct", "const", "static"].contains(&token.as_str())
        };
        at += tokens[at..].iter().position(begins).unwrap_or(0);
        let end = tokens[at..]
            .iter()
            .position(|token| token == ";" || token == "{")
            .map_or(tokens.len(), |end| at + end);
        if tokens.get(end).is_some_and(|token| token == ";") || tokens[at] == "use" {
            if tokens[at] == "mod" {
                self.tests.push(tokens[at + 1].clone());
            }
            return tokens[at..]
                .iter()
                .position(|token| token == ";")
                .map_or(tokens.len(), |end| at + end + 1);
        }
        let mut depth = 0;
        for (n, token) in tokens.iter().enumerate().skip(end) {
            depth += i32::from(token == "{") - i32::from(token == "}");
            if depth == 0 {
                return n + 1;
            }
        }
        tokens.len()
    }
}

/// The paths of a tree of imports, each with the name that it has from there on.
fn use_paths(tree: &[String]) -> Vec<(Vec<String>, String)> {
    let (mut path, mut name, mut at) = (Vec::<String>::new(), None, 0);
    while at < tree.len() {
        match tree[at].as_str() {
            "{" => {
                let mut found = Vec::new();
                for branch in branches(&tree[at + 1..tree.len() - 1]) {
                    let paths = use_paths(branch).into_iter();
                    found.extend(paths.map(|(rest, name)| match rest[0].as_str() {
                        "self" => {
                            (path.clone(), if name == "self" { path[path.len() - 1].clone() } else { name })
                        }
                        _ => (joined(&path, &rest), name),
                    }));
                }
                return found;
            }
            "::" => {}
            "as" => {
                name = tree.get(at + 1).cloned();
                break;
            }
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    let last = path.last().cloned();
    last.map(|last| (path, name.unwrap_or(last))).into_iter().collect()
}

/// The parts of a tree between its commas, those within braces aside.
fn branches(tree: &[String]) -> Vec<&[String]> {
    let mut depth = 0;
    let separates = |token: &String| {
        depth += i32::from(token == "{") - i32::from(token == "}");
        depth == 0 && token == ","
    };
    tree.split(separates).filter(|branch| !branch.is_empty()).collect()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// Words, `::` and other signs; without comments, texts and lifetimes.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = text_bytes(rest) {
            length
        } else if first == '\'' {
            1 + rest[1..].find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(0)
        } else if is_word(rest) {
            rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let token = &rest[..length];
        let counts =
            is_word(token) && text_bytes(token).is_none() || token == "::" || "#[](){}<,;".contains(token);
        if counts {
            tokens.push(token.to_owned());
        }
        rest = &rest[length..];
    }
    tokens
}

/// The length of a text or a character at the beginning, if there is one.
fn text_bytes(rest: &str) -> Option<usize> {
    let prefix = (rest.len() - rest.trim_start_matches(['b', 'c', 'r']).len()).min(2);
    let (letters, after) = rest.split_at(prefix);
    let hashes = after.len() - after.trim_start_matches('#').len();
    if letters.contains('r') && after[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let begin = prefix + hashes + 1;
        return rest[begin..].find(&end).map(|at| begin + at + end.len());
    }
    let quote = after.chars().next().filter(|quote| *quote == '"' || *quote == '\'')?;
    let mut letters = after.char_indices().skip(1);
    if quote == '\'' {
        // A lifetime has no quote behind its first letter.
        let (_, first) = letters.next()?;
        if first != '\\' {
            let (at, end) = letters.next()?;
            return (end == '\'').then_some(prefix + at + 1);
        }
        letters.next();
    }
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            _ if letter == quote => return Some(prefix + at + 1),
            _ => {}
        }
    }
    None
}
