use crate::server::{NOW_MS, Server, anew, change, commit, lookup, send};
use bytes::Bytes;
use proto::om::*;
use proto::{Code, Failure, RequestId, Retry};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_and_keys_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let (volume, bucket) = (|| "s3v".to_owned(), || "photos".to_owned());
    let again = CreateBucketRequest { volume: volume(), bucket: bucket(), group: None };
    let failure = Failure::from(server.client.create_bucket(anew(again)).await.unwrap_err());
    assert_eq!((failure.code, failure.retry), (Code::BucketExists, Retry::No));
    let head = HeadBucketRequest { volume: volume(), bucket: bucket() };
    let found = server.client.head_bucket(head.clone()).await.unwrap().into_inner().bucket.unwrap();
    assert_eq!((found.name, found.created_ms), (bucket(), NOW_MS));

    assert_eq!(server.commit(commit("a", 1)).await.unwrap().modified_ms, NOW_MS);
    server.commit(commit("b", 2)).await.unwrap();
    assert_eq!(server.lookup("a").await.unwrap().pieces, commit("a", 1).key.unwrap().pieces);
    assert_eq!(server.lookup("c").await.unwrap_err().code, Code::NoSuchKey);

    let keys = vec![Bytes::from("a"), Bytes::from("c")];
    let delete = DeleteKeysRequest { volume: volume(), bucket: bucket(), keys, precondition: None };
    assert_eq!(server.change(delete).await.unwrap().existed, [true, false]);
    let delete_bucket = DeleteBucketRequest { volume: volume(), bucket: bucket() };
    let failure = Failure::from(server.client.delete_bucket(anew(delete_bucket.clone())).await.unwrap_err());
    assert_eq!(failure.code, Code::BucketNotEmpty);
    let delete = DeleteKeysRequest {
        volume: volume(),
        bucket: bucket(),
        keys: vec![Bytes::from("b")],
        precondition: None,
    };
    server.change(delete).await.unwrap();
    server.client.delete_bucket(anew(delete_bucket)).await.unwrap();
    let failure = Failure::from(server.client.head_bucket(head).await.unwrap_err());
    assert_eq!(failure.code, Code::NoSuchBucket);
    assert_eq!(server.commit(commit("a", 3)).await.unwrap_err().code, Code::NoSuchBucket);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_goes_into_one_entry_and_each_gets_its_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let (entries_before, commands_before) = server.entries();
    // Every third one wants a key that is there.
    let present = || Some(Precondition { present: true, ..Precondition::default() });
    let is_refused = |n: u64| n.is_multiple_of(3);
    let request = |n| CommitKeyRequest {
        precondition: is_refused(n).then(present).flatten(),
        ..commit(&format!("key-{n}"), n)
    };
    let done = futures::future::join_all((0..300).map(|n| server.commit(request(n)))).await;
    for (n, done) in (0..).zip(&done) {
        assert_eq!(done.is_err(), is_refused(n), "{n}: {done:?}");
        let found = server.lookup(&format!("key-{n}")).await.map(|key| key.pieces);
        assert_eq!(found.ok(), (!is_refused(n)).then(|| request(n).key.unwrap().pieces), "{n}");
    }
    let (entries, commands) = server.entries();
    assert_eq!(commands - commands_before, 300);
    assert!(entries - entries_before < 150, "{} entries of 300 commands", entries - entries_before);
    server.stop().await;
}

/// Among them one that is refused, one that is in another group, and the same request twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_one_call_are_carried_out_each_by_itself_and_answered_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let put = |id, request| Change::of(request, RequestId(id), Duration::ZERO, None);
    let present = Some(Precondition { present: true, ..Precondition::default() });
    let elsewhere = BucketPlace { group: 9, number: 1, epoch: 0 };
    let changes = vec![
        put(1, commit("a", 1)),
        put(2, CommitKeyRequest { precondition: present, ..commit("b", 2) }),
        Change { place: Some(elsewhere), ..put(3, commit("c", 3)) },
        put(4, commit("d", 4)),
        put(1, commit("a", 1)),
    ];
    let replies = send(&server.client, changes).await.unwrap().into_iter();
    let codes = replies.map(|reply| reply.answer::<CommitKeyRequest>().map_err(|failure| failure.code).err());
    let codes: Vec<Option<Code>> = codes.collect();
    assert!(matches!(codes[..], [None, Some(Code::NoSuchKey), Some(_), None, None]), "{codes:?}");
    for (key, is_there) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        assert_eq!(server.lookup(key).await.is_ok(), is_there, "{key}");
    }
    server.stop().await;
}

