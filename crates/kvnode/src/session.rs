use crate::frame::{Answer, FrameError, Request, take_frame};
use crate::node::Served;
use crate::outbox::Outbox;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::Semaphore;
use tracing::info;

/// Requests of one connection that are not yet answered; past it nothing more is read from it. Four times what the
/// benches have under way.
const UNDER_WAY_MAX: usize = 65_536;
const READ_BYTES: usize = 64 << 10;

/// A client's connection.
pub(crate) struct Session {
    outbox: Outbox,
    room: Semaphore,
}

/// Who waits for an answer.
pub(crate) struct Caller {
    session: Arc<Session>,
    id: u64,
}

impl Caller {
    pub(crate) fn answer(self, answer: Answer) {
        answer_all([(self, answer)]);
    }
}

/// Answers many with one look at each connection in a row, so that its writer wakes once.
pub(crate) fn answer_all(answers: impl IntoIterator<Item = (Caller, Answer)>) {
    let mut answers = answers.into_iter().peekable();
    while let Some((caller, answer)) = answers.next() {
        let session = caller.session;
        let mut count = 1;
        // A client that is gone needs no answer.
        let _ = session.outbox.push(|out| {
            answer.encode(caller.id, out);
            while let Some((caller, answer)) =
                answers.next_if(|(caller, _)| Arc::ptr_eq(&caller.session, &session))
            {
                answer.encode(caller.id, out);
                count += 1;
            }
        });
        session.room.add_permits(count);
    }
}

/// Serves a connection until the client leaves. Dropping it ends both directions.
pub(crate) async fn serve(socket: TcpStream, served: Arc<Served>) {
    let session = Arc::new(Session { outbox: Outbox::default(), room: Semaphore::new(UNDER_WAY_MAX) });
    let (from_client, to_client) = socket.into_split();
    let reading = read_requests(from_client, &session, &served);
    let writing = session.outbox.write_to(to_client);
    let (why, written) = tokio::join!(
        async {
            let why = reading.await;
            // The client may still listen for what it asked last.
            session.outbox.close();
            why
        },
        writing
    );
    if let Err(error) = why.and(written) {
        info!(%error, "a client's connection ended");
    }
}

async fn read_requests(
    mut from_client: OwnedReadHalf,
    session: &Arc<Session>,
    served: &Arc<Served>,
) -> io::Result<()> {
    let mut received = BytesMut::with_capacity(READ_BYTES);
    loop {
        while let Some(frame) = take_frame(&mut received).map_err(refuse)? {
            let room = session.room.acquire().await.map_err(io::Error::other)?;
            // Given back with the answer.
            room.forget();
            take_request(frame, session, served).map_err(refuse)?;
        }
        received.reserve(READ_BYTES);
        if from_client.read_buf(&mut received).await? == 0 {
            return Ok(());
        }
    }
}

fn refuse(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn take_request(frame: Bytes, session: &Arc<Session>, served: &Arc<Served>) -> Result<(), FrameError> {
    let (id, group, request) = Request::decode(frame)?;
    let caller = Caller { session: session.clone(), id };
    served.take(group, request, caller);
    Ok(())
}
