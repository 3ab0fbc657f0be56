use anyhow::Context;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A page of metrics, of a process that shows them at `http`: "http://host:port".
pub(crate) fn scrape(http: &str) -> anyhow::Result<String> {
    let address = http.strip_prefix("http://").context("an http address")?;
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a head")?;
    anyhow::ensure!(head.contains(" 200 "), "it answers {head}");
    Ok(body.to_owned())
}
