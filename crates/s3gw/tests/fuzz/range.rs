//! Ranges of objects, compared with what RFC 9110 and AWS say of them.

use crate::random::Random;
use std::ops::Range;

/// Text and the object's length; `Range` of a GET, `x-amz-copy-source-range`.
pub(crate) type Ranges<'a> = &'a dyn Fn(&str, u64) -> (Option<Range<u64>>, Option<Range<u64>>);

/// The range as a person reads it. The second says whether both ends are named and within the object, as
/// copies want it.
fn read(text: &str, object_bytes: u64) -> Option<(Range<u64>, bool)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // Longer ones are larger than any object.
        is_number.then(|| digits.parse().unwrap_or(u128::MAX))
    };
    let (size, max) = (u128::from(object_bytes), i64::MAX as u128);
    let range = match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() && suffix <= u128::from(u64::MAX) => {
            size - suffix.min(size)..size
        }
        (Some(first), None) if last.is_empty() && first <= max => first..size,
        (Some(first), Some(last)) if first <= last && last <= max => first..size.min(last + 1),
        _ => return None,
    };
    let is_exact = number(first).is_some() && number(last).is_some_and(|last| last < size);
    (range.start < range.end).then_some((range.start as u64..range.end as u64, is_exact))
}

pub(crate) fn case(random: &mut Random, ranges: Ranges<'_>) -> Result<bool, String> {
    let object_bytes = match random.below(4) {
        0 => random.below(4) as u64,
        1 => 1 << random.below(64),
        2 => u64::MAX - random.below(3) as u64,
        _ => random.below(1000) as u64,
    };
    let number = |random: &mut Random| match random.below(6) {
        0 => String::new(),
        1 => object_bytes.wrapping_add(random.below(3) as u64).wrapping_sub(1).to_string(),
        2 => "9".repeat(random.below(30)),
        3 => (i64::MAX as u64 + random.below(2) as u64).to_string(),
        _ => random.below(1000).to_string(),
    };
    let mut text = format!("bytes={}-{}", number(random), number(random)).into_bytes();
    for _ in 0..random.below(6).saturating_sub(3) {
        random.damage(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let expected = read(&text, object_bytes);
    let of_copy = expected.clone().filter(|(_, is_exact)| *is_exact).map(|(range, _)| range);
    let expected = (expected.map(|(range, _)| range), of_copy);
    let found = ranges(&text, object_bytes);
    match found == expected {
        true => Ok(found.0.is_some()),
        false => Err(format!("{text:?} of {object_bytes} bytes selects {found:?}, not {expected:?}")),
    }
}
