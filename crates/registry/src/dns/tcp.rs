use super::Counts;
use super::reply::{Over, Reply, reply};
use super::zone::Zone;
use httpd::counted_as;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// The most connections at a time, of a few kilobytes each, and of one address. One more is closed at once.
const CONNECTIONS_MAX: usize = 256;
const CONNECTIONS_PER_ADDRESS_MAX: usize = 64;
/// A connection that asks nothing, or takes no answer, for this long is closed.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// A question is a few dozen bytes; what is longer than this is none.
const QUESTION_BYTES_MAX: usize = 4096;
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Serves until `stop`; on return no connection is open.
pub(super) async fn serve(
    listener: TcpListener,
    zone: Arc<Zone>,
    counts: Arc<Counts>,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let mut open: Vec<(IpAddr, AbortHandle)> = Vec::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        while connections.try_join_next().is_some() {}
        open.retain(|(_, connection)| !connection.is_finished());
        match accepted {
            Ok((stream, from)) => {
                let address = counted_as(from.ip());
                let of_address = open.iter().filter(|(of, _)| *of == address).count();
                if open.len() >= CONNECTIONS_MAX || of_address >= CONNECTIONS_PER_ADDRESS_MAX {
                    counts.connections_refused.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let (zone, counts) = (zone.clone(), counts.clone());
                let connection = connections.spawn(async move {
                    if let Err(error) = answer_all(stream, &zone, &counts).await {
                        debug!(%error, %from, "dns over tcp");
                    }
                });
                open.push((address, connection));
            }
            Err(error) => {
                debug!(%error, "accept a dns connection");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
    connections.shutdown().await;
}

/// Answers all messages of a connection, each of which has its length in front of it.
async fn answer_all(mut stream: TcpStream, zone: &Zone, counts: &Counts) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    loop {
        let Some(question) = timeout(IDLE_MAX, read(&mut stream)).await.map_err(late)?? else {
            return Ok(());
        };
        counts.tcp.fetch_add(1, Ordering::Relaxed);
        match reply(zone, &question, Over::Tcp) {
            Reply::Answer(answer) => timeout(IDLE_MAX, write(&mut stream, &answer)).await.map_err(late)??,
            // The stream's rest, after a malformed message, is no better.
            Reply::Malformed(answer) => {
                counts.malformed.fetch_add(1, Ordering::Relaxed);
                if let Some(answer) = answer {
                    timeout(IDLE_MAX, write(&mut stream, &answer)).await.map_err(late)??;
                }
                return Ok(());
            }
        }
    }
}

/// Reads the next message; `None` at the end of the stream.
async fn read(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let len = match stream.read_u16().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => usize::from(other?),
    };
    if len > QUESTION_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a question of {len} bytes")));
    }
    let mut question = vec![0; len];
    stream.read_exact(&mut question).await?;
    Ok(Some(question))
}

async fn write(stream: &mut TcpStream, answer: &[u8]) -> io::Result<()> {
    let len = u16::try_from(answer.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let framed = [&len.to_be_bytes(), answer].concat();
    stream.write_all(&framed).await
}
