//! The write path and the read path: OM for names, SCM for places, datanodes for bytes.
//!
//! [`Client`] is what gateways and command line tools hold. A put goes body → chunks ([`source`]) → a block
//! on a pipeline ([`block`], over the pipeline's shared stream in [`stream`]) → further blocks, elsewhere if
//! need be ([`write`]) → one commit in OM ([`om`]). A get goes OM lookup → pieces → replicas, verified
//! ([`read`]).

mod any_member;
mod avoided;
mod block;
mod channels;
mod client;
mod counted;
mod error;
mod lanes;
mod locate;
mod memory;
mod om;
mod om_seeker;
mod options;
mod outbox;
mod pipelines;
mod read;
mod routes;
mod session;
mod source;
mod stream;
mod view;
mod writable;
mod write;

pub use client::{Client, Put};
pub use error::ClientError;
pub use options::{ClientOptions, OmReads};
pub use proto::datanode::Ack;
pub use view::{MemberView, OmGroupView, PipelineView, View};
pub use write::Written;

/// S3 sees the buckets of this volume.
pub const S3_VOLUME: &str = "s3v";
