use crate::server::Server;
use httpd::Limits;
use std::io;
use std::sync::{Arc, Mutex};
use tracing::dispatcher::Dispatch;
use tracing::level_filters::LevelFilter;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All of it is on this thread, whose log is looked at.
#[tokio::test]
async fn each_line_that_is_logged_of_a_request_has_the_id_that_its_answer_names() {
    let server = Server::start(Limits::default()).await;
    // With a second log about, what another test's thread says first is not taken for unwanted on this one.
    let _second = Dispatch::new(tracing_subscriber::fmt().with_max_level(LevelFilter::OFF).finish());
    let written = Written::default();
    let writer = written.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _log = tracing::subscriber::set_default(log);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = server.connect().await.get("/logs").await;
        assert_eq!(answer.text(), "logged");
        ids.push(answer.header("x-request-id").unwrap().to_owned());
    }
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    for what in ["the head", "the body"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.ends_with(what)).collect();
        assert_eq!(lines.len(), 2, "{text}");
        for (line, id) in lines.iter().zip(&ids) {
            assert!(line.contains(&format!("request{{id={id} peer=127.0.0.1:")), "{id}: {line}");
        }
    }
}
