//! `flotilla health`: what container runtimes and scripts ask, with nothing installed but the binary.

use crate::args::HealthArgs;
use crate::output;
use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// The time for an answer: a gateway asks its cluster, for a second at most, before it gives one.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(200);
/// The most bytes of an answer: more than all roles of a process have to say.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Asks a process, and returns the exit code: 0 when it is ready, or with `--live` when it answers; 1
/// otherwise. Prints what it says of its roles.
pub(crate) async fn run(args: HealthArgs) -> ExitCode {
    // `None` is a time too far away to be told.
    let give_up = Instant::now().checked_add(args.within.unwrap_or_default());
    loop {
        let (address, path) = (args.http.clone(), if args.live { "/healthz" } else { "/readyz" });
        let asked = tokio::task::spawn_blocking(move || ask(&address, path)).await;
        let asked = asked.map_err(anyhow::Error::from).and_then(|asked| asked);
        let is_well = matches!(asked, Ok((200, _)));
        if !is_well && give_up.is_none_or(|give_up| Instant::now() < give_up) {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let told = asked.and_then(|(_, text)| Ok(output::print(&text)?));
        if let Err(error) = told {
            output::complain(&format!("flotilla: {error:#}"));
            return ExitCode::FAILURE;
        }
        return if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
}

/// Asks once, and returns the answer's status and text. Blocks.
fn ask(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let mut found = address.to_socket_addrs().with_context(|| format!("look up {address}"))?;
    let found = found.next().with_context(|| format!("{address} has no address"))?;
    let context = || format!("ask http://{address}{path}");
    let mut connection = TcpStream::connect_timeout(&found, ANSWER_MAX).with_context(context)?;
    connection.set_read_timeout(Some(ANSWER_MAX))?;
    connection.set_write_timeout(Some(ANSWER_MAX))?;
    // HTTP/1.0: the end of the answer is the end of the connection.
    write!(connection, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").with_context(context)?;
    let mut answer = Vec::new();
    connection.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).with_context(context)?;
    read_answer(&String::from_utf8_lossy(&answer)).with_context(context)
}

fn read_answer(answer: &str) -> anyhow::Result<(u16, String)> {
    let Some((head, text)) = answer.split_once("\r\n\r\n") else { bail!("the answer is cut off") };
    let mut words = head.split_whitespace();
    let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    match words.next().and_then(|status| status.parse().ok()) {
        Some(status) if is_http => Ok((status, text.to_owned())),
        _ => bail!("that is no answer in HTTP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_and_the_text_are_read() {
        let answer = "HTTP/1.0 503 Service Unavailable\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(read_answer(answer).unwrap(), (503, "no\n".to_owned()));
        for wrong in ["", "HTTP/1.0 200 OK\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 OK\r\n\r\n"] {
            assert!(read_answer(wrong).is_err(), "{wrong}");
        }
    }
}
