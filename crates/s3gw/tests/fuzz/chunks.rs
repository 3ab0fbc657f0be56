//! Bodies in aws-chunks, cut anywhere: what comes out is what was put in, whatever frames it came in; what
//! was changed under signed chunks does not come out whole.

use crate::random::Random;
use crate::request::shown;
use crate::signature::{SECRET_KEY, of_chunk, of_trailers};
use crate::wire::{Gate, Wire, Wish};

const TRAILER: &str = "x-amz-checksum-crc32";

pub(crate) fn case(random: &mut Random, gate: Gate<'_>) -> Result<bool, String> {
    let data = {
        let count = random.below(300);
        random.bytes(count)
    };
    let (is_signed, has_trailer) = (random.one_in(2), random.one_in(2));
    let has_trailer = has_trailer || !is_signed;
    let mut wire = wire(random, &data, is_signed, has_trailer);
    wire.frame_bytes = 1 + random.below(wire.body.len());
    let right = decode(&wire, gate)?;
    if right.as_ref() != Ok(&data) {
        return Err(format!("{} bytes came out as {right:?}: {}", data.len(), shown(&wire)));
    }
    let mut changed = wire.clone();
    for _ in 0..1 + random.below(3) {
        random.damage(&mut changed.body);
    }
    changed.frame_bytes = 1 + random.below(changed.body.len() + 1);
    let found = decode(&changed, gate)?;
    let other_frames = Wire { frame_bytes: 1 + random.below(changed.body.len() + 1), ..changed.clone() };
    let again = decode(&other_frames, gate)?;
    if found != again {
        return Err(format!("{found:?}, in other frames {again:?}: {}", shown(&changed)));
    }
    match &found {
        Ok(found) if is_signed && *found != data => {
            Err(format!("another body than was signed: {}", shown(&changed)))
        }
        Ok(found) if !is_signed && naive(&changed.body).as_ref() != Some(found) => {
            Err(format!("{found:?} is not what is in it: {}", shown(&changed)))
        }
        found => Ok(found.is_ok()),
    }
}

fn decode(wire: &Wire, gate: Gate<'_>) -> Result<Result<Vec<u8>, String>, String> {
    let answer = gate(wire).ok_or("no request")?;
    let tried = answer.result.map_err(|code| format!("{code}: {}", shown(wire)))?;
    let (data, error) = tried.body;
    Ok(error.map_or(Ok(data), Err))
}

/// All of it in memory, and believed.
fn naive(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let end = body.iter().position(|byte| *byte == b'\r')?;
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?, 16).ok()?;
        body = body[end..].strip_prefix(b"\r\n")?;
        if length == 0 {
            return Some(data);
        }
        data.extend_from_slice(body.get(..length)?);
        body = body[length..].strip_prefix(b"\r\n")?;
    }
}

fn wire(random: &mut Random, data: &[u8], is_signed: bool, has_trailer: bool) -> Wire {
    let mut wish = Wish::new("PUT", "/bucket/key");
    wish.payload = match (is_signed, has_trailer) {
        (true, true) => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        (true, false) => "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        (false, _) => "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    }
    .to_owned();
    wish = wish
        .header("content-encoding", "aws-chunked")
        .header("x-amz-decoded-content-length", data.len().to_string());
    if has_trailer {
        wish = wish.header("x-amz-trailer", TRAILER);
    }
    wish = wish.header("transfer-encoding", "chunked");
    let (mut wire, mut previous) = wish.signed(SECRET_KEY);
    let mut left = data;
    loop {
        let (chunk, rest) = left.split_at(left.len().min(1 + random.below(120)));
        left = rest;
        let head =
            if random.one_in(2) { format!("{:x}", chunk.len()) } else { format!("{:04X}", chunk.len()) };
        wire.body.extend_from_slice(head.as_bytes());
        if is_signed {
            previous = of_chunk(SECRET_KEY, &previous, chunk);
            wire.body.extend_from_slice(format!(";chunk-signature={previous}").as_bytes());
        }
        wire.body.extend_from_slice(b"\r\n");
        if chunk.is_empty() {
            break;
        }
        wire.body.extend_from_slice(chunk);
        wire.body.extend_from_slice(b"\r\n");
    }
    if has_trailer {
        let end = if random.one_in(2) { "\r\n" } else { "\n\r\n" };
        wire.body.extend_from_slice(format!("{TRAILER}:AAAAAA=={end}").as_bytes());
        if is_signed {
            let signature = of_trailers(SECRET_KEY, &previous, &format!("{TRAILER}:AAAAAA==\n"));
            wire.body.extend_from_slice(format!("x-amz-trailer-signature:{signature}\r\n").as_bytes());
        }
    }
    wire.body.extend_from_slice(b"\r\n");
    wire
}
