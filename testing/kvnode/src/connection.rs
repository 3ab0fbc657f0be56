use crate::frame::{Answer, FrameError, GOODBYE, Request, take_frame};
use crate::outbox::Outbox;
use bytes::BytesMut;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const READ_BYTES: usize = 64 << 10;

/// A connection to one node, any number of requests under way on it.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    /// The tasks that read and write; they end with the connection.
    _tasks: JoinSet<()>,
}

struct Shared {
    outbox: Outbox,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next_id: u64,
    by_id: HashMap<u64, oneshot::Sender<Answer>>,
    is_closed: bool,
    /// Whether the node ended the connection in order.
    said_goodbye: bool,
}

/// A request that is waited for; whoever stops waiting leaves nothing behind.
struct Asking<'a> {
    shared: &'a Shared,
    id: u64,
    is_over: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.waiting.lock().expect("no holder panics").by_id.remove(&self.id);
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskError {
    /// The request may or may not have arrived.
    #[error("the connection broke")]
    Broken,
    #[error("the node stops, and did not take the request")]
    NotTaken,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> io::Result<Connection> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (from_node, to_node) = socket.into_split();
        let shared = Arc::new(Shared { outbox: Outbox::default(), waiting: Mutex::default() });
        let mut tasks = JoinSet::new();
        let reader = shared.clone();
        tasks.spawn(async move {
            // Whatever ended the reading, nobody gets an answer any more.
            let _ = reader.read(from_node).await;
            reader.close();
        });
        let writer = shared.clone();
        tasks.spawn(async move {
            let _ = writer.outbox.write_to(to_node).await;
            writer.close();
        });
        Ok(Connection { shared, _tasks: tasks })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.waiting.lock().expect("no holder panics").is_closed
    }

    /// Asks and waits for the answer. Cancelling that forgets the answer, not the request.
    pub(crate) async fn ask(&self, group: u32, request: &Request) -> Result<Answer, AskError> {
        let (to, answer) = oneshot::channel();
        let id = {
            let mut waiting = self.shared.waiting.lock().expect("no holder panics");
            if waiting.is_closed {
                // Nothing of the request was sent.
                return Err(AskError::NotTaken);
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.by_id.insert(id, to);
            id
        };
        let mut asking = Asking { shared: &self.shared, id, is_over: false };
        if !self.shared.outbox.push(|out| request.encode(id, group, out)) {
            return Err(AskError::NotTaken);
        }
        let answer = answer.await;
        // The request is answered or the connection closed: its entry is gone.
        asking.is_over = true;
        answer.map_err(|_| self.shared.why_ended())
    }
}

impl Shared {
    async fn read(&self, mut from_node: OwnedReadHalf) -> io::Result<()> {
        let refuse = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut received = BytesMut::with_capacity(READ_BYTES);
        let mut answers = Vec::new();
        loop {
            while let Some(frame) = take_frame(&mut received).map_err(refuse)? {
                answers.push(Answer::decode(frame).map_err(refuse)?);
            }
            {
                let mut waiting = self.waiting.lock().expect("no holder panics");
                for (id, answer) in answers.drain(..) {
                    if id == GOODBYE {
                        // A request that was noted too late to be written is left, and was not taken; one
                        // that was written has its answer before this.
                        waiting.said_goodbye = !waiting.is_closed;
                        return Ok(());
                    }
                    if let Some(to) = waiting.by_id.remove(&id) {
                        // A caller that stopped waiting needs no answer.
                        let _ = to.send(answer);
                    }
                }
            }
            received.reserve(READ_BYTES);
            if from_node.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        }
    }

    fn why_ended(&self) -> AskError {
        match self.waiting.lock().expect("no holder panics").said_goodbye {
            true => AskError::NotTaken,
            false => AskError::Broken,
        }
    }

    fn close(&self) {
        let mut waiting = self.waiting.lock().expect("no holder panics");
        waiting.is_closed = true;
        waiting.by_id.clear();
        drop(waiting);
        self.outbox.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    const DEADLINE: Duration = Duration::from_secs(30);

    /// A connection, and its other side.
    async fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = Connection::open(&listener.local_addr().unwrap().to_string()).await.unwrap();
        (connection, listener.accept().await.unwrap().0)
    }

    async fn say(node: &mut TcpStream, id: u64, answer: &Answer) {
        let mut out = BytesMut::new();
        answer.encode(id, &mut out);
        node.write_all(&out).await.unwrap();
    }

    #[tokio::test]
    async fn who_stops_waiting_leaves_nothing_behind() {
        let (connection, mut node) = pair().await;
        for _ in 0..3 {
            let asked = connection.ask(1, &Request::Facts);
            tokio::time::timeout(Duration::from_millis(5), asked).await.expect_err("nobody answers");
        }
        assert_eq!(connection.shared.waiting.lock().unwrap().by_id.len(), 0);
        // Late answers are for nobody; the connection goes on.
        let (asked, ()) = tokio::join!(connection.ask(1, &Request::Facts), async {
            for id in 1..=4 {
                say(&mut node, id, &Answer::Done(Bytes::new())).await;
            }
        });
        assert_eq!(asked, Ok(Answer::Done(Bytes::new())));
        assert_eq!(connection.shared.waiting.lock().unwrap().by_id.len(), 0);
    }

    #[tokio::test]
    async fn what_a_stopping_node_did_not_take_is_told_from_what_a_broken_connection_leaves_open() {
        for (says_goodbye, expect) in [(true, AskError::NotTaken), (false, AskError::Broken)] {
            let (connection, mut node) = pair().await;
            let (first, second, ()) =
                tokio::join!(connection.ask(1, &Request::Facts), connection.ask(1, &Request::Facts), async {
                    say(&mut node, 1, &Answer::Busy).await;
                    if says_goodbye {
                        say(&mut node, GOODBYE, &Answer::Unavailable("it stops".to_owned())).await;
                    }
                    node.shutdown().await.unwrap();
                });
            assert_eq!((first, second), (Ok(Answer::Busy), Err(expect)), "goodbye: {says_goodbye}");
            let closed = async {
                while !connection.is_closed() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(DEADLINE, closed).await.expect("it is seen to be closed");
            assert_eq!(connection.ask(1, &Request::Facts).await, Err(AskError::NotTaken));
        }
    }
}
