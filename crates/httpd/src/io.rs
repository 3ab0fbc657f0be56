use crate::traffic::Traffic;
use crate::transport::Stream;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// A connection's stream, lent to hyper. What passes is noted in its traffic, and a head gets no more room
/// than it may have.
pub(crate) struct Lent<S> {
    /// Used by one task at a time, which owns both hyper's connection and the other handle.
    stream: Arc<Mutex<S>>,
    traffic: Arc<Traffic>,
}

impl<S: Stream> Lent<S> {
    /// The other handle gets the stream back when hyper is done.
    pub(crate) fn new(stream: S, traffic: Arc<Traffic>) -> (Lent<S>, Arc<Mutex<S>>) {
        let stream = Arc::new(Mutex::new(stream));
        (Lent { stream: stream.clone(), traffic }, stream)
    }

    fn stream(&self) -> MutexGuard<'_, S> {
        self.stream.lock().expect("no holder panics")
    }

    fn note(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Pending => self.traffic.cannot_send(Instant::now()),
            Poll::Ready(Ok(bytes)) => self.traffic.sent(*bytes, Instant::now()),
            Poll::Ready(Err(_)) => {}
        }
        result
    }
}

impl<S: Stream> AsyncRead for Lent<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = self.traffic.head_room().unwrap_or(usize::MAX);
        if room == 0 {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a head is too large")));
        }
        let before = buf.filled().len();
        let mut stream = self.stream();
        if room >= buf.remaining() {
            std::task::ready!(Pin::new(&mut *stream).poll_read(cx, buf))?;
        } else {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
            std::task::ready!(Pin::new(&mut *stream).poll_read(cx, &mut part))?;
            let count = part.filled().len();
            buf.advance(count);
        }
        if !self.traffic.received(&buf.filled()[before..], Instant::now()) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "too many streams are reset",
            )));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Stream> AsyncWrite for Lent<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut *self.stream()).poll_write(cx, bytes);
        self.note(result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut *self.stream()).poll_write_vectored(cx, bytes);
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut *self.stream()).poll_flush(cx);
        if flushed.is_pending() {
            self.traffic.cannot_send(Instant::now());
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream()).poll_shutdown(cx)
    }
}
