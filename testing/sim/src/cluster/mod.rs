//! Whole clusters of SCM and datanodes under faults, from a seed: the real services on simulated machines.
//!
//! A run: machines and settings as [`plan`] chose them; clients write blocks and read them back while there
//! are faults ([`faults`]); then there are none, and within a bound that follows from the settings every
//! acknowledged block must stand in a closed container with three good replicas, as SCM sees them, as the
//! nodes say, and byte for byte on the disks ([`ending`]).
//!
//! Every fourth seed has one OM or three as well, and clients of whole objects: those of [`objects`] lose
//! answers and repeat what they asked, those of [`gateways`] do it as gateways do, by the client crate. Where
//! there are several groups of names, [`mover`] moves the bucket from one to the other all the while. Every
//! other one of these reclaims within seconds, and [`sweeps`]: of the keys of [`namers`] it is known what
//! they are, and in the end all blocks that keys name must be there, and no others.
//!
//! Acknowledgements are kept in the [`ledger`]. A read may fail with a reason at any time; it
//! never answers other bytes. What chance destroys it destroys one at a time, as the design wants it: the
//! next one only when all of that holds again. Most runs have a scheme besides ([`schemes`]): harm in pairs,
//! or while others are away. Where that may have cost what was acknowledged ([`losses`]), the containers must
//! wait for an operator, visibly and untouched, and nobody may read wrong bytes.

mod counts;
mod deleter;
mod deletions;
mod ending;
mod faults;
mod flips;
mod gateways;
mod harm;
mod invariants;
mod ledger;
mod losses;
mod machine;
mod mover;
mod namers;
mod object_faults;
mod object_steps;
mod objects;
mod old_copy;
mod om_copy;
mod plan;
mod planted;
mod reader;
mod replica_files;
mod run;
mod scheme;
mod schemes;
mod steps;
mod sweep_plan;
mod sweeps;
mod unnamed;
mod untold;
mod view;
mod writer;

pub use counts::Counts;
pub use planted::Planted;
pub use run::{Options, run};
