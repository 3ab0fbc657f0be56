//! An OM whose directory is gone, or exchanged.

use crate::binary;
use crate::commands::flotilla;
use crate::scm_members::words;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{Process, free_addresses};

const SOON: Duration = Duration::from_secs(60);

/// An OM that has written these words to its log.
fn until_said(om: &Process, words: &str) {
    let give_up = Instant::now() + SOON;
    while !om.log().contains(words) {
        assert!(Instant::now() < give_up, "{words:?} is not said: {}", om.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An OM that has said that the names are elsewhere; it must not get ready then.
fn until_refused(om: &Process) {
    until_said(om, "were founded by the OM at");
}

/// An OM that has names: a process that has started may not have come so far.
fn until_founded(om: &Process) {
    until_said(om, "OM joined the cluster");
}

/// The names in OM's directory, but for the lock.
fn left_by_om(meta: &Path) -> Vec<String> {
    let entries = fs::read_dir(meta).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.filter(|name| !name.to_lowercase().contains("lock")).collect()
}

#[test]
fn an_om_without_names_is_refused_where_another_one_had_some() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let addresses = free_addresses(2);
    let [scm_address, om_address] = addresses.as_slice() else { unreachable!("two were asked for") };
    let meta = root.join("om");
    let line = format!("--roles scm --rpc {scm_address} --meta {}", root.join("scm").display());
    let (_scm, _) = Process::start(binary(), root, "scm", words(&line));
    let line = format!("--roles om --rpc {om_address} --meta {} --scm {scm_address}", meta.display());
    let (mut om, _) = Process::start(binary(), root, "om", words(&line));
    until_founded(&om);

    om.kill9();
    let aside = root.join("aside");
    fs::rename(&meta, &aside).unwrap();
    om.spawn_again();
    until_refused(&om);
    om.kill9();
    assert_eq!(left_by_om(&meta), ["VERSION"], "one that is refused has opened nothing");

    // Its stamp alone proves nothing.
    fs::remove_dir_all(&meta).unwrap();
    fs::create_dir(&meta).unwrap();
    fs::copy(aside.join("VERSION"), meta.join("VERSION")).unwrap();
    om.spawn_again();
    until_refused(&om);
    om.kill9();
    assert_eq!(left_by_om(&meta), ["VERSION"]);

    fs::remove_dir_all(&meta).unwrap();
    fs::rename(&aside, &meta).unwrap();
    om.start_again();
    om.kill9();

    fs::remove_dir_all(&meta).unwrap();
    let given_up = ["admin", "--scm", scm_address, "registry", "kv", "delete", "flotilla/om/0"];
    assert!(flotilla(&given_up, None).status.success());
    om.start_again();
}
