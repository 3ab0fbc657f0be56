use crate::admission::Seed;
use crate::error::{GatewayError, Result};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::{Bytes, BytesMut};
use sha2::{Digest, Sha256};

/// A body in aws-chunks, decoded as it comes: of a chunk nothing is kept but its hash, however long it is.
///
/// ```text
/// 10000;chunk-signature=<64 digits>\r\n   <65536 bytes>   \r\n
/// 0;chunk-signature=<64 digits>\r\n   [name:value\r\n ... x-amz-trailer-signature:<64 digits>\r\n]   \r\n
/// ```
/// Unsigned bodies have no signatures, and only bodies that announce trailers have trailers. AWS's examples,
/// and minio-go, end the last trailer before the signature or the end with `\n\r\n`. Data leaves before the
/// signature of its chunk was seen: who takes it may publish it only after the end.
pub(crate) struct Chunked {
    state: State,
    /// A line as far as it came.
    line: BytesMut,
    /// The bytes of the data that are still to come, as declared.
    left: u64,
    signer: Option<Signer>,
    announced: Vec<HeaderName>,
    trailers: HeaderMap,
    /// Whether the trailer before ended with a line feed alone; an empty line that follows is the rest of its
    /// end.
    is_half_ended: bool,
}

enum State {
    Head,
    Data { left: u64 },
    AfterData,
    Trailers,
    End,
}

struct Signer {
    seed: Seed,
    hasher: Sha256,
    /// The signature of the chunk that is coming, as it says.
    signature: String,
}

const HEAD_BYTES_MAX: usize = 256;
const TRAILERS_BYTES_MAX: usize = 16 << 10;
const TRAILERS_MAX: usize = 16;
const TRAILER_SIGNATURE: &str = "x-amz-trailer-signature";

impl Chunked {
    /// A decoder for a body of so many bytes of data. `seed`: what the first chunk's signature follows from,
    /// if chunks are signed. `announced`: the trailers' names.
    pub(crate) fn new(declared_bytes: u64, seed: Option<Seed>, announced: Vec<HeaderName>) -> Chunked {
        let signer = seed.map(|seed| Signer { seed, hasher: Sha256::new(), signature: String::new() });
        Chunked {
            state: State::Head,
            line: BytesMut::new(),
            left: declared_bytes,
            signer,
            announced,
            trailers: HeaderMap::new(),
            is_half_ended: false,
        }
    }

    /// The next data in `input`; `None` once nothing is left of it.
    pub(crate) fn decode(&mut self, input: &mut Bytes) -> Result<Option<Bytes>> {
        while !input.is_empty() {
            match self.state {
                State::Head => {
                    if self.take_line(input, HEAD_BYTES_MAX)? {
                        self.decode_head()?;
                    }
                }
                State::Data { left } => {
                    let data = input.split_to(usize::try_from(left).unwrap_or(usize::MAX).min(input.len()));
                    let left = left - data.len() as u64;
                    self.state = if left > 0 { State::Data { left } } else { State::AfterData };
                    if let Some(signer) = &mut self.signer {
                        signer.hasher.update(&data);
                    }
                    return Ok(Some(data));
                }
                State::AfterData => {
                    if self.take_line(input, 2)? {
                        self.line.is_empty().then_some(()).ok_or_else(malformed)?;
                        self.end_chunk()?;
                        self.state = State::Head;
                    }
                }
                State::Trailers => {
                    let line_bytes_max = TRAILERS_BYTES_MAX;
                    if self.take_line(input, line_bytes_max)? {
                        self.decode_trailer()?;
                    }
                }
                State::End => return Err(malformed()),
            }
        }
        Ok(None)
    }

    /// Returns the trailers, at the end of the body. A body that stops before its last chunk is incomplete.
    pub(crate) fn finish(self) -> Result<HeaderMap> {
        let is_over = match self.state {
            State::End => true,
            // The empty line at the end is left out by some who have no trailers.
            State::Trailers => self.line.is_empty() && self.announced.is_empty(),
            State::Head | State::Data { .. } | State::AfterData => false,
        };
        if !is_over || self.left > 0 {
            return Err(GatewayError::IncompleteBody);
        }
        Ok(self.trailers)
    }

