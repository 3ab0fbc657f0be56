//! A simulated disk, for tests of this crate and of all above it: everything that a device may do to a
//! program between two syncs, from a seed.
//!
//! There is what the running system sees and what the device has. A change is visible at once and durable
//! after the sync that [`Disk`](crate::Disk) and [`File`](crate::File) ask for, and *only* what they promise:
//! `create_dir_all` makes the names on its path durable and no neighbours, a sync of a file says nothing of
//! its name, and a write whose future has not resolved may miss the sync that was called after it.
//!
//! Changes are counted in **steps**, in the order of the calls: a program can be stopped before or after any
//! of them ([`SimDisk::crash_at`]), or be given an I/O error ([`SimDisk::fail_at`]). What a restart finds is
//! another [`SimDisk`]: [`SimDisk::lose_power`] or, when only the process died, [`SimDisk::kill`].
//!
//! It has no threads, and no clock unless it is given a [`DeviceModel`]: then an operation takes place when
//! it is called, as ever, and its caller is told after the time that the device would have taken, by tokio's
//! clock, which tests pause. With one caller on one thread the same seed gives the same run.

mod contents;
mod device;
mod directory;
mod disk;
mod inode;
mod page_set;
mod random;
mod tree;

pub use contents::Keeping;
pub use device::DeviceModel;
pub use directory::{DATABASE_FILE, SimDirectory};
pub use disk::{CrashPoint, SimDisk, SimOptions};
pub use inode::Loss;
pub use random::Random;
