//! The answer of a command: to people, and to programs.

use crate::output;
use anyhow::Context;
use serde_json::Value;
use std::io::IsTerminal;

pub(super) struct Answer {
    pub(super) text: String,
    pub(super) json: Value,
    /// The exit code of a command that came to a verdict: 0 where there is nothing to say.
    pub(super) exit_code: u8,
}

impl Answer {
    pub(super) fn new(text: impl Into<String>, json: Value) -> Answer {
        Answer { text: text.into(), json, exit_code: 0 }
    }

    pub(super) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let text = if as_json { format!("{:#}\n", self.json) } else { self.text.clone() };
        output::print(&text).context("write to standard output")
    }

    /// One of many looks: on a terminal it takes the place of the one before.
    pub(super) fn print_again(&self, as_json: bool) -> anyhow::Result<()> {
        const CLEAR: &str = "\x1b[H\x1b[2J";
        let text = match (as_json, std::io::stdout().is_terminal()) {
            (true, _) => format!("{}\n", self.json),
            (false, true) => format!("{CLEAR}{}", self.text),
            (false, false) => format!("{}\n", self.text),
        };
        output::print(&text).context("write to standard output")
    }
}