/// Keys that fill the answer, by the megabyte, leave no room for the others, which are asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_looked_up_many_at_a_time_while_the_answer_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    server.commit(commit("small", 1)).await.unwrap();
    let mut large = commit("large", 2);
    let key = large.key.as_mut().unwrap();
    key.pieces = vec![key.pieces[0].clone(); 50_000];
    key.size = 500_000;
    server.commit(large).await.unwrap();
    let look_up = async |keys: &[&str]| {
        let request = LookupKeysRequest {
            lookups: keys.iter().map(|key| lookup(key)).collect(),
            ..LookupKeysRequest::default()
        };
        let mut client = server.client.clone().max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        let answer = client.lookup_keys(request).await.map_err(Failure::from)?.into_inner();
        let etag = |reply: LookupReply| {
            let found: Result<Key, Failure> = reply.result?.into();
            Some(found.map(|key| key.etag).map_err(|failure| failure.code))
        };
        Ok::<_, Failure>(answer.replies.into_iter().map(etag).collect::<Vec<_>>())
    };
    let (one, two) = (|| Some(Ok("etag-1".to_owned())), || Some(Ok("etag-2".to_owned())));
    assert_eq!(
        look_up(&["small", "none", "small"]).await.unwrap(),
        [one(), Some(Err(Code::NoSuchKey)), one()]
    );
    let full = look_up(&["large", "large", "small", "large", "small"]).await.unwrap();
    assert_eq!(full, [two(), two(), None, None, None]);
    assert_eq!(look_up(&["small"; 64]).await.unwrap(), vec![one(); 64]);
    assert_eq!(look_up(&["small"; 65]).await.unwrap_err().code, Code::TooLarge);
    let elsewhere = Lookup { place: Some(BucketPlace { group: 9, number: 1, epoch: 0 }), ..lookup("small") };
    let of_two_groups =
        LookupKeysRequest { lookups: vec![lookup("small"), elsewhere], ..LookupKeysRequest::default() };
    let failure = server.client.clone().lookup_keys(of_two_groups).await.map_err(Failure::from).unwrap_err();
    assert_eq!(failure.code, Code::Invalid);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_with_if_none_match_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let absent = Some(Precondition { absent: true, ..Precondition::default() });
    let commits =
        (1..=50).map(|n| server.commit(CommitKeyRequest { precondition: absent.clone(), ..commit("a", n) }));
    let results = futures::future::join_all(commits).await;
    let won: Vec<u64> = (1..).zip(&results).filter(|(_, result)| result.is_ok()).map(|(n, _)| n).collect();
    assert_eq!(won.len(), 1, "{results:?}");
    let lost = results.into_iter().filter_map(Result::err);
    assert!(lost.into_iter().all(|failure| failure.code == Code::PreconditionFailed));
    assert_eq!(server.lookup("a").await.unwrap().etag, format!("etag-{}", won[0]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_goes_from_parts_to_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), Bytes::from("big"));
    let create = CreateUploadRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        key: key.clone(),
        attributes: None,
    };
    let upload = server.change(create).await.unwrap().upload;
    let etag = "0123456789abcdef0123456789abcdef".to_owned();
    for number in 1..=2 {
        let pieces = commit("big", number.into()).key.unwrap().pieces;
        let pieces = vec![BlockPiece { length: 5 << 20, ..pieces[0].clone() }];
        let part = Part { number, size: 5 << 20, etag: etag.clone(), pieces, ..Part::default() };
        let (volume, bucket, key, upload) = (volume.clone(), bucket.clone(), key.clone(), upload.clone());
        let request = CommitPartRequest { volume, bucket, key, upload, part: Some(part) };
        server.change(request).await.unwrap();
    }
    let list = ListUploadsRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        ..ListUploadsRequest::default()
    };
    let uploads = server.client.list_uploads(list.clone()).await.unwrap().into_inner().uploads;
    assert_eq!((uploads.len(), &uploads[0].upload), (1, &upload));
    let request = ListPartsRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        key: key.clone(),
        upload: upload.clone(),
        after: 1,
        limit: 10,
    };
    let parts = server.client.list_parts(request).await.unwrap().into_inner().parts;
    assert_eq!(parts.iter().map(|part| part.number).collect::<Vec<_>>(), [2]);
    let parts = vec![CompletedPart { number: 1, etag: etag.clone() }, CompletedPart { number: 2, etag }];
    let complete =
        CompleteUploadRequest { volume, bucket, key, upload, parts, ..CompleteUploadRequest::default() };
    let answer = server.change(complete).await.unwrap().key.unwrap();
    let found = server.lookup("big").await.unwrap();
    assert_eq!((found.size, found.pieces.len(), found.part_sizes.len()), (10 << 20, 2, 2));
    assert!(found.etag.ends_with("-2") && found.etag == answer.etag, "{}", found.etag);
    assert_eq!(server.client.list_uploads(list).await.unwrap().into_inner().uploads, []);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_and_malformed_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut large = commit("a", 1);
    let key = large.key.as_mut().unwrap();
    key.pieces = vec![key.pieces[0].clone(); 200_000];
    key.size = 2_000_000;
    assert_eq!(server.commit(large).await.unwrap_err().code, Code::TooLarge);
    assert_eq!(server.commit(CommitKeyRequest::default()).await.unwrap_err().code, Code::NoSuchVolume);
    let keyless = CommitKeyRequest { key: None, ..commit("a", 1) };
    assert_eq!(server.commit(keyless).await.unwrap_err().code, Code::Invalid);
    server.commit(commit("a", 1)).await.expect("the server goes on");

    let named = Change::of(commit("a", 2), RequestId(7), Duration::ZERO, None);
    let nameless = Change { request_id: Bytes::new(), ..named.clone() };
    let of_nothing = Change { what: None, ..named.clone() };
    let in_bucket_0 = Change { place: Some(BucketPlace::default()), ..named };
    for change in [nameless, of_nothing, in_bucket_0] {
        let [reply] = send(&server.client, vec![change.clone()]).await.unwrap().try_into().unwrap();
        assert_eq!(reply.answer::<CommitKeyRequest>().unwrap_err().code, Code::Invalid, "{change:?}");
    }
    let put = |n: u64| Change::of(commit("many", n), RequestId(n.into()), Duration::ZERO, None);
    let failure = send(&server.client, (1..=257).map(put).collect()).await.unwrap_err();
    assert_eq!((failure.code, failure.retry), (Code::TooLarge, Retry::No));
    assert_eq!(server.lookup("many").await.unwrap_err().code, Code::NoSuchKey);
    assert_eq!(server.lookup("a").await.unwrap().etag, "etag-1");
    server.stop().await;
}

/// A request is remembered for five minutes; one that was first sent more than half of that ago is none to
/// carry out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_first_sent_long_ago_is_not_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let commit_late = async |id: u128, number: u64, age_ms: u64| {
        change(&server.client, id, Duration::from_millis(age_ms), commit("a", number)).await
    };
    commit_late(7, 1, 150_000).await.unwrap();
    server.commit(commit("a", 2)).await.unwrap();
    commit_late(7, 1, 150_000).await.expect("it is remembered");
    for age_ms in [150_001, 3_600_000, u64::MAX] {
        for id in [7, 8] {
            let failure = commit_late(id, 1, age_ms).await.unwrap_err();
            assert_eq!((failure.code, failure.retry), (Code::OutcomeUnknown, Retry::No), "{age_ms}");
        }
    }
    let other = commit_late(7, 3, 0).await.unwrap_err();
    assert_eq!((other.code, other.retry), (Code::Invalid, Retry::No), "{other}");
    assert_eq!(server.lookup("a").await.unwrap().etag, "etag-2");
    server.stop().await;
}
