//! The registry of real processes: over HTTP, over DNS, on the command line.

use crate::binary;
use crate::commands::{admin_json, flotilla};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{Cluster, ClusterOptions, Process, Ready};

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Asks over UDP, and over TCP if told that some is missing.
fn ask(server: &str, name: &str, wanted: RecordType) -> Message {
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii(name).unwrap(), wanted));
    let question = question.to_vec().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.send_to(&question, server).unwrap();
    let mut buffer = vec![0; 65_535];
    let len = socket.recv(&mut buffer).unwrap();
    let answer = Message::from_vec(&buffer[..len]).unwrap();
    if answer.metadata.truncation { ask_over_tcp(server, &question) } else { answer }
}

fn ask_over_tcp(server: &str, question: &[u8]) -> Message {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.write_all(&(question.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(question).unwrap();
    let mut len = [0; 2];
    stream.read_exact(&mut len).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut answer).unwrap();
    Message::from_vec(&answer).unwrap()
}

fn ports(answer: &Message) -> Vec<u16> {
    let mut ports: Vec<u16> = answer
        .answers
        .iter()
        .map(|record| match &record.data {
            RData::SRV(srv) => srv.port,
            other => panic!("{other} is no SRV"),
        })
        .collect();
    ports.sort_unstable();
    ports
}

fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

async fn becomes(
    what: &str,
    within: Duration,
    mut wanted: impl AsyncFnMut() -> Result<(), String>,
) -> Duration {
    let begun = Instant::now();
    while let Err(why) = wanted().await {
        assert!(begun.elapsed() < within, "{what}: not within {within:?}: {why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    begun.elapsed()
}

/// One HTTP server's registry.
struct Http {
    base: String,
    client: reqwest::Client,
}

impl Http {
    fn new(base: &str) -> Http {
        Http { base: base.to_owned(), client: reqwest::Client::new() }
    }

    async fn send(&self, method: Method, path: &str, body: &str) -> Response {
        let request = self.client.request(method, format!("{}{path}", self.base)).body(body.to_owned());
        request.send().await.unwrap()
    }

    /// Status, index and JSON.
    async fn json(&self, method: Method, path: &str, body: &str) -> (u16, Option<u64>, Value) {
        let answer = self.send(method, path, body).await;
        let status = answer.status().as_u16();
        let index = answer.headers().get("x-flotilla-index");
        let index = index.map(|index| index.to_str().unwrap().parse().unwrap());
        let text = answer.text().await.unwrap();
        (status, index, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}")))
    }

    async fn get(&self, path: &str) -> (u16, Option<u64>, Value) {
        self.json(Method::GET, path, "").await
    }

    /// Passing instances of each service.
    async fn passing(&self) -> Value {
        let (status, _, body) = self.get("/v1/registry/services").await;
        assert_eq!(status, 200, "{body}");
        let services = body["services"].as_array().unwrap();
        services.iter().map(|s| (s["service"].as_str().unwrap().to_owned(), s["passing"].clone())).collect()
    }
}

fn is(found: &Value, expect: &Value) -> Result<(), String> {
    if found == expect { Ok(()) } else { Err(format!("{found}, not {expect}")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_in_its_own_registry_and_who_is_killed_leaves_dns() {
    let options =
        ClusterOptions { scm_args: "--dns-listen 127.0.0.1:0".to_owned(), ..ClusterOptions::default() };
    let mut cluster = Cluster::start(binary(), &options);
    let http = Http::new(&cluster.scm_ready["HTTP"]);
    let dns = cluster.scm_ready["DNS"].clone();
    let all = json!({ "scm": 1, "om": 1, "s3gw": 1, "datanode": 3 });
    becomes("all roles register", DEADLINE, async || is(&http.passing().await, &all)).await;

    let srv = |service: &str| ports(&ask(&dns, &format!("{service}.service.flotilla."), RecordType::SRV));
    let mut datanodes: Vec<u16> = cluster.datanode_addresses.iter().map(|at| port_of(at)).collect();
    datanodes.sort_unstable();
    becomes("dns follows", DEADLINE, async || is(&json!(srv("datanode")), &json!(datanodes))).await;
    let gateway = json!([port_of(&cluster.endpoint)]);
    becomes("the gateway's primary address", DEADLINE, async || is(&json!(srv("s3gw")), &gateway)).await;
    let scm = json!([port_of(&cluster.scm_address)]);
    becomes("scm itself", DEADLINE, async || is(&json!(srv("scm")), &scm)).await;
    let address = async || {
        let a = ask(&dns, "dn1.datanode.service.flotilla.", RecordType::A);
        assert!(a.metadata.authoritative, "{a:?}");
        let addresses: Vec<String> = a.answers.iter().map(|record| record.data.to_string()).collect();
        is(&json!(addresses), &json!(["127.0.0.1"]))
    };
    becomes("a datanode's address", DEADLINE, address).await;
    assert_eq!(ask(&dns, "s3gw.service.flotilla.", RecordType::AAAA).answers, []);
    let code = |name: &str| ask(&dns, name, RecordType::A).metadata.response_code;
    assert_eq!(code("nobody.service.flotilla."), ResponseCode::NXDomain);
    assert_eq!(code("*.flotilla."), ResponseCode::NXDomain);
    assert_eq!(code("example.com."), ResponseCode::Refused);

    cluster.gateway.kill9();
    let gone = async || is(&json!(srv("s3gw")), &json!([]));
    let took = becomes("a killed gateway leaves dns", DEADLINE, gone).await;
    eprintln!("a gateway that was killed was in dns for {:.1} s", took.as_secs_f64());
    assert_eq!(code("s3gw.service.flotilla."), ResponseCode::NoError, "it is known, and not well");
    cluster.datanodes[0].kill9();
    let others: Vec<u16> =
        datanodes.iter().copied().filter(|port| *port != port_of(&cluster.datanode_addresses[0])).collect();
    let gone = async || is(&json!(srv("datanode")), &json!(others));
    let took = becomes("a killed datanode leaves dns", DEADLINE, gone).await;
    eprintln!("a datanode that was killed was in dns for {:.1} s", took.as_secs_f64());

    cluster.gateway.start_again();
    cluster.datanodes[0].start_again();
    becomes("both come back", DEADLINE, async || is(&json!(srv("datanode")), &json!(datanodes))).await;
    becomes("both come back", DEADLINE, async || is(&json!(srv("s3gw")), &gateway)).await;
    cluster.gateway.terminate();
    // One that is only silent stays known for minutes.
    let gone = async || match code("s3gw.service.flotilla.") {
        ResponseCode::NXDomain => Ok(()),
        other => Err(other.to_string()),
    };
    becomes("who stops says so", DEADLINE, gone).await;
}

/// An SCM alone.
fn scm(dir: &Path, more: &str) -> (Process, Ready) {
    let meta = dir.join("meta").display().to_string();
    let line = format!("server --roles scm --rpc 127.0.0.1:0 --http 127.0.0.1:0 --meta {meta} {more}");
    Process::start(binary(), dir, "scm", line.split_whitespace().map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let (process, ready) = scm(dir.path(), "");
    let http = Http::new(&ready["HTTP"]);
    let (status, index, body) = http.json(Method::PUT, "/v1/kv/app/leader?cas=0", "me").await;
    assert_eq!((status, body["revision"].as_u64()), (200, index), "{body}");
    let first = index.unwrap();
    let (status, _, body) = http.json(Method::PUT, "/v1/kv/app/leader?cas=0", "you").await;
    assert_eq!((status, body["code"].as_str()), (412, Some("PRECONDITION_FAILED")), "{body}");
    let (status, _, body) = http.get("/v1/kv/app/leader").await;
    assert_eq!(
        (status, body["value"].as_str(), body["mod_revision"].as_u64()),
        (200, Some("bWU="), Some(first))
    );
    let raw = http.send(Method::GET, "/v1/kv/app/leader?raw", "").await;
    assert_eq!(&raw.bytes().await.unwrap()[..], b"me");
    http.json(Method::PUT, "/v1/kv/app/b%20c%2Fd", "x").await;
    let (_, _, body) = http.get("/v1/kv/app/?prefix&keys").await;
    let keys: Vec<&str> =
        body["entries"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["app/b c/d", "app/leader"]);

    // Long polls: of a key that changes, of one that does not, of one that is to come.
    let (_, index, _) = http.get("/v1/kv/app/leader").await;
    let index = index.unwrap();
    let begun = Instant::now();
    let poll = async |path: String| (http.get(&path).await, begun.elapsed());
    let write = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        http.json(Method::PUT, "/v1/kv/app/leader", "you").await.1.unwrap()
    };
    let waits = poll(format!("/v1/kv/app/leader?index={index}&wait=60s"));
    let other = poll(format!("/v1/kv/app/other?index={index}&wait=1s"));
    let (written, (changed, took), (missing, missed)) = tokio::join!(write, waits, other);
    assert_eq!((changed.0, changed.2["value"].as_str()), (200, Some("eW91")));
    assert_eq!(changed.2["mod_revision"].as_u64(), Some(written));
    assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(30), "{took:?}");
    // The index is that of all the registry, in which others write too: this SCM itself.
    assert!(changed.1 >= Some(written), "{changed:?}");
    assert!(missing.0 == 404 && missing.1 >= Some(index), "{missing:?}");
    assert!(missed >= Duration::from_secs(1), "{missed:?}");

    // A time to live, renewed once.
    let begun = Instant::now();
    let (_, put, _) = http.json(Method::PUT, "/v1/kv/lock?ttl=8s", "me").await;
    let put = put.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(http.json(Method::POST, &format!("/v1/kv/lock?renew={put}"), "").await.0, 200);
    assert_eq!(http.get(&format!("/v1/kv/lock?index={put}&wait=60s")).await.0, 404);
    assert!(begun.elapsed() >= Duration::from_millis(9400), "{:?}", begun.elapsed());
    assert_eq!(http.json(Method::POST, &format!("/v1/kv/lock?renew={put}"), "").await.0, 404);

    assert_eq!(http.json(Method::DELETE, "/v1/kv/app/?prefix", "").await.2, json!({ "deleted": 2 }));
    let at_an_address_that_clears_a_terminal =
        r#"{"ttl":"5s","addresses":{"http":"\u001b[2Jh:80"}}"#.to_owned();
    for (method, path, body, expect) in [
        (Method::GET, "/v1/kv/nothing", String::new(), 404),
        (Method::PUT, "/v1/kv/large", "x".repeat((64 << 10) + 1), 413),
        (Method::PUT, "/v1/kv/larger", "x".repeat(1 << 20), 413),
        (Method::PUT, "/v1/kv/k?ttl=soon", String::new(), 400),
        (Method::PUT, "/v1/kv/k?case=1", String::new(), 400),
        (Method::DELETE, "/v1/kv", String::new(), 400),
        (Method::PUT, "/v1/registry/services/datanode/dn1", r#"{"ttl":"5s"}"#.to_owned(), 400),
        (Method::PUT, "/v1/registry/services/web/a", at_an_address_that_clears_a_terminal, 400),
    ] {
        let answer = http.send(method.clone(), path, &body).await;
        assert_eq!(answer.status().as_u16(), expect, "{method} {path}: {}", answer.text().await.unwrap());
    }
    let page = http.send(Method::GET, "/metrics", "").await.text().await.unwrap();
    let page = testkit::prometheus::Scrape::parse(&page).unwrap();
    assert_eq!(page.value("flotilla_registry_keys", &[]), Some(0.0));
    assert_eq!(page.value("flotilla_registry_expired_total", &[("what", "key")]), Some(1.0));
    drop(process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_over_http() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, ready) = scm(dir.path(), "--dns-listen 127.0.0.1:0 --dns-zone store.example");
    let http = Http::new(&ready["HTTP"]);
    let register = async |ttl: &str| {
        let checks = json!([{ "name": "db", "health": "passing" }]);
        let body = json!({ "ttl": ttl, "addresses": { "http": "192.0.2.7:80" }, "checks": checks });
        let path = "/v1/registry/services/web/a";
        let (status, index, registered) = http.json(Method::PUT, path, &body.to_string()).await;
        assert_eq!(status, 200, "{registered}");
        (index.unwrap(), format!("{path}/renew?lease={}", registered["lease"]))
    };
    let (_, renew) = register("1h").await;
    let (_, _, known) = http.get("/v1/registry/services/web").await;
    assert_eq!(known["instances"][0]["health"], "passing", "{known}");
    let name = "a.web.service.store.example.";
    let in_dns = async || is(&json!(ask(&ready["DNS"], name, RecordType::A).answers.len()), &json!(1));
    becomes("dns has it", DEADLINE, in_dns).await;

    for id in ["b", "c"] {
        let path = format!("/v1/registry/services/pages/{id}");
        assert_eq!(http.json(Method::PUT, &path, r#"{"ttl":"1h"}"#).await.0, 200);
    }
    let page = async |question: &str| {
        let (_, _, page) = http.get(&format!("/v1/registry/services/pages?{question}")).await;
        let ids = page["instances"].as_array().unwrap().iter().map(|it| it["id"].clone());
        json!([ids.collect::<Value>(), page["next"]])
    };
    assert_eq!(page("limit=1").await, json!([["b"], "c"]));
    assert_eq!(page("from=c").await, json!([["c"], null]));
    assert_eq!(http.get("/v1/registry/services/pages/bb").await.0, 404, "the next one is not it");
    let many =
        format!(r#"{{"checks":[{{"name":"db","health":"passing","output":"{}"}}]}}"#, "x".repeat(8 << 10));
    assert_eq!(http.json(Method::POST, &renew, &many).await.0, 413, "a renewal is bounded");
    let clears_a_terminal = r#"{"checks":[{"name":"db","health":"passing","output":"\u001b[2J"}]}"#;
    assert_eq!(http.json(Method::POST, &renew, clears_a_terminal).await.0, 400, "and is no command");

    // It registers again, and nobody renews: the long poll hears it.
    let (index, renew) = register("5s").await;
    let (_, _, known) = http.get(&format!("/v1/registry/services/web?index={index}&wait=60s")).await;
    assert_eq!(known["instances"][0]["health"], "critical", "{known}");
    let (_, _, passing) = http.get("/v1/registry/services/web?passing").await;
    assert_eq!(passing["instances"], json!([]));
    let gone = async || is(&json!(ask(&ready["DNS"], name, RecordType::A).answers.len()), &json!(0));
    becomes("dns has it no more", DEADLINE, gone).await;

    let warns = r#"{"checks":[{"name":"db","health":"warning","output":"slow"}]}"#;
    let is_warning = async || {
        assert_eq!(http.json(Method::POST, &renew, warns).await.0, 200);
        is(&http.get("/v1/registry/services/web/a").await.2["health"], &json!("warning"))
    };
    becomes("it speaks again", DEADLINE, is_warning).await;
    assert_eq!(http.json(Method::DELETE, "/v1/registry/services/web/a", "").await.0, 200);
    assert_eq!(http.json(Method::POST, &renew, "").await.0, 404);
    assert_eq!(http.get("/v1/registry/services/web/a").await.0, 404);
    assert!(process.terminate().success(), "{}", process.log());
}

#[test]
fn the_registry_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let (process, ready) = scm(dir.path(), "");
    let at = ready["RPC"].as_str();
    let run = |words: &[&str], stdin: Option<&[u8]>| {
        let args = [&["admin", "--scm", at, "registry"], words].concat();
        let output = flotilla(&args, stdin);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, said, _) = run(&["kv", "put", "a/1", "-", "--cas", "0"], Some(b"from a pipe"));
    assert!(code == 0 && said.starts_with("revision "), "{said}");
    let (code, _, why) = run(&["kv", "put", "a/1", "x", "--cas", "0"], None);
    assert!(code == 3 && why.contains("is at revision"), "{code} {why}");
    assert_eq!(run(&["kv", "get", "a/1"], None).1, "from a pipe\n");
    let (code, _, why) = run(&["kv", "get", "a/2"], None);
    assert!(code == 4 && why.contains("there is no key `a/2`"), "{code} {why}");
    run(&["kv", "put", "a/2", "y", "--ttl", "1h"], None);
    let (_, table, _) = run(&["kv", "list", "a/"], None);
    assert!(table.lines().count() == 3 && table.contains("3600 s"), "{table}");
    let told = run(&["kv", "watch", "a/", "--from", "1", "--count", "2"], None).1;
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines[0].ends_with("put      a/1  from a pipe") && lines[1].ends_with("put      a/2  y"),
        "{told}"
    );
    assert_eq!(run(&["kv", "delete", "a/", "--prefix"], None).1, "deleted 2\n");
    assert_eq!(run(&["kv", "delete", "a/1"], None).0, 4);
    assert_eq!(run(&["kv", "get"], None).0, 2);
    // What would turn the direction of a line is data for a program, and escaped in a table.
    run(&["kv", "put", "b", "\u{202e}y"], None);
    assert_eq!(run(&["kv", "get", "b"], None).1, "\u{202e}y\n");
    let (_, table, _) = run(&["kv", "list", "b"], None);
    assert!(table.contains("\\u202ey") && !table.contains('\u{202e}'), "{table}");
    let give_up = Instant::now() + DEADLINE;
    let instance = loop {
        let instances = admin_json(at, &["registry", "instances", "scm"]);
        match instances["instances"].get(0) {
            Some(instance) if instance["health"] == "passing" => break instance.clone(),
            _ => assert!(Instant::now() < give_up, "the scm does not register: {instances}"),
        }
    };
    assert_eq!(instance["addresses"]["grpc"], *at);
    assert_eq!(admin_json(at, &["registry", "services"])["services"][0]["service"], "scm");
    drop(process);
}
