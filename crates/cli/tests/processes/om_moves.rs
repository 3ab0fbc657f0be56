//! Buckets that move from one group of names to another, while they are used.

use crate::commands::{admin_json, flotilla};
use crate::om_members::{Names, REST};
use client::{Client, ClientError, ClientOptions, S3_VOLUME};
use proto::om::{Key, ListKeysRequest, Precondition, listed_key};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);
const BUCKET: &str = "hot";
const GROUPS: u64 = 4;
const WRITERS: u64 = 6;
const KEYS_PER_WRITER: u64 = 15;

/// Runs `flotilla admin`: what it said, and whether it did what it was told.
fn admin(scm: &str, args: &[&str]) -> (String, bool) {
    let done = flotilla(&[&["admin", "--scm", scm], args].concat(), None);
    let said = [done.stdout, done.stderr].concat();
    (String::from_utf8_lossy(&said).into_owned(), done.status.success())
}

fn move_to(scm: &str, group: u64) -> (String, bool) {
    admin(scm, &["bucket", "move", BUCKET, "--to", &group.to_string()])
}

fn client(scm: &str) -> Client {
    Client::connect(ClientOptions { scm: scm.to_owned(), ..ClientOptions::default() })
}

/// Writes keys of its own, each by what it wrote there last, and looks whether that is there.
struct Writer {
    number: u64,
    client: Client,
    /// The etags of its keys.
    there: BTreeMap<String, String>,
    calls: u64,
    /// The longest time for which a change, and for which a question waited.
    longest: [Duration; 2],
}

impl Writer {
    fn new(number: u64, scm: &str) -> Writer {
        Writer { number, client: client(scm), there: BTreeMap::new(), calls: 0, longest: Default::default() }
    }

    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<Writer, String> {
        while !stop.load(Ordering::Relaxed) {
            self.calls += 1;
            let key = format!("{}-{:02}", self.number, self.calls * 7 % KEYS_PER_WRITER);
            let begun = Instant::now();
            let is_question = match self.calls % 8 {
                0 => self.list().await.map(|()| true)?,
                1 | 2 => self.lookup(&key).await.map(|()| true)?,
                3 => self.delete(&key).await.map(|()| false)?,
                _ => self.put(&key).await.map(|()| false)?,
            };
            let longest = &mut self.longest[usize::from(is_question)];
            *longest = begun.elapsed().max(*longest);
            tokio::time::sleep(REST).await;
        }
        Ok(self)
    }

    /// A put that is carried out twice finds another etag the second time, and one that is lost leaves the
    /// one before.
    async fn put(&mut self, key: &str) -> Result<(), String> {
        let etag = format!("{}-{}", self.number, self.calls);
        let before = self.there.get(key).cloned();
        let precondition = Precondition { absent: before.is_none(), etag: before, present: false };
        let record = Key { key: key.to_owned().into(), etag: etag.clone(), ..Key::default() };
        let put = self.client.commit_key(S3_VOLUME, BUCKET, record, Some(precondition)).await;
        put.map_err(|error| format!("put {key}: {error}"))?;
        self.there.insert(key.to_owned(), etag);
        Ok(())
    }

    async fn delete(&mut self, key: &str) -> Result<(), String> {
        let Some(etag) = self.there.remove(key) else { return Ok(()) };
        let precondition = Precondition { etag: Some(etag), ..Precondition::default() };
        let keys = vec![key.to_owned().into()];
        let deleted = self.client.delete_keys(S3_VOLUME, BUCKET, keys, Some(precondition)).await;
        match deleted.map_err(|error| format!("delete {key}: {error}"))?[..] {
            [true] => Ok(()),
            _ => Err(format!("{key} was not there when it was deleted")),
        }
    }

    async fn lookup(&self, key: &str) -> Result<(), String> {
        let found = match self.client.lookup(S3_VOLUME, BUCKET, key.as_bytes()).await {
            Ok(found) => Some(found.etag),
            Err(ClientError::Refused(failure)) if failure.code == proto::Code::NoSuchKey => None,
            Err(error) => return Err(format!("look {key} up: {error}")),
        };
        match found.as_ref() == self.there.get(key) {
            true => Ok(()),
            false => Err(format!("{key} is {found:?}, and was left as {:?}", self.there.get(key))),
        }
    }

    async fn list(&self) -> Result<(), String> {
        let request = ListKeysRequest {
            volume: S3_VOLUME.into(),
            bucket: BUCKET.into(),
            prefix: format!("{}-", self.number).into(),
            ..ListKeysRequest::default()
        };
        let page = self.client.list_keys(request).await.map_err(|error| format!("list: {error}"))?;
        let listed = page.entries.into_iter().map(|listed| match listed.entry {
            Some(listed_key::Entry::Key(key)) => (String::from_utf8(key.key.to_vec()).unwrap(), key.etag),
            other => panic!("expected a key, got {other:?}"),
        });
        let listed: BTreeMap<String, String> = listed.collect();
        match listed == self.there {
            true => Ok(()),
            false => Err(format!("listed are {listed:?}, and left were {:?}", self.there)),
        }
    }
}

