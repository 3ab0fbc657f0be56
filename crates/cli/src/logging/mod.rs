//! Logs of this process: to stderr, as lines for people or for programs; what is logged can be changed while
//! it runs.

mod json;
mod service;

pub(crate) use service::add_to;

use crate::args::{Command, LogFormat};
use anyhow::{Context, bail};
use std::sync::{Mutex, OnceLock};
use tracing::{Level, enabled, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, reload};

/// Libraries that see headers and bodies; only their errors are logged, and of [`SHOWS_BODIES`] nothing.
const SEE_SECRETS: [&str; 5] = ["h2", "hyper", "hyper_util", "s3s", "tower_http"];

/// The library whose errors have whole documents of users in them.
const SHOWS_BODIES: &str = "s3s";

/// The most directives of one filter. Each costs something with every event that is looked at for the first
/// time.
const DIRECTIVES_MAX: usize = 64;
const MODULE_BYTES_MAX: usize = 200;

/// The levels of this process, which has one log.
static LOGGING: OnceLock<Logging> = OnceLock::new();

/// The levels of logging now, and the way to change them.
struct Logging {
    at_start: String,
    now: Mutex<String>,
    filter: reload::Handle<EnvFilter, Registry>,
}

/// A change of levels: those of before, and those of now.
pub(crate) struct Change {
    pub(crate) before: String,
    pub(crate) now: String,
}

/// Begins to log, to stderr; `RUST_LOG` chooses what. Servers say what they do, tools only what goes wrong.
pub(crate) fn init(command: &Command) {
    let default = match command {
        Command::Server(_) => "info,openraft=error,openraft::raft::stream_append=off,s3s=off",
        Command::Dev(_) => "warn,openraft=error,openraft::raft::stream_append=off,s3s=off",
        Command::Fs(_)
        | Command::Sh(_)
        | Command::Load(_)
        | Command::Admin(_)
        | Command::Debug(_)
        | Command::Health(_)
        | Command::Completion { .. } => "error",
    };
    let format = match command {
        Command::Server(args) => args.log_format,
        Command::Dev(args) => args.log_format,
        _ => LogFormat::Text,
    };
    let asked = std::env::var(EnvFilter::DEFAULT_ENV).ok();
    let asked = asked.and_then(|asked| Some((parse(&asked).ok()?, asked)));
    let (filter, at_start) = asked.unwrap_or_else(|| (EnvFilter::new(default), default.to_owned()));
    let (filter, handle) = reload::Layer::new(filter);
    let logs = tracing_subscriber::registry().with(filter).with(lines(format));
    logs.with(filter_fn(may_be_logged)).init();
    let _ = LOGGING.set(Logging { now: Mutex::new(at_start.clone()), at_start, filter: handle });
}

type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;

fn lines(format: LogFormat) -> Box<dyn Layer<Filtered> + Send + Sync> {
    let lines = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => lines.fmt_fields(json::Fields).event_format(json::Lines).with_ansi(false).boxed(),
    }
}

/// Whether an event may be logged, whatever levels are asked for: libraries that handle requests as they came
/// print headers and what is secret in them.
fn may_be_logged(event: &tracing::Metadata<'_>) -> bool {
    let library = event.target().split("::").next().unwrap_or_default();
    !SEE_SECRETS.contains(&library) || *event.level() == Level::ERROR && library != SHOWS_BODIES
}

impl Logging {
    fn change(&self, directives: &[String], reset: bool) -> anyhow::Result<Change> {
        let mut now = self.now.lock().expect("no holder panics");
        let before = now.clone();
        if reset || !directives.is_empty() {
            let changed = merged(if reset { &self.at_start } else { &before }, directives)?;
            let filter = parse(&changed)?;
            // A change is a warning by the old filter, or else by the new one: that less is logged than
            // before is not to go unseen.
            let is_seen = enabled!(Level::WARN);
            let tell = || warn!(before, now = changed, "an operator changes what is logged");
            if changed != before && is_seen {
                tell();
            }
            self.filter.reload(filter).context("exchange the filter")?;
            if changed != before && !is_seen {
                tell();
            }
            *now = changed;
        }
        Ok(Change { before, now: now.clone() })
    }
}

fn parse(text: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::builder().parse(text).with_context(|| format!("`{text}` says not what to log"))
}

