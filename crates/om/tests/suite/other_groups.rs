//! Buckets of another group than the root, which is played here: what is begun comes to its end when that
//! group answers, whether anybody waits or not.

use crate::scripted_scm::ScriptedScm;
use crate::server::{CLUSTER, DEADLINE, Server, request};
use proto::om::om_server::{Om, OmServer};
use proto::om::*;
use proto::scm::{OmGroupView, OmMember};
use proto::{Code, Failure, Retry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

const GROUP: u64 = 7;

/// A group that holds buckets and lets go of them, once it answers.
#[derive(Clone, Default)]
struct Played {
    answers: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Played {
    async fn answer(&self) -> Result<(), Status> {
        self.asked.fetch_add(1, Relaxed);
        if !self.answers.load(Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

macro_rules! played {
    ($($method:ident, $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Om for Played {
            async fn hold_bucket(&self, _: Request<HoldBucketRequest>) -> Result<Response<HoldBucketResponse>, Status> {
                self.answer().await?;
                Ok(Response::new(HoldBucketResponse {}))
            }
            async fn release_bucket(&self, _: Request<ReleaseBucketRequest>) -> Result<Response<ReleaseBucketResponse>, Status> {
                self.answer().await?;
                Ok(Response::new(ReleaseBucketResponse { is_gone: true, refused: 0 }))
            }
            type BackUpStream = BoxStream<BackupPart>;
            async fn back_up(&self, _: Request<BackUpRequest>) -> Result<Response<Self::BackUpStream>, Status> {
                Err(Status::unimplemented(""))
            }
            $(async fn $method(&self, _: Request<$request>) -> Result<Response<$response>, Status> {
                Err(Status::unimplemented(""))
            })*
        }
    };
}

played! {
    create_bucket, CreateBucketRequest => CreateBucketResponse;
    head_bucket, HeadBucketRequest => HeadBucketResponse;
    list_buckets, ListBucketsRequest => ListBucketsResponse;
    delete_bucket, DeleteBucketRequest => DeleteBucketResponse;
    change, ChangeRequest => OmReplies;
    lookup_keys, LookupKeysRequest => LookupKeysResponse;
    list_keys, ListKeysRequest => ListKeysResponse;
    list_parts, ListPartsRequest => ListPartsResponse;
    list_uploads, ListUploadsRequest => ListUploadsResponse;
    stat_bucket, StatBucketRequest => StatBucketResponse;
    get_unused, GetUnusedRequest => GetUnusedResponse;
    list_container_keys, ListContainerKeysRequest => ListContainerKeysResponse;
    fence_containers, FenceContainersRequest => FenceContainersResponse;
    list_known_blocks, ListKnownBlocksRequest => ListKnownBlocksResponse;
    list_named_containers, ListNamedContainersRequest => ListNamedContainersResponse;
    get_sweep, GetSweepRequest => GetSweepResponse;
    run_sweep, RunSweepRequest => RunSweepResponse;
    switch_sweep, SwitchSweepRequest => SwitchSweepResponse;
    place_buckets, PlaceBucketsRequest => PlaceBucketsResponse;
    list_held, ListHeldRequest => ListHeldResponse;
    keep_buckets, KeepBucketsRequest => KeepBucketsResponse;
    list_unsettled, ListUnsettledRequest => ListUnsettledResponse;
    bring_fences, BringFencesRequest => BringFencesResponse;
    move_bucket, MoveBucketRequest => MoveBucketResponse;
    settle_move, SettleMoveRequest => SettleMoveResponse;
    send_bucket, SendBucketRequest => SendBucketResponse;
    end_sending, EndMoveRequest => EndMoveResponse;
    receive_rows, ReceiveRowsRequest => ReceiveRowsResponse;
    end_receiving, EndMoveRequest => EndMoveResponse;
    restore_rows, RestoreRowsRequest => RestoreRowsResponse;
    create_volume, CreateVolumeRequest => CreateVolumeResponse;
    head_volume, HeadVolumeRequest => HeadVolumeResponse;
    list_volumes, ListVolumesRequest => ListVolumesResponse;
    delete_volume, DeleteVolumeRequest => DeleteVolumeResponse;
}

async fn is_there(server: &Server) -> bool {
    let head = HeadBucketRequest { volume: "s3v".into(), bucket: "far".into() };
    match server.client.clone().head_bucket(head).await.map_err(Failure::from) {
        Ok(found) => found.into_inner().place.unwrap().group == GROUP,
        Err(failure) if failure.code == Code::NoSuchBucket => false,
        Err(failure) => panic!("{failure}"),
    }
}

async fn until_there(server: &Server, wanted: bool) {
    let give_up = Instant::now() + DEADLINE;
    while is_there(server).await != wanted {
        assert!(Instant::now() < give_up, "it is never so that the bucket is there: {wanted}");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_begun_with_a_bucket_comes_to_its_end_though_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let scm = ScriptedScm::start(CLUSTER).await;
    let server = Server::open_at(dir.path(), "127.0.0.1:0", &scm.address).await;
    server.until_ready().await;
    let create = |number| {
        let create = CreateBucketRequest { volume: "s3v".into(), bucket: "far".into(), group: Some(GROUP) };
        request(number, create)
    };
    let made = server.client.clone().create_bucket(create(1)).await.map_err(Failure::from);
    assert_eq!(made.unwrap_err().code, Code::Unavailable, "SCM has told of no group");

    let played = Played::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let member = OmMember { om: 9, address, ..OmMember::default() };
    scm.record().other_groups = vec![OmGroupView {
        group: GROUP,
        members: vec![member],
        leader_om: 9,
        keys_bits: Some(0),
        lacks_room: false,
    }];
    let routes = Routes::new(OmServer::new(played.clone()));
    let service = tokio::spawn(rpc::serve(listener, routes, std::future::pending()));

    let give_up = Instant::now() + DEADLINE;
    let failure = loop {
        let made = server.client.clone().create_bucket(create(1)).await.map_err(Failure::from);
        let failure = made.unwrap_err();
        if failure.code != Code::Unavailable {
            break failure;
        }
        assert!(Instant::now() < give_up, "{failure}");
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((failure.code, failure.retry), (Code::NotYet, Retry::Unknown), "it may come about: {failure}");
    assert!(!is_there(&server).await);
    let others = server.client.clone().create_bucket(create(2)).await.map_err(Failure::from);
    assert_eq!(others.unwrap_err().code, Code::Unavailable, "another one is being made");
    played.answers.store(true, Relaxed);
    until_there(&server, true).await;
    server.client.clone().create_bucket(create(1)).await.unwrap();

    played.answers.store(false, Relaxed);
    let delete = |number| request(number, DeleteBucketRequest { volume: "s3v".into(), bucket: "far".into() });
    let deleted = server.client.clone().delete_bucket(delete(3)).await.map_err(Failure::from);
    assert_eq!(deleted.unwrap_err().retry, Retry::Unknown);
    assert!(is_there(&server).await, "its group may say no");
    played.answers.store(true, Relaxed);
    until_there(&server, false).await;
    server.client.clone().delete_bucket(delete(3)).await.unwrap();
    let again = server.client.clone().delete_bucket(delete(4)).await.map_err(Failure::from);
    assert_eq!(again.unwrap_err().code, Code::NoSuchBucket);
    let give_up = Instant::now() + DEADLINE;
    loop {
        let asked = played.asked.load(Relaxed);
        sleep(Duration::from_secs(5)).await;
        if played.asked.load(Relaxed) == asked {
            break;
        }
        assert!(Instant::now() < give_up, "it goes on asking, and nothing is left to do");
    }
    server.stop().await;
    service.abort();
}
