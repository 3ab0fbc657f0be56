use std::time::Duration;

/// Everything takes so many times as long as it would: tokio's timers are as fine as a millisecond, which
/// then stands for a tenth of one. Figures are given in the time of the real world.
pub(super) const SLOWED: u32 = 10;

/// A time of the simulation as a time of the real world.
pub(super) fn real(simulated: Duration) -> Duration {
    simulated / SLOWED
}
