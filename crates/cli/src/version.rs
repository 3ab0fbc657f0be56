//! The version of this binary: what it was built from.

macro_rules! facts {
    () => {
        concat!(
            env!("CARGO_PKG_VERSION"),
            "\ncommit:   ",
            env!("FLOTILLA_COMMIT"),
            "\nprofile:  ",
            env!("FLOTILLA_PROFILE"),
            "\ntarget:   ",
            env!("FLOTILLA_TARGET"),
            "\ncompiler: ",
            env!("FLOTILLA_COMPILER"),
        )
    };
}

/// The version as `flotilla -V` prints it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version as `flotilla --version` prints it: enough to find the sources again.
pub(crate) const LONG_VERSION: &str = match planted::POSSIBLE {
    true => concat!(facts!(), "\nplanted:  tests can plant bugs in this build; do not deploy it"),
    false => facts!(),
};

/// The commit, with `-dirty` behind it where the sources had changes; `unknown` outside of a checkout.
pub(crate) const COMMIT: &str = env!("FLOTILLA_COMMIT");
