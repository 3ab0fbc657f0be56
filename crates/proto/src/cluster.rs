use tonic::Request;
use tonic::metadata::{AsciiMetadataKey, MetadataMap};

const CLUSTER: &str = "flotilla-cluster";

/// Marks a call as meant for a node of `cluster`.
pub fn in_cluster<T>(mut request: Request<T>, cluster: &str) -> Request<T> {
    if let Ok(cluster) = cluster.parse() {
        request.metadata_mut().insert(AsciiMetadataKey::from_static(CLUSTER), cluster);
    }
    request
}

/// The cluster a call is meant for.
pub fn cluster_of(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(CLUSTER)?.to_str().ok()
}