/// Moves the bucket from group to group until it is to stop: how often it has moved, and why else it did not.
fn move_about(scm: &str, stop: &AtomicBool) -> (u64, Vec<String>) {
    let (mut moved, mut stayed) = (0, Vec::new());
    for to in (1..).map(|nth| nth % GROUPS) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match move_to(scm, to) {
            (_, true) => moved += 1,
            (said, false) => stayed.push(said),
        }
    }
    (moved, stayed)
}

fn kill_each(names: &mut Names) {
    for om in 0..3 {
        std::thread::sleep(Duration::from_secs(4));
        names.oms[om].kill9();
        std::thread::sleep(Duration::from_secs(3));
        names.oms[om].start_again();
        names.until_whole(3);
    }
    std::thread::sleep(Duration::from_secs(2));
}

/// Waits until nothing is left to do about the bucket: where that is.
fn until_settled(names: &Names) -> Value {
    let give_up = Instant::now() + SOON;
    loop {
        let info = admin_json(&names.scm, &["bucket", "info", BUCKET]);
        if info["moves"].is_null() {
            return info;
        }
        assert!(Instant::now() < give_up, "it moves for ever: {info:#}\n{}", names.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_moves_about_while_it_is_used_and_one_om_after_the_other_is_killed() {
    let names = tokio::task::spawn_blocking(|| {
        let names = Names::start(3);
        names.until_whole(3);
        names
    });
    let mut names = names.await.unwrap();
    client(&names.scm).create_bucket_in(S3_VOLUME, BUCKET, Some(1)).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> =
        (0..WRITERS).map(|number| tokio::spawn(Writer::new(number, &names.scm).run(stop.clone()))).collect();
    let (scm, stopped) = (names.scm.clone(), stop.clone());
    let mover = tokio::task::spawn_blocking(move || move_about(&scm, &stopped));
    let names = tokio::task::spawn_blocking(move || {
        kill_each(&mut names);
        names
    });
    let names = names.await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let (moved, stayed) = mover.await.unwrap();
    let mut left = 0;
    for writer in writers {
        let writer = writer.await.unwrap().unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
        writer.list().await.unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
        println!(
            "{} calls; a change waited {:?}, a question {:?}",
            writer.calls, writer.longest[0], writer.longest[1]
        );
        left += writer.there.len() as u64;
    }
    println!("moved {moved} times; else: {stayed:#?}");
    assert!(moved >= 3, "{stayed:#?}\n{}", names.logs());
    let info = tokio::task::spawn_blocking(move || until_settled(&names)).await.unwrap();
    assert_eq!(info["keys"], left, "{info:#}");
}

#[test]
fn an_operator_moves_a_bucket_and_hears_why_not() {
    let names = Names::start(1);
    names.until_whole(1);
    let scm = &names.scm;
    assert!(admin(scm, &["bucket", "create", BUCKET, "--group", "1"]).1);
    let load = format!("load names --scm {scm} --bucket {BUCKET} --count 2000 --clients 50");
    assert!(flotilla(&load.split(' ').collect::<Vec<_>>(), None).status.success());
    let keys = admin_json(scm, &["bucket", "info", BUCKET])["keys"].as_u64().unwrap();
    assert!(keys >= 2000, "{keys}");
    // There and back, into the root too.
    for to in [2, 0, 1] {
        let (said, is_done) = move_to(scm, to);
        assert!(is_done, "{said}\n{}", names.logs());
        let info = admin_json(scm, &["bucket", "info", BUCKET]);
        assert_eq!((&info["group"], &info["keys"], &info["moves"]), (&to.into(), &keys.into(), &Value::Null));
    }
    let (said, is_done) = move_to(scm, 1);
    assert!(is_done && said.contains("is in group 1 already"), "{said}");
    for (args, why) in [
        (&["bucket", "move", BUCKET, "--to", "77"][..], "no group 77"),
        (&["bucket", "move", "gamma", "--to", "2"], "no bucket `gamma`"),
        (&["bucket", "move", BUCKET, "--give-up"], "does not move"),
        (&["bucket", "move", BUCKET], "--to"),
    ] {
        let (said, is_done) = admin(scm, args);
        assert!(!is_done && said.contains(why), "{args:?}: {said}");
    }
    // Whichever comes first.
    let (moved, given_up) = std::thread::scope(|scope| {
        let moving = scope.spawn(|| move_to(scm, 3));
        let give_up = Instant::now() + SOON;
        while !moving.is_finished() && Instant::now() < give_up {
            if admin(scm, &["bucket", "move", BUCKET, "--give-up"]).1 {
                return (moving.join().unwrap(), true);
            }
        }
        (moving.join().unwrap(), false)
    });
    let at = admin_json(scm, &["bucket", "info", BUCKET])["group"].as_u64().unwrap();
    assert_eq!((moved.1, at), (!given_up, if given_up { 1 } else { 3 }), "{}", moved.0);
    assert!(!given_up || moved.0.contains("it was given up"), "{}", moved.0);
    let gone = flotilla(&["admin", "--scm", scm, "bucket", "move", BUCKET, "--to", "2", "--json"], None);
    let gone: Value = serde_json::from_slice(&gone.stdout).unwrap();
    assert_eq!((&gone["group"], &gone["keys"]), (&2.into(), &keys.into()));
}
