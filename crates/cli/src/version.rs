//! What this binary was built from.

/// `flotilla -V`.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `flotilla --version`: enough to find the sources again.
pub(crate) const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:   ",
    env!("FLOTILLA_COMMIT"),
    "\nprofile:  ",
    env!("FLOTILLA_PROFILE"),
    "\ntarget:   ",
    env!("FLOTILLA_TARGET"),
    "\ncompiler: ",
    env!("FLOTILLA_COMPILER"),
);

/// The commit, with `-dirty` behind it where the sources had changes; `unknown` outside of a checkout.
pub(crate) const COMMIT: &str = env!("FLOTILLA_COMMIT");
