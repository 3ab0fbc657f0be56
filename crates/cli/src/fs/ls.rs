use super::failure::Failure;
use super::path::StorePath;
use super::store::{Found, Listed, Store};
use crate::output;
use crate::table::human_bytes;
use std::fmt::Write;
use time::OffsetDateTime;
use time::macros::format_description;

/// `-ls [-d] [-R] [-h] PATH...`: "Found N items", then a line for each, as scripts that parse Hadoop's output
/// expect it.
pub(super) async fn run(store: &Store, depth: Depth, human: bool, paths: &[String]) -> Vec<Failure> {
    let mut failures = Vec::new();
    for path in paths {
        let listed = match StorePath::parse(path) {
            Ok(path) => list(store, depth, &path).await,
            Err(why) => Err(Failure::Usage(why)),
        };
        match listed {
            Ok((entries, heading)) => {
                let printed = output::print(&lines(&entries, human, heading));
                failures.extend(printed.err().map(|err| Failure::local("-", &err)));
            }
            Err(failure) => failures.push(failure),
        }
    }
    failures
}

/// The depth of a listing.
#[derive(Clone, Copy)]
pub(super) enum Depth {
    Itself,
    Children,
    All,
}

/// Lists what is at a path; a file lists itself. Says also whether the entries are children, which get a
/// heading.
async fn list(store: &Store, depth: Depth, path: &StorePath) -> Result<(Vec<Listed>, bool), Failure> {
    match (store.stat(path).await?, depth) {
        (Found::File(key), _) => {
            let (size, modified_ms) = (key.size, key.modified_ms);
            Ok((vec![Listed { path: path.clone(), directory: false, size, modified_ms }], false))
        }
        (Found::Directory, Depth::Itself) => {
            Ok((vec![Listed { path: path.clone(), directory: true, size: 0, modified_ms: 0 }], false))
        }
        (Found::Directory, Depth::All) => {
            let mut all = Vec::new();
            list_below(store, path, &mut all).await?;
            Ok((all, false))
        }
        (Found::Directory, Depth::Children) => Ok((store.list(path).await?, true)),
    }
}

/// Adds to `all` what is below a directory, depth first, each directory before what is in it.
async fn list_below(store: &Store, path: &StorePath, all: &mut Vec<Listed>) -> Result<(), Failure> {
    for entry in store.list(path).await? {
        let below = entry.directory.then(|| entry.path.clone());
        all.push(entry);
        if let Some(below) = below {
            Box::pin(list_below(store, &below, all)).await?;
        }
    }
    Ok(())
}

fn lines(entries: &[Listed], human: bool, heading: bool) -> String {
    let mut text = String::new();
    if heading && !entries.is_empty() {
        writeln!(text, "Found {} items", entries.len()).expect("a string takes all");
    }
    let sizes: Vec<String> = entries
        .iter()
        .map(|entry| if human { human_bytes(entry.size) } else { entry.size.to_string() })
        .collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0);
    for (entry, size) in entries.iter().zip(sizes) {
        let (mode, replicas) = if entry.directory { ("drwxrwxrwx", "-") } else { ("-rw-rw-rw-", "3") };
        let when = modified(entry.modified_ms);
        writeln!(text, "{mode}   {replicas} flotilla flotilla {size:>width$} {when} {}", entry.path)
            .expect("a string takes all");
    }
    text
}

/// The time of a change, in UTC; directories that are only prefixes of keys have no time of their own.
fn modified(modified_ms: u64) -> String {
    let seconds = i64::try_from(modified_ms / 1000).unwrap_or(0);
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(format_description!("[year]-[month]-[day] [hour]:[minute]")).expect("a date has these parts")
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_read_as_in_hadoop() {
        assert_eq!(super::modified(1_763_669_160_000), "2025-11-20 20:06");
    }
}
