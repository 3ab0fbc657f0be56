//! Keys and values, replicated: the smallest state machine that is of use to somebody. The simulation, the
//! drills and the benches of `raft` run on it, on RocksDB in real processes and on memory that can crash in
//! simulated ones.

mod machine;
mod ops;

pub use machine::{APPLIED_KEY, KvMachine, read, records};
pub use ops::{
    DecodeError, KEY_BYTES_MAX, Op, Outcome, check_ops, decode_ops, decode_outcomes, encode_ops,
    take_outcomes,
};
