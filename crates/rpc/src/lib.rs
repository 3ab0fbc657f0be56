//! A process's gRPC port, and its ways to the ports of others. Nothing here knows what is said over them.
//!
//! A [`Connector`] makes a [`Channel`] to an address: over TCP ([`TcpConnector`]), over mutual TLS
//! ([`TlsConnector`]), by calls within the process ([`LocalConnector`]), or inside a simulation. [`Channels`]
//! keeps one for each address, and a [`Link`] finds who of several leads. A [`Gate`] is the door of a port:
//! what may come in, and how much of it.
//! [`TlsIncoming`] lets in only whom an authority vouches for.

mod channels;
mod connector;
mod frames;
mod gate;
mod limits;
mod link;
mod local;
mod tls;

pub use channels::Channels;
pub use connector::{Channel, Connector, TcpConnector};
pub use frames::{CloseReason, FrameCounts, NOTHING_TAKEN_MAX, NotConnected};
pub use gate::{
    Gate, GateConnection, GateCounts, GateIncoming, GateOptions, Gated, GatedBody, caller, serve,
};
pub use limits::{CALLS_PER_CONNECTION_MAX, Windows};
pub use link::Link;
pub use local::{Local, LocalConnector};
pub use tls::{
    TlsConnection, TlsConnector, TlsCounts, TlsIdentity, TlsIdentityError, TlsIncoming, TlsPart, TlsPem,
    TlsRefusal,
};
