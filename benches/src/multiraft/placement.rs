//! Which log takes an object: the rule of `client::Pipelines`, DESIGN.md §3.1, with that crate's limits.
//! Small objects stay on one log until it is busy, all others take the less busy of two drawn at random.

use disk::sim::Random;

const SMALL_BYTES_MAX: u64 = 128 << 10;
const SMALL_BUSY_BYTES: u64 = 512 << 10;

/// The log that takes an object. `in_flight_bytes` has the bytes under way on each log.
pub(super) fn choose(in_flight_bytes: &[u64], bytes: u64, random: &mut Random) -> usize {
    if bytes <= SMALL_BYTES_MAX
        && let Some(quiet) = in_flight_bytes.iter().position(|busy| busy + bytes <= SMALL_BUSY_BYTES)
    {
        return quiet;
    }
    let logs = in_flight_bytes.len();
    let first = random.below(logs as u64) as usize;
    let mut second = random.below(logs as u64) as usize;
    if second == first {
        second = (first + 1) % logs;
    }
    if in_flight_bytes[second] < in_flight_bytes[first] { second } else { first }
}
