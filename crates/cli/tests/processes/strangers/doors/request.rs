//! A request as a stranger may send it, byte for byte, and the answer that comes.

use super::Failed;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const PIECE_BYTES: usize = 64 << 10;

/// The wish of a client, before anybody signs it. Path, parameters and values are as they are meant, without
/// percent-encoding.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: String,
    query: Vec<(String, String)>,
    pub(super) headers: Vec<(String, String)>,
    /// Where it says that it goes, if not where it goes.
    pub(super) host: Option<String>,
    pub(super) signs_host: bool,
    /// The region it is signed for.
    pub(super) region: &'static str,
    pub(super) body: Vec<u8>,
}

/// A request on its way: what is added now is not signed.
pub(super) struct Sent {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    more_bytes: usize,
}

pub(super) struct Answer {
    /// 0: none came before the connection ended.
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
    /// Bytes of the body that went into the connection.
    pub(super) taken_bytes: usize,
}

impl Request {
    pub(super) fn new(method: &'static str, path: &str) -> Request {
        Request {
            method,
            path: path.to_owned(),
            query: Vec::new(),
            headers: Vec::new(),
            host: None,
            signs_host: true,
            region: "us-east-1",
            body: Vec::new(),
        }
    }

    pub(super) fn query(mut self, name: &str, value: &str) -> Request {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `name` in small letters.
    pub(super) fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn host(mut self, host: &str) -> Request {
        self.host = Some(host.to_owned());
        self
    }

    pub(super) fn without_signing_host(mut self) -> Request {
        self.signs_host = false;
        self
    }

    pub(super) fn region(mut self, region: &'static str) -> Request {
        self.region = region;
        self
    }

    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Request {
        self.body = body.into();
        self
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Encoded and sorted, as it is signed, and sent.
    pub(super) fn canonical_query(&self) -> String {
        let mut pairs: Vec<_> =
            self.query.iter().map(|(name, value)| (encode(name, b""), encode(value, b""))).collect();
        pairs.sort_unstable();
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }
}

impl Sent {
    pub(super) fn of(request: Request, host: &str) -> Sent {
        let query = request.canonical_query();
        let target = match query.is_empty() {
            true => encode(&request.path, b"/"),
            false => format!("{}?{query}", encode(&request.path, b"/")),
        };
        let host = request.host.unwrap_or_else(|| host.to_owned());
        let mut headers = vec![("host".to_owned(), host)];
        headers.extend(request.headers);
        let line = format!("{} {target} HTTP/1.1", request.method);
        Sent { line, headers, body: request.body, more_bytes: 0 }
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Sent {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, though it may be signed for another host.
    pub(super) fn at_host(mut self, host: &str) -> Sent {
        self.headers[0].1 = host.to_owned();
        self
    }

    /// The same with parameters, encoded already, where it has none.
    pub(super) fn with_query(mut self, query: &str) -> Sent {
        self.line = self.line.replace(" HTTP/1.1", &format!("?{query} HTTP/1.1"));
        self
    }

    /// The same with a signature of which one digit is another.
    pub(super) fn forged(mut self) -> Sent {
        let forge = |text: &mut String| {
            if let Some(at) = text.find("Signature=").map(|at| at + "Signature=".len()) {
                let other = if text[at..].starts_with('0') { "1" } else { "0" };
                text.replace_range(at..at + 1, other);
            }
        };
        forge(&mut self.line);
        self.headers.iter_mut().for_each(|(_, value)| forge(value));
        self
    }

    /// The 64 digits of a signature of Version 4.
    pub(super) fn signature(&self) -> &str {
        let all = || [&self.line].into_iter().chain(self.headers.iter().map(|(_, value)| value));
        let found = all().find_map(|text| Some(&text[text.find("Signature=")? + "Signature=".len()..]));
        &found.expect("it is signed")[..64]
    }

    /// So many bytes follow the body, of those that it announces.
    pub(super) fn and_more(mut self, bytes: usize) -> Sent {
        self.more_bytes = bytes;
        self
    }

    fn says(&self, name: &str) -> bool {
        self.headers.iter().any(|(other, _)| other == name)
    }

    fn head(&self) -> String {
        let mut head = format!("{}\r\n", self.line);
        self.headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        if !self.says("content-length") {
            head.push_str(&format!("content-length: {}\r\n", self.body.len() + self.more_bytes));
        }
        head + "connection: close\r\n\r\n"
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        const FILLING: &[u8] = &[b' '; PIECE_BYTES];
        let more = self.more_bytes.div_ceil(PIECE_BYTES);
        let more = (0..more).map(|at| &FILLING[..PIECE_BYTES.min(self.more_bytes - at * PIECE_BYTES)]);
        self.body.chunks(PIECE_BYTES).chain(more)
    }

    /// Sends it, and reads meanwhile: it may be refused before all was said. Then the end is told, so that
    /// nobody waits for what was announced and does not come.
    pub(super) async fn ask(self, address: &str) -> Result<Answer, Failed> {
        let (mut reader, mut writer) = connect(address).await?.into_split();
        let (mut answer, mut taken_bytes) = (Vec::new(), 0);
        let writing = async {
            writer.write_all(self.head().as_bytes()).await?;
            for piece in self.pieces() {
                writer.write_all(piece).await?;
                taken_bytes += piece.len();
            }
            match self.says("content-length") {
                true => writer.shutdown().await,
                false => Ok(()),
            }
        };
        let both = futures::future::join(writing, reader.read_to_end(&mut answer));
        let in_time = tokio::time::timeout(DEADLINE, both).await;
        if in_time.is_err() {
            return Err(format!("{} was not answered to its end within {DEADLINE:?}", self.line));
        }
        Ok(Answer::parse(&answer, taken_bytes))
    }

    /// Sends it and waits for nothing: its connection, or none where it was refused, or nobody took the rest.
    pub(super) async fn hold(self, address: &str, within: Duration) -> Result<Option<TcpStream>, Failed> {
        let mut stream = connect(address).await?;
        let sending = async {
            stream.write_all(self.head().as_bytes()).await?;
            for piece in self.pieces() {
                stream.write_all(piece).await?;
            }
            Ok::<(), std::io::Error>(())
        };
        let is_sent = matches!(tokio::time::timeout(within, sending).await, Ok(Ok(())));
        let is_answered = stream.try_read(&mut [0]).is_ok();
        Ok((is_sent && !is_answered).then_some(stream))
    }

    /// Sends the head alone: its connection, once the body is asked for.
    pub(super) async fn begin(self, address: &str) -> Result<TcpStream, Failed> {
        const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        let head = self.with("expect", "100-continue").head();
        let mut stream = connect(address).await?;
        let mut said = [0; GO_ON.len()];
        let begun = async {
            stream.write_all(head.as_bytes()).await?;
            stream.read_exact(&mut said).await
        };
        match tokio::time::timeout(DEADLINE, begun).await {
            Ok(Ok(_)) if said == GO_ON => Ok(stream),
            _ => Err(format!("no body is asked for, but said {:?}", String::from_utf8_lossy(&said))),
        }
    }

    /// Sends all of it before it reads, as Node and Python do.
    pub(super) async fn ask_at_its_end(self, address: &str) -> Result<Answer, Failed> {
        let mut stream = connect(address).await?;
        let mut answer = Vec::new();
        let said = async {
            stream.write_all(self.head().as_bytes()).await?;
            for piece in self.pieces() {
                stream.write_all(piece).await?;
            }
            stream.read_to_end(&mut answer).await
        };
        let said = tokio::time::timeout(DEADLINE, said).await.map_err(|_| "no answer".to_owned())?;
        said.map_err(|error| format!("a client that sends all before it reads sees: {error}"))?;
        Ok(Answer::parse(&answer, self.body.len() + self.more_bytes))
    }
}

async fn connect(address: &str) -> Result<TcpStream, Failed> {
    TcpStream::connect(address).await.map_err(|error| format!("{address}: {error}"))
}

impl Answer {
    fn parse(bytes: &[u8], taken_bytes: usize) -> Answer {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = match head.contains("transfer-encoding: chunked") {
            true => without_chunks(body),
            false => body.to_owned(),
        };
        Answer { status, head, body, taken_bytes }
    }

    /// Whether it is the refusal that is wanted, and says why; otherwise what was answered to `what`.
    pub(super) fn refuses(&self, what: &str, status: u16, code: &str) -> Result<(), Failed> {
        if self.status != status || self.element("Code") != Some(code) {
            return Err(format!("{what} is answered {}, not {status} {code}", self.said()));
        }
        match self.has_words() {
            true => Ok(()),
            false => Err(format!("{what} is refused without a word: {}", self.said())),
        }
    }

    /// Whether it has the text that clients show to people.
    pub(super) fn has_words(&self) -> bool {
        self.element("Message").is_some_and(|message| !message.trim().is_empty())
    }

    /// A success, without which a refusal of nearly the same says nothing.
    pub(super) fn succeeds(&self, what: &str) -> Result<(), Failed> {
        match self.status {
            200..300 => Ok(()),
            _ => Err(format!("{what}, which is right, is answered {}", self.said())),
        }
    }

    pub(super) fn said(&self) -> String {
        format!("{} {}", self.status, self.body.chars().take(400).collect::<String>().escape_debug())
    }

    /// The text of the first element of that name.
    pub(super) fn element(&self, name: &str) -> Option<&str> {
        let (_, rest) = self.body.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
    }
}

fn without_chunks(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap_or(0);
        let Some((chunk, rest)) = rest.split_at_checked(length).filter(|_| length > 0) else { break };
        whole.push_str(chunk);
        body = rest.trim_start_matches("\r\n");
    }
    whole
}

/// Percent-encoding as signatures have it.
pub(super) fn encode(text: &str, kept: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) || kept.contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
