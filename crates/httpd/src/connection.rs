use crate::accept::Port;
use crate::addresses::Place;
use crate::exchange::Exchange;
use crate::io::Lent;
use crate::refusal::Refusal;
use crate::request_id::RequestId;
use crate::traffic::{CloseReason, Traffic};
use crate::transport::{Stream, Transport};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::SockRef;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// The bytes that each read takes of a client that lingers; they are thrown away.
const LINGER_READ_BYTES: usize = 16 << 10;

/// The time for which a client that lingers is still read when the process is to end.
const LINGER_DRAIN_MAX: Duration = Duration::from_millis(300);

/// hyper's settings, the same for all connections of a port.
pub(crate) fn builder(port: &Port) -> Builder<TokioExecutor> {
    let limits = &port.limits;
    let mut builder = Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    // This timer stands behind our own, which tells an idle connection from a head that does not come;
    // hyper's timer knows only one time for both.
    http1.timer(TokioTimer::new()).header_read_timeout(limits.idle_max + limits.head_max).keep_alive(true);
    // A head has to fit, too.
    http1.max_buf_size(limits.buffer_bytes_max.max(limits.head_bytes_max + 1));
    // hyper keeps a hundred on its stack; another number costs an allocation for each request.
    if limits.headers_max != 100 {
        http1.max_headers(limits.headers_max);
    }
    let head_bytes_max = u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(head_bytes_max)
        .max_concurrent_streams(limits.http2_streams_max)
        .max_send_buf_size(limits.buffer_bytes_max)
        // Resets are counted before h2 sees them; its own count of those it has not handed over yet never
        // comes to as many.
        .max_pending_accept_reset_streams(limits.http2_resets_per_second_max as usize)
        .max_local_error_reset_streams(limits.http2_stream_errors_max);
    builder
}

/// Serves one connection to its end.
pub(crate) async fn run<T: Transport>(
    connection: TcpStream,
    peer: SocketAddr,
    place: Place,
    port: Arc<Port>,
    transport: T,
    builder: Arc<Builder<TokioExecutor>>,
    stop: CancellationToken,
) -> CloseReason {
    let displaced = place.displaced().clone();
    let stream = tokio::select! {
        opened = timeout(port.limits.head_max, transport.open(connection)) => match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(_)) | Err(_) => return CloseReason::Handshake,
        },
        () = displaced.cancelled() => return CloseReason::Displaced,
        () = stop.cancelled() => return CloseReason::Drained,
    };
    let traffic = Arc::new(Traffic::new(port.limits.clone(), port.counters.clone(), place));
    let (lent, stream) = Lent::new(stream, traffic.clone());
    let exchange = Exchange { port: port.clone(), peer, traffic: traffic.clone(), spent: Default::default() };
    let end = run_http(lent, Arc::new(exchange), &builder, &displaced, &stop).await;
    debug!(%peer, ?end, "connection ends");
    // hyper is done with the stream, and nobody else has a handle.
    if let Some(stream) = Arc::into_inner(stream).and_then(|stream| stream.into_inner().ok()) {
        run_close(stream, end, &port, &traffic, &stop).await;
    }
    end
}

