//! The answer of a command: to people, and to programs.

use crate::output;
use anyhow::{Context, bail};
use clap::Args as ClapArgs;
use serde_json::Value;
use std::io::IsTerminal;
use std::time::Duration;

/// The way in which answers are shown.
#[derive(ClapArgs, Debug)]
pub(crate) struct LookArgs {
    /// JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// Look again every so many seconds, until Ctrl-C; with --json one line for each look
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    pub watch: Option<Duration>,
}

impl LookArgs {
    /// Shows a command's answer, again and again where that is wanted, until nobody reads it any more.
    /// Returns the exit code.
    pub(crate) async fn show(
        &self,
        only_looks: bool,
        mut ask: impl AsyncFnMut() -> anyhow::Result<Answer>,
    ) -> anyhow::Result<u8> {
        let Some(pause) = self.watch else {
            let answer = ask().await?;
            answer.print(self.json)?;
            return Ok(answer.exit_code);
        };
        if !only_looks {
            bail!("--watch repeats a command, and this one changes something");
        }
        while ask().await?.print_again(self.json)? {
            tokio::time::sleep(pause).await;
        }
        Ok(0)
    }
}

pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) json: Value,
    /// The exit code of a command that came to a verdict: 0 where there is nothing to say.
    pub(crate) exit_code: u8,
    /// Whether the text is somebody's data, which programs get as it is.
    pub(crate) is_data: bool,
}

impl Answer {
    pub(crate) fn new(text: impl Into<String>, json: Value) -> Answer {
        Answer { text: text.into(), json, exit_code: 0, is_data: false }
    }

    pub(crate) fn of_data(text: impl Into<String>, json: Value) -> Answer {
        Answer { is_data: true, ..Answer::new(text, json) }
    }

    pub(crate) fn print(&self, as_json: bool) -> anyhow::Result<()> {
        let printed = match as_json {
            true => output::print(&format!("{:#}\n", self.json)),
            false if self.is_data && !std::io::stdout().is_terminal() => output::print_as_it_is(&self.text),
            false => output::print(&self.text),
        };
        printed.context("write to standard output")
    }

    /// Prints one of many looks: on a terminal it takes the place of the one before. Returns whether anybody
    /// reads it.
    fn print_again(&self, as_json: bool) -> anyhow::Result<bool> {
        const CLEAR: &str = "\x1b[H\x1b[2J";
        let printed = match (as_json, std::io::stdout().is_terminal()) {
            (true, _) => output::printable_lines(&format!("{}\n", self.json)),
            (false, true) => format!("{CLEAR}{}", output::printable_lines(&self.text)),
            (false, false) => output::printable_lines(&format!("{}\n", self.text)),
        };
        output::print_while_read(&printed).context("write to standard output")
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("between 0.1 and 86400 seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_again_needs_a_pause() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "x", "NaN", "inf"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
