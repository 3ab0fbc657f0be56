use crate::frame::{Answer, FrameError, Request, take_frame};
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
    /// Ended with the connection.
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
}

/// The connection broke: the request may or may not have arrived.
#[derive(Debug, thiserror::Error)]
#[error("the connection broke")]
pub(crate) struct Broken;

impl Connection {
    pub(crate) async fn open(address: &str) -> io::Result<Connection> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let (from_node, to_node) = socket.into_split();
        let shared = Arc::new(Shared { outbox: Outbox::default(), waiting: Mutex::default() });
        let mut tasks = JoinSet::new();
        let reader = shared.clone();
        tasks.spawn(async move {
            // Whatever ended it, nobody gets an answer any more.
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

    /// Cancelling it forgets the answer, not the request.
    pub(crate) async fn ask(&self, group: u32, request: &Request) -> Result<Answer, Broken> {
        let (to, answer) = oneshot::channel();
        let id = {
            let mut waiting = self.shared.waiting.lock().expect("no holder panics");
            if waiting.is_closed {
                return Err(Broken);
            }
            waiting.next_id += 1;
            let id = waiting.next_id;
            waiting.by_id.insert(id, to);
            id
        };
        if !self.shared.outbox.push(|out| request.encode(id, group, out)) {
            return Err(Broken);
        }
        answer.await.map_err(|_| Broken)
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
                    if let Some(to) = waiting.by_id.remove(&id) {
                        // Who stopped waiting needs no answer.
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

    fn close(&self) {
        let mut waiting = self.waiting.lock().expect("no holder panics");
        waiting.is_closed = true;
        waiting.by_id.clear();
        drop(waiting);
        self.outbox.close();
    }
}
