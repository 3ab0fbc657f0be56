use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use futures::StreamExt;
use httpd::{Counters, Limits, Plain, Port, RequestId, Stalled, Transport, Work};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// By when everything has happened that is to happen, on a machine that does much else.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const SMALL_BYTES: usize = 4096;

/// Far above what sockets hold.
const LARGE_BYTES: usize = 256 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// A port with a few answers; ends with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) counters: Arc<Counters>,
    pub(crate) stop: CancellationToken,
    /// Requests of `/wait` are answered one for each permit.
    pub(crate) go: Arc<Semaphore>,
    pub(crate) task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start(limits: Limits) -> Server {
        Server::start_with(limits, 1024, Plain).await
    }

    pub(crate) async fn start_with(limits: Limits, work_max: usize, transport: impl Transport) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counters = Arc::new(Counters::default());
        let go = Arc::new(Semaphore::new(0));
        let port = Port {
            name: "test",
            router: router(go.clone(), Work::new(work_max, counters.clone())),
            limits: Arc::new(limits),
            counters: counters.clone(),
            document: |code, message, id| ("text/plain", format!("{code}: {message} ({id})")),
            request_id_header: HeaderName::from_static("x-request-id"),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(httpd::serve(listener, port, transport, stop.clone()));
        Server { address, counters, stop, go, task }
    }

    pub(crate) async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// From another address of this machine, 127.0.0.`last`.
    pub(crate) async fn connect_from(&self, last: u8) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        Client(socket.connect(self.address).await.unwrap())
    }

    /// The value of a metric, with labels as they stand in the text.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut exposition = metrics::Exposition::default();
        self.counters.expose("test", &mut exposition);
        let text = exposition.finish();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    }

    pub(crate) fn closed(&self, reason: &str) -> u64 {
        self.metric(&format!("flotilla_http_connections_closed_total{{port=\"test\",reason=\"{reason}\"}}"))
    }

    pub(crate) fn refused(&self, reason: &str) -> u64 {
        self.metric(&format!("flotilla_http_connections_refused_total{{port=\"test\",reason=\"{reason}\"}}"))
    }

    pub(crate) fn of_port(&self, name: &str) -> u64 {
        self.metric(&format!("flotilla_http_{name}{{port=\"test\"}}"))
    }

    pub(crate) async fn wait_until(&self, what: &str, condition: impl Fn(&Server) -> bool) {
        let give_up = Instant::now() + DEADLINE;
        while !condition(self) {
            let mut exposition = metrics::Exposition::default();
            self.counters.expose("test", &mut exposition);
            assert!(Instant::now() < give_up, "not within {DEADLINE:?}: {what}\n{}", exposition.finish());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn router(go: Arc<Semaphore>, work: Work) -> Router {
    let waiting = move || {
        let go = go.clone();
        async move {
            go.acquire().await.unwrap().forget();
            "waited"
        }
    };
    let (reading, making) = (work.clone(), work.clone());
    Router::new()
        .route("/small", get(async || vec![b's'; SMALL_BYTES]))
        .route("/in-two", get(async || Body::from_stream(in_two())))
        .route("/large", get(async || Body::from_stream(large())))
        .route("/id", get(async |Extension(id): Extension<RequestId>| id.to_string()))
        .route("/wait", get(waiting))
        .route("/logs", get(logs))
        .route("/read", put(read))
        .route("/refuse", put(async |_: Request| StatusCode::FORBIDDEN))
        .route(
            "/work/small",
            get(async move || match work.begin() {
                Some(permit) => permit.response_body(Body::from("done")).into_response(),
                None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            }),
        )
        .route(
            "/work/large",
            get(async move || match making.begin() {
                Some(permit) => permit.response_body(Body::from_stream(large())).into_response(),
                None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            }),
        )
        .route(
            "/work/read",
            put(async move |request: Request| match reading.begin() {
                Some(permit) => read(request.map(|body| permit.request_body(body))).await,
                None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            }),
        )
}

/// Says something to the log when it is asked, and again when its answer is taken.
async fn logs() -> Body {
    tracing::info!("the head");
    Body::from_stream(futures::stream::once(async {
        tracing::info!("the body");
        Ok::<_, std::io::Error>(Bytes::from_static(b"logged"))
    }))
}

/// The head of the answer goes before its body is there, as with data that has to be fetched.
fn in_two() -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    futures::stream::once(async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(Bytes::from(vec![b's'; SMALL_BYTES]))
    })
}

fn large() -> impl futures::Stream<Item = std::io::Result<Bytes>> {
    let piece = Bytes::from(vec![b'l'; PIECE_BYTES]);
    futures::stream::iter((0..LARGE_BYTES / PIECE_BYTES).map(move |_| Ok(piece.clone())))
}

async fn read(request: Request) -> Response {
    let mut bytes = 0;
    let mut body = request.into_body().into_data_stream();
    while let Some(frame) = body.next().await {
        match frame {
            Ok(frame) => bytes += frame.len(),
            Err(error) => {
                let status = if Stalled::caused(&error) {
                    StatusCode::REQUEST_TIMEOUT
                } else {
                    StatusCode::BAD_REQUEST
                };
                return status.into_response();
            }
        }
    }
    bytes.to_string().into_response()
}

/// A connection that sends what it is told to.
pub(crate) struct Client(pub(crate) TcpStream);

/// An answer, its body as long as its header says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

impl Client {
    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: t\r\n\r\n")).await;
        self.answer().await
    }

    pub(crate) async fn answer(&mut self) -> Answer {
        timeout(DEADLINE, self.answer_read()).await.expect("an answer in time").expect("an answer")
    }

    /// `None` where the connection ends before the answer does.
    pub(crate) async fn answer_read(&mut self) -> Option<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        if answer.header("transfer-encoding").is_some() {
            loop {
                let bytes = usize::from_str_radix(&self.line().await?, 16).unwrap();
                let mut piece = vec![0; bytes + 2];
                self.0.read_exact(&mut piece).await.ok()?;
                answer.body.extend_from_slice(&piece[..bytes]);
                if bytes == 0 {
                    return Some(answer);
                }
            }
        }
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        answer.body = vec![0; length];
        self.0.read_exact(&mut answer.body).await.ok()?;
        Some(answer)
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(self.0.read_u8().await.ok()?);
        }
        Some(String::from_utf8(line).unwrap().trim().to_owned())
    }

    /// Reads until the other side closes or resets the connection.
    pub(crate) async fn ended(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        timeout(DEADLINE, async {
            while let Ok(bytes @ 1..) = self.0.read(&mut buffer).await {
                all.extend_from_slice(&buffer[..bytes]);
            }
        })
        .await
        .expect("the connection is closed in time");
        all
    }
}
