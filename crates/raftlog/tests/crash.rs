//! The log engine on a simulated disk that crashes: every acknowledged change must be there after any crash,
//! and nothing that was not asked for. A binary of its own, so that `./dev crash` builds and runs nothing
//! else.
//!
//! Runs are repeatable: one thread, a clock that stands still while there is work, all chance from a seed
//! (`campaign::the_same_seed_takes_the_same_steps`).
//!
//! | Invariant | Checked by | Bugs of its kind that are found (`planted`) |
//! |---|---|---|
//! | acknowledged entries are byte-equal | `Observed::differs` after every start: `campaign`, `exhaustive` | acknowledged before the sync, checksum ignored |
//! | unacknowledged ones only as a prefix, no holes | `History::explain`: some prefix of all changes | directory not synced |
//! | vote ≥ acknowledged vote, and before later entries | the same, votes are changes in order | vote after entry |
//! | an acknowledged truncation never resurrects, also across segments and rolls | `exhaustive::truncations_over_segments_and_rolls`, `a_roll_that_is_undone_and_made_again`, `campaign` | tail not cut, truncated segment recycled |
//! | recovery is idempotent | `exhaustive`: a crash at every step of recovery, then only what recovery made durable is left, and the same must be found | sync of recovery forgotten |
//! | places are those of every replica | `Observed::differs` compares places with `model`, written from the format | |
//! | purged entries are readable by place until they are deleted, then gone | `World::start`, `Driver::check_deleted`; `exhaustive::purged_segments_are_deleted_and_recycled` | |
//! | a deleted owner is gone after the acknowledgement, others are untouched | the same; `exhaustive::a_deleted_owner_is_gone_and_recycled_by_another_log` | |
//! | a removed log is as it was, or not there, or new and empty | `Driver::open`; `exhaustive::a_removed_log_comes_back_as_it_was_or_new` | |
//! | what a recycled segment held never shows | all of the above, spares are in all worlds; `exhaustive::recycled_segments_are_truncated_finished_and_closed` | truncated segment recycled |
//! | damage in one log never loses another's, and never makes an entry | `damage` | checksum ignored |
//! | tokens resolve in order; what can go on does | `Acks::resolved_in_order`, `World::act` | |
//! | a full disk loses nothing and stops nothing for good | `full`, `campaign` (lives on a full disk, with and without space later) | |

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

extern crate flotilla_raftlog as raftlog;

#[path = "crash/campaign.rs"]
mod campaign;
#[path = "crash/damage.rs"]
mod damage;
#[path = "crash/driver.rs"]
mod driver;
#[path = "crash/exhaustive.rs"]
mod exhaustive;
#[path = "crash/full.rs"]
mod full;
#[path = "crash/history.rs"]
mod history;
#[path = "crash/liar.rs"]
mod liar;
#[path = "crash/model.rs"]
mod model;
#[path = "crash/planted.rs"]
mod planted;
#[path = "crash/regressions.rs"]
mod regressions;
#[path = "crash/world.rs"]
mod world;
