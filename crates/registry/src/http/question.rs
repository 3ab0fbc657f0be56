//! Questions: what stands after the `?`.

use proto::Failure;
use proto::registry::Reading;
use serde::Deserialize;
use std::time::Duration;

/// The wait of a long poll that does not say how long it wants to wait.
const WAIT_DEFAULT: Duration = Duration::from_secs(60);

/// All parameters that a request may have; each request uses some of them.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Question {
    index: Option<u64>,
    wait: Option<String>,
    stale: Option<String>,
    passing: Option<String>,
    prefix: Option<String>,
    raw: Option<String>,
    keys: Option<String>,
    pub(super) from: Option<String>,
    pub(super) limit: Option<u32>,
    pub(super) cas: Option<u64>,
    ttl: Option<String>,
    pub(super) renew: Option<u64>,
    pub(super) lease: Option<u64>,
}

impl Question {
    /// Whether the answer may have to be waited for.
    pub(super) fn waits(&self) -> bool {
        self.index.is_some() || self.wait.is_some()
    }

    pub(super) fn reading(&self) -> Result<Reading, Failure> {
        let after = self.index.unwrap_or(0);
        let wait = match &self.wait {
            Some(wait) => duration(wait)?,
            None if after > 0 => WAIT_DEFAULT,
            None => Duration::ZERO,
        };
        Ok(Reading { stale: flag(&self.stale)?, after, wait_ms: wait.as_millis() as u64 })
    }

    pub(super) fn is_passing(&self) -> Result<bool, Failure> {
        flag(&self.passing)
    }

    pub(super) fn is_prefix(&self) -> Result<bool, Failure> {
        flag(&self.prefix)
    }

    pub(super) fn is_raw(&self) -> Result<bool, Failure> {
        flag(&self.raw)
    }

    pub(super) fn is_keys_only(&self) -> Result<bool, Failure> {
        flag(&self.keys)
    }

    pub(super) fn ttl_ms(&self) -> Result<u64, Failure> {
        self.ttl.as_deref().map_or(Ok(0), |ttl| Ok(duration(ttl)?.as_millis() as u64))
    }
}

/// The value of a parameter that is a flag: `?prefix`, `?prefix=true` and `?prefix=1` are the same.
fn flag(text: &Option<String>) -> Result<bool, Failure> {
    match text.as_deref() {
        None | Some("false" | "0") => Ok(false),
        Some("" | "true" | "1") => Ok(true),
        Some(other) => Err(Failure::invalid(format!("`{other}` is neither true nor false"))),
    }
}

/// Parses a duration: `500ms`, `30s`, `5m` or `1h`.
pub(super) fn duration(text: &str) -> Result<Duration, Failure> {
    let wrong = || Failure::invalid(format!("`{text}` is no duration; write 500ms, 30s, 5m or 1h"));
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let ms_each = match &text[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(ms_each).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        for wrong in
            ["", "5", "s", "-1s", "1.5s", "2w", "99999999999999999999s", "18446744073709551615h", "5é"]
        {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_index_waits_and_nothing_else_does() {
        let reading = |question: Question| question.reading().unwrap();
        assert_eq!(reading(Question::default()).wait_ms, 0);
        assert_eq!(reading(Question { index: Some(7), ..Question::default() }).wait_ms, 60_000);
        let said = Question {
            index: Some(7),
            wait: Some("2s".into()),
            stale: Some(String::new()),
            ..Question::default()
        };
        assert_eq!(reading(said), Reading { stale: true, after: 7, wait_ms: 2000 });
    }
}