    /// Takes bytes up to the end of a line, and says whether it is there; `line` is then without it.
    fn take_line(&mut self, input: &mut Bytes, bytes_max: usize) -> Result<bool> {
        let end = input.iter().position(|byte| *byte == b'\n');
        let taken = input.split_to(end.map_or(input.len(), |end| end + 1));
        if self.line.len() + taken.len() > bytes_max {
            return Err(malformed());
        }
        self.line.extend_from_slice(&taken);
        if end.is_none() {
            return Ok(false);
        }
        let is_bare = !self.line.ends_with(b"\r\n");
        if is_bare && (self.line.len() == 1 || !matches!(self.state, State::Trailers)) {
            return Err(malformed());
        }
        self.line.truncate(self.line.len() - if is_bare { 1 } else { 2 });
        self.is_half_ended = is_bare || (self.is_half_ended && self.line.is_empty());
        Ok(true)
    }

    fn decode_head(&mut self) -> Result<()> {
        let line = self.line.split();
        let line = std::str::from_utf8(&line).map_err(|_| malformed())?;
        let (length, signature) = match line.split_once(";chunk-signature=") {
            Some((length, signature)) => (length, Some(signature)),
            None => (line, None),
        };
        let is_hex = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_hexdigit());
        let length = is_hex.then(|| u64::from_str_radix(length, 16).ok()).flatten().ok_or_else(malformed)?;
        if length > self.left {
            return Err(GatewayError::IncompleteBody);
        }
        self.left -= length;
        match (&mut self.signer, signature) {
            (Some(signer), Some(signature)) => signature.clone_into(&mut signer.signature),
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => return Err(malformed()),
        }
        if length > 0 {
            self.state = State::Data { left: length };
            return Ok(());
        }
        self.end_chunk()?;
        self.state = State::Trailers;
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<()> {
        match &mut self.signer {
            Some(signer) => signer.seed.check_chunk(signer.hasher.finalize_reset().into(), &signer.signature),
            None => Ok(()),
        }
    }