/// The directives of `filter`, with others in place of those of the same module or span, or behind them.
fn merged(filter: &str, directives: &[String]) -> anyhow::Result<String> {
    let mut merged: Vec<&str> = filter.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
    for directive in directives {
        if !is_directive(directive) {
            bail!(
                "`{directive}` is neither LEVEL nor MODULE=LEVEL; levels are error, warn, info, debug, trace and off"
            );
        }
        match merged.iter_mut().find(|known| about(known) == about(directive)) {
            Some(known) => *known = directive,
            None => merged.push(directive),
        }
    }
    if merged.len() > DIRECTIVES_MAX {
        bail!(
            "these would be {} directives, and {DIRECTIVES_MAX} are enough: begin anew with --reset",
            merged.len()
        );
    }
    Ok(merged.join(","))
}

/// Whether a word is `LEVEL` or `MODULE=LEVEL`, which is all that whoever reaches the port may say: of spans
/// a filter takes the values of fields, too, as regular expressions, which cost as much as one likes. A
/// module alone would be all of it: mostly it is a level with a slip in it.
fn is_directive(word: &str) -> bool {
    let is_module = |module: &str| {
        let is_of_one = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b':');
        (1..=MODULE_BYTES_MAX).contains(&module.len()) && module.bytes().all(is_of_one)
    };
    match word.split_once('=') {
        Some((module, level)) => is_module(module) && is_level(level),
        None => is_level(word),
    }
}

fn is_level(word: &str) -> bool {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
}

/// The subject of a directive: a module, everything, or a span, which what a process was started with may
/// name.
fn about(directive: &str) -> &str {
    match directive.rsplit_once('=') {
        Some((about, level)) if !level.contains([']', '}']) => about,
        _ if is_level(directive) => "",
        _ => directive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_see_secrets_keep_them() {
        use tracing::{Level, Metadata, callsite::Identifier, field::FieldSet, metadata::Kind};
        struct Nowhere;
        impl tracing::Callsite for Nowhere {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                unreachable!("nobody asks")
            }
        }
        let check = |target, level, expect| {
            let fields = FieldSet::new(&[], Identifier(&Nowhere));
            let event = Metadata::new("event", target, level, None, None, None, fields, Kind::EVENT);
            assert_eq!(may_be_logged(&event), expect, "{target} {level}");
        };
        check("s3s::ops::signature", Level::DEBUG, false);
        check("hyper::proto::h1::role", Level::TRACE, false);
        check("h2::hpack", Level::WARN, false);
        check("hyper", Level::ERROR, true);
        check("s3s::http::de", Level::ERROR, false);
        check("s3gw::front", Level::DEBUG, true);
        check("h2o", Level::DEBUG, true);
    }

    #[test]
    fn a_directive_takes_the_place_of_the_one_about_the_same() {
        let check = |filter: &str, directives: &[&str], expect: &str| {
            let directives: Vec<String> = directives.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(merged(filter, &directives).unwrap(), expect);
        };
        check("info,openraft=error", &["flotilla_om=debug"], "info,openraft=error,flotilla_om=debug");
        check("info,openraft=error", &["openraft=warn", "warn"], "warn,openraft=warn");
        check("info", &["a::b=off", "a=trace", "a::b=info"], "info,a::b=info,a=trace");
        check("", &["debug"], "debug");
    }

    /// The filter that a process was started with may have more than others may say.
    #[test]
    fn what_is_no_directive_changes_nothing() {
        let check = |filter: &str, directive: &str| {
            assert_eq!(merged(filter, &[directive.to_owned()]).unwrap(), filter.replace("info,", "warn,"));
        };
        let long = format!("{}=info", "m".repeat(MODULE_BYTES_MAX + 1));
        let of_spans = ["[request]=info", "a[{peer=x*}]=info", "[{a=(x|y)*x}]=info", "a=info]"];
        let slips = ["a=loud", "a=info,b=info", "=", "=info", "a=", "a=info;b", "debg", "", &long];
        for wrong in slips.into_iter().chain(of_spans) {
            assert!(merged("info", &[wrong.to_owned()]).is_err(), "{wrong}");
        }
        check("info,[{a=x}]=debug", "warn");
        let many: Vec<String> = (0..DIRECTIVES_MAX).map(|n| format!("m{n}=info")).collect();
        assert!(merged("info", &many).is_err());
    }
}
