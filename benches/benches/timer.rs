//! The cost to park, complete and expire operations that wait for a condition or 200 ms: our parking lot
//! beside one on a `BinaryHeap` of timers and one on tokio-util's `DelayQueue`. All replay the same arrivals
//! and completions in virtual time as fast as they can, on one thread whose processor time is taken. Ends
//! with one line of JSON.

#![allow(clippy::disallowed_methods)] // a bench looks at the clock of its thread
#![allow(unsafe_code)] // a counting allocator

use futures::FutureExt;
use parking::{Lot, ParkingLot, Ticket, Wait};
use serde_json::json;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant as TokioInstant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue;

const OPERATIONS: u64 = 1_000_000;
const ARRIVALS_PER_SECOND: f64 = 1_000_000.0;
const DEADLINE_MS: u64 = 200;

type Request = Box<[u8; 100]>;

/// The times at which completions come, in milliseconds after the arrival.
struct Completions {
    name: &'static str,
    p50_ms: f64,
    p75_ms: f64,
}

const CASES: [Completions; 2] = [
    Completions { name: "few deadlines pass", p50_ms: 20.0, p75_ms: 60.0 },
    Completions { name: "many deadlines pass", p50_ms: 200.0, p75_ms: 400.0 },
];

#[derive(Clone, Copy)]
enum Event {
    Arrival(u64),
    Completion(u64),
}

/// A candidate to be measured: each event comes with its time, and what is due by then ends first.
trait Candidate {
    fn arrive(&mut self, key: u64, now_ms: u64, request: Request);
    fn complete(&mut self, key: u64);
    /// Ends what is due; returns how many operations ended because their deadline passed.
    fn expire(&mut self, now_ms: u64) -> u64;
}

fn main() {
    let mut figures = Vec::new();
    for case in &CASES {
        let events = events(case, 1);
        println!(
            "{OPERATIONS} operations, {ARRIVALS_PER_SECOND:.0} a second, p50/p75 {}/{} ms, deadline {DEADLINE_MS} ms: {}",
            case.p50_ms, case.p75_ms, case.name
        );
        println!(
            "{:>14} {:>12} {:>10} {:>14} {:>14} {:>9}",
            "", "op/s", "us per op", "peak pending", "peak bytes/op", "expired"
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("tokio");
        for round in 0..3 {
            let mut results = vec![
                ("Lot", measure(OnLot::default(), &events)),
                ("BinaryHeap", measure(OnHeap::default(), &events)),
            ];
            let _in_runtime = runtime.enter();
            results.push(("DelayQueue", measure(OnDelayQueue::new(&runtime), &events)));
            results.push(("ParkingLot", measure(OnParkingLot::new(&runtime), &events)));
            for (name, result) in results {
                if round < 2 {
                    continue; // the first two warm up caches and the allocator
                }
                let per_second = OPERATIONS as f64 / result.elapsed.as_secs_f64();
                println!(
                    "{name:>14} {per_second:>12.0} {:>10.3} {:>14} {:>14.0} {:>9}",
                    1e6 / per_second,
                    result.pending_max,
                    result.bytes_max as f64 / result.pending_max as f64,
                    result.expired,
                );
                figures.push(json!({
                    "case": case.name, "candidate": name, "operations_per_second": per_second.round(),
                    "microseconds_per_operation": 1e6 / per_second, "pending_max": result.pending_max,
                    "bytes_max_per_pending": result.bytes_max as f64 / result.pending_max as f64,
                    "expired": result.expired,
                }));
            }
        }
    }
    println!("{}", json!({"bench": "timer", "figures": figures}));
}

struct Measured {
    elapsed: Duration,
    pending_max: u64,
    bytes_max: usize,
    expired: u64,
}

fn measure(mut candidate: impl Candidate, events: &[(u64, Event)]) -> Measured {
    let bytes_before = ALLOCATED.load(Ordering::Relaxed);
    ALLOCATED_MAX.store(bytes_before, Ordering::Relaxed);
    let (mut pending, mut pending_max, mut expired, mut now) = (0i64, 0i64, 0u64, 0);
    let mut ended_in_time = vec![true; OPERATIONS as usize];
    let started = cpu_time();
    for (at, event) in events {
        if *at > now {
            now = *at;
            let due = candidate.expire(now);
            expired += due;
            pending -= due as i64;
        }
        match event {
            Event::Arrival(key) => {
                candidate.arrive(*key, now, Box::new([7; 100]));
                pending += 1;
                pending_max = pending_max.max(pending);
            }
            Event::Completion(key) => {
                candidate.complete(*key);
                pending -= i64::from(std::mem::take(&mut ended_in_time[*key as usize]));
            }
        }
    }
    expired += candidate.expire(now + 10 * DEADLINE_MS);
    let elapsed = cpu_time() - started;
    let bytes_max = ALLOCATED_MAX.load(Ordering::Relaxed) - bytes_before;
    Measured { elapsed, pending_max: pending_max as u64, bytes_max, expired }
}

/// The time that this thread has spent on a processor, so that the machine's other work does not count.
fn cpu_time() -> Duration {
    let schedstat =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel keeps schedstat");
    let nanoseconds = schedstat.split(' ').next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.expect("its first field is a number"))
}

