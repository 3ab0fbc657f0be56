//! The registry on several members: all of them read, one writes, and when that one goes nobody loses a lease
//! or an event.

use crate::members::{Places, roles, stop};
use crate::registry::{Client, enroll, health_of, name, put_with, try_get, value, web};
use crate::server::{DEADLINE, Server};
use futures::StreamExt;
use proto::registry::event::Change;
use proto::registry::watch_request::What;
use proto::registry::*;
use proto::{Code, Failure};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(5);

fn clients_of(servers: &[Server]) -> Vec<Client> {
    servers.iter().map(|server| server.registry.clone()).collect()
}

/// Asks one after the other until one does it: what only a leader does, that one. While an election runs,
/// nobody does.
async fn answered_by<T>(clients: &[Client], call: impl AsyncFn(Client) -> Result<T, Failure>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for client in clients {
            match call(client.clone()).await {
                Ok(answer) => return answer,
                Err(failure) => assert!(Instant::now() < deadline, "nobody does it: {failure}"),
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Renews an instance's lease and a key's until it is aborted. Whoever does not lead refuses.
fn keep(clients: Vec<Client>, lease: u64, key: RenewKeyRequest) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            for client in &clients {
                let renewal =
                    RenewInstanceRequest { name: name("web", "a"), lease, checks: Vec::new(), clock_ms: 0 };
                let _ = client.clone().renew_instance(renewal).await;
                let _ = client.clone().renew_key(key.clone()).await;
            }
            sleep(TTL / 8).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_goes_takes_no_lease_and_no_event_with_it() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let (at, _) = roles(&mut servers).await;
    let mut clients = clients_of(&servers);
    let follower = [clients[(at + 1) % 3].clone()];
    for number in 0..20 {
        let key = format!("k/{number:02}");
        answered_by(&clients, async |mut client| put_with(&mut client, value(&key, "x")).await).await;
        let read = answered_by(&follower, async |mut client| try_get(&mut client, &key).await).await;
        assert!(read.is_some(), "a follower reads what was acknowledged a moment ago");
    }
    let refused = async |mut client: Client| match put_with(&mut client, value("k", "x")).await {
        Err(refused) if refused.code == Code::NotLeader && refused.leader_address.is_some() => Ok(()),
        Err(failure) => Err(failure),
        Ok(_) => Err(Failure::internal("it took the write")),
    };
    answered_by(&clients, refused).await;

    let instance = web("a", TTL.as_millis() as u64);
    let lease = answered_by(&clients, async |mut client| enroll(&mut client, instance.clone()).await).await;
    let lock = PutKeyRequest { ttl_ms: TTL.as_millis() as u64, ..value("lock", "me") };
    let lock = answered_by(&clients, async |mut client| put_with(&mut client, lock.clone()).await).await;
    // An election may have made another one the leader meanwhile.
    let (at, _) = roles(&mut servers).await;
    let request = WatchRequest { from: 1, what: None };
    let mut stream = clients[(at + 1) % 3].watch(request).await.unwrap().into_inner();
    let mut events: Vec<Event> = Vec::new();

    clients.remove(at);
    let keeping =
        keep(clients.clone(), lease, RenewKeyRequest { key: "lock".to_owned(), mod_revision: lock });
    servers.remove(at).stop().await;
    // Longer than a lease, with another leader.
    for number in 20..40 {
        let request = value(&format!("k/{number:02}"), "x");
        answered_by(&clients, async |mut client| put_with(&mut client, request.clone()).await).await;
        sleep(TTL / 15).await;
    }
    let lives = answered_by(&clients[..1], async |mut client| try_get(&mut client, "lock").await).await;
    assert!(lives.is_some(), "it was renewed all the time");
    keeping.abort();
    let both_end = timeout(DEADLINE, async {
        while !has_lapsed(&events) {
            events.extend(stream.next().await.expect("the watch of a follower goes on").unwrap().events);
        }
    });
    both_end.await.expect("without renewals both end");

    let revisions: Vec<u64> = events.iter().map(|event| event.revision).collect();
    let all: Vec<u64> = (1..=revisions.len() as u64).collect();
    assert_eq!(revisions, all, "each event once, in order, across the change of leader");
    let last_put = events
        .iter()
        .rposition(|event| matches!(&event.change, Some(Change::Key(entry)) if entry.key == "k/39"));
    let first_lapse = (0..events.len()).find(|at| has_lapsed_one(&events[*at])).unwrap();
    assert!(last_put.unwrap() < first_lapse, "leases ended while they were renewed: {events:?}");
    let what = Some(What::Key("lock".to_owned()));
    let mut again = clients[0].watch(WatchRequest { from: lock, what }).await.unwrap().into_inner();
    let told = timeout(DEADLINE, again.next()).await.unwrap().unwrap().unwrap().events;
    assert_eq!(told.len(), 2, "any member knows what happened: {told:?}");
    stop(servers).await;
}

/// Others may have elected a leader by then, and let the key go there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_no_majority_confirms_is_not_acknowledged() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let clients = clients_of(&servers);
    let (ttl_ms, key) = (60_000, "lock".to_owned());
    let put = PutKeyRequest { ttl_ms, ..value(&key, "me") };
    let mod_revision =
        answered_by(&clients, async |mut client| put_with(&mut client, put.clone()).await).await;
    let instance = web("a", ttl_ms);
    let lease = answered_by(&clients, async |mut client| enroll(&mut client, instance.clone()).await).await;
    let renew = async |client: &Client| {
        let key = RenewKeyRequest { key: key.clone(), mod_revision };
        let instance =
            RenewInstanceRequest { name: name("web", "a"), lease, checks: Vec::new(), clock_ms: 0 };
        let (mut of_key, mut of_instance) = (client.clone(), client.clone());
        let (key, instance) = tokio::join!(of_key.renew_key(key), of_instance.renew_instance(instance));
        [key.map(|_| ()).map_err(Failure::from), instance.map(|_| ()).map_err(Failure::from)]
    };
    let deadline = Instant::now() + DEADLINE;
    let at = loop {
        let (at, _) = roles(&mut servers).await;
        let renewed = renew(&clients[at]).await;
        if renewed == [Ok(()), Ok(())] {
            break at;
        }
        // Until a machine that stood still has heard a majority again, or has another leader.
        assert!(Instant::now() < deadline, "no leader confirms them: {renewed:?}");
        sleep(Duration::from_millis(10)).await;
    };
    let leader = servers.remove(at);
    // It believes that it leads for two elections more.
    stop(servers).await;
    let began = Instant::now();
    while began.elapsed() < 2 * raft::Timing::METADATA.election_max {
        for renewed in renew(&leader.registry).await {
            let failure = renewed.expect_err("nobody else is there");
            assert!(matches!(failure.retry, proto::Retry::Elsewhere | proto::Retry::Here), "{failure:?}");
        }
    }

    let other = places.start((at + 1) % 3).await;
    let mut both = vec![leader, other];
    roles(&mut both).await;
    let key = RenewKeyRequest { key, mod_revision };
    // Of two that have just met, either may lead in the end.
    let clients = clients_of(&both);
    answered_by(&clients, async |mut client| Ok(client.renew_key(key.clone()).await?)).await;
    stop(both).await;
}

/// A large cluster's renewals come all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_come_together_are_confirmed_together() {
    const RENEWALS: usize = 2000;
    let places = Places::new();
    let mut servers = places.start_all().await;
    let put = PutKeyRequest { ttl_ms: 60_000, ..value("lock", "me") };
    let clients = clients_of(&servers);
    let mod_revision =
        answered_by(&clients, async |mut client| put_with(&mut client, put.clone()).await).await;
    let (mut missing, mut rounds, began) = (RENEWALS, 0, Instant::now());
    while missing > 0 {
        let (at, _) = roles(&mut servers).await;
        let before = confirmations(&servers[at]);
        let renewals = (0..missing).map(|_| {
            let mut client = clients[at].clone();
            async move { client.renew_key(RenewKeyRequest { key: "lock".to_owned(), mod_revision }).await }
        });
        let renewed = timeout(DEADLINE, futures::future::join_all(renewals)).await.unwrap();
        // Another leader may count from the beginning by now.
        rounds += confirmations(&servers[at]).saturating_sub(before);
        let failures = renewed.into_iter().filter_map(Result::err).map(Failure::from);
        missing = failures.inspect(|failure| assert!(may_confirm_again(failure), "{failure:?}")).count();
        assert!(missing == 0 || began.elapsed() < DEADLINE, "{missing} renewals are not confirmed");
    }
    eprintln!("{RENEWALS} renewals in {rounds} rounds and {:?}", began.elapsed());
    assert!((1..RENEWALS / 4).contains(&rounds), "{rounds} rounds for {RENEWALS} renewals");
    stop(servers).await;
}

/// Rounds in which this server's leader was confirmed, or was not; none where it leads no more.
fn confirmations(server: &Server) -> usize {
    let mut exposition = metrics::Exposition::default();
    server.scm.expose(&mut exposition);
    let page = exposition.finish();
    let line = page.lines().find(|line| line.starts_with("flotilla_registry_confirmations_total"));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// So many renewals at once keep three servers in one process busy, and a majority may not be heard in time.
fn may_confirm_again(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unavailable | Code::NotLeader)
}

fn has_lapsed_one(event: &Event) -> bool {
    match &event.change {
        Some(Change::Instance(instance)) => health_of(instance, "connectivity") == Health::Critical,
        Some(Change::KeyGone(_)) => event.expired,
        _ => false,
    }
}

/// Whether both the instance and the key have lapsed.
fn has_lapsed(events: &[Event]) -> bool {
    events.iter().filter(|event| has_lapsed_one(event)).count() == 2
}
