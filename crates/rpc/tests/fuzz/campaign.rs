//! Random frames from a seed.

use crate::frames::{Random, hello, open, said};
use flotilla_rpc::{Connector, TcpConnector, serve};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use testkit::fuzz::Campaign;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::service::Routes;
use tower::ServiceExt;

const SEEDS_IN_TESTS: u64 = 200;
/// An honest caller is answered by then, on a machine that stands still now and again.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Memory that the process may come to have beside what it begins with, however long it runs: strangers come
/// one after the other, and leave nothing.
const GROWTH_KIB_MAX: u64 = 128 << 10;

/// The panics of the process, which end one connection each, and are seen by nobody there.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts panics from here on, of whatever thread.
fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Relaxed);
        before(info);
    }));
}

/// The most memory that the process has had so far.
#[allow(clippy::disallowed_methods)] // /proc is no data
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("what Linux says of it");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse().ok()).expect("in KiB")
}

/// One stranger's connection: what it says, and a while in which it listens.
async fn stranger(address: &str, said: &[u8]) {
    let mut tcp = TcpStream::connect(address).await.expect("the port is open");
    // It is closed as soon as something is wrong.
    let _ = tcp.write_all(&hello()).await;
    let _ = tcp.write_all(said).await;
    let mut heard = [0; 4096];
    let _ = timeout(Duration::from_millis(5), tcp.read(&mut heard)).await;
}

/// A caller beside them, on a connection of its own that stays.
struct Honest(flotilla_rpc::Channel);

impl Honest {
    async fn ask(&self) -> Result<(), String> {
        let request = Request::builder().uri("/flotilla.none/None").body(Body::empty()).expect("a request");
        let asked = timeout(ANSWER_MAX, self.0.clone().oneshot(request)).await;
        let answer = asked.map_err(|_| "no answer".to_owned())?.map_err(|status| status.to_string())?;
        match answer.headers().get("grpc-status").map(|status| status.as_bytes()) {
            Some(b"12") => Ok(()),
            other => Err(format!("the answer is {other:?}")),
        }
    }
}

#[test]
fn campaign() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run());
}

async fn run() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    let serving = tokio::spawn(serve(listener, Routes::default(), std::future::pending()));
    let honest = Honest(TcpConnector::default().connect(&address).expect("an address"));
    count_panics();
    let planted = std::thread::spawn(|| panic!("planted: it is counted"));
    assert!(planted.join().is_err() && PANICS.swap(0, Relaxed) > 0, "panics are not seen");
    let mut campaign = Campaign::asked(SEEDS_IN_TESTS);
    let before_kib = peak_kib();
    // A seed is a connection.
    while let Some(seed) = campaign.next_seed(campaign.seeds()) {
        stranger(&address, &said(&mut Random::new(seed))).await;
        let asked = honest.ask().await;
        let grown = peak_kib() - before_kib;
        let found = match PANICS.load(Relaxed) {
            0 if grown > GROWTH_KIB_MAX => Err(format!("{grown} KiB of memory")),
            0 => asked,
            _ => Err("a panic".to_owned()),
        };
        if let Err(why) = found {
            campaign.found("frames", &why);
            break; // the process has it for good
        }
    }
    assert!(!serving.is_finished(), "the port is still served");
    let seeds = campaign.seeds();
    campaign.end(&[("frames", seeds)], "");
}

#[tokio::test]
async fn what_the_campaign_takes_for_right_is_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let serving = tokio::spawn(serve(listener, Routes::default(), std::future::pending()));
    let mut tcp = TcpStream::connect(address).await.expect("the port is open");
    tcp.write_all(&[hello(), open(1)].concat()).await.expect("sent");
    // Its hello, and the head of an answer.
    let mut heard = [0; 24 + 16];
    timeout(ANSWER_MAX, tcp.read_exact(&mut heard)).await.expect("an answer").expect("heard");
    assert_eq!((heard[24 + 4], heard[24 + 8]), (1, 2), "of call 1, an answer");
    serving.abort();
}
