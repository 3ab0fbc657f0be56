//! The registry over gRPC: keys, leases, watches, and datanodes that are in it by their heartbeats.

use crate::datanodes::register;
use crate::server::{DEADLINE, Server};
use flotilla_scm::ScmOptions;
use futures::StreamExt;
use proto::registry::event::Change;
use proto::registry::watch_request::What;
use proto::registry::*;
use proto::scm::{DiskState, HeartbeatRequest};
use proto::{Code, Failure};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use types::{Clock, SystemClock};

pub(crate) use crate::server::Registry as Client;

pub(crate) async fn put_with(client: &mut Client, request: PutKeyRequest) -> Result<u64, Failure> {
    Ok(client.put_key(request).await?.into_inner().revision)
}

pub(crate) fn value(key: &str, value: &str) -> PutKeyRequest {
    PutKeyRequest { key: key.to_owned(), value: value.to_owned().into(), ..PutKeyRequest::default() }
}

async fn put(client: &mut Client, key: &str, word: &str) -> u64 {
    put_with(client, value(key, word)).await.unwrap()
}

async fn read_with(client: &mut Client, request: ReadKeysRequest) -> ReadKeysResponse {
    client.read_keys(request).await.unwrap().into_inner()
}

async fn get(client: &mut Client, key: &str) -> Option<KeyValue> {
    try_get(client, key).await.unwrap()
}

pub(crate) async fn try_get(client: &mut Client, key: &str) -> Result<Option<KeyValue>, Failure> {
    let request = ReadKeysRequest { key: key.to_owned(), ..ReadKeysRequest::default() };
    Ok(client.read_keys(request).await?.into_inner().entries.pop())
}

async fn delete(client: &mut Client, key: &str, if_mod_revision: Option<u64>) -> Result<u64, Failure> {
    let request = DeleteKeysRequest { key: key.to_owned(), if_mod_revision, prefix: false };
    Ok(client.delete_keys(request).await?.into_inner().deleted)
}

async fn instances(client: &mut Client, service: &str) -> Vec<Instance> {
    let request = ListInstancesRequest { service: service.to_owned(), ..ListInstancesRequest::default() };
    client.list_instances(request).await.unwrap().into_inner().instances
}

pub(crate) fn check(name: &str, health: Health) -> Check {
    Check { name: name.to_owned(), health: health as i32, output: String::new() }
}

pub(crate) fn health_of(instance: &Instance, name: &str) -> Health {
    instance.checks.iter().find(|check| check.name == name).map_or(Health::Unspecified, Check::health)
}

pub(crate) fn web(id: &str, ttl_ms: u64) -> Instance {
    let addresses = [("http".to_owned(), "10.0.0.1:80".to_owned())].into();
    Instance { service: "web".to_owned(), id: id.to_owned(), addresses, ttl_ms, ..Instance::default() }
}

pub(crate) fn name(service: &str, id: &str) -> Option<InstanceName> {
    Some(InstanceName { service: service.to_owned(), id: id.to_owned() })
}

pub(crate) async fn enroll(client: &mut Client, instance: Instance) -> Result<u64, Failure> {
    let request = RegisterInstanceRequest { instance: Some(instance), clock_ms: 0 };
    Ok(client.register_instance(request).await?.into_inner().lease)
}

async fn renew(client: &mut Client, id: &str, lease: u64, checks: Vec<Check>) -> Result<(), Failure> {
    renew_at(client, id, lease, checks, 0).await
}

