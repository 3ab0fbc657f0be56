//! Requests of all kinds, signed rightly, then changed: what still passes says the same; what a stranger
//! signs never passes.

use crate::random::Random;
use crate::signature::SECRET_KEY;
use crate::wire::{Gate, Wire, Wish, meaning};
use crate::xml;

pub(crate) fn case(random: &mut Random, gate: Gate<'_>) -> Result<bool, String> {
    let wish = wish(random);
    if random.one_in(3) {
        return stranger(random, &wish, gate);
    }
    let wire = if random.one_in(3) { wish.presigned(SECRET_KEY) } else { wish.signed(SECRET_KEY).0 };
    let right = gate(&wire).ok_or_else(|| format!("no request: {wire:?}"))?;
    let mut changed = wire.clone();
    for _ in 0..1 + random.below(2) {
        changed.damage(random);
    }
    let Some(answer) = gate(&changed) else { return Ok(false) };
    let Ok(tried) = &answer.result else { return Ok(false) };
    let Ok(right) = &right.result else {
        // What was refused for itself may be mended by a change, such as one that takes a header away which
        // nobody signed.
        return Ok(false);
    };
    if meaning(tried) != meaning(right) {
        return Err(format!(
            "{:?} was signed, and {:?} passes\nsigned: {}\nsent: {}",
            meaning(right),
            meaning(tried),
            shown(&wire),
            shown(&changed)
        ));
    }
    // Its hash is signed. Of what passes, the body is the same, or an error.
    if wish.payload.len() == 64
        && tried.body.1.is_none()
        && tried.body.0 != wish.body
        && is_header_signed(&wire)
    {
        return Err(format!("another body than was signed passes: {}", shown(&changed)));
    }
    Ok(true)
}

fn is_header_signed(wire: &Wire) -> bool {
    wire.headers.iter().any(|(name, _)| name == "authorization")
}

fn stranger(random: &mut Random, wish: &Wish, gate: Gate<'_>) -> Result<bool, String> {
    let mut wire =
        if random.one_in(2) { wish.presigned("another secret") } else { wish.signed("another secret").0 };
    if random.one_in(4) {
        wire.headers.retain(|(name, _)| name != "authorization");
    }
    for _ in 0..random.below(3) {
        wire.damage(random);
    }
    match gate(&wire) {
        Some(answer) if answer.result.is_ok() => Err(format!("a stranger passes: {}", shown(&wire))),
        Some(answer) if answer.read_bytes > 0 => {
            Err(format!("{} bytes of a stranger's body were read: {}", answer.read_bytes, shown(&wire)))
        }
        _ => Ok(false),
    }
}

pub(crate) fn shown(wire: &Wire) -> String {
    let headers = wire.headers.iter().map(|(name, value)| format!("{name}: {}", value.escape_ascii()));
    let body = wire.body[..wire.body.len().min(2000)].escape_ascii();
    format!("{} {} {:?} {body}", wire.method, wire.uri, headers.collect::<Vec<_>>())
}

fn wish(random: &mut Random) -> Wish {
    let object = format!("/bucket/{}{}", random.pick(&["k", "a/b", "é"]), random.text(12));
    let data = {
        let count = random.below(200);
        random.bytes(count)
    };
    let wish = match random.below(9) {
        0 => Wish::new("GET", object).header("range", "bytes=0-9"),
        1 => Wish::new("PUT", object)
            .body(&data)
            .header("x-amz-meta-color", format!("a{}b", random.pick(&[" ", "  "]))),
        2 => Wish::new("DELETE", object),
        3 => Wish::new("HEAD", object).parameter("partNumber", "1"),
        4 => Wish::new("GET", "/bucket").parameter("list-type", "2").parameter("prefix", random.text(12)),
        5 => Wish::new("PUT", object)
            .header("x-amz-copy-source", "/bucket/other")
            .header("content-length", "0"),
        6 => Wish::new("PUT", object).parameter("partNumber", "2").parameter("uploadId", "u").body(&data),
        7 => Wish::new("POST", "/bucket").parameter("delete", "").body(&xml::delete(random)),
        _ => Wish::new("POST", object).parameter("uploadId", "u").body(&xml::complete(random)),
    };
    if random.one_in(2) { wish.hashed() } else { wish }
}
