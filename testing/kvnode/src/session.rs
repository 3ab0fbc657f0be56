use crate::frame::{Answer, FrameError, GOODBYE, Request, take_frame};
use crate::node::Served;
use crate::outbox::Outbox;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{Semaphore, watch};
use tracing::info;

/// The most requests of one connection that are not yet answered; past it nothing more is read from it. Four
/// times what the benches have under way.
const UNDER_WAY_MAX: u32 = 65_536;
const READ_BYTES: usize = 64 << 10;
/// The time that a client which was told goodbye may take to leave.
const LEAVE_MAX: Duration = Duration::from_millis(500);

/// A client's connection.
pub(crate) struct Session {
    outbox: Outbox,
    room: Semaphore,
}

/// A request that waits for its answer.
pub(crate) struct Caller {
    session: Arc<Session>,
    id: u64,
}

impl Caller {
    pub(crate) fn answer(self, answer: Answer) {
        answer_all([(self, answer)]);
    }
}

/// Answers many requests with one look at each connection in a row, so that its writer wakes once.
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

/// Serves a connection until the client leaves or `stop` is true. Dropping it ends both directions.
pub(crate) async fn serve(socket: TcpStream, served: Arc<Served>, stop: watch::Receiver<bool>) {
    let room = Semaphore::new(UNDER_WAY_MAX as usize);
    let session = Arc::new(Session { outbox: Outbox::default(), room });
    let (from_client, to_client) = socket.into_split();
    let reading = read_until(stop, from_client, &session, &served);
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

/// Takes requests until the client leaves. When the node stops first, what was taken is answered, and then
/// the client hears that nothing else was: what it had sent besides may be asked again elsewhere.
async fn read_until(
    mut stop: watch::Receiver<bool>,
    mut from_client: OwnedReadHalf,
    session: &Arc<Session>,
    served: &Arc<Served>,
) -> io::Result<()> {
    tokio::select! {
        ended = read_requests(&mut from_client, session, served) => return ended,
        // Err: the node is gone, and stops thereby.
        _ = stop.wait_for(|stop| *stop) => {}
    }
    let _answered = session.room.acquire_many(UNDER_WAY_MAX).await.map_err(io::Error::other)?;
    let goodbye = Answer::Unavailable("the node stops".to_owned());
    // A client that is gone needs no goodbye.
    let _ = session.outbox.push(|out| goodbye.encode(GOODBYE, out));
    session.outbox.close();
    // A socket that is closed with something unread takes what was written last away from the other side.
    let leaving = async {
        let mut rest = vec![0; READ_BYTES];
        while from_client.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    };
    // The client was told, whether it leaves in time or not.
    let _ = tokio::time::timeout(LEAVE_MAX, leaving).await;
    Ok(())
}

/// Takes requests until the client leaves. Cancelling that loses nothing that was taken: a request is taken
/// at once.
async fn read_requests(
    from_client: &mut OwnedReadHalf,
    session: &Arc<Session>,
    served: &Arc<Served>,
) -> io::Result<()> {
    let mut received = BytesMut::with_capacity(READ_BYTES);
    loop {
        while let Some(frame) = take_frame(&mut received).map_err(refuse)? {
            let room = session.room.acquire().await.map_err(io::Error::other)?;
            // The permit is given back with the answer.
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
