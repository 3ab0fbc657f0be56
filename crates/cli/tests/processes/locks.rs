//! A key with a time to live as a lock, while SCM's leader is killed.

use crate::scm_members::Cluster;
use proto::Code;
use proto::registry::{PutKeyRequest, ReadKeysRequest, RenewKeyRequest};
use registry::RegistryClient;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The lease of the lock: twice what a client waits for one answer, so that a renewal that gets none is
/// followed by another in time.
const TTL: Duration = Duration::from_secs(10);
/// The time between the attempts of holder and rival.
const PAUSE: Duration = Duration::from_millis(100);
/// The time for which a key may be there after its lease: a moment, and what a busy machine adds.
const LEAVES_WITHIN: Duration = Duration::from_secs(60);
/// The time for an election: longer than one takes on a busy machine.
const ELECTED_WITHIN: Duration = Duration::from_secs(60);
const KEY: &str = "lock";

fn acquisition(who: &str) -> PutKeyRequest {
    let value = who.to_owned().into();
    PutKeyRequest { key: KEY.to_owned(), value, if_mod_revision: Some(0), ttl_ms: TTL.as_millis() as u64 }
}

/// The holder's knowledge when it stops.
struct Held {
    /// The end of its lease, counted from when it sent what was acknowledged last.
    until: Instant,
    renewals: usize,
    /// The longest time between two acknowledged ones.
    longest: Duration,
}

/// Renews until it is told to stop. A renewal that is refused for good ends it with the reason.
fn hold(client: RegistryClient, revision: u64, sent: Instant, stop: Arc<AtomicBool>) -> JoinHandle<Held> {
    tokio::spawn(async move {
        let (mut last, mut held) = (sent, Held { until: sent + TTL, renewals: 0, longest: Duration::ZERO });
        while !stop.load(Ordering::Relaxed) {
            let sent = Instant::now();
            let renewal = RenewKeyRequest { key: KEY.to_owned(), mod_revision: revision };
            match client.renew_key(renewal).await {
                Ok(_) => {
                    held.until = sent + TTL;
                    held.renewals += 1;
                    held.longest = held.longest.max(last.elapsed());
                    last = Instant::now();
                }
                Err(failure) => assert_ne!(failure.code, Code::NotFound, "the lock is lost: {failure}"),
            }
            sleep(PAUSE).await;
        }
        held
    })
}

/// Tries to acquire until it does: its revision, when, and how often it was refused.
fn rival(client: RegistryClient) -> JoinHandle<(u64, Instant, usize)> {
    tokio::spawn(async move {
        let mut refusals = 0;
        loop {
            match client.put(acquisition("rival")).await {
                Ok(acquired) => return (acquired.revision, Instant::now(), refusals),
                Err(failure) if failure.code == Code::PreconditionFailed => refusals += 1,
                Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    })
}

/// The lock's revision, read linearizably; 0: nobody has it.
async fn holder_of(client: &RegistryClient) -> Option<u64> {
    let request = ReadKeysRequest { key: KEY.to_owned(), ..ReadKeysRequest::default() };
    let read = client.read(request).await.ok()?;
    Some(read.entries.first().map_or(0, |entry| entry.mod_revision))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_stays_while_scms_leader_is_killed() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::of_scms).await.unwrap();
    let client = || RegistryClient::new(&cluster.list()).unwrap();
    let (holder, other, reader) = (client(), client(), client());
    let sent = Instant::now();
    let revision = holder.put(acquisition("holder")).await.unwrap().revision;
    let stop = Arc::new(AtomicBool::new(false));
    let holding = hold(holder, revision, sent, stop.clone());
    let trying = rival(other);
    // For so long, and until somebody has read it, who has asked a leader.
    let stays = async |duration: Duration| {
        let (begun, mut reads) = (Instant::now(), 0);
        while begun.elapsed() < duration || reads == 0 {
            assert!(begun.elapsed() < duration + ELECTED_WITHIN, "nobody leads");
            if let Some(found) = holder_of(&reader).await {
                assert_eq!(found, revision, "{:?} after {reads} reads", begun.elapsed());
                reads += 1;
            }
            assert!(!trying.is_finished(), "two have the lock");
            assert!(!holding.is_finished(), "the holder lost it");
            sleep(PAUSE).await;
        }
    };
    stays(Duration::from_secs(1)).await;

    let at = cluster.leader();
    let killed = Instant::now();
    cluster.scms[at].kill9();
    stays(Duration::ZERO).await;
    let elected = killed.elapsed();
    assert_ne!(cluster.leader(), at);
    // Longer than the new leader gives to a key that nobody renews.
    stays(TTL + PAUSE * 5).await;

    stop.store(true, Ordering::Relaxed);
    let held = holding.await.unwrap();
    let give_up = held.until + LEAVES_WITHIN;
    let trying = tokio::time::timeout_at(give_up.into(), trying).await;
    let (acquired, at, refusals) = trying.expect("it goes when nobody renews it").unwrap();
    assert!(at >= held.until, "the rival had it {:?} before the holder's time was over", held.until - at);
    assert!(acquired > revision, "a fencing token that grows: {acquired} after {revision}");
    assert!(held.renewals > 0 && refusals > 0, "{} renewals, {refusals} refusals", held.renewals);
    eprintln!(
        "another leader after {:.1} s; {} renewals, {:.1} s apart at the most; {refusals} refusals; the rival had it {:.2} s after the \
         holder's time",
        elected.as_secs_f64(),
        held.renewals,
        held.longest.as_secs_f64(),
        (at - held.until).as_secs_f64()
    );
}
