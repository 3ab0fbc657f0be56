//! S3 requests over HTTP/1.1 against a whole cluster of processes, or against another server: rates,
//! latencies, what each process spends on one, and what all of them hold in memory.

mod connection;
mod counts;
mod load;
mod objects;
mod processes;
mod sign;
mod target;

pub use counts::{Counted, counting_library, operations_counted};
pub use load::{Kind, Measured, Pace, run};
pub use objects::{Objects, Size};
pub use processes::Memory;
pub use target::Target;
