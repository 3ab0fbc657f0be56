//! Groups that nobody uses doze: openraft's timer of the group stands still, and one timer of the host does
//! for all its dozing groups what theirs would: leaders send heartbeats, a third of the lease apart, and a
//! follower that hears nothing from its leader wakes, in time to stand for election when it would have
//! anyway.
//!
//! Each replica decides for itself, by what it sees itself; nothing is agreed upon, and nothing depends on
//! whether other members doze. See docs/adr on dozing groups.

use crate::Timing;
use crate::adapter::machine::Raft;
use crate::counts::Counts;
use futures::FutureExt;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::rt::Instant as _;
use raftlog::Log;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Whether one replica dozes.
pub(crate) struct Doze {
    raft: Raft,
    log: Log,
    timing: Timing,
    /// The time after which an unused group dozes; `None`: never.
    after: Option<Duration>,
    /// Whether the group was used since the last look.
    was_used: AtomicBool,
    dozes: AtomicBool,
    state: Mutex<State>,
    counts: Arc<Counts>,
}

struct State {
    idle_since: Instant,
    /// Whether the log was told to keep nothing in memory, as the group is idle.
    cache_released: bool,
    /// The log's end when it was last looked at: whatever makes entries uses the group.
    last: Option<u64>,
    /// The moment of a leader's last sign of life.
    heard: Instant,
    /// The time of the next heartbeat, as a dozing leader.
    next_heartbeat: Instant,
}

/// The state of a replica, as openraft tells it.
struct Seen {
    role: ServerState,
    has_leader: bool,
    is_alone: bool,
    last: Option<u64>,
    /// The age of the newest message that a majority has answered.
    quorum_acked_age: Option<Duration>,
}

impl Doze {
    pub(crate) fn new(
        raft: Raft,
        log: Log,
        timing: Timing,
        after: Option<Duration>,
        counts: Arc<Counts>,
    ) -> Doze {
        let now = Instant::now();
        let state =
            State { idle_since: now, cache_released: false, last: None, heard: now, next_heartbeat: now };
        Doze {
            raft,
            log,
            timing,
            after,
            was_used: AtomicBool::new(true),
            dozes: AtomicBool::new(false),
            state: Mutex::new(state),
            counts,
        }
    }

    pub(crate) fn is_dozing(&self) -> bool {
        self.dozes.load(Ordering::SeqCst)
    }

    /// Takes note that somebody uses the group: it is awake when this returns, and will not doze for a while.
    pub(crate) fn used(&self) {
        // Before the question: whoever is about to let the replica doze either sees this, or is seen.
        self.was_used.store(true, Ordering::SeqCst);
        if self.is_dozing() {
            self.wake();
        }
    }

    /// Takes note that a leader that this replica follows said something.
    pub(crate) fn heard(&self) {
        self.lock().heard = Instant::now();
    }

    /// The time since a leader said something to this replica, or since it was opened.
    pub(crate) fn silence(&self) -> Duration {
        self.lock().heard.elapsed()
    }

    /// Lets openraft's timer run.
    pub(crate) fn wake(&self) {
        let state = self.lock();
        self.set(&state, false);
    }

    /// The interval at which the replica is looked at: so short that a heartbeat is a sixth of the lease late
    /// at most, and a silent leader is noticed as early.
    pub(crate) fn look_interval(&self) -> Duration {
        self.timing.election_max / 6
    }

    /// The time of the first heartbeat after `now`. Counted from the same moment for all groups of a host:
    /// their heartbeats go together.
    fn heartbeat_after(&self, now: Instant, begun: Instant) -> Instant {
        let interval = self.timing.election_max / 3;
        let past = now.duration_since(begun).as_nanos() % interval.as_nanos().max(1);
        now + interval - Duration::from_nanos(past as u64)
    }

    /// Lets the replica doze, or wakes it; sends heartbeats that are due. `begun`: when the host began to
    /// look.
    pub(crate) fn look(&self, begun: Instant) {
        let Some(after) = self.after else { return };
        let (now, seen) = (Instant::now(), Seen::of(&self.raft));
        let mut state = self.lock();
        if self.was_used.swap(false, Ordering::SeqCst) || state.last != seen.last {
            (state.idle_since, state.last, state.cache_released) = (now, seen.last, false);
        }
        let idle = now.duration_since(state.idle_since);
        // Replicas that lag, and readers of what was just written, find it on the disk.
        if idle >= after && !state.cache_released {
            state.cache_released = true;
            self.log.release_cache();
        }
        let is_idle = idle >= after;
        let dozes = is_idle && self.is_settled(&seen, &state, now);
        if dozes != self.is_dozing() {
            state.next_heartbeat = now;
            self.set(&state, dozes);
            if self.was_used.load(Ordering::SeqCst) {
                self.set(&state, false);
            }
        }
        if self.is_dozing() && seen.role == ServerState::Leader && now >= state.next_heartbeat {
            state.next_heartbeat = self.heartbeat_after(now, begun);
            drop(state);
            self.send_heartbeat();
        }
    }

    /// Whether openraft's timer would find nothing to do but send heartbeats.
    fn is_settled(&self, seen: &Seen, state: &State, now: Instant) -> bool {
        let lease = self.timing.election_max;
        match seen.role {
            // A leader wakes before its lease ends: openraft has its ways with one that lost its majority,
            // and they need its timer.
            ServerState::Leader => {
                seen.is_alone || seen.quorum_acked_age.is_some_and(|age| age < lease * 5 / 6)
            }
            // openraft lets a follower stand for election after its lease (`election_max`) and an election
            // timeout (`election_min` at least) more, both counted from the leader's last sign of life. Awake
            // after the first, it misses nothing of the second.
            ServerState::Follower => seen.has_leader && now.duration_since(state.heard) < lease,
            // Learners stand for nothing.
            ServerState::Learner => true,
            ServerState::Candidate | ServerState::Shutdown => false,
        }
    }

    /// Has openraft send a heartbeat, unless its queue is full: then the group is not idle, and a lease that
    /// is not renewed wakes it.
    fn send_heartbeat(&self) {
        // A task's budget of operations counts one for each group, and a queue seems full when it is used up.
        let _ = tokio::task::unconstrained(self.raft.trigger().heartbeat()).now_or_never();
    }

    fn set(&self, _held: &MutexGuard<'_, State>, dozes: bool) {
        let dozed = self.dozes.swap(dozes, Ordering::SeqCst);
        if dozed && !dozes {
            self.counts.woken.count();
        }
        self.raft.runtime_config().tick(!dozes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl Seen {
    fn of(raft: &Raft) -> Seen {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        Seen {
            role: metrics.state,
            has_leader: metrics.current_leader.is_some(),
            is_alone: metrics.membership_config.voter_ids().count() == 1,
            last: metrics.last_log_index,
            quorum_acked_age: metrics.last_quorum_acked.as_ref().map(|acked| acked.elapsed()),
        }
    }
}
