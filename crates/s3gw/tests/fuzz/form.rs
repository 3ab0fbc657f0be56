//! Forms bring their signature in the body: whatever their type is spelled like, they are refused and nothing
//! of them is read.

use crate::random::Random;
use crate::request::shown;
use crate::signature::SECRET_KEY;
use crate::wire::{Gate, Wish};

const BODY: &[u8] = b"--x\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n--x\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\ndata\r\n--x--\r\n";

pub(crate) fn case(random: &mut Random, gate: Gate<'_>) -> Result<bool, String> {
    let mut kind: Vec<u8> = random
        .pick(&[
            "multipart/form-data; boundary=x",
            "multipart/form-data;boundary=\"x\"",
            "multipart/mixed; boundary=x",
            "text/xml",
        ])
        .bytes()
        .map(|byte| if random.one_in(4) { byte.to_ascii_uppercase() } else { byte })
        .collect();
    for _ in 0..random.below(3) {
        random.damage(&mut kind);
    }
    let path = random.pick(&["/bucket", "/", "/bucket/key"]);
    let mut wish = Wish::new("POST", path).body(BODY);
    if random.one_in(3) {
        wish = wish.parameter("delete", "");
    }
    let (mut wire, _) = wish.signed(random.pick(&[SECRET_KEY, "another secret"]));
    if random.one_in(2) {
        wire.headers.retain(|(name, _)| name != "authorization");
    }
    wire.headers.push(("content-type".to_owned(), kind.clone()));
    let text = String::from_utf8_lossy(&kind).trim().to_ascii_lowercase();
    let is_form = text.split_once('/').is_some_and(|(kind, _)| kind == "multipart");
    let Some(answer) = gate(&wire) else { return Ok(false) };
    let is_refused =
        answer.result.as_ref().is_err_and(|code| code == "NotImplemented") && answer.read_bytes == 0;
    match is_form && !is_refused {
        true => Err(format!(
            "a form is not refused, or {} bytes of it are read: {}",
            answer.read_bytes,
            shown(&wire)
        )),
        false => Ok(is_form),
    }
}
