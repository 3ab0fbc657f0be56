use super::Failure;
use super::path::StorePath;
use super::store::{Found, Listed, Store};
use crate::table::human_bytes;
use time::OffsetDateTime;
use time::macros::format_description;

/// `-ls [-R] [-h] PATH...`: "Found N items", then a line for each, as scripts that parse Hadoop's output expect it.
pub(super) async fn run(store: &Store, recursive: bool, human: bool, paths: &[String]) -> Vec<Failure> {
    let mut failures = Vec::new();
    for path in paths {
        let listed = match StorePath::parse(path) {
            Ok(path) => list(store, recursive, &path).await,
            Err(why) => Err(Failure::Usage(why)),
        };
        match listed {
            Ok((entries, is_file)) => print(&entries, human, recursive || is_file),
            Err(failure) => failures.push(failure),
        }
    }
    failures
}

/// A file lists itself; says whether it was one.
async fn list(store: &Store, recursive: bool, path: &StorePath) -> Result<(Vec<Listed>, bool), Failure> {
    match store.stat(path).await? {
        Found::File(key) => {
            let (size, modified_ms) = (key.size, key.modified_ms);
            Ok((vec![Listed { path: path.clone(), directory: false, size, modified_ms }], true))
        }
        Found::Directory if recursive => {
            let mut all = Vec::new();
            list_below(store, path, &mut all).await?;
            Ok((all, false))
        }
        Found::Directory => Ok((store.list(path).await?, false)),
    }
}

/// Depth first, each directory before what is in it.
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

fn print(entries: &[Listed], human: bool, no_heading: bool) {
    if !no_heading && !entries.is_empty() {
        println!("Found {} items", entries.len());
    }
    let sizes: Vec<String> = entries
        .iter()
        .map(|entry| if human { human_bytes(entry.size) } else { entry.size.to_string() })
        .collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0);
    for (entry, size) in entries.iter().zip(sizes) {
        let (mode, replicas) = if entry.directory { ("drwxrwxrwx", "-") } else { ("-rw-rw-rw-", "3") };
        let when = modified(entry.modified_ms);
        println!("{mode}   {replicas} flotilla flotilla {size:>width$} {when} {}", entry.path);
    }
}

/// In UTC; directories that are only prefixes of keys have no time of their own.
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
