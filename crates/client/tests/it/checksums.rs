//! Bytes that fit the checksums their replica sends with them, and not what was written: as if a block held
//! another's.

use crate::cluster::{BUCKET, Cluster, DEADLINE, bytes_of};
use bytes::Bytes;
use flotilla_client::{Client, ClientError, ClientOptions, S3_VOLUME};
use futures::{StreamExt, TryStreamExt};
use proto::om::{BlockPiece, Key};
use std::ops::Range;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// The bytes that came, and how the read ended.
async fn read(client: &Client, pieces: &[BlockPiece], range: Range<u64>) -> (Bytes, Result<(), ClientError>) {
    let mut stream = Box::pin(client.read(pieces, range));
    let mut came = Vec::new();
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => came.extend_from_slice(&chunk),
            Err(error) => {
                assert!(stream.try_next().await.unwrap().is_none(), "nothing comes after an error");
                return (came.into(), Err(error));
            }
        }
    }
    (came.into(), Ok(()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_piece_that_is_not_what_was_written_ends_with_an_error() {
    let mut cluster = Cluster::start().await;
    // One chunk that is all of its piece is asked of every replica before the reader gives up.
    let options = ClientOptions { read_deadline: Duration::from_millis(500), ..cluster.client_options() };
    let client = Client::connect(options);
    client.ready(DEADLINE).await.unwrap();

    for size in [100, 5 * MIB + 1] {
        let (name, body) = (format!("size-{size}"), bytes_of(size, 3));
        cluster.put(&name, body.clone()).await.unwrap();
        let key: Key = client.lookup(S3_VOLUME, BUCKET, name.as_bytes()).await.unwrap();
        let (came, end) = read(&client, &key.pieces, 0..key.size).await;
        assert!(end.is_ok() && came == body, "{size}: {end:?}");

        let mut others = key.pieces.clone();
        others[0].crc ^= 1;
        let (came, end) = read(&client, &others, 0..key.size).await;
        assert!(matches!(end, Err(ClientError::Unreadable { .. })), "{size}: {end:?}");
        assert!(came.len() < size && came == body[..came.len()], "{size}: {} bytes", came.len());
        // Less than the piece has only the replica's word.
        let (came, end) = read(&client, &others, 1..key.size).await;
        assert!(end.is_ok() && came == body[1..], "{size}: {end:?}");

        // The piece before it comes whole; the one behind it does not come.
        let pieces = [key.pieces.clone(), others, key.pieces].concat();
        let (came, end) = read(&client, &pieces, 0..3 * key.size).await;
        assert!(end.is_err() && (size..2 * size).contains(&came.len()), "{size}: {end:?}");
    }

    // Who is silent may have what was written: nobody has said that it is lost.
    let key: Key = client.lookup(S3_VOLUME, BUCKET, b"size-100").await.unwrap();
    let mut others = key.pieces.clone();
    others[0].crc ^= 1;
    cluster.nodes.remove(0).stop().await;
    let (_, end) = read(&client, &others, 0..key.size).await;
    assert!(matches!(end, Err(ClientError::Unavailable(_))), "{end:?}");
    cluster.stop().await;
}

/// A server of HTTP/2 asks an answer without bytes for more.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_may_be_asked_for_more_after_its_end() {
    let cluster = Cluster::start().await;
    let mut empty = Box::pin(cluster.client.read(&[], 0..0));
    assert!(empty.next().await.is_none() && empty.next().await.is_none());
    cluster.put("key", bytes_of(5, 1)).await.unwrap();
    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"key").await.unwrap();
    let mut whole = Box::pin(cluster.client.read(&key.pieces, 0..5));
    assert_eq!(whole.next().await.unwrap().unwrap(), bytes_of(5, 1));
    assert!(whole.next().await.is_none() && whole.next().await.is_none());
    let mut beyond = Box::pin(cluster.client.read(&key.pieces, 0..6));
    assert!(beyond.next().await.unwrap().is_err());
    assert!(beyond.next().await.is_none() && beyond.next().await.is_none());
    cluster.stop().await;
}
