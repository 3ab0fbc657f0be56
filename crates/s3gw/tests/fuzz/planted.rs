//! The fuzzer finds what it is there to find.

use crate::campaign::{checked, ranges};
use crate::random::Random;
use crate::wire::{Answer, Wire, gateway};
use crate::{chunks, form, range, request, xml};

/// Some case of some seed reports it, in words that fit; others may see the same bug in another way.
fn finds(says: &str, case: impl Fn(&mut Random) -> Result<bool, String>) {
    let mut found = (1..=300).flat_map(|seed| {
        let mut random = Random::new(seed);
        (0..10).filter_map(|_| checked(|| case(&mut random)).err()).collect::<Vec<_>>()
    });
    assert!(found.any(|why| why.contains(says)), "nothing in 3000 cases that says {says:?}");
}

/// A gateway that looks at `x-amz-copy-source` after the signature, signed or not: what a presigned PUT once
/// became a copy by.
#[test]
fn a_header_that_nobody_signed_is_found() {
    finds("was signed, and", |random| {
        request::case(random, &|wire| {
            let mut seen = wire.clone();
            let mut unsigned = None;
            let signed = wire.headers.iter().any(|(name, value)| {
                name == "authorization" && String::from_utf8_lossy(value).contains("x-amz-copy-source")
            });
            if !signed && let Some(at) = seen.headers.iter().position(|(name, _)| name == "x-amz-copy-source")
            {
                unsigned = Some(seen.headers.remove(at));
            }
            let mut answer = gateway(&seen)?;
            if let (Some((_, value)), Ok(tried)) = (unsigned, &mut answer.result) {
                tried.parts.headers.insert("x-amz-copy-source", value.try_into().ok()?);
            }
            Some(answer)
        })
    });
}

#[test]
fn a_key_that_is_not_compared_is_found() {
    finds("a stranger passes", |random| {
        request::case(random, &|wire| match gateway(wire)? {
            Answer { result: Err(code), read_bytes } if code == "SignatureDoesNotMatch" => {
                let plain =
                    crate::wire::Wish::new("GET", "/bucket/key").signed(crate::signature::SECRET_KEY).0;
                Some(Answer { read_bytes, ..gateway(&plain)? })
            }
            answer => Some(answer),
        })
    });
}

#[test]
fn a_body_read_before_its_signature_is_found() {
    finds("of a stranger's body were read", |random| {
        request::case(random, &|wire| Some(Answer { read_bytes: wire.body.len(), ..gateway(wire)? }))
    });
    finds("a form is not refused", |random| {
        form::case(random, &|wire| {
            // It looks for the type as clients spell it.
            let is_missed =
                |(name, value): &(String, Vec<u8>)| name == "content-type" && value.starts_with(b"M");
            let read_bytes = if wire.headers.iter().any(is_missed) { wire.body.len() } else { 0 };
            Some(Answer { read_bytes, ..gateway(wire)? })
        })
    });
}

#[test]
fn a_decoder_that_forgets_at_the_end_of_a_frame_is_found() {
    finds("came out as", |random| {
        chunks::case(random, &|wire| {
            let mut answer = gateway(wire)?;
            if let Ok(tried) = &mut answer.result
                && wire.frame_bytes % 7 == 0
            {
                tried.body.0.pop();
            }
            Some(answer)
        })
    });
}

#[test]
fn a_range_that_is_one_too_long_is_found() {
    finds("selects", |random| {
        range::case(random, &|text, size| {
            let (range, of_copy) = ranges(text, size);
            (range.map(|range| range.start..(range.end + u64::from(text.ends_with('0'))).min(size)), of_copy)
        })
    });
}

#[test]
fn an_element_that_is_skipped_is_found() {
    finds("that nobody knows is skipped", |random| {
        xml::case(random, &|wire| {
            let strange = b"<Tags/>";
            let at = wire.body.windows(strange.len()).position(|piece| piece == strange);
            let Some(at) = at else { return gateway(wire) };
            let mut body = wire.body.clone();
            body.splice(at..at + strange.len(), [b' '; 7]);
            gateway(&Wire { body, ..wire.clone() })
        })
    });
}
