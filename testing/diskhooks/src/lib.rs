//! The one disk that tests put between what they test and a real or simulated disk: [`HookedDisk`].

mod call;
mod hooked_disk;
mod syncs;

pub use call::{Act, Call, Operation};
pub use hooked_disk::HookedDisk;
pub use syncs::Syncs;
