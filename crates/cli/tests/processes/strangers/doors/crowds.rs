//! Crowds that lean on one limit each. Where the limit is a gateway's own, it is one that has little: a few
//! strangers are to it what thousands are to a large one.

use super::house::{House, Peak};
use super::keys::{Keys, UNSIGNED_PAYLOAD};
use super::request::Request;
use super::{Failed, Seen};
use crate::binary;
use crate::doors::half_sent;
use crate::s3::S3;
use crate::strangers::crowd::{Crowd, target};
use crate::strangers::words;
use std::fs;
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;
use testkit::{ACCESS_KEY, Process, SECRET_KEY};
use tonic::transport::Endpoint;

const MIB: usize = 1 << 20;
/// Far below what anybody who is shut out waits, and above what a machine that stalls takes.
const ANSWER_MAX: Duration = Duration::from_secs(8);
/// The time within which a crowd has come to its limit, and others are served as before, on such a machine.
const SHUT_OUT_MAX: Duration = Duration::from_secs(45);
const APPEND: &str = "/flotilla.raft.v1.RaftTransport/Append";

/// A gateway of the same cluster, beside the one that the house has.
struct Gateway {
    process: Process,
    keys: Keys,
    s3: S3,
    address: String,
    _dir: tempfile::TempDir,
}

impl Gateway {
    fn start(house: &House, name: &str, limits: &str) -> Gateway {
        let dir = tempfile::tempdir().expect("a directory");
        let key = dir.path().join("key");
        fs::write(&key, SECRET_KEY).expect("a file");
        let line = format!(
            "server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --http 127.0.0.1:0 --scm {} \
             --access-key {ACCESS_KEY} --secret-key-file {} {limits}",
            house.cluster.scm_address,
            key.display()
        );
        let (process, ready) = Process::start(binary(), dir.path(), name, words(&line));
        let address = ready["S3_ENDPOINT"].trim_start_matches("http://").to_owned();
        let keys = Keys {
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            host: address.clone(),
        };
        let s3 = S3::new(&ready["S3_ENDPOINT"], ACCESS_KEY, SECRET_KEY, super::house::BUCKET);
        Gateway { process, keys, s3, address, _dir: dir }
    }

    /// What the slowest of some requests of an honest client takes, none of which may fail.
    async fn serves(&self) -> Result<Duration, Failed> {
        serves(&self.s3).await
    }
}

async fn serves(s3: &S3) -> Result<Duration, Failed> {
    let mut slowest = Duration::ZERO;
    for number in 0..5 {
        let begun = Instant::now();
        let text = format!("beside-{number}");
        let both = async {
            s3.put("beside-a-crowd", text.clone().into_bytes()).await?;
            s3.get("beside-a-crowd").await
        };
        let got = tokio::time::timeout(ANSWER_MAX, both).await;
        let got = got.map_err(|_| format!("an honest client has no answer after {ANSWER_MAX:?}"))??;
        if got.as_deref() != Some(text.as_bytes()) {
            return Err(format!("an honest client reads {:?} bytes", got.map(|got| got.len())));
        }
        slowest = slowest.max(begun.elapsed());
    }
    Ok(slowest)
}

/// All places are taken by those who say nothing, from addresses of which none has more than its part.
pub(super) async fn idle_addresses(house: &House) -> Seen {
    const PLACES: usize = 256;
    let gateway = Gateway::start(house, "few-places", &format!("--s3-connections-max {PLACES}"));
    gateway.serves().await?;
    let crowd = Crowd::idle_from(&gateway.address, 2 * PLACES, PLACES / 4).await;
    // Who is idle has been so for a while.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let slowest = gateway.serves().await?;
    Ok(format!("{} come, for {PLACES} places; honest requests take {slowest:?}", crowd.count()))
}

/// Streams of HTTP/2 that ask for megabytes and take nothing, many to a connection.
pub(super) async fn slow_streams(house: &House) -> Seen {
    const CONNECTIONS: usize = 40;
    const STREAMS: usize = 16;
    let gateway = Gateway::start(house, "little-memory", "--s3-memory-bytes 67108864");
    gateway.s3.put("slow", vec![7; 4 * MIB]).await?;
    let peak = Peak::of(&gateway.process);
    let wanted = target(&gateway.s3.get_url("slow", None));
    let crowd = Crowd::slow_streams(&gateway.address, &wanted, CONNECTIONS, STREAMS).await;
    // Whoever lets others wait for 2 s is slow, and those who are too many are let go of then: until then
    // others may hear that they should come later.
    let begun = Instant::now();
    let (mut in_turn, mut until, mut slowest) = (0, Duration::ZERO, Duration::ZERO);
    while in_turn < 20 {
        match gateway.serves().await {
            Ok(took) => (in_turn, slowest) = (in_turn + 1, slowest.max(took)),
            Err(why) if begun.elapsed() > SHUT_OUT_MAX => {
                return Err(format!("{:?} after they came: {why}", begun.elapsed()));
            }
            Err(_) => (in_turn, until, slowest) = (0, begun.elapsed(), Duration::ZERO),
        }
    }
    let grown = peak.stayed_below(192 * MIB as u64, "slow streams")?;
    let streams = crowd.count() * STREAMS;
    Ok(format!("{streams} streams take nothing; honest requests take {slowest:?} after {until:?}, {grown}"))
}

