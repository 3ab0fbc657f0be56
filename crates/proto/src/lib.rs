//! The wire: protobuf messages, gRPC services, and the error model they share.
//!
//! Services know each other only through this crate. Generated structs stay in RPC layers; what the core
//! works with are the types of `types` and of each service.

// Generated code answers with tonic's own Status, which is large.
#![allow(
    clippy::result_large_err,
    clippy::large_enum_variant,
    clippy::doc_lazy_continuation,
    unreachable_pub
)]

mod bucket_place;
mod change;
mod cluster;
mod codec;
mod convert;
mod data_server;
mod deletion;
mod discard;
mod error;
mod limits;
mod lookup;
pub mod messages;
mod naming;
mod read_pieces;
mod request_id;
mod rope;
mod seeker;
mod states;

/// The group of names that knows which group has which bucket. It is there without being made.
pub const ROOT_OF_NAMES: u64 = 0;

pub use bucket_place::{bucket_of, in_bucket};
pub use change::ChangesBucket;
pub use cluster::{ClusterGuard, Guarded, in_cluster};
pub use convert::{bytes16, disk_id, uuid_bytes};
pub use data_server::{Answering, CarriesData, DataServer};
pub use error::{Code, Failure, Retry};
pub use limits::{MessageLimit, SMALL, decode_asked, takes_stream};
pub use naming::Naming;
pub use read_pieces::ReadPieces;
pub use request_id::{RequestId, as_request, request_of};
pub use seeker::Seeker;

// Laid out like the protobuf packages, because generated code names its neighbours relatively.
mod flotilla {
    pub mod v1 {
        tonic::include_proto!("flotilla.v1");
    }
    pub mod raft {
        pub mod v1 {
            tonic::include_proto!("flotilla.raft.v1");
        }
    }
    pub mod datanode {
        pub mod v1 {
            tonic::include_proto!("flotilla.datanode.v1");
        }
    }
    pub mod registry {
        pub mod v1 {
            tonic::include_proto!("flotilla.registry.v1");
        }
    }
    pub mod scm {
        pub mod v1 {
            tonic::include_proto!("flotilla.scm.v1");
        }
    }
    pub mod om {
        pub mod v1 {
            tonic::include_proto!("flotilla.om.v1");
        }
    }
    pub mod process {
        pub mod v1 {
            tonic::include_proto!("flotilla.process.v1");
        }
    }
}

pub use flotilla::datanode::v1 as datanode;
pub use flotilla::om::v1 as om;
/// The questions that any process is asked, whatever its roles.
pub use flotilla::process::v1 as process;
/// Raft groups talking to each other.
pub use flotilla::raft::v1 as raft;
/// Instances and keys, kept by SCM.
pub use flotilla::registry::v1 as registry;
pub use flotilla::scm::v1 as scm;
pub use flotilla::v1;

/// The longest that a chunk's acknowledgement waits for all replicas, however long its writer wants it to
/// (`WriteChunk.ack_all_within_ms`): as long as a client goes on looking for a pipeline before it gives a
/// write up.
pub const ACK_ALL_WITHIN_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// Messages above this size are refused by every server and client of ours: a block chunk (1 MiB by default,
/// 4 MiB at most) or one batch of Raft entries (16 MiB) with room for their headers.
pub const MESSAGE_BYTES_MAX: usize = 24 * 1024 * 1024;
