//! Idle groups in three real processes: what they cost in processor time, memory, messages and wakeups. The
//! bench starts itself again as the nodes.

mod cluster;
mod node;

pub use cluster::{Plan, run_mode};
pub use node::{NodePlan, run_node};

/// Whether idle groups may doze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Awake,
    Dozing,
}

impl Mode {
    /// The mode of this name.
    ///
    /// # Panics
    /// When there is no such mode.
    pub fn of(name: &str) -> Mode {
        match name {
            "awake" => Mode::Awake,
            "dozing" => Mode::Dozing,
            other => panic!("there is no mode `{other}`, only awake and dozing"),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Awake => "awake",
            Mode::Dozing => "dozing",
        }
    }
}
