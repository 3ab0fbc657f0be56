use crate::cluster::{BUCKET, Cluster, DEADLINE, bytes_of, frames};
use bytes::Bytes;
use flotilla_client::{Client, ClientError, ClientOptions, S3_VOLUME};
use futures::StreamExt;
use proto::Code;
use proto::om::KeyAttributes;
use std::pin::Pin;

const MIB: usize = 1 << 20;

type Reading = Pin<Box<dyn futures::Stream<Item = Result<Bytes, ClientError>> + Send>>;

fn metric(client: &Client, name: &str) -> usize {
    let mut exposition = metrics::Exposition::default();
    client.expose(&mut exposition);
    let text = exposition.finish();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
}

fn in_use(client: &Client) -> usize {
    metric(client, "flotilla_client_memory_bytes")
}

/// Large pieces have 1.25 MiB of memory, with what is on its way meanwhile, and small ones 128 KiB.
const LARGE: usize = MIB + (256 << 10);
const SMALL: usize = (64 + 68) << 10;

/// Each takes a piece and keeps it, as HTTP does for a client that takes nothing. With what memory each of
/// them has.
async fn readers_who_stop(client: &Client, key: &proto::om::Key) -> Vec<(Bytes, Reading, usize)> {
    let mut stopped = Vec::new();
    loop {
        match client.may_read().await {
            Ok(()) => {}
            Err(refused) => {
                assert_eq!(refused.code(), Some(Code::Busy));
                return stopped;
            }
        }
        let before = in_use(client);
        let mut reading: Reading = Box::pin(client.read(&key.pieces, 0..key.size));
        let piece = reading.next().await.unwrap().unwrap();
        stopped.push((piece, reading, in_use(client) - before));
        assert!(in_use(client) <= 8 * MIB);
        assert!(stopped.len() < 200, "there is no end");
    }
}

/// Keeps nothing of what it takes. The most memory that was in use after the first MiB.
async fn take_all(client: &Client, reading: &mut Reading) -> (Vec<u8>, usize) {
    let (mut read, mut most) = (Vec::new(), 0);
    while let Some(piece) = reading.next().await {
        read.extend_from_slice(&piece.unwrap());
        if read.len() > MIB {
            most = most.max(in_use(client));
        }
    }
    (read, most)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_who_take_nothing_share_one_memory_and_others_go_on_in_what_they_leave() {
    let cluster = Cluster::start().await;
    let body = bytes_of(4 * MIB + 77, 1);
    cluster.put("read", body.clone()).await.unwrap();
    let client = Client::connect(ClientOptions { memory_bytes_max: 8 * MIB, ..cluster.client_options() });
    client.ready(DEADLINE).await.unwrap();
    let key = client.lookup(S3_VOLUME, BUCKET, b"read").await.unwrap();
    let mut stopped = readers_who_stop(&client, &key).await;
    assert_eq!(metric(&client, "flotilla_client_memory_refused_total"), 1);
    // 1.25 MiB each until half is taken, then 132 KiB.
    assert_eq!(stopped.len(), 4 + 23);
    assert_eq!(stopped.iter().filter(|(_, _, has)| *has == LARGE).count(), 4);
    assert_eq!(stopped.iter().filter(|(_, _, has)| *has == SMALL).count(), 23);

    stopped.truncate(18);
    let others = in_use(&client);
    let (read, most) = take_all(&client, &mut client.read(&key.pieces, 0..key.size).boxed()).await;
    assert!(read == body);
    assert!(most <= others + SMALL, "{most} of {others}");
    let written =
        client.put(S3_VOLUME, BUCKET, b"written", KeyAttributes::default(), None, frames(body.clone()));
    assert_eq!(written.await.unwrap().size, body.len() as u64);
    assert!(cluster.get("written").await.unwrap() == body);
    // A reader that goes on after large pieces goes on in small ones.
    let (piece, mut rest, has) = stopped.remove(0);
    let others = in_use(&client) - has;
    let (read, most) = take_all(&client, &mut rest).await;
    assert!([&piece[..], &read].concat() == body);
    let first = piece.len().next_multiple_of(4096);
    assert!(most <= others + SMALL + first, "{most}: {others} of others, and {first} for the first piece");
    drop((piece, rest, stopped));
    assert_eq!(in_use(&client), 0);
    let (read, most) = take_all(&client, &mut client.read(&key.pieces, 0..key.size).boxed()).await;
    assert!(read == body);
    assert!(most >= MIB, "large again: {most}");
    cluster.stop().await;
}
