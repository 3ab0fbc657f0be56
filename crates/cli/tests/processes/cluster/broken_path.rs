use super::detour::Way;
use super::harness::{Drill, Setup, Shown, is_campaign};
use crate::drills::{Readers, assert_all_there};
use proto::scm::NodeState;
use std::time::{Duration, Instant};

/// Within so long of the break every reader has met it.
const LEARNED_WITHIN: Duration = Duration::from_secs(5);
/// The time for which reads are watched then: several times what an address is avoided for (10 s), so that it
/// is found broken again and again.
const WATCHED_FOR: Duration = Duration::from_secs(35);
/// The time that a read took at least that waited for the broken path; that is four to five seconds.
const WAITED: Duration = Duration::from_secs(3);
/// The p99 of reads while the path is broken. They take a few milliseconds; one that meets it first waits
/// 300.
const P99_MAX: Duration = Duration::from_millis(500);
const P99_AMONG_TESTS_MAX: Duration = Duration::from_secs(2);

/// A datanode speaks to SCM and to the other datanodes, and not to the gateway: what it says and hears is
/// lost on that one path. Readers learn that, and go elsewhere.
pub(super) async fn run() -> Shown {
    let way = Way::open().await;
    let setup = Setup { detours: vec![way.detour()], ..Setup::default() };
    let drill = Drill::start(setup).await;
    let writers = drill.load().await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new());
    assert_all_there(&drill.s3, &written.acknowledged).await;
    let node = drill.node_at(0).await;

    way.break_for([drill.cluster.gateway.pid()]);
    let broken = Instant::now();
    let readers = Readers::start(&drill.s3, &written.acknowledged);
    tokio::time::sleep(LEARNED_WITHIN + WATCHED_FOR).await;
    let reads = readers.stop().await;
    assert_eq!(reads.errors, Vec::<String>::new(), "every read finds a replica");
    assert!(way.held() > 0, "nobody went the broken path: this shows nothing");
    assert_eq!(drill.state_of(node).await, NodeState::NodeHealthy, "SCM hears it as before");
    let first = reads.took(broken..broken + LEARNED_WITHIN);
    let later = reads.took(broken + LEARNED_WITHIN..Instant::now());
    let p99 = later[later.len() * 99 / 100];
    let p99_max = if is_campaign() { P99_MAX } else { P99_AMONG_TESTS_MAX };
    assert!(p99 <= p99_max, "the 99th percentile of {} reads is {p99:?}", later.len());
    let waited = later.iter().filter(|took| **took >= WAITED).count();
    // A machine that stalls lets some wait; a path that nobody learns of, a quarter of all.
    assert!(waited * 200 <= later.len(), "{waited} of {} reads took {WAITED:?} and more", later.len());

    let begun = Instant::now();
    let writers = drill.writers(written.next);
    writers.progress(30).await;
    let slowest_put = writers.slowest_since(begun);
    way.mend();
    let more = drill.settle(writers).await;
    assert_all_there(&drill.s3, &written.acknowledged).await;
    Shown {
        objects: written.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("reads", later.len() as f64),
            ("p50_ms", later[later.len() / 2].as_secs_f64() * 1000.0),
            ("p99_ms", p99.as_secs_f64() * 1000.0),
            ("slowest_s", later.last().expect("there are some").as_secs_f64()),
            ("slowest_at_first_s", first.last().expect("there are some").as_secs_f64()),
            ("waited", waited as f64),
            ("slowest_put_s", slowest_put.as_secs_f64()),
        ],
    }
}
