//! Documents, of operations that take one: an element that nobody knows is refused, and no document becomes
//! much more in memory.

use crate::allocation::peak;
use crate::random::Random;
use crate::request::shown;
use crate::signature::SECRET_KEY;
use crate::wire::{Gate, Wish};

/// The bytes that one of a document may come to: `<Object/>` is a structure of some hundred bytes, in a list
/// that stands twice while it grows.
const BYTES_OF_A_BYTE_MAX: usize = 200;
const SLACK_BYTES: usize = 1 << 20;

pub(crate) fn delete(random: &mut Random) -> Vec<u8> {
    let objects: String =
        (0..random.below(5)).map(|_| format!("<Object><Key>{}</Key></Object>", escaped(random))).collect();
    let quiet = random.pick(&["", "<Quiet>true</Quiet>", "<Quiet/>"]);
    format!("<?xml version=\"1.0\"?><Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{objects}{quiet}</Delete>").into()
}

pub(crate) fn complete(random: &mut Random) -> Vec<u8> {
    let parts: String = (1..=random.below(5))
        .map(|number| {
            format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{}\"</ETag></Part>", "a".repeat(32))
        })
        .collect();
    format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>").into()
}

fn escaped(random: &mut Random) -> String {
    random.text(10).replace('&', "&amp;").replace('<', "&lt;").replace('\u{1}', "&#1;")
}

pub(crate) fn case(random: &mut Random, gate: Gate<'_>) -> Result<bool, String> {
    let (wish, mut document) = match random.below(3) {
        0 => (Wish::new("POST", "/bucket").parameter("delete", ""), delete(random)),
        1 => (Wish::new("POST", "/bucket/key").parameter("uploadId", "u"), complete(random)),
        _ => {
            let configuration = "<CreateBucketConfiguration><LocationConstraint>eu</LocationConstraint></CreateBucketConfiguration>";
            (Wish::new("PUT", "/bucket"), configuration.into())
        }
    };
    let is_strange = random.one_in(4);
    if is_strange {
        let at = document.windows(2).rposition(|pair| pair == b"</").unwrap_or(0);
        let element = random.pick(&["<Tags/>", "<a:Strange>1</a:Strange>", "<Key2></Key2>", "<Tags"]);
        document.splice(at..at, element.bytes());
    } else if random.one_in(2) {
        for _ in 0..1 + random.below(3) {
            bend(random, &mut document);
        }
    }
    let (wire, _) = wish.body(&document).signed(SECRET_KEY);
    let (answer, most) = peak(|| gate(&wire));
    let answer = answer.ok_or("no request")?;
    if most > BYTES_OF_A_BYTE_MAX * document.len() + SLACK_BYTES {
        return Err(format!("a document of {} bytes takes {most}: {}", document.len(), shown(&wire)));
    }
    let is_understood =
        answer.result.as_ref().is_ok_and(|tried| tried.status.is_some_and(|status| status == 501));
    if is_strange && is_understood {
        return Err(format!("an element that nobody knows is skipped: {}", shown(&wire)));
    }
    if let Ok(tried) = &answer.result
        && tried.status.is_some_and(|status| status == 500)
    {
        return Err(format!("the protocol layer fails: {}", shown(&wire)));
    }
    Ok(is_understood)
}

/// Damages it, or has a piece of it very often.
fn bend(random: &mut Random, document: &mut Vec<u8>) {
    const PIECES: [&str; 9] = [
        "<Object>",
        "<Object/>",
        "<Part><PartNumber>1</PartNumber></Part>",
        "<!--",
        "<![CDATA[",
        "&amp;",
        "&#x41;",
        "<!DOCTYPE a [<!ENTITY b \"bbbbbbbbbbbbbbbb\">]>",
        "<Key>&b;</Key>",
    ];
    if random.one_in(2) {
        return random.damage(document);
    }
    let at = random.below(document.len() + 1);
    let times = if random.one_in(50) { 1 << random.below(13) } else { 1 + random.below(20) };
    let piece = random.pick(&PIECES).repeat(times);
    document.splice(at..at, piece.bytes());
}
