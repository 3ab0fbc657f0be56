//! The S3 gateway: stateless, any number of them.
//!
//! [`router`] is an axum service: request limits and ids ([`front`]), what a request may be and whose it is
//! ([`admission`]), then the S3 protocol ([`s3`], the only module that names the `s3s` crate), which turns
//! requests into calls of [`client::Client`]. Bodies stream both ways; [`payload`] decodes them, [`incoming`]
//! and [`store`] verify what clients promise about an upload before it is committed. [`account`] counts and
//! writes down what becomes of each request. What is supported and where we differ from AWS is in
//! `docs/s3.md`.

mod account;
mod admission;
mod checksum;
mod chunked;
mod conditions;
mod error;
mod front;
mod incoming;
mod options;
mod page;
mod payload;
mod request_body;
mod s3;
mod store;

pub use account::{Accounts, RequestLog};
pub use front::{REQUEST_ID_HEADER, document, router};
pub use options::GatewayOptions;
#[doc(hidden)]
pub use s3::{Trial, Tried};
