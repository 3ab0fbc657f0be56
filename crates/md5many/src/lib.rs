//! The MD5 of many bodies side by side: S3's ETags are MD5s, which cost a gateway more than all else it does
//! for a large PUT.
//!
//! The MD5 of one body cannot be computed in parts: each block needs what came of the one before. But a
//! processor adds four, eight or sixteen numbers in the time of one, and they may be those of other bodies.
//! So what waits is hashed together ([`Md5Many`]): with AVX-512 four bodies cost what one costs, and sixteen
//! one and a half times as much (`cargo run --release -p flotilla-md5many --example speed`).

mod compress;
mod many;
mod md5;
#[cfg(target_arch = "x86_64")]
mod simd;

pub use many::{Md5Counts, Md5Many, Pending};
pub use md5::Md5;