/// Documents that come to their last byte but one, and no further.
pub(super) async fn half_documents(house: &House) -> Seen {
    const DOCUMENTS: usize = 40;
    let gateway = Gateway::start(house, "little-room", "--s3-memory-bytes 67108864");
    gateway.serves().await?;
    let upload = house.s3.begin_upload("half-document").await?;
    let complete = || {
        let request = Request::new("POST", "/first/half-document").query("uploadId", &upload);
        let request = request.header("x-amz-content-sha256", UNSIGNED_PAYLOAD);
        let sent = gateway.keys.in_headers(request).with("content-length", &(4 * MIB).to_string());
        sent.and_more(4 * MIB - 1)
    };
    let peak = Peak::of(&gateway.process);
    let mut held = Vec::new();
    let mut refused = 0;
    for sending in (0..DOCUMENTS).map(|_| complete().hold(&gateway.address, ANSWER_MAX)) {
        match sending.await? {
            Some(connection) => held.push(connection),
            None => refused += 1,
        }
    }
    if refused == 0 {
        return Err(format!("{DOCUMENTS} documents of 4 MiB are taken where 64 MiB are room"));
    }
    let slowest = gateway.serves().await?;
    let grown = peak.stayed_below(160 * MIB as u64, "half-sent documents")?;
    Ok(format!("of {DOCUMENTS} documents {refused} are refused; honest requests take {slowest:?}, {grown}"))
}

/// Messages of gRPC that come to their last byte but one. From an address of their own.
pub(super) async fn half_messages(house: &House) -> Seen {
    const MESSAGES: usize = 20;
    /// A little less than a message of this kind may have.
    const MESSAGE_BYTES: usize = 23 * MIB;
    /// Half of what messages have that wait for their rest, and what the receiving of them takes besides.
    const GROWTH_BYTES_MAX: u64 = (256 + 96) << 20;
    let address = &house.cluster.datanode_addresses[0];
    let peak = Peak::of(&house.cluster.datanodes[0]);
    let own = Some(std::net::Ipv4Addr::new(127, 0, 7, 8).into());
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|why| why.to_string())?;
    let endpoint = endpoint.local_address(own);
    let mut held = Vec::new();
    for _ in 0..MESSAGES {
        let channel = endpoint.connect().await.map_err(|why| why.to_string())?;
        held.push(half_sent(channel, APPEND, MESSAGE_BYTES));
    }
    let begun = Instant::now();
    while given_up(&house.cluster.datanode_http[0]).await? == 0.0 {
        if begun.elapsed() > SHUT_OUT_MAX {
            return Err("none of them is given up for lack of room: they came to no limit".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let slowest = serves(&house.s3).await?;
    let sent = MESSAGES * MESSAGE_BYTES / MIB;
    let grown = peak.stayed_below(GROWTH_BYTES_MAX, &format!("{sent} MiB of half messages"))?;
    held.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(format!("{sent} MiB of half messages come; honest requests take {slowest:?}, {grown}"))
}

/// The number of messages that a process gave up for lack of room.
async fn given_up(http: &str) -> Result<f64, Failed> {
    let page = reqwest::get(format!("{http}/metrics")).await.map_err(|why| why.to_string())?;
    let page = Scrape::parse(&page.text().await.map_err(|why| why.to_string())?)?;
    let found = page.value("flotilla_rpc_messages_given_up_total", &[("reason", "no_room")]);
    found.ok_or_else(|| "no metric of messages that are given up".to_owned())
}

/// A page of metrics takes work: who asks for many of them at once gets one.
pub(super) async fn metrics_crowd(house: &House) -> Seen {
    const ASK: usize = 256;
    let url = format!("{}/metrics", house.cluster.gateway_http);
    let asked: Vec<_> = (0..ASK)
        .map(|_| {
            let url = url.clone();
            tokio::spawn(async move {
                let page = reqwest::get(&url).await.map_err(|why| why.to_string())?;
                let status = page.status();
                page.text().await.map_err(|why| why.to_string())?;
                Ok::<bool, Failed>(status.is_success())
            })
        })
        .collect();
    let slowest = serves(&house.s3).await?;
    let mut answered = 0;
    for asked in asked {
        answered += usize::from(asked.await.map_err(|why| why.to_string())? == Ok(true));
    }
    match answered > 0 {
        true => Ok(format!("{answered} of {ASK} get a page; honest requests take {slowest:?} meanwhile")),
        false => Err(format!("none of {ASK} who ask for metrics gets a page")),
    }
}