async fn run_http<S: Stream>(
    lent: Lent<S>,
    exchange: Arc<Exchange>,
    builder: &Builder<TokioExecutor>,
    displaced: &CancellationToken,
    stop: &CancellationToken,
) -> CloseReason {
    let traffic = exchange.traffic.clone();
    let service = {
        let exchange = exchange.clone();
        service_fn(move |request| exchange.clone().serve(request))
    };
    let mut http = pin!(builder.serve_connection(TokioIo::new(lent), service));
    let mut look = pin!(tokio::time::sleep(traffic.limits.look_again_after()));
    let mut draining = false;
    loop {
        tokio::select! {
            result = http.as_mut() => {
                return match result {
                    _ if traffic.head_is_too_large() => CloseReason::HeadTooLarge,
                    _ if traffic.resets_too_much() => CloseReason::Resets,
                    _ if draining => CloseReason::Drained,
                    Ok(()) => CloseReason::Finished,
                    Err(_) => CloseReason::Broken,
                };
            }
            () = look.as_mut() => {
                let now = Instant::now();
                if traffic.is_drained(now) {
                    return CloseReason::Drained;
                }
                match traffic.look(now) {
                    Ok(next) => look.as_mut().reset(next),
                    Err(end) => return end,
                }
            }
            () = displaced.cancelled() => return CloseReason::Displaced,
            () = stop.cancelled(), if !draining => {
                draining = true;
                let now = Instant::now();
                traffic.drain(now);
                look.as_mut().reset(now + Duration::from_millis(10));
                http.as_mut().graceful_shutdown();
            }
            // On HTTP/1 the last answer says that the connection ends.
            () = exchange.spent.notified(), if traffic.is_http2() => http.as_mut().graceful_shutdown(),
        }
    }
}

/// Says what can still be said, and lets the client read it.
async fn run_close<S: Stream>(
    mut stream: S,
    end: CloseReason,
    port: &Port,
    traffic: &Traffic,
    stop: &CancellationToken,
) {
    match end {
        CloseReason::HeadTimeout if !traffic.is_http2() => {
            refuse(stream, Refusal::HeadTimeout, port, stop).await
        }
        CloseReason::HeadTooLarge => refuse(stream, Refusal::HeadTooLarge, port, stop).await,
        CloseReason::SlowReader | CloseReason::Crowded => forget(&stream),
        CloseReason::Finished | CloseReason::Broken | CloseReason::Drained
            if traffic.is_unread() && !traffic.is_http2() =>
        {
            linger(&mut stream, port, stop).await;
        }
        CloseReason::Finished
        | CloseReason::Broken
        | CloseReason::Handshake
        | CloseReason::Idle
        | CloseReason::Displaced
        | CloseReason::HeadTimeout
        | CloseReason::Resets
        | CloseReason::Drained => {}
    }
}

/// Closes at once: what the kernel still holds for this client, megabytes perhaps, goes with it.
fn forget(stream: &impl Stream) {
    let _ = SockRef::from(stream.tcp()).set_linger(Some(Duration::ZERO));
}

/// An answer without a request, on a connection that was accepted to be refused, or on which HTTP/1 has
/// ended.
pub(crate) async fn refuse<S: Stream>(
    mut stream: S,
    refusal: Refusal,
    port: &Port,
    stop: &CancellationToken,
) {
    let id = RequestId::random();
    let answer = refusal.bytes(port.document, id, &port.request_id_header);
    let said = timeout(port.limits.linger_max, stream.write_all(&answer)).await;
    if matches!(said, Ok(Ok(()))) {
        port.counters.sent_bytes.add(answer.len() as u64);
        linger(&mut stream, port, stop).await;
    }
}

/// Reads on a little. Bytes that arrive at a closed socket are answered with a reset, which takes from the
/// client what it has not read yet: the answer. And a client that is still writing learns of the reset as
/// EPIPE, and reads no answer at all.
async fn linger<S: Stream>(stream: &mut S, port: &Port, stop: &CancellationToken) {
    let limits = &port.limits;
    let reading = async {
        let mut left = limits.linger_bytes_max;
        let mut buffer = vec![0; LINGER_READ_BYTES];
        // hyper may have shut it down already.
        let _ = stream.shutdown().await;
        while left > 0 {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(bytes) => {
                    port.counters.received_bytes.add(bytes as u64);
                    left = left.saturating_sub(bytes as u64);
                }
            }
        }
    };
    let drained = async {
        stop.cancelled().await;
        tokio::time::sleep(LINGER_DRAIN_MAX).await;
    };
    tokio::select! {
        () = reading => {}
        () = tokio::time::sleep(limits.linger_max) => {}
        () = drained => {}
    }
}
