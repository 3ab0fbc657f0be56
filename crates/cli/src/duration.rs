//! Durations on the command line.

use std::time::Duration;

/// Parses a duration: `90s`, `30m`, `2h` or `1d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write 90s, 30m, 2h or 1d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds_each = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let seconds = count.checked_mul(seconds_each).filter(|&seconds| seconds > 0).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "5", "h", "0m", "-1h", "2w", "99999999999999999999d", "1é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
