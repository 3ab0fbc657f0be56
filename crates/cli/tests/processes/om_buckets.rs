//! Buckets on several groups of names.

use crate::commands::{admin_json, flotilla};
use crate::om_members::{Names, REST};
use crate::s3::S3;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, SECRET_KEY};

const SOON: Duration = Duration::from_secs(60);

/// The OM that leads each group.
fn leaders(names: &Names) -> Vec<u64> {
    names.groups().iter().filter_map(|group| group["leader_om"].as_u64()).collect()
}

fn admin(names: &Names, args: &[&str]) -> String {
    let done = flotilla(&[&["admin", "--scm", &names.scm], args].concat(), None);
    String::from_utf8_lossy(if done.status.success() { &done.stdout } else { &done.stderr }).into_owned()
}

/// Makes and deletes a bucket, over and over, and looks whether what was acknowledged is so.
async fn make_and_delete(s3: S3, stop: Arc<AtomicBool>) -> Result<usize, String> {
    let failed = |what: &'static str| move |why: String| format!("{what}: {why}");
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        s3.create_bucket().await.map_err(|why| format!("create: {why}"))?;
        s3.put("key", vec![7]).await.map_err(failed("put"))?;
        if s3.delete_bucket().await? {
            return Err("a bucket with an acknowledged key was deleted".to_owned());
        }
        if s3.get("key").await.map_err(failed("get"))?.as_deref() != Some(&[7]) {
            return Err("an acknowledged key is gone".to_owned());
        }
        s3.delete("key").await.map_err(failed("delete"))?;
        if !s3.delete_bucket().await? {
            return Err("an empty bucket stays".to_owned());
        }
        done += 1;
        tokio::time::sleep(REST).await;
    }
    Ok(done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_are_made_and_deleted_in_all_groups_while_one_om_after_the_other_is_killed() {
    let (names, endpoint) = tokio::task::spawn_blocking(|| {
        let mut names = Names::start(3);
        let endpoint = names.add_data();
        names.until_whole(3);
        (names, endpoint)
    })
    .await
    .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..6)
        .map(|worker| {
            let s3 = S3::new(&endpoint, ACCESS_KEY, SECRET_KEY, &format!("bucket-{worker}"));
            tokio::spawn(make_and_delete(s3, stop.clone()))
        })
        .collect();
    let names = tokio::task::spawn_blocking(move || {
        let mut names = names;
        // Each OM leads something, so that each that dies is missed.
        let give_up = Instant::now() + SOON;
        while leaders(&names).iter().collect::<BTreeSet<_>>().len() < 3 {
            assert!(Instant::now() < give_up, "leaders are not spread: {:?}", leaders(&names));
            std::thread::sleep(Duration::from_millis(200));
        }
        for om in 0..3 {
            names.oms[om].kill9();
            std::thread::sleep(Duration::from_secs(4));
            names.oms[om].start_again();
            names.until_whole(3);
        }
        names
    })
    .await
    .unwrap();
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        let done = worker.await.unwrap().unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
        assert!(done > 0);
    }
    let left = admin_json(&names.scm, &["bucket", "list"]);
    assert_eq!(left.as_array().map(Vec::len), Some(0), "{left:#}");
}

#[test]
fn an_operator_sees_where_buckets_are_and_makes_another_group() {
    let names = Names::start(1);
    names.until_whole(1);
    for (bucket, group) in [("alpha", "0"), ("beta", "3")] {
        let said = admin(&names, &["bucket", "create", bucket, "--group", group]);
        assert!(said.contains(bucket), "{said}");
    }
    let seen =
        |bucket: &Value| (bucket["bucket"].as_str().unwrap().to_owned(), bucket["group"].as_u64().unwrap());
    let listed = admin_json(&names.scm, &["bucket", "list"]);
    let listed: Vec<_> = listed.as_array().unwrap().iter().map(seen).collect();
    assert_eq!(listed, [("alpha".to_owned(), 0), ("beta".to_owned(), 3)]);
    assert!(admin(&names, &["bucket", "info", "gamma"]).contains("no bucket `gamma`"));
    assert!(admin(&names, &["bucket", "create", "gamma", "--group", "4"]).contains("no group 4"));
    admin(&names, &["om", "group", "create"]);
    names.until_groups(5, 1);
    let give_up = Instant::now() + SOON;
    loop {
        let said = admin(&names, &["bucket", "create", "gamma", "--group", "4"]);
        if admin_json(&names.scm, &["bucket", "list"]).as_array().unwrap().len() == 3 {
            break;
        }
        // The root's leader hears of it with its next heartbeat.
        assert!(said.contains("no group 4") && Instant::now() < give_up, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let info = admin_json(&names.scm, &["bucket", "info", "gamma"]);
    assert_eq!((seen(&info), &info["keys"]), (("gamma".to_owned(), 4), &Value::from(0)));
}
