//! Disks of simulated machines.

use disk::sim::{DeviceModel, Keeping, Random, SimOptions};

/// The room on each disk: enough for all that a run writes; a full disk is one of the faults.
pub(crate) const CAPACITY_BYTES: u64 = 256 << 20;

/// The qualities of a machine's disks from one start to the next.
pub(crate) fn random_disk(random: &mut Random) -> SimOptions {
    let devices =
        [None, None, Some(DeviceModel::SSD), Some(DeviceModel::HDD), Some(DeviceModel::HDD.slowed_by(4))];
    SimOptions {
        seed: random.next_u64(),
        capacity_bytes: CAPACITY_BYTES,
        polls_max: random.below(3),
        device: *random.pick(&devices),
        keeping: Keeping::Contents,
    }
}

/// A disk that answers at once, to be looked at.
pub(crate) fn quick_disk() -> SimOptions {
    SimOptions { capacity_bytes: CAPACITY_BYTES, polls_max: 0, ..SimOptions::default() }
}
