//! The memory of a server that has done its work.

use crate::process_metrics;
use std::time::Duration;

const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The share of one processor that a server may take and still be idle. An idle cluster takes a tenth of it,
/// and one that is busy has better things to do than to give back what it needs again at once.
const IDLE_SHARE: f64 = 0.1;

/// Looks at which freed memory is given back after work has ended: logs let go of what they have in memory
/// within seconds, and what waited for them a little later.
const LOOKS: u32 = 6;

/// Has freed memory given back when work has ended (docs/adr/0011). glibc keeps what was freed, which makes
/// it fast under load and leaves a server afterwards as large as it ever was. Runs until it is dropped.
pub(crate) async fn give_back_when_idle() {
    let mut looks_left = 0;
    let mut used_before = process_metrics::cpu_seconds_used();
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let used = process_metrics::cpu_seconds_used();
        if used - used_before > IDLE_SHARE * LOOK_INTERVAL.as_secs_f64() {
            looks_left = LOOKS;
        } else if looks_left > 0 {
            looks_left -= 1;
            // A panic there would be its own, and ends nothing.
            let _ = tokio::task::spawn_blocking(disk::give_back_freed_memory).await;
        }
        used_before = used;
    }
}
