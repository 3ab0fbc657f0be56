//! Operations that wait for a condition or a deadline, whichever comes first.
//!
//! A condition is "what `key` stands for has reached `value`": group 7 has applied entry 1000, block 12 is on
//! all replicas. A [`Lot`] is the bare structure, without a clock: operations by key and by deadline in one
//! slab, the deadlines in a hierarchical timing wheel ([`wheel`]), so that parking, completing and expiring
//! cost the same however many wait, and an operation that completes leaves nothing behind until its deadline.
//! A [`ParkingLot`] puts futures and tokio's clock to it. A [`Throttle`] lets bytes wait until a rate allows
//! them, and a [`Rate`] tells how fast a total grows.

mod lot;
mod parking_lot;
mod rate;
mod slab;
mod throttle;
mod wheel;

pub use lot::{Lot, Ticket};
pub use parking_lot::{LotCounts, Outcome, ParkingLot, Wait};
pub use rate::Rate;
pub use throttle::Throttle;
