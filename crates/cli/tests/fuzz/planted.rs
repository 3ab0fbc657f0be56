//! A process that fails as the target looks for, each in its way: it is found.

use crate::batch::{Batch, Finding};
use crate::known::Known;
use crate::methods::Protocol;
use crate::reach::Reach;
use crate::watch::Watch;
use proto::process::process_server::{Process as Service, ProcessServer};
use proto::process::{LogRequest, LogResponse};
use std::time::Duration;
use testkit::Process;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Any message of the thousand may be the one.
const CASES: u64 = 1000;

/// A service of which some words are the end.
struct Planted {
    kind: String,
}

#[tonic::async_trait]
impl Service for Planted {
    async fn log(&self, request: Request<LogRequest>) -> Result<Response<LogResponse>, Status> {
        let said = request.into_inner().directives;
        let is_regex = said.iter().any(|said| said.contains("(x|y)"));
        match self.kind.as_str() {
            "panic" if is_regex => panic!("planted: an expression"),
            "abort" if is_regex => std::process::abort(),
            "memory" if is_regex => std::mem::forget(vec![1u8; 300 << 20]),
            "silence" if is_regex => std::future::pending().await,
            _ => {}
        }
        Ok(Response::new(LogResponse::default()))
    }
}

/// The process itself: this binary again, with the kind of its failure and `--ready-file` as words of its
/// command line.
#[tokio::test]
#[ignore = "it is the process that others look at"]
async fn process() {
    let words: Vec<String> = std::env::args().collect();
    let after = |word: &str| words.iter().skip_while(|said| *said != word).nth(1).cloned();
    // Who runs all that is ignored runs no process.
    let (Some(kind), Some(ready)) = (after("--"), after("--ready-file")) else { return };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    std::fs::write(format!("{ready}.new"), format!("RPC={address}\n")).unwrap();
    std::fs::rename(format!("{ready}.new"), ready).unwrap();
    let service = ProcessServer::new(Planted { kind });
    rpc::serve(listener, Routes::new(service), std::future::pending()).await;
}

async fn find(kind: &str) -> Option<Finding> {
    let dir = tempfile::tempdir().unwrap();
    let words = ["planted::process", "--exact", "--ignored", "--nocapture", "--", kind];
    let this = std::env::current_exe().unwrap();
    let (process, ready) = Process::start(&this, dir.path(), "planted", words.map(str::to_owned).to_vec());
    let mut watch = Watch::new([(&process, dir.path().join("planted.1.log"))], MEMORY_BYTES_MAX);
    let methods: Vec<_> =
        Protocol::load().methods.into_iter().filter(|method| method.path.ends_with("Process/Log")).collect();
    let address = [ready["RPC"].clone()];
    let reach = Reach::of(&address, &[], &[]);
    let (known, answered_max) = (Known::default(), Duration::from_secs(2));
    let batch = Batch { reach: &reach, methods: &methods, known: &known, answered_max };
    batch.run(1, CASES, &mut watch).await.err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_planted_is_found() {
    assert!(find("nothing").await.is_none(), "nothing is planted");
    for (kind, why) in [
        ("panic", "planted: an expression"),
        ("abort", "it has ended"),
        ("memory", "MiB of memory"),
        ("silence", "no answer within 2s"),
    ] {
        let finding = find(kind).await.unwrap_or_else(|| panic!("{kind} is not found"));
        assert!(finding.why.contains(why), "{kind}: {}", finding.why);
        let did_it = |said: &String| said.contains("Process/Log") && said.contains("(x|y)");
        assert!(finding.said.iter().any(did_it), "{kind}: {:?}", finding.said);
    }
}
