//! Tests of what a change is told when one try of it was lost, and another was refused.

use crate::cluster::{BUCKET, Cluster};
use flotilla_client::{Client, ClientError, ClientOptions, S3_VOLUME};
use proto::om::om_server::{Om, OmServer};
use proto::om::*;
use proto::{Code, Failure, RequestId};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// An OM that never answers the first try of a deletion, and refuses the next.
#[derive(Clone)]
struct Refusing {
    code: Code,
    tries: Arc<Mutex<Vec<RequestId>>>,
}

macro_rules! refused {
    ($($method:ident, $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Om for Refusing {
            async fn delete_keys(&self, request: Request<DeleteKeysRequest>) -> Result<Response<DeleteKeysResponse>, Status> {
                let (id, _) = proto::request_of(request.metadata())?;
                let nth = {
                    let mut tries = self.tries.lock().unwrap();
                    tries.push(id);
                    tries.len()
                };
                if nth == 1 {
                    std::future::pending::<()>().await;
                }
                Err(Failure::new(self.code, "refused").into())
            }
            $(async fn $method(&self, _: Request<$request>) -> Result<Response<$response>, Status> {
                Err(Status::unimplemented(""))
            })*
        }
    };
}

refused! {
    create_bucket, CreateBucketRequest => CreateBucketResponse;
    head_bucket, HeadBucketRequest => HeadBucketResponse;
    list_buckets, ListBucketsRequest => ListBucketsResponse;
    delete_bucket, DeleteBucketRequest => DeleteBucketResponse;
    commit_key, CommitKeyRequest => CommitKeyResponse;
    lookup_key, LookupKeyRequest => LookupKeyResponse;
    list_keys, ListKeysRequest => ListKeysResponse;
    create_upload, CreateUploadRequest => CreateUploadResponse;
    commit_part, CommitPartRequest => CommitPartResponse;
    complete_upload, CompleteUploadRequest => CompleteUploadResponse;
    abort_upload, AbortUploadRequest => AbortUploadResponse;
    list_parts, ListPartsRequest => ListPartsResponse;
    list_uploads, ListUploadsRequest => ListUploadsResponse;
}

async fn refused_after_silence(cluster: &Cluster, code: Code) -> ClientError {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let om = Some(listener.local_addr().unwrap().to_string());
    let refusing = Refusing { code, tries: Arc::default() };
    let server = tonic::transport::Server::builder().add_service(OmServer::new(refusing.clone()));
    let server = tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let call_timeout = Duration::from_millis(500);
    let client = Client::connect(ClientOptions { om, call_timeout, ..cluster.client_options() });
    let error = client.delete_keys(S3_VOLUME, BUCKET, vec!["a".into()], None).await.unwrap_err();
    let tries = refusing.tries.lock().unwrap().clone();
    assert!(tries.len() == 2 && tries[0] == tries[1], "{tries:?}");
    server.abort();
    error
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
