//! Counters and histograms of servers at work, and how they are shown.
//!
//! A [`Counter`] or [`Histogram`] lives with what it counts; taking its value changes nothing. Nothing is
//! registered anywhere: whoever shows metrics asks their owners for plain values and writes them into an
//! [`Exposition`].
//!
//! The crate knows nothing of ours, no I/O and no runtime.

mod counter;
mod exposition;
mod histogram;

pub use counter::Counter;
pub use exposition::{CONTENT_TYPE, Exposition, Metric};
pub use histogram::{BOUNDS, Distribution, Histogram, Unit};
