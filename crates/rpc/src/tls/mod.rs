//! The way between processes over mutual TLS: each side shows a certificate, and accepts only certificates of
//! the authorities it was given.
//!
//! A [`TlsIdentity`] is made of PEM bytes and serves both directions: a [`TlsConnector`] reaches others with
//! it, a [`TlsIncoming`] accepts their connections ([`TlsConnection`]), counting in [`TlsCounts`] those that
//! it refused and why ([`TlsRefusal`]). TLS 1.3 and HTTP/2 only, and no session is resumed: every connection
//! checks certificates anew, so one that expired, or an authority that is no longer trusted, ends with the
//! connections made before.
//!
//! Not here: revocation lists, and who of an authority's holders is which node. Whoever holds a certificate
//! of the authorities is believed to be what it says it is, so they must be the cluster's own.

mod connection;
mod connector;
mod counts;
mod identity;
mod incoming;
mod outgoing;
mod pem;
mod refusal;

pub use connection::TlsConnection;
pub use connector::TlsConnector;
pub use counts::TlsCounts;
pub use identity::TlsIdentity;
pub use incoming::TlsIncoming;
pub use pem::{TlsIdentityError, TlsPart, TlsPem};
pub use refusal::TlsRefusal;

/// The only protocol spoken, as TLS names it (ALPN).
const HTTP2: &[u8] = b"h2";
