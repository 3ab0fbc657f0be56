//! The front of every HTTP port: one accept loop, on hyper, for HTTP/1.1 and HTTP/2.
//!
//! [`serve`] takes connections from a listener until it is told to stop, and gives each request to a
//! [`Port`]'s router. Every connection has a [`traffic`]: what its client has sent and taken, and since when
//! it is waited for. Whoever exceeds [`Limits`] is refused with an answer where there can be one
//! ([`refusal`]), or let go; [`Counters`] say how often, and why. [`Work`] bounds what requests do at the
//! same time, and no client can hold any of it by being slow. Bodies that are held as a whole have
//! [`BodyMemory`], and an answer that all get who ask for it is [`Recent`].
//!
//! A [`Transport`] makes a stream of a TCP connection: [`Plain`] is TCP itself, and TLS will be another.

mod accept;
mod addresses;
mod body_memory;
mod connection;
mod counters;
mod exchange;
mod frames;
mod io;
mod limits;
mod pace;
mod recent;
mod refusal;
mod request_body;
mod request_id;
mod response_body;
mod traffic;
mod transport;
mod work;

pub use accept::{Port, serve};
pub use addresses::counted_as;
pub use body_memory::{BodyMemory, NoRoom, Room};
pub use counters::Counters;
pub use limits::Limits;
pub use recent::Recent;
pub use refusal::Document;
pub use request_body::Stalled;
pub use request_id::RequestId;
pub use transport::{Plain, Stream, Transport};
pub use work::{Permit, Work};