/// Exponential arrivals, log-normal completions, in the order of time. A completion after the deadline is not
/// there: the operation is gone by then.
fn events(case: &Completions, seed: u64) -> Vec<(u64, Event)> {
    const Z75: f64 = 0.674_489_75;
    let sigma = (case.p75_ms / case.p50_ms).ln() / Z75;
    let mut random = Random(seed);
    let mut events = Vec::new();
    let mut at_ms = 0.0;
    for key in 0..OPERATIONS {
        at_ms += -random.unit().ln() * 1000.0 / ARRIVALS_PER_SECOND;
        events.push((at_ms as u64, Event::Arrival(key)));
        let normal = (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos();
        let latency_ms = case.p50_ms * (sigma * normal).exp();
        if latency_ms < DEADLINE_MS as f64 - 1.0 {
            events.push(((at_ms + latency_ms) as u64, Event::Completion(key)));
        }
    }
    events.sort_by_key(|(at, event)| (*at, matches!(event, Event::Completion(_))));
    events
}

struct Random(u64);

impl Random {
    /// A random number in (0, 1].
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Default)]
struct OnLot {
    lot: Lot<u64, Request>,
}

impl Candidate for OnLot {
    fn arrive(&mut self, key: u64, now_ms: u64, request: Request) {
        let _: Ticket = self.lot.park(key, 1, now_ms + DEADLINE_MS, request);
    }

    fn complete(&mut self, key: u64) {
        self.lot.reach(&key, 1, drop);
    }

    fn expire(&mut self, now_ms: u64) -> u64 {
        let mut expired = 0;
        self.lot.expire(now_ms, |_| expired += 1);
        expired
    }
}

/// A parking lot on a heap, which has no cheap way to take out what completed: its timer stays until it is
/// due.
#[derive(Default)]
struct OnHeap {
    requests: HashMap<u64, Request>,
    timers: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Candidate for OnHeap {
    fn arrive(&mut self, key: u64, now_ms: u64, request: Request) {
        self.requests.insert(key, request);
        self.timers.push(Reverse((now_ms + DEADLINE_MS, key)));
    }

    fn complete(&mut self, key: u64) {
        self.requests.remove(&key);
    }

    fn expire(&mut self, now_ms: u64) -> u64 {
        let mut expired = 0;
        while let Some(Reverse((due, key))) = self.timers.peek()
            && *due <= now_ms
        {
            expired += u64::from(self.requests.remove(key).is_some());
            self.timers.pop();
        }
        expired
    }
}

struct OnDelayQueue<'a> {
    runtime: &'a tokio::runtime::Runtime,
    started: TokioInstant,
    now_ms: u64,
    queue: DelayQueue<u64>,
    requests: HashMap<u64, (Request, delay_queue::Key)>,
}

impl OnDelayQueue<'_> {
    fn new(runtime: &tokio::runtime::Runtime) -> OnDelayQueue<'_> {
        let (queue, requests) = (DelayQueue::new(), HashMap::new());
        OnDelayQueue { runtime, started: TokioInstant::now(), now_ms: 0, queue, requests }
    }
}

impl Candidate for OnDelayQueue<'_> {
    fn arrive(&mut self, key: u64, now_ms: u64, request: Request) {
        let due = self.started + Duration::from_millis(now_ms + DEADLINE_MS);
        let timer = self.queue.insert_at(key, due);
        self.requests.insert(key, (request, timer));
    }

    fn complete(&mut self, key: u64) {
        if let Some((_, timer)) = self.requests.remove(&key) {
            self.queue.remove(&timer);
        }
    }

    fn expire(&mut self, now_ms: u64) -> u64 {
        let mut expired = 0;
        let (queue, requests) = (&mut self.queue, &mut self.requests);
        self.runtime.block_on(async {
            tokio::time::advance(Duration::from_millis(now_ms - self.now_ms)).await;
            let now = TokioInstant::now();
            while queue.peek().is_some_and(|timer| queue.deadline(&timer) <= now) {
                let timer = std::future::poll_fn(|context| queue.poll_expired(context));
                // The timer is unconstrained: else tokio lets a task poll only so many times before others
                // have their turn.
                let timer = tokio::task::unconstrained(timer).await.expect("one is due");
                requests.remove(timer.get_ref());
                expired += 1;
            }
        });
        self.now_ms = now_ms;
        expired
    }
}

/// The parking lot with futures, a lock and tokio's clock: what callers use.
struct OnParkingLot<'a> {
    runtime: &'a tokio::runtime::Runtime,
    started: TokioInstant,
    now_ms: u64,
    lot: ParkingLot<u64>,
    waits: HashMap<u64, (Request, Wait<u64>)>,
}

impl OnParkingLot<'_> {
    fn new(runtime: &tokio::runtime::Runtime) -> OnParkingLot<'_> {
        let lot = ParkingLot::new(usize::MAX);
        OnParkingLot { runtime, started: TokioInstant::now(), now_ms: 0, lot, waits: HashMap::new() }
    }
}

impl Candidate for OnParkingLot<'_> {
    fn arrive(&mut self, key: u64, now_ms: u64, request: Request) {
        let due = self.started + Duration::from_millis(now_ms + DEADLINE_MS);
        self.waits.insert(key, (request, self.lot.wait(key, 1, due, || false)));
    }

    fn complete(&mut self, key: u64) {
        self.lot.reach(&key, 1);
        if let Some((_, wait)) = self.waits.remove(&key) {
            let _ = wait.now_or_never();
        }
    }

    fn expire(&mut self, now_ms: u64) -> u64 {
        let before = self.lot.pending();
        self.runtime.block_on(tokio::time::advance(Duration::from_millis(now_ms - self.now_ms)));
        self.now_ms = now_ms;
        (before - self.lot.pending()) as u64
    }
}

/// Bytes allocated and not freed, and the most there ever were.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static ALLOCATED_MAX: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator unchanged, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        ALLOCATED_MAX.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
