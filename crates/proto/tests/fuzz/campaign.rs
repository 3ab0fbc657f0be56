//! Random messages from a seed.

use crate::allocation::peak;
use crate::message::{Random, message};
use flotilla_proto::{MessageLimit, decode_asked};
use std::panic::{AssertUnwindSafe, catch_unwind};
use testkit::fuzz::Campaign;

const SEEDS_IN_TESTS: u64 = 40;
/// The most bytes that a part may become: a structure, twice while the list that it stands in grows, or the
/// first leaf of a tree.
const PART_BYTES_MAX: usize = 1024;
/// The bytes that are left for the words of an error.
const SLACK_BYTES: usize = 4096;

/// Answers whether it was decoded.
fn case(path: &str, limit: MessageLimit, bytes: &[u8]) -> Result<bool, String> {
    let decode = || decode_asked(path, bytes).expect("there is such a method");
    let (result, most) = catch_unwind(AssertUnwindSafe(|| peak(decode))).map_err(|_| "a panic".to_owned())?;
    // Strings are copied from what is decoded, and a list of numbers stands twice while it grows.
    let allowed = 3 * bytes.len() + limit.parts_max as usize * PART_BYTES_MAX + SLACK_BYTES;
    match most <= allowed {
        true => Ok(result.is_ok()),
        false => Err(format!("{} bytes became {most}, at most {allowed} were to be", bytes.len())),
    }
}

#[test]
fn campaign() {
    let mut campaign = Campaign::asked(SEEDS_IN_TESTS);
    let (mut cases, mut decoded) = (0u64, 0u64);
    while let Some(seed) = campaign.next_seed(cases) {
        let mut random = Random::new(seed);
        for (path, limit) in MessageLimit::of_all() {
            let bytes_max = if seed % 8 == 0 { limit.bytes_max.min(2 << 20) } else { 16 << 10 };
            let bytes = message(&mut random, bytes_max);
            cases += 1;
            match case(path, limit, &bytes) {
                Ok(is_decoded) => decoded += u64::from(is_decoded),
                Err(why) => campaign.found(path, &why),
            }
        }
    }
    campaign.end(&[("grpc", cases)], &format!("\"messages_decoded\": {decoded}"));
    assert!(decoded > 0 && decoded < cases, "{decoded} of {cases} were decoded: it tries nothing");
}

/// The dearest that passes, for each method and field: as many empty parts as are allowed, and one more.
#[test]
fn as_many_empty_parts_as_are_allowed_fit_and_one_more_is_refused() {
    let mut with_parts = 0;
    for (path, limit) in MessageLimit::of_all() {
        for field in 1..16u8 {
            for within in [&[][..], &[0x0a, 0], &[0x12, 0], &[0x1a, 0], &[0x2a, 0]] {
                let part = [&[field << 3 | 2, within.len() as u8], within].concat();
                let allowed = part.repeat((limit.parts_max as usize).min(limit.bytes_max / part.len()));
                case(path, limit, &allowed).unwrap_or_else(|why| panic!("{path}, field {field}: {why}"));
                let many = part.repeat(limit.parts_max as usize + 1);
                let is_decoded =
                    case(path, limit, &many).unwrap_or_else(|why| panic!("{path}, field {field}: {why}"));
                with_parts += u32::from(!is_decoded);
            }
        }
    }
    assert!(with_parts > 100, "{with_parts} lists were found full");
}
