//! As much of HTTP/2 as a client says that never listens.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const END_STREAM_AND_HEADERS: u8 = 0x1 | 0x4;
/// A window of one byte for each stream.
const INITIAL_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 1];

/// A GET in each of so many streams.
pub(super) fn asks(authority: &str, target: &str, streams: usize) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", target), (":authority", authority)];
    let head: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
    let odd = (0..streams).map(|number| 2 * number as u32 + 1);
    let asks = odd.flat_map(|stream| frame(HEADERS, END_STREAM_AND_HEADERS, stream, &head));
    let begun = [PREFACE, &frame(SETTINGS, 0, 0, &INITIAL_WINDOW)].concat();
    begun.into_iter().chain(asks).collect()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A field that is in no table (RFC 7541, 6.2.2), its texts as they are.
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &text(name), &text(value)].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&length(text.len()), text.as_bytes()].concat()
}

/// An integer with a prefix of seven bits (RFC 7541, 5.1).
fn length(length: usize) -> Vec<u8> {
    const PREFIX_MAX: usize = 127;
    let Some(mut rest) = length.checked_sub(PREFIX_MAX) else { return vec![length as u8] };
    let mut bytes = vec![PREFIX_MAX as u8];
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}
