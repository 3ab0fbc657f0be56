use super::cat::{file, read};
use super::failure::Failure;
use super::local::Output;
use super::path::{StorePath, split_last};
use super::store::Store;
use std::path::{Path, PathBuf};

/// `-get [-f] PATH... [LOCAL]`
pub(super) async fn run(store: &Store, force: bool, paths: &[String]) -> Vec<Failure> {
    let here = ".".to_owned();
    let (sources, destination) = match paths {
        [_] => (paths, &here),
        _ => split_last(paths),
    };
    if destination == "-" {
        return super::cat::run(store, sources).await;
    }
    let destination = Path::new(destination);
    if sources.len() > 1 && !destination.is_dir() {
        return vec![Failure::NotDirectory(destination.display().to_string())];
    }
    let mut failures = Vec::new();
    for source in sources {
        if let Err(failure) = get(store, force, source, destination).await {
            failures.push(failure);
        }
    }
    failures
}

async fn get(store: &Store, force: bool, source: &str, destination: &Path) -> Result<(), Failure> {
    let source = StorePath::parse(source).map_err(Failure::Usage)?;
    let key = file(store, &source).await?;
    let local: PathBuf =
        if destination.is_dir() { destination.join(source.name()) } else { destination.to_owned() };
    let shown = local.display().to_string();
    if !force && local.exists() {
        return Err(Failure::Exists(shown));
    }
    let mut output = Output::create(&local).map_err(|err| Failure::local(&shown, &err))?;
    let written = read(store, &source, &key, |bytes| output.write(&bytes)).await?;
    written.and_then(|()| output.finish()).map_err(|err| Failure::local(&shown, &err))
}