    fn decode_trailer(&mut self) -> Result<()> {
        let line = self.line.split();
        if line.is_empty() {
            return if std::mem::take(&mut self.is_half_ended) { Ok(()) } else { self.end_trailers() };
        }
        let line = std::str::from_utf8(&line).map_err(|_| GatewayError::MalformedTrailer)?;
        let (name, value) = line.split_once(':').ok_or(GatewayError::MalformedTrailer)?;
        let name: HeaderName = name.trim().parse().map_err(|_| GatewayError::MalformedTrailer)?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| GatewayError::MalformedTrailer)?;
        let is_known = self.announced.contains(&name) || (name == TRAILER_SIGNATURE && self.signer.is_some());
        if !is_known || self.trailers.len() >= TRAILERS_MAX || self.trailers.insert(name, value).is_some() {
            return Err(GatewayError::MalformedTrailer);
        }
        Ok(())
    }

    fn end_trailers(&mut self) -> Result<()> {
        self.state = State::End;
        let signature = self.trailers.remove(TRAILER_SIGNATURE);
        if self.announced.is_empty() && signature.is_none() && self.trailers.is_empty() {
            return Ok(());
        }
        if self.announced.iter().any(|name| !self.trailers.contains_key(name)) {
            return Err(GatewayError::MalformedTrailer);
        }
        let Some(signer) = &mut self.signer else { return Ok(()) };
        let signature = signature.as_ref().and_then(|signature| signature.to_str().ok());
        let mut lines: Vec<String> = self
            .trailers
            .iter()
            .map(|(name, value)| format!("{name}:{}\n", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        lines.sort_unstable();
        signer.seed.check_trailers(&lines.concat(), signature.ok_or(GatewayError::MalformedTrailer)?)
    }
}

fn malformed() -> GatewayError {
    GatewayError::MalformedBody("The chunked body is not well-formed.".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that comes in pieces of `step` bytes.
    fn decode(
        declared: u64,
        announced: &[&'static str],
        body: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, HeaderMap)> {
        let announced = announced.iter().map(|name| HeaderName::from_static(name)).collect();
        let mut chunked = Chunked::new(declared, None, announced);
        let mut data = Vec::new();
        for piece in body.chunks(step) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(decoded) = chunked.decode(&mut piece)? {
                data.extend_from_slice(&decoded);
            }
            assert!(chunked.line.len() <= TRAILERS_BYTES_MAX);
        }
        Ok((data, chunked.finish()?))
    }

    #[test]
    fn chunks_are_joined_however_they_come() {
        let body = b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n";
        for step in [1, 2, 3, 7, 1000] {
            let (data, trailers) = decode(11, &["x-amz-checksum-crc32"], body, step).unwrap();
            assert_eq!(data, b"hello world", "{step}");
            assert_eq!(trailers["x-amz-checksum-crc32"], "DUoRhQ==");
        }
        for end in ["", "\r\n"] {
            let body = format!("5\r\nhello\r\n0\r\n{end}");
            assert_eq!(decode(5, &[], body.as_bytes(), 4).unwrap().0, b"hello");
        }
        assert_eq!(decode(0, &[], b"0\r\n\r\n", 1).unwrap().0, b"");
    }

    #[test]
    fn a_trailer_may_end_with_a_line_feed_before_the_end() {
        let announced = &["x-amz-checksum-crc32c"];
        // A body as minio-go 7.4.1 sends it through TLS.
        let body = b"b\r\nhello world\r\n0\r\nx-amz-checksum-crc32c:yZRlqg==\n\r\n\r\n";
        for step in [1, 2, 5, 1000] {
            let (data, trailers) = decode(11, announced, body, step).unwrap();
            assert_eq!(data, b"hello world", "{step}");
            assert_eq!(trailers["x-amz-checksum-crc32c"], "yZRlqg==");
        }
        let head = "b\r\nhello world\r\n0\r\n";
        for end in [
            "x-amz-checksum-crc32c:yZRlqg==\n\n",
            "x-amz-checksum-crc32c:yZRlqg==\n\n\r\n",
            "x-amz-checksum-crc32c:yZRlqg==\n\r\n\n",
            "x-amz-checksum-crc32c:yZRlqg==\n\r\n",
            "x-amz-checksum-crc32c:yZRlqg==\n\r\n\r\n\r\n",
            "x-amz-checksum-crc32c:yZRlqg==\r\n\r\n\r\n",
            "\n\r\n\r\n",
        ] {
            for step in [1, 1000] {
                assert!(decode(11, announced, format!("{head}{end}").as_bytes(), step).is_err(), "{end:?}");
            }
        }
        for body in
            ["b\nhello world\r\n0\r\n\r\n", "b\r\nhello world\n0\r\n\r\n", "b\r\nhello world\r\n0\n\r\n"]
        {
            assert!(decode(11, &[], body.as_bytes(), 1000).is_err(), "{body:?}");
        }
    }

    #[test]
    fn a_chunk_is_not_kept() {
        let mut chunked = Chunked::new(5 << 30, None, Vec::new());
        chunked.decode(&mut Bytes::from_static(b"140000000\r\n")).unwrap();
        let piece = Bytes::from(vec![7; 1 << 20]);
        for _ in 0..5 << 10 {
            let mut input = piece.clone();
            let data = chunked.decode(&mut input).unwrap().unwrap();
            assert_eq!((data.as_ptr(), data.len()), (piece.as_ptr(), piece.len()), "the same bytes");
            assert!(chunked.line.capacity() <= 1024);
        }
        let end = &mut Bytes::from_static(b"\r\n0\r\n\r\n");
        assert!(chunked.decode(end).unwrap().is_none());
        chunked.finish().unwrap();
    }

    #[test]
    fn bodies_of_another_form_are_refused() {
        let long = format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(300));
        for body in [
            "5\r\nhello\r\n",
            "5\r\nhello\r\n0",
            "5\r\nhell",
            "6\r\nhello!\r\n0\r\n\r\n",
            "4\r\nhell\r\n0\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "+5\r\nhello\r\n0\r\n\r\n",
            "-1\r\n",
            "\r\n",
            "x\r\n",
            "5;chunk-signature=aa\r\nhello\r\n0\r\n\r\n",
            "5;other=1\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\nmore",
            "5\r\nhello\r\n0\r\nnot-announced:1\r\n\r\n",
            "5\r\nhello\r\n0\r\nno colon\r\n\r\n",
            "ffffffffffffffff\r\n",
            "10000000000000000\r\n",
            "",
            &long,
        ] {
            for step in [1, 1000] {
                assert!(decode(5, &[], body.as_bytes(), step).is_err(), "{body:?}");
            }
        }
        let announced = &["x-amz-checksum-crc32"];
        assert!(decode(5, announced, b"5\r\nhello\r\n0\r\n\r\n", 9).is_err());
        assert!(decode(5, announced, b"5\r\nhello\r\n0\r\n", 9).is_err());
        let endless = format!("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{}", "a".repeat(20_000));
        assert!(decode(5, announced, endless.as_bytes(), 100).is_err());
    }
}
