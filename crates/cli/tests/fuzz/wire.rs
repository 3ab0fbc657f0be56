//! Calls of any method with any bytes.

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use proto::RequestId;
use proto::om::BucketPlace;
use proto::scm::ListDatanodesResponse;
use std::time::Duration;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Messages as they are.
#[derive(Clone, Copy, Default)]
struct AsItIs;

impl Codec for AsItIs {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = AsItIs;
    type Decoder = AsItIs;

    fn encoder(&mut self) -> AsItIs {
        AsItIs
    }

    fn decoder(&mut self) -> AsItIs {
        AsItIs
    }
}

impl Encoder for AsItIs {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for AsItIs {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// What a call names beside its messages.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) cluster: String,
    /// Of a change of names.
    pub(crate) id: RequestId,
    pub(crate) age: Duration,
    /// Where a bucket is.
    pub(crate) place: Option<BucketPlace>,
}

impl Names {
    /// Those of a call that changes no names.
    pub(crate) fn of(cluster: &str) -> Names {
        Names { cluster: cluster.to_owned(), id: RequestId(1), age: Duration::ZERO, place: None }
    }

    fn on<T>(&self, request: Request<T>) -> Request<T> {
        let request = proto::as_request(proto::in_cluster(request, &self.cluster), self.id, self.age);
        match &self.place {
            Some(place) => proto::in_bucket(request, place),
            None => request,
        }
    }
}

/// Calls a method with these messages, and hears the answer to its end, of which
/// the first messages are kept.
pub(crate) async fn call(
    channel: Channel,
    path: &str,
    messages: Vec<Bytes>,
    names: &Names,
) -> Result<Vec<Bytes>, Status> {
    const KEPT: usize = 4;
    let path = PathAndQuery::try_from(path).expect("a path");
    let mut client = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
        .max_encoding_message_size(usize::MAX);
    client.ready().await.map_err(|why| Status::unavailable(why.to_string()))?;
    let request = names.on(Request::new(futures::stream::iter(messages)));
    let mut answer = client.streaming(request, path, AsItIs).await?.into_inner();
    let mut heard = Vec::new();
    while let Some(message) = answer.message().await? {
        if heard.len() < KEPT {
            heard.push(message);
        }
    }
    Ok(heard)
}

const LIST_DATANODES: &str = "/flotilla.scm.v1.Scm/ListDatanodes";

/// The cluster that whoever answers there is in: it tells who names none.
pub(crate) async fn cluster_of(channel: Channel) -> Result<String, String> {
    let names = Names::of("");
    match call(channel, LIST_DATANODES, vec![Bytes::new()], &names).await {
        Err(refusal) => {
            let told = refusal.metadata().get("flotilla-cluster").and_then(|told| told.to_str().ok());
            told.map(str::to_owned).ok_or_else(|| refusal.to_string())
        }
        Ok(_) => Err("who names no cluster is answered".to_owned()),
    }
}

/// The addresses of all datanodes, as the SCM has them that leads.
pub(crate) async fn datanodes(scms: &[Channel], cluster: &str) -> Vec<String> {
    for scm in scms {
        let answer = call(scm.clone(), LIST_DATANODES, vec![Bytes::new()], &Names::of(cluster)).await;
        if let Ok([told]) = answer.as_deref() {
            let told = ListDatanodesResponse::decode(told.clone()).expect("what SCM answers");
            return told.datanodes.into_iter().map(|datanode| datanode.address).collect();
        }
    }
    panic!("no SCM leads");
}
