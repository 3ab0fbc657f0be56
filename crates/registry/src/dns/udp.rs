use super::Counts;
use super::reply::{Over, Reply, reply};
use super::zone::Zone;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::UdpSocket;
use tracing::debug;

/// A question is a few dozen bytes; what is longer than this is none.
const QUESTION_BYTES_MAX: usize = 4096;
/// The pause after a socket's error, which is mostly one of a packet before.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Answers one message after the other: an answer is a look into memory. Ends only by being dropped, which is
/// safe anywhere.
pub(super) async fn serve(socket: UdpSocket, zone: &Zone, counts: &Counts) -> io::Result<()> {
    let mut buffer = vec![0; QUESTION_BYTES_MAX];
    loop {
        let (len, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                debug!(%error, "receive a dns message");
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        counts.udp.fetch_add(1, Ordering::Relaxed);
        let answer = match reply(zone, &buffer[..len], Over::Udp) {
            Reply::Answer(answer) => Some(answer),
            Reply::Malformed(answer) => {
                counts.malformed.fetch_add(1, Ordering::Relaxed);
                answer
            }
        };
        // Port 0 is nobody's.
        if let Some(answer) = answer.filter(|_| from.port() != 0)
            && let Err(error) = socket.send_to(&answer, from).await
        {
            debug!(%error, %from, "send a dns message");
        }
    }
}
