//! Settings of `flotilla server` from a TOML file. Its keys are the names of the command line's options, so
//! there is one list of settings, one description of each, and one place that checks values. What stands on
//! the command line or in the environment wins.

use anyhow::{Context, bail};
use clap::{Arg, Command};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use toml::Value;

const OPTION: &str = "--config";
const ENV: &str = "FLOTILLA_CONFIG";
const SUBCOMMAND: &str = "server";

/// The command line with what the file says put in, if one is named.
pub(crate) fn with_settings_file(args: Vec<OsString>, command: &Command) -> anyhow::Result<Vec<OsString>> {
    if args.get(1).is_none_or(|word| word != SUBCOMMAND) {
        return Ok(args);
    }
    let Some(path) = named_file(&args).or_else(|| std::env::var_os(ENV)) else { return Ok(args) };
    let path = Path::new(&path);
    #[allow(clippy::disallowed_methods)] // settings, not data
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("read {} ({OPTION})", path.display()))?;
    let server = command.find_subcommand(SUBCOMMAND).context("the server has a command line")?;
    let is_set = |arg: &Arg| {
        let in_environment = arg.get_env().is_some_and(|name| std::env::var_os(name).is_some());
        in_environment || arg.get_long().is_some_and(|long| is_given(&args, long))
    };
    let from_file = read(&text, server, is_set).with_context(|| format!("in {}", path.display()))?;
    let mut all = args;
    all.splice(2..2, from_file);
    Ok(all)
}

fn named_file(args: &[OsString]) -> Option<OsString> {
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if word == OPTION {
            return words.next().cloned();
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

fn is_given(args: &[OsString], long: &str) -> bool {
    let is_it = |word: &OsStr| {
        let word = word.to_str().and_then(|word| word.strip_prefix("--"));
        word.is_some_and(|word| word.split('=').next() == Some(long))
    };
    args.iter().any(|word| is_it(word))
}

/// The options that the file sets and nobody else does.
fn read(text: &str, server: &Command, is_set: impl Fn(&Arg) -> bool) -> anyhow::Result<Vec<OsString>> {
    let table: toml::Table = text.parse().context("read TOML")?;
    let mut words = Vec::new();
    for (key, value) in &table {
        let long = key.replace('_', "-");
        let arg = server.get_arguments().find(|arg| arg.get_long() == Some(long.as_str()));
        let Some(arg) = arg.filter(|_| !matches!(long.as_str(), "config" | "help")) else {
            bail!("there is no setting `{key}`; known are {}", known(server).join(", "));
        };
        let values = values_of(value).with_context(|| format!("setting `{key}`"))?;
        if !is_set(arg) {
            words.extend(values.into_iter().map(|value| format!("--{long}={value}").into()));
        }
    }
    Ok(words)
}

fn known(server: &Command) -> Vec<String> {
    let longs = server.get_arguments().filter_map(|arg| arg.get_long());
    longs.filter(|long| !matches!(*long, "config" | "help")).map(|long| long.replace('-', "_")).collect()
}

/// The words of a value as they would stand on the command line: a list is an option given several times.
fn values_of(value: &Value) -> anyhow::Result<Vec<String>> {
    Ok(match value {
        Value::String(text) => vec![text.clone()],
        Value::Integer(number) => vec![number.to_string()],
        Value::Float(number) => vec![number.to_string()],
        Value::Boolean(is_on) => vec![is_on.to_string()],
        Value::Array(values) => {
            let values: anyhow::Result<Vec<Vec<String>>> = values.iter().map(values_of).collect();
            values?.concat()
        }
        Value::Table(_) => bail!("there are no sections: write `key = value`"),
        Value::Datetime(_) => bail!("no setting is a date"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::CommandFactory;

    fn words(text: &str, set: &[&str]) -> anyhow::Result<Vec<String>> {
        let command = Args::command();
        let server = command.find_subcommand(SUBCOMMAND).unwrap();
        let words = read(text, server, |arg| set.contains(&arg.get_long().unwrap()))?;
        Ok(words.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn keys_are_options_and_lists_are_options_given_again() {
        let text = "roles = [\"scm\", \"om\"]\nmeta = \"/m\"\npipelines_per_disk = 3\n";
        let all = words(text, &[]).unwrap();
        assert_eq!(all, ["--meta=/m", "--pipelines-per-disk=3", "--roles=scm", "--roles=om"]);
        assert_eq!(words(text, &["meta", "roles"]).unwrap(), ["--pipelines-per-disk=3"]);
    }

    #[test]
    fn what_is_no_setting_is_said() {
        let error = |text: &str| format!("{:#}", words(text, &[]).unwrap_err());
        assert!(error("rolls = 1").contains("no setting `rolls`; known are roles"));
        assert!(error("[server]\nroles = \"scm\"").contains("no setting `server`"));
        assert!(error("config = \"x\"").contains("no setting `config`"));
        assert!(error("meta = 1979-05-27").contains("no setting is a date"));
        assert!(error("roles = ").contains("read TOML"));
    }

    #[test]
    fn the_file_is_named_in_either_way() {
        let named = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            named_file(&args).map(|path| path.into_string().unwrap())
        };
        assert_eq!(named("flotilla server --config a.toml"), Some("a.toml".to_owned()));
        assert_eq!(named("flotilla server --config=a.toml --roles scm"), Some("a.toml".to_owned()));
        assert_eq!(named("flotilla server --roles scm"), None);
        assert!(is_given(&["--roles=scm".into()], "roles") && !is_given(&["--roles".into()], "role"));
    }
}
