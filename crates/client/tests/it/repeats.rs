//! Tests of what a change is told when one try of it was lost, and another was refused.

use crate::cluster::{BUCKET, Cluster};
use flotilla_client::{Client, ClientError, ClientOptions, S3_VOLUME};
use proto::om::om_server::{Om, OmServer};
use proto::om::*;
use proto::{Code, Failure, RequestId};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

/// What an OM does with a try of a deletion.
#[derive(Clone, Copy)]
enum Answer {
    Lost,
    Refused(Code),
    Done,
}

/// An OM that does with tries of a deletion, and says of the bucket's place, what it is told to; the last of
/// each again and again.
#[derive(Clone)]
struct Scripted {
    answers: Vec<Answer>,
    places: Vec<Result<BucketPlace, Code>>,
    tries: Arc<Mutex<Vec<(RequestId, BucketPlace)>>>,
    asked: Arc<AtomicUsize>,
}

fn place(number: u64, epoch: u64) -> Result<BucketPlace, Code> {
    Ok(BucketPlace { group: 0, number, epoch })
}

macro_rules! refused {
    ($($method:ident, $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Om for Scripted {
            async fn head_bucket(&self, _: Request<HeadBucketRequest>) -> Result<Response<HeadBucketResponse>, Status> {
                let nth = self.asked.fetch_add(1, Relaxed).min(self.places.len() - 1);
                match self.places[nth] {
                    Ok(place) => Ok(Response::new(HeadBucketResponse { place: Some(place), ..HeadBucketResponse::default() })),
                    Err(code) => Err(Failure::new(code, "refused").into()),
                }
            }
            async fn change(&self, request: Request<ChangeRequest>) -> Result<Response<OmReplies>, Status> {
                let [change] = &request.into_inner().changes[..] else { panic!("one client sends one change") };
                let ((id, _), place) = (change.request()?, change.place.unwrap());
                let nth = {
                    let mut tries = self.tries.lock().unwrap();
                    tries.push((id, place));
                    tries.len().min(self.answers.len()) - 1
                };
                let done = DeleteKeysResponse { existed: vec![true] };
                let reply = match self.answers[nth] {
                    Answer::Lost => std::future::pending().await,
                    Answer::Refused(code) => Err(Failure::new(code, "refused")),
                    Answer::Done => Ok(om_reply::Result::DeleteKeys(done)),
                };
                Ok(Response::new(OmReplies { replies: vec![reply.into()] }))
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

refused! {
    create_bucket, CreateBucketRequest => CreateBucketResponse;
    list_buckets, ListBucketsRequest => ListBucketsResponse;
    delete_bucket, DeleteBucketRequest => DeleteBucketResponse;
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
    hold_bucket, HoldBucketRequest => HoldBucketResponse;
    release_bucket, ReleaseBucketRequest => ReleaseBucketResponse;
}

/// The client's answer to a deletion, and the places to which its tries went, all of one request.
async fn delete(
    cluster: &Cluster,
    answers: &[Answer],
    places: &[Result<BucketPlace, Code>],
) -> (Result<Vec<bool>, ClientError>, Vec<BucketPlace>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let om = Some(listener.local_addr().unwrap().to_string());
    let (answers, places) = (answers.to_vec(), places.to_vec());
    let om_that_says = Scripted { answers, places, tries: Arc::default(), asked: Arc::default() };
    let routes = Routes::new(OmServer::new(om_that_says.clone()));
    let server = tokio::spawn(rpc::serve(listener, routes, std::future::pending()));
    // A second try that is late would be followed by a third.
    let call_timeout = Duration::from_secs(1);
    let client = Client::connect(ClientOptions { om, call_timeout, ..cluster.client_options() });
    let answer = client.delete_keys(S3_VOLUME, BUCKET, vec!["a".into()], None).await;
    let tries = om_that_says.tries.lock().unwrap().clone();
    assert!(tries.iter().all(|(id, _)| *id == tries[0].0), "{tries:?}");
    server.abort();
    (answer, tries.into_iter().map(|(_, place)| place).collect())
}

async fn refused_after_silence(cluster: &Cluster, code: Code) -> ClientError {
    let (answer, tries) = delete(cluster, &[Answer::Lost, Answer::Refused(code)], &[place(7, 0)]).await;
    assert_eq!(tries.len(), 2);
    answer.unwrap_err()
}

/// A refusal says that the lost try took no effect and never will only where OM's tables decide, and OM
/// remembers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_little_of_an_earlier_try() {
    let cluster = Cluster::start().await;
    for code in [Code::NoSuchBucket, Code::PreconditionFailed] {
        let error = refused_after_silence(&cluster, code).await;
        assert_eq!(error.code(), Some(code), "{error}");
    }
    for code in [Code::WrongCluster, Code::Invalid, Code::TooLarge, Code::Internal] {
        let error = refused_after_silence(&cluster, code).await;
        assert!(matches!(error, ClientError::OutcomeUnknown(_)), "{code:?}: {error}");
    }
    cluster.stop().await;
}

/// A bucket that is deleted and made again under its name is another bucket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_follows_its_bucket_and_never_goes_into_another_of_its_name() {
    use Answer::{Done, Lost, Refused};
    let cluster = Cluster::start().await;
    let elsewhere = Refused(Code::NotHere);
    let places = |tries: &[(u64, u64)]| -> Vec<BucketPlace> {
        tries.iter().map(|(number, epoch)| place(*number, *epoch).unwrap()).collect()
    };
    // Nothing was done yet: whoever has the name is meant.
    let (answer, tries) = delete(&cluster, &[elsewhere, Done], &[place(7, 0), place(8, 0)]).await;
    assert_eq!((answer.unwrap(), tries), (vec![true], places(&[(7, 0), (8, 0)])));
    // A try was lost, and the bucket was moved.
    let (answer, tries) = delete(&cluster, &[Lost, elsewhere, Done], &[place(7, 0), place(7, 1)]).await;
    assert_eq!((answer.unwrap(), tries), (vec![true], places(&[(7, 0), (7, 0), (7, 1)])));
    // A try was lost, and the bucket with it, or not.
    for next in [place(8, 0), Err(Code::NoSuchBucket)] {
        let (answer, tries) = delete(&cluster, &[Lost, elsewhere, Done], &[place(7, 0), next]).await;
        assert!(matches!(answer, Err(ClientError::OutcomeUnknown(_))), "{answer:?}");
        assert_eq!(tries, places(&[(7, 0), (7, 0)]));
    }
    let (answer, tries) = delete(&cluster, &[Done], &[Err(Code::NoSuchBucket)]).await;
    assert_eq!((answer.unwrap_err().code(), tries), (Some(Code::NoSuchBucket), vec![]));
    cluster.stop().await;
}
