use super::sign::{Asked, Signer};
use anyhow::{Context, bail, ensure};
use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A server that says nothing for so long has lost the request.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The bytes that are read with one call.
const READ_BYTES: usize = 256 << 10;
/// The most bytes of an answer's head, and of the text of an error.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The server's word that it cannot do this now (503), which every S3 client answers by trying again.
#[derive(Debug, thiserror::Error)]
#[error("it answers 503: {0}")]
pub(crate) struct Refused(String);

/// A connection of HTTP/1.1 that is kept. One thread that waits in the kernel is the cheapest client there
/// is.
pub(crate) struct Connection {
    stream: TcpStream,
    signer: Signer,
    head: Vec<u8>,
    buffer: Box<[u8]>,
}

/// The knowledge of an answer when its head came: the body begins with what of the buffer follows the head.
struct Head {
    status: u16,
    body_bytes: usize,
    body_start: usize,
    filled: usize,
}

impl Connection {
    pub(crate) fn open(address: &str, signer: Signer) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(Connection { stream, signer, head: Vec::new(), buffer: vec![0; READ_BYTES].into() })
    }

    /// Sends a request and takes its answer, whose body is handed to `take` with its offset as it comes.
    /// Answers with its length, and takes any answer but a good one for an error.
    pub(crate) fn ask(
        &mut self,
        asked: Asked<'_>,
        body: &[u8],
        take: impl FnMut(usize, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        self.signer.write_head(asked, &mut self.head);
        self.send(body).with_context(|| format!("send {} {}", asked.method, asked.path))?;
        let answered = self.answer(asked.method == "HEAD", take);
        answered.with_context(|| format!("{} {}?{}", asked.method, asked.path, asked.query))
    }

    fn send(&mut self, body: &[u8]) -> std::io::Result<()> {
        let mut parts = [IoSlice::new(&self.head), IoSlice::new(body)];
        let mut left = &mut parts[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let sent = self.stream.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        without_body: bool,
        mut take: impl FnMut(usize, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<usize> {
        let head = self.read_head()?;
        let body_bytes = if without_body { 0 } else { head.body_bytes };
        let mut at = head.filled - head.body_start;
        ensure!(at <= body_bytes, "more came than was asked for");
        if !matches!(head.status, 200 | 204) {
            let text = String::from_utf8_lossy(&self.buffer[head.body_start..head.filled]).into_owned();
            if head.status == 503 {
                return Err(Refused(text).into());
            }
            bail!("it answers {}: {text}", head.status);
        }
        take(0, &self.buffer[head.body_start..head.filled])?;
        while at < body_bytes {
            let room = READ_BYTES.min(body_bytes - at);
            let count = self.stream.read(&mut self.buffer[..room])?;
            ensure!(count > 0, "the connection ended after {at} of {body_bytes} bytes");
            take(at, &self.buffer[..count])?;
            at += count;
        }
        Ok(head.body_bytes)
    }

    fn read_head(&mut self) -> anyhow::Result<Head> {
        let mut filled = 0;
        loop {
            let count = self.stream.read(&mut self.buffer[filled..])?;
            ensure!(count > 0, "the connection ended before an answer");
            let searched = filled.saturating_sub(3);
            filled += count;
            let end = self.buffer[searched..filled].windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let body_start = searched + end + 4;
                let text = std::str::from_utf8(&self.buffer[..body_start])?;
                return Ok(Head { status: status(text)?, body_bytes: length(text)?, body_start, filled });
            }
            ensure!(filled < HEAD_BYTES_MAX, "a head without an end");
        }
    }
}

fn status(head: &str) -> anyhow::Result<u16> {
    let number = head.split(' ').nth(1).context("an answer has a status")?;
    Ok(number.parse()?)
}

fn length(head: &str) -> anyhow::Result<usize> {
    for line in head.lines().skip(1) {
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                return Ok(value.trim().parse()?);
            }
            ensure!(!name.eq_ignore_ascii_case("transfer-encoding"), "answers in chunks are not understood");
        }
    }
    Ok(0)
}
