use crate::server::{Client, DEADLINE, Server};
use httpd::Limits;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::block_in_place;
use tokio::time::Instant;

/// In a process of its own, whose open files are few: a server that serves until its input ends, and says
/// when asked what it counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test below"]
async fn starved_server() {
    let server = Server::start(Limits::default()).await;
    println!("\nADDRESS {}", server.address);
    block_in_place(|| {
        for _ in std::io::stdin().lines() {
            println!("\nFAILURES {}", server.of_port("accept_failures_total"));
        }
    });
}

/// That process.
struct Starved {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Starved {
    fn start() -> Starved {
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -n 40 && exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "starved::starved_server", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Starved { child, input, output }
    }

    fn said(&mut self, word: &str) -> String {
        block_in_place(|| {
            let mut lines = self.output.by_ref().map(Result::unwrap);
            lines.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).expect("it runs")
        })
    }

    fn failures(&mut self) -> u64 {
        self.input.write_all(b"?\n").unwrap();
        self.said("FAILURES").parse().unwrap()
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_file_descriptors_it_waits_and_goes_on_when_there_are_some() {
    let mut starved = Starved::start();
    let address = starved.said("ADDRESS");
    let mut held = Vec::new();
    for _ in 0..60 {
        held.push(Client(TcpStream::connect(&address).await.unwrap()));
    }
    let give_up = Instant::now() + DEADLINE;
    while starved.failures() == 0 {
        assert!(Instant::now() < give_up, "40 files were enough for 60 connections");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Ten attempts a second, not as many as a processor can make.
    let (begin, before) = (Instant::now(), starved.failures());
    while starved.failures() < before + 5 {
        assert!(Instant::now() < give_up, "it does not try again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let attempts = starved.failures() - before;
    let tenths = begin.elapsed().as_millis() as u64 / 100 + 1;
    assert!(attempts <= tenths + 1, "{attempts} in {tenths} tenths of a second");

    // Those that have one are served; those that wait are, when others go.
    assert_eq!(held[0].get("/small").await.status, 200);
    let mut last = held.pop().unwrap();
    drop(held);
    assert_eq!(last.get("/small").await.status, 200);
}
