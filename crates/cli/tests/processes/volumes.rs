//! Volumes besides the one that S3 sees.

use crate::commands::{admin_json, flotilla};
use crate::om_members::Names;
use crate::s3::S3;
use serde_json::Value;
use testkit::{ACCESS_KEY, SECRET_KEY};

/// `flotilla sh volume`: the exit code, and what was said.
fn volume(names: &Names, words: &[&str]) -> (i32, String) {
    let done = flotilla(&[&["sh", "--scm", &names.scm, "volume"], words].concat(), None);
    let said = [&done.stdout[..], &done.stderr].concat();
    (done.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

fn all(names: &Names) -> Vec<String> {
    let listed = flotilla(&["sh", "--scm", &names.scm, "--json", "volume", "list"], None);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    listed.as_array().unwrap().iter().map(|it| it["volume"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_has_buckets_of_its_own_which_fs_sees_and_s3_does_not() {
    let (names, endpoint) = tokio::task::spawn_blocking(|| {
        let mut names = Names::start(1);
        let endpoint = names.add_data();
        names.until_whole(1);
        (names, endpoint)
    })
    .await
    .unwrap();
    let s3 = S3::new(&endpoint, ACCESS_KEY, SECRET_KEY, "photos");
    s3.create_bucket().await.unwrap();
    s3.put("a", b"of s3".to_vec()).await.unwrap();
    let names = tokio::task::spawn_blocking(move || {
        assert_eq!(all(&names), ["s3v"]);
        let (code, said) = volume(&names, &["create", "mine"]);
        assert_eq!(code, 0, "{said}");
        for (words, says) in [
            (["create", "mine"], "volume `mine` exists already"),
            (["create", "Mine"], "lower case"),
            (["info", "none"], "no volume `none`"),
            (["delete", "none"], "no volume `none`"),
            (["delete", "s3v"], "stays"),
        ] {
            let (code, said) = volume(&names, &words);
            assert!(code == 1 && said.contains(says), "{words:?}: {said}");
        }
        let file = names.dir().join("file");
        std::fs::write(&file, "of mine").unwrap();
        names.fs(&["-mkdir", "/mine/photos"]);
        names.fs(&["-put", file.to_str().unwrap(), "/mine/photos/a"]);
        assert_eq!(names.fs(&["-cat", "/mine/photos/a"]), "of mine");
        assert_eq!(names.fs(&["-cat", "/s3v/photos/a"]), "of s3");
        let root = names.fs(&["-ls", "/"]);
        assert!(root.contains(" /mine") && root.contains(" /s3v"), "{root}");
        let nowhere = flotilla(&["fs", "--scm", &names.scm, "-mkdir", "/none/photos"], None);
        assert!(
            !nowhere.status.success() && String::from_utf8_lossy(&nowhere.stderr).contains("No such file")
        );
        names.fs(&["-mkdir", "-p", "/deep/photos/dir"]);
        assert_eq!(all(&names), ["deep", "mine", "s3v"]);
        let buckets = admin_json(&names.scm, &["bucket", "list"]);
        assert_eq!(buckets.as_array().unwrap().len(), 3, "{buckets:#}");
        let moved =
            flotilla(&["admin", "--scm", &names.scm, "bucket", "move", "mine/photos", "--to", "3"], None);
        assert!(moved.status.success(), "{moved:?}");
        assert_eq!(admin_json(&names.scm, &["bucket", "info", "mine/photos"])["group"], 3);
        let (code, said) = volume(&names, &["delete", "mine"]);
        assert!(code == 1 && said.contains("has buckets"), "{said}");
        names
    })
    .await
    .unwrap();
    assert_eq!(s3.get("a").await.unwrap().as_deref(), Some(&b"of s3"[..]));
    s3.delete("a").await.unwrap();
    assert!(s3.delete_bucket().await.unwrap());
    tokio::task::spawn_blocking(move || {
        assert_eq!(
            names.fs(&["-cat", "/mine/photos/a"]),
            "of mine",
            "the other one of that name is there still"
        );
        names.fs(&["-rm", "-r", "/mine/photos"]);
        let (code, said) = volume(&names, &["delete", "mine"]);
        assert_eq!(code, 0, "{said}");
        assert_eq!(all(&names), ["deep", "s3v"]);
    })
    .await
    .unwrap();
}
