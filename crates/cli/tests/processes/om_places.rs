//! Groups of names that are reset by force to a copy from before buckets moved, were made or were deleted.

use crate::commands::{admin_json, flotilla};
use crate::om_members::Names;
use client::{Client, ClientError, ClientOptions, S3_VOLUME};
use proto::Code;
use proto::om::Key;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
const ROOT: usize = 0;

/// Three OMs of which the last one is away while the bucket `moved` goes from group 1 to group 3 and on,
/// `deleted` is deleted, and `made` comes into group 2. Then all die, and the second one loses its disk. One
/// group goes on with what the last OM has of it, and the others with what the first one has.
struct Story {
    names: Names,
    client: Client,
}

impl Story {
    async fn tell(old: usize) -> Story {
        let names = off(|| {
            let names = Names::start(3);
            names.until_whole(3);
            names
        });
        let mut names = names.await;
        let scm = names.scm.clone();
        let client = Client::connect(ClientOptions { scm: scm.clone(), ..ClientOptions::default() });
        client.create_bucket_in(S3_VOLUME, "moved", Some(1)).await.unwrap();
        client.create_bucket_in(S3_VOLUME, "deleted", Some(2)).await.unwrap();
        put(&client, "moved", 0..20).await;
        names.oms[2].kill9();
        let moved =
            off(move || flotilla(&["admin", "--scm", &scm, "bucket", "move", "moved", "--to", "3"], None));
        let moved = moved.await;
        assert!(moved.status.success(), "{moved:?}\n{}", names.logs());
        put(&client, "moved", 20..30).await;
        client.delete_bucket(S3_VOLUME, "deleted").await.unwrap();
        client.create_bucket_in(S3_VOLUME, "made", Some(2)).await.unwrap();
        put(&client, "made", 0..10).await;
        let names = off(move || {
            let groups = names.groups();
            names.oms[0].kill9();
            // The two others alone, where each is named as lost, elect nobody.
            names.lose(1);
            for (number, group) in groups.iter().enumerate() {
                names.reset(number, group, if number == old { 2 } else { 0 });
            }
            names.oms.iter_mut().for_each(testkit::Process::spawn_again);
            names.until_whole(3);
            names
        });
        let mut story = Story { names: names.await, client };
        story.until_settled().await;
        story
    }

    async fn until_settled(&mut self) {
        let (scm, give_up) = (self.names.scm.clone(), Instant::now() + SOON);
        let settled = off(move || {
            loop {
                let told = admin_json(&scm, &["om", "unsettled"]);
                if told["total"] == 0 {
                    return Ok(());
                }
                if Instant::now() >= give_up {
                    return Err(told);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        if let Err(told) = settled.await {
            panic!("{told:#}\n{}", self.names.logs());
        }
    }

    /// Finds the bucket in its group, with the keys of these numbers and no others, and writes one more.
    async fn check(&self, bucket: &'static str, group: u64, keys: u64) {
        let give_up = Instant::now() + SOON;
        loop {
            let scm = self.names.scm.clone();
            let info = off(move || admin_json(&scm, &["bucket", "info", bucket])).await;
            let found = (info["group"].as_u64(), info["keys"].as_u64());
            if found == (Some(group), Some(keys)) {
                break;
            }
            // A root that has just come back has yet to ask.
            assert!(Instant::now() < give_up, "{info:#}\n{}", self.names.logs());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for key in 0..keys {
            let found = self.client.lookup(S3_VOLUME, bucket, key.to_string().as_bytes()).await;
            assert_eq!(found.unwrap().etag, format!("{bucket}-{key}"));
        }
        put(&self.client, bucket, keys..keys + 1).await;
    }
}

async fn off<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(call).await.unwrap()
}

async fn put(client: &Client, bucket: &str, keys: std::ops::Range<u64>) {
    for key in keys {
        let (etag, key) = (format!("{bucket}-{key}"), key.to_string().into());
        client.commit_key(S3_VOLUME, bucket, Key { key, etag, ..Key::default() }, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_was_reset_knows_again_which_buckets_there_are_and_where() {
    let story = Story::tell(ROOT).await;
    story.check("moved", 3, 30).await;
    story.check("made", 2, 10).await;
    // Its deletion is forgotten with what the root was told of it.
    story.check("deleted", 2, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_came_after_the_copy_its_group_was_reset_to_is_there_again_and_empty() {
    let story = Story::tell(3).await;
    story.check("moved", 3, 0).await;
    let logs = story.names.logs();
    let is_named =
        logs.lines().any(|line| line.contains("what was in a bucket is lost") && line.contains("moved"));
    assert!(is_named, "{logs}");
    story.check("made", 2, 10).await;
    let deleted = story.client.lookup(S3_VOLUME, "deleted", b"0").await;
    assert!(
        matches!(&deleted, Err(ClientError::Refused(why)) if why.code == Code::NoSuchBucket),
        "{deleted:?}"
    );
}
