//! The only OM, whose directory is gone: nobody begins an empty namespace in its place before a person says
//! so.

use crate::binary;
use crate::commands::{admin_json, flotilla};
use crate::scm_members::words;
use std::fs;
use std::time::{Duration, Instant};
use testkit::{Process, free_addresses};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn names_are_begun_anew_only_when_somebody_says_that_they_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let addresses = free_addresses(2);
    let [scm_address, om_address] = addresses.as_slice() else { unreachable!("two were asked for") };
    let meta = root.join("om");
    let line = format!("--roles scm --rpc {scm_address} --meta {}", root.join("scm").display());
    let (_scm, _) = Process::start(binary(), root, "scm", words(&line));
    let line = format!("--roles om --rpc {om_address} --meta {} --scm {scm_address}", meta.display());
    let (mut om, _) = Process::start(binary(), root, "om", words(&line));
    let fs_of = |args: &[&str]| flotilla(&[&["fs", "--scm", scm_address], args].concat(), None);
    assert!(fs_of(&["-mkdir", "/s3v/kept"]).status.success());

    om.kill9();
    let aside = root.join("aside");
    fs::rename(&meta, &aside).unwrap();
    om.spawn_again();
    let give_up = Instant::now() + SOON;
    loop {
        let groups = admin_json(scm_address, &["om", "groups"]);
        if groups[0]["is_down"] == true && om.log().contains("registered") {
            break;
        }
        assert!(Instant::now() < give_up, "{groups:#}\n{}", om.log());
        std::thread::sleep(Duration::from_millis(100));
    }
    let given_up = ["admin", "--scm", scm_address, "om", "give-up", "0"];
    let shown = flotilla(&given_up, None);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("--accept-loss"), "{shown:?}");
    assert!(!meta.join("db-om-0").exists(), "it has begun nothing");
    om.kill9();

    // The directory is found again: all is well.
    fs::remove_dir_all(&meta).unwrap();
    fs::rename(&aside, &meta).unwrap();
    om.start_again();
    let listed = fs_of(&["-ls", "/s3v"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("kept"), "{listed:?}\n{}", om.log());
    let refused = flotilla(&[&given_up[..], &["--accept-loss"]].concat(), None);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("its names are not lost"), "{refused:?}");
    om.kill9();

    fs::remove_dir_all(&meta).unwrap();
    om.spawn_again();
    let give_up = Instant::now() + SOON;
    while !flotilla(&[&given_up[..], &["--accept-loss"]].concat(), None).status.success() {
        assert!(Instant::now() < give_up, "{}", om.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    om.wait_ready();
    assert!(fs_of(&["-mkdir", "/s3v/new"]).status.success(), "{}", om.log());
    let listed = fs_of(&["-ls", "/s3v"]);
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("kept"), "{listed:?}");
}