async fn renew_at(
    client: &mut Client,
    id: &str,
    lease: u64,
    checks: Vec<Check>,
    clock_ms: u64,
) -> Result<(), Failure> {
    client.renew_instance(RenewInstanceRequest { name: name("web", id), lease, checks, clock_ms }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_compared_and_set() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let client = &mut server.registry;
    let only_new = PutKeyRequest { if_mod_revision: Some(0), ..value("leader", "me") };
    let first = put_with(client, only_new.clone()).await.unwrap();
    let refused = put_with(client, only_new).await.unwrap_err();
    assert_eq!((refused.code, refused.retry), (Code::PreconditionFailed, proto::Retry::No), "{refused}");
    let second = put(client, "leader", "you").await;
    let stale = PutKeyRequest { if_mod_revision: Some(first), ..value("leader", "me again") };
    assert_eq!(put_with(client, stale).await.unwrap_err().code, Code::PreconditionFailed);
    let entry = get(client, "leader").await.unwrap();
    assert_eq!((&entry.value[..], entry.version), (&b"you"[..], 2));
    assert_eq!((entry.create_revision, entry.mod_revision), (first, second));
    assert_eq!(delete(client, "leader", Some(first)).await.unwrap_err().code, Code::PreconditionFailed);
    assert_eq!(delete(client, "leader", Some(second)).await, Ok(1));
    assert_eq!(delete(client, "leader", None).await, Ok(0));
    assert_eq!(get(client, "leader").await, None);

    let too_large = PutKeyRequest { value: vec![0; (64 << 10) + 1].into(), ..value("k", "") };
    assert_eq!(put_with(client, too_large).await.unwrap_err().code, Code::TooLarge);
    assert_eq!(put_with(client, value(&"k".repeat(513), "")).await.unwrap_err().code, Code::TooLarge);
    assert_eq!(put_with(client, value("", "x")).await.unwrap_err().code, Code::Invalid);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_are_read_in_pages_and_deleted_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let client = &mut server.registry;
    for number in 0..25 {
        put(client, &format!("dir/{number:02}"), "x").await;
    }
    put(client, "dis", "other").await;
    let mut found = Vec::new();
    let mut from = String::new();
    loop {
        let request = ReadKeysRequest {
            key: "dir/".to_owned(),
            prefix: true,
            from,
            limit: 10,
            keys_only: true,
            ..ReadKeysRequest::default()
        };
        let page = read_with(client, request).await;
        assert!(page.entries.len() <= 10 && page.entries.iter().all(|entry| entry.value.is_empty()));
        found.extend(page.entries.into_iter().map(|entry| entry.key));
        from = page.next;
        if from.is_empty() {
            break;
        }
    }
    let expected: Vec<String> = (0..25).map(|number| format!("dir/{number:02}")).collect();
    assert_eq!(found, expected);
    let all = DeleteKeysRequest { key: "dir/".to_owned(), prefix: true, if_mod_revision: None };
    let deleted = client.delete_keys(all).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.more), (25, false));
    assert!(get(client, "dis").await.is_some());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_lives_as_long_as_it_is_renewed() {
    /// The machine may stand still for nearly as long between two renewals.
    const TTL: Duration = Duration::from_secs(5);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let client = &mut server.registry;
    let lock = PutKeyRequest { ttl_ms: TTL.as_millis() as u64, ..value("lock", "me") };
    let revision = put_with(client, lock).await.unwrap();
    let renewal = RenewKeyRequest { key: "lock".to_owned(), mod_revision: revision };
    let mut renewed = Instant::now();
    let renewed_until = renewed + TTL + Duration::from_secs(2);
    while Instant::now() < renewed_until {
        renewed = Instant::now();
        client.renew_key(renewal.clone()).await.unwrap();
        assert!(get(client, "lock").await.is_some());
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let gone = ReadKeysRequest {
        reading: Some(Reading { stale: false, after: revision, wait_ms: DEADLINE.as_millis() as u64 }),
        key: "lock".to_owned(),
        ..ReadKeysRequest::default()
    };
    assert_eq!(read_with(client, gone).await.entries, []);
    assert!(renewed.elapsed() >= TTL, "{:?}", renewed.elapsed());
    assert_eq!(Failure::from(client.renew_key(renewal).await.unwrap_err()).code, Code::NotFound);
    let events = events(client, 1, Some(What::Key("lock".to_owned())), 2).await;
    assert!(!events[0].expired && events[1].expired);
    server.stop().await;
}

/// The first so many events from a revision on.
async fn events(client: &mut Client, from: u64, what: Option<What>, count: usize) -> Vec<Event> {
    let mut stream = client.watch(WatchRequest { from, what }).await.unwrap().into_inner();
    let mut events = Vec::new();
    let collected = timeout(DEADLINE, async {
        while events.len() < count {
            events.extend(stream.next().await.expect("the watch goes on").unwrap().events);
        }
    });
    collected.await.expect("the events come");
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_falls_silent_becomes_critical_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let options = ScmOptions { dead_after: Duration::from_secs(2), ..ScmOptions::default() };
    let mut server = Server::start_with(dir.path(), options).await;
    let client = &mut server.registry;
    let lease = enroll(client, web("a", 4000)).await.unwrap();
    renew(client, "a", lease, vec![check("disk", Health::Warning)]).await.unwrap();
    let known = instances(client, "web").await;
    assert_eq!(health_of(&known[0], "disk"), Health::Warning);
    assert_eq!(health_of(&known[0], "connectivity"), Health::Passing);

    // Silence.
    let told = events(client, lease, Some(What::Service("web".to_owned())), 4).await;
    let critical = told.iter().filter_map(|event| match &event.change {
        Some(Change::Instance(instance)) => Some(health_of(instance, "connectivity")),
        _ => None,
    });
    assert_eq!(critical.collect::<Vec<_>>(), [Health::Passing, Health::Passing, Health::Critical]);
    assert!(matches!(told[3].change, Some(Change::InstanceGone(_))) && told[3].expired, "{told:?}");
    assert_eq!(renew(client, "a", lease, vec![]).await.unwrap_err().code, Code::NotFound);

    let again = enroll(client, web("a", 4000)).await.unwrap();
    assert_eq!(renew(client, "a", lease, vec![]).await.unwrap_err().code, Code::NotFound, "its old lease");
    renew(client, "a", again, vec![]).await.unwrap();
    client.deregister_instance(DeregisterInstanceRequest { name: name("web", "a") }).await.unwrap();
    assert_eq!(instances(client, "web").await, []);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_whose_clock_is_not_scms_is_warned_of_and_still_lives() {
    const HOUR_MS: u64 = 3_600_000;
    let now_ms = || SystemClock.now_ms();
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let clock_of = async |server: &mut Server| {
        let known = instances(&mut server.registry, "web").await;
        let check = known[0].checks.iter().find(|check| check.name == "clock").cloned();
        check.map(|check| (check.health(), check.output))
    };
    let behind = RegisterInstanceRequest { instance: Some(web("a", 60_000)), clock_ms: now_ms() - HOUR_MS };
    let lease = server.registry.register_instance(behind).await.unwrap().into_inner().lease;
    let (health, output) = clock_of(&mut server).await.unwrap();
    assert_eq!(health, Health::Warning);
    assert!(output.starts_with("its clock is 360") && output.ends_with(" s behind SCM's"), "{output}");
    let apart = "flotilla_scm_clocks_apart";
    assert_eq!(server.metric(apart), 1.0);

    // Its own word on it counts for nothing.
    let boast = vec![check("clock", Health::Passing)];
    renew_at(&mut server.registry, "a", lease, boast, now_ms() + HOUR_MS).await.unwrap();
    assert_eq!(clock_of(&mut server).await.unwrap().0, Health::Warning);

    // What a renewal says is written once a second at most.
    let is_right = async |server: &mut Server| {
        renew_at(&mut server.registry, "a", lease, vec![], now_ms()).await.unwrap();
        clock_of(server).await.unwrap().0 == Health::Passing
    };
    server.becomes("right clock", is_right).await;
    assert_eq!(server.metric(apart), 0.0);

    // Others do not say what their clocks show.
    let lease = enroll(&mut server.registry, web("a", 60_000)).await.unwrap();
    renew(&mut server.registry, "a", lease, vec![]).await.unwrap();
    assert_eq!(clock_of(&mut server).await, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_speaks_again_is_well_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let lease = enroll(&mut server.registry, web("a", 1000)).await.unwrap();
    let is = async |server: &mut Server, health| {
        let known = instances(&mut server.registry, "web").await;
        health_of(&known[0], "connectivity") == health
    };
    server.becomes("critical instance", async |server| is(server, Health::Critical).await).await;
    let recovers = async |server: &mut Server| {
        renew(&mut server.registry, "a", lease, vec![]).await.unwrap();
        is(server, Health::Passing).await
    };
    server.becomes("well instance", recovers).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_begins_gives_leases_their_whole_time() {
    const TTL: Duration = Duration::from_secs(6);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let lock = PutKeyRequest { ttl_ms: TTL.as_millis() as u64, ..value("lock", "me") };
    let revision = put_with(&mut server.registry, lock).await.unwrap();
    // The rest of its time is for the stop: if the key ended before the restart, nothing would be seen of it
    // afterwards.
    tokio::time::sleep(TTL / 6).await;
    server.stop().await;
    let restarted = Instant::now();
    let mut server = Server::start(dir.path()).await;
    let gone = ReadKeysRequest {
        reading: Some(Reading { stale: false, after: revision, wait_ms: DEADLINE.as_millis() as u64 }),
        key: "lock".to_owned(),
        ..ReadKeysRequest::default()
    };
    assert_eq!(read_with(&mut server.registry, gone).await.entries, []);
    assert!(restarted.elapsed() >= TTL, "{:?}", restarted.elapsed());
    server.stop().await;
}

/// Whoever comes again with the next revision is told everything once, in order, wherever the stream broke.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_breaks_and_goes_on_misses_nothing() {
    const CHANGES: u64 = 400;
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let mut writer = server.registry.clone();
    let writes = tokio::spawn(async move {
        let mut written = Vec::new();
        for number in 0..CHANGES {
            let key = format!("{}/{}", ["mine", "other"][number as usize % 2], number % 7);
            if number % 5 == 4 {
                delete(&mut writer, &key, None).await.unwrap();
            } else {
                written.push((put(&mut writer, &key, "x").await, key));
            }
        }
        written
    });
    let prefix = Some(What::KeyPrefix("mine/".to_owned()));
    let (mut told, mut from) = (Vec::new(), 1);
    let mut streams = 0;
    let mut is_over = false;
    while !is_over {
        is_over = writes.is_finished();
        let before = get_revision(&mut server.registry).await;
        streams += 1;
        let request = WatchRequest { from, what: prefix.clone() };
        let mut stream = server.registry.watch(request).await.unwrap().into_inner();
        let mut messages = 0;
        // Breaks after a few messages; the last one goes to the end.
        while from <= before && (is_over || messages < 3) {
            let message = timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap();
            assert!(message.revision + 1 >= from);
            told.extend(message.events);
            from = message.revision + 1;
            messages += 1;
        }
    }
    let written = writes.await.unwrap();
    let mine = written.into_iter().filter(|(_, key)| key.starts_with("mine/"));
    let puts = told.iter().filter_map(|event| match &event.change {
        Some(Change::Key(entry)) => Some((event.revision, entry.key.clone())),
        _ => None,
    });
    assert_eq!(puts.collect::<Vec<_>>(), mine.collect::<Vec<_>>());
    assert!(told.windows(2).all(|two| two[0].revision < two[1].revision));
    assert!(streams > 5, "{streams} streams are no test of breaking");
    server.stop().await;
}

async fn get_revision(client: &mut Client) -> u64 {
    read_with(client, ReadKeysRequest { prefix: true, limit: 1, ..ReadKeysRequest::default() }).await.revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forgotten_is_said_and_streams_end_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    put(&mut server.registry, "a", "1").await;
    let revision = put(&mut server.registry, "a", "2").await;
    server.stop().await;

    let mut server = Server::start(dir.path()).await;
    let client = &mut server.registry;
    let mut stream = client.watch(WatchRequest { from: 1, what: None }).await.unwrap().into_inner();
    let failure = Failure::from(stream.next().await.unwrap().unwrap_err());
    assert_eq!((failure.code, failure.retry), (Code::Compacted, proto::Retry::No), "{failure}");
    let mut stream = client.watch(WatchRequest { from: 0, what: None }).await.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.revision, first.events.len()), (revision, 0));
    assert_eq!(&get(client, "a").await.unwrap().value[..], b"2");
    server.stop().await;
    assert!(timeout(DEADLINE, async { while let Some(Ok(_)) = stream.next().await {} }).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_wait_for_what_they_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let revision = put(&mut server.registry, "a", "1").await;
    let poll = |key: &str, wait_ms| {
        let mut client = server.registry.clone();
        let reading = Some(Reading { stale: false, after: revision, wait_ms });
        let request = ReadKeysRequest { reading, key: key.to_owned(), ..ReadKeysRequest::default() };
        tokio::spawn(async move {
            let started = Instant::now();
            (read_with(&mut client, request).await, started.elapsed())
        })
    };
    let (of_a, of_b, short) = (poll("a", 60_000), poll("b", 60_000), poll("b", 300));
    let (answer, took) = short.await.unwrap();
    assert!(took >= Duration::from_millis(300) && answer.entries.is_empty(), "{took:?}");
    assert!(!of_a.is_finished() && !of_b.is_finished());
    let changed = put(&mut server.registry, "b", "2").await;
    let (answer, _) = timeout(DEADLINE, of_b).await.unwrap().unwrap();
    assert_eq!((answer.revision, &answer.entries[0].value[..]), (changed, &b"2"[..]));
    assert!(!of_a.is_finished(), "another key is no news");
    delete(&mut server.registry, "a", None).await.unwrap();
    assert_eq!(timeout(DEADLINE, of_a).await.unwrap().unwrap().0.entries, []);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_datanodes_say_of_their_clocks_and_versions_is_in_the_registry() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let datanode = register(&mut server, 1).await.remove(0);
    let known_after = async |server: &mut Server, clock_ms: u64, version: &str| {
        let request =
            HeartbeatRequest { clock_ms, version: version.to_owned(), ..datanode.request(Vec::new()) };
        server.client.heartbeat(request).await.unwrap();
        let known = instances(&mut server.registry, "datanode").await.pop()?;
        Some((health_of(&known, "clock"), known.metadata.get("version").cloned()))
    };
    let now_ms = || SystemClock.now_ms();
    let right = Some((Health::Passing, Some("1.2.3".to_owned())));
    let becomes = async |server: &mut Server| known_after(server, now_ms(), "1.2.3").await == right;
    server.becomes("version", becomes).await;
    let apart = Some((Health::Warning, Some("1.2.4".to_owned())));
    let becomes = async |server: &mut Server| known_after(server, now_ms() + 60_000, "1.2.4").await == apart;
    server.becomes("clock that is apart", becomes).await;
    let info = server.datanodes().await.remove(0);
    assert!(info.clock_apart && info.problem.ends_with("ahead of SCM's"), "{info:?}");
    assert_eq!(info.version, "1.2.4");
    assert_eq!(server.metric("flotilla_scm_clocks_apart"), 1.0);
    // No version, but something for a terminal.
    known_after(&mut server, now_ms(), "\u{1b}[2J").await;
    known_after(&mut server, now_ms(), &"1".repeat(65)).await;
    let info = server.datanodes().await.remove(0);
    assert_eq!((info.clock_apart, info.problem.as_str(), info.version.as_str()), (false, "", "1.2.4"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datanodes_are_registered_by_their_heartbeats() {
    let dir = tempfile::tempdir().unwrap();
    let options = ScmOptions {
        stale_after: Duration::from_secs(2),
        dead_after: Duration::from_secs(5),
        ..ScmOptions::default()
    };
    let mut server = Server::start_with(dir.path(), options).await;
    let mut datanodes = register(&mut server, 2).await;
    let all = async |server: &mut Server| instances(&mut server.registry, "datanode").await;
    server.becomes("two instances", async |server| all(server).await.len() == 2).await;
    let known = all(&mut server).await;
    assert_eq!((known[0].id.as_str(), known[0].addresses["grpc"].as_str()), ("dn1", "node1:7400"));
    assert_eq!(known[0].metadata["duty"], "in-service");
    assert!(known[0].checks.iter().all(|check| check.health() == Health::Passing), "{:?}", known[0]);
    let squatter = Instance { service: "datanode".to_owned(), ..web("dn1", 5000) };
    assert_eq!(enroll(&mut server.registry, squatter).await.unwrap_err().code, Code::Invalid);

    // One goes on with a broken disk, the other falls silent.
    datanodes[0].disks[0].set_state(DiskState::Failed);
    datanodes[0].move_to("elsewhere:7400", &mut server).await;
    let first = datanodes[0].clone();
    let speak = async |server: &mut Server| {
        first.heartbeat(server).await;
        all(server).await
    };
    let becomes = async |server: &mut Server| {
        let known = speak(server).await;
        let of = |id: &str| known.iter().find(|instance| instance.id == id);
        let speaks = of("dn1").is_some_and(|first| {
            first.addresses["grpc"] == "elsewhere:7400"
                && health_of(first, "disk") == Health::Warning
                && health_of(first, "connectivity") == Health::Passing
        });
        // On a machine that stood still it may be given up before anybody looks.
        speaks && of("dn2").is_none_or(|second| health_of(second, "connectivity") == Health::Critical)
    };
    server.becomes("a disk and a node that fail", becomes).await;
    let is_gone = async |server: &mut Server| {
        let known = speak(server).await;
        known.len() == 1 && known[0].id == "dn1"
    };
    server.becomes("a node that is given up", is_gone).await;
    server.stop().await;
}
