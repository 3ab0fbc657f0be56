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
    /// Whether the text is somebody's data, which programs get as it is.
    pub(super) is_data: bool,
}

impl Answer {
    pub(super) fn new(text: impl Into<String>, json: Value) -> Answer {
        Answer { text: text.into(), json, exit_code: 0, is_data: false }
    }

    pub(super) fn of_data(text: impl Into<String>, json: Value) -> Answer {
        Answer { is_data: true, ..Answer::new(text, json) }
    }

    pub(super) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let printed = match as_json {
            true => output::print(&format!("{:#}\n", self.json)),
            false if self.is_data && !std::io::stdout().is_terminal() => output::print_as_it_is(&self.text),
            false => output::print(&self.text),
        };
        printed.context("write to standard output")
    }

    /// Prints one of many looks: on a terminal it takes the place of the one before. Returns whether anybody
    /// reads it.
    pub(super) fn print_again(&self, as_json: bool) -> anyhow::Result<bool> {
        const CLEAR: &str = "\x1b[H\x1b[2J";
        let printed = match (as_json, std::io::stdout().is_terminal()) {
            (true, _) => output::printable_lines(&format!("{}\n", self.json)),
            (false, true) => format!("{CLEAR}{}", output::printable_lines(&self.text)),
            (false, false) => output::printable_lines(&format!("{}\n", self.text)),
        };
        output::print_while_read(&printed).context("write to standard output")
    }
}
