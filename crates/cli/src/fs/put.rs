use super::failure::Failure;
use super::local::Input;
use super::path::{StorePath, split_last};
use super::store::{Found, Store, failure};
use crate::args::Acks;
use crate::output::{complain, printable};
use client::Ack;
use proto::om::{KeyAttributes, Precondition};
use std::path::Path;

/// `-put [-f] [--ack all] LOCAL... DESTINATION`
pub(super) async fn run(store: &Store, force: bool, ack: Acks, paths: &[String]) -> Vec<Failure> {
    if paths.len() < 2 {
        let why = "a destination is needed: /volume/bucket/name (there is no home directory yet)";
        return vec![Failure::Arguments(why.to_owned())];
    }
    let (sources, destination) = split_last(paths);
    let destination = match StorePath::parse(destination) {
        Ok(destination) => destination,
        Err(why) => return vec![Failure::Usage(why)],
    };
    let into_directory = match store.stat(&destination).await {
        Ok(Found::Directory) => true,
        Ok(Found::File(_)) | Err(Failure::NotFound(_)) => false,
        Err(failure) => return vec![failure],
    };
    if sources.len() > 1 && !into_directory {
        return vec![Failure::NotDirectory(destination.to_string())];
    }
    let mut failures = Vec::new();
    for source in sources {
        if let Err(failure) = put(store, force, ack, source, &destination, into_directory).await {
            failures.push(failure);
        }
    }
    failures
}

async fn put(
    store: &Store,
    force: bool,
    ack: Acks,
    source: &str,
    destination: &StorePath,
    into_directory: bool,
) -> Result<(), Failure> {
    let input = Input::of(source);
    if input.is_dir() {
        return Err(Failure::IsDirectory(source.to_owned()));
    }
    let target = match (into_directory, Path::new(source).file_name().and_then(|name| name.to_str())) {
        (false, _) => destination.clone(),
        (true, Some(name)) if source != "-" => destination.child(name),
        (true, _) => return Err(Failure::IsDirectory(destination.to_string())),
    };
    let StorePath::Key(volume, bucket, key) = &target else {
        return Err(Failure::Refused(
            target.to_string(),
            "files live in buckets: /volume/bucket/name".to_owned(),
        ));
    };
    // The store is asked before the bytes travel; the precondition below decides.
    if !force && store.stat(&target).await.is_ok() {
        return Err(Failure::Exists(target.to_string()));
    }
    let body = input.stream().map_err(|err| Failure::local(source, &err))?;
    let absent = (!force).then(|| Precondition { absent: true, ..Precondition::default() });
    let client = store.client.with_ack(if ack == Acks::All { Ack::All } else { Ack::Majority });
    let put = client.put(volume, bucket, key.as_bytes(), KeyAttributes::default(), absent, body).await;
    let reached = put.map_err(|err| failure(&target, err))?.reached;
    if ack == Acks::All && reached != Ack::All {
        complain(&format!(
            "put: {}: stored on a majority of the replicas; not all had it within a second",
            printable(&target.to_string())
        ));
    }
    Ok(())
}
