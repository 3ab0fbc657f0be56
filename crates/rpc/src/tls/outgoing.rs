use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The reason why the server of a channel did not want its newest connection. A client of TLS 1.3 is done
/// with its handshake before the server has seen its certificate: the refusal comes in place of the first
/// answer, and hyper, which reads it, tells requests that wait only that their connection is closed.
#[derive(Clone, Default)]
pub(super) struct Verdict(Arc<Mutex<Option<String>>>);

impl Verdict {
    pub(super) fn reset(&self) {
        *self.0.lock().expect("no holder panics") = None;
    }

    pub(super) fn refused_because(&self) -> Option<String> {
        self.0.lock().expect("no holder panics").clone()
    }

    fn refuse(&self, why: &io::Error) {
        *self.0.lock().expect("no holder panics") = Some(why.to_string());
    }
}

/// A connection of ours, which knows whether the server ever answered on it.
pub(super) struct Outgoing {
    stream: TlsStream<TcpStream>,
    has_answered: bool,
    verdict: Verdict,
}

impl Outgoing {
    pub(super) fn new(stream: TlsStream<TcpStream>, verdict: Verdict) -> Outgoing {
        Outgoing { stream, has_answered: false, verdict }
    }
}

impl AsyncRead for Outgoing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        match &read {
            Ok(()) => self.has_answered |= buf.filled().len() > before,
            // A connection that breaks is no verdict.
            Err(error) if !self.has_answered && is_of_tls(error) => self.verdict.refuse(error),
            Err(_) => {}
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<tokio_rustls::rustls::Error>())
}
