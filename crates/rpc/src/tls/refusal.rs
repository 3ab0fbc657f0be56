use std::{fmt, io};
use tokio_rustls::rustls::Error;

/// Why a connection to us did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRefusal {
    /// The bytes that came are no TLS: a client without it, or a scanner.
    NotTls,
    /// There is nothing that both sides can do: the client has TLS 1.2 alone, for one.
    Incompatible,
    NoCertificate,
    /// A certificate of another authority, out of its time, not for clients, or damaged.
    BadCertificate,
    /// The client does not speak HTTP/2.
    NotHttp2,
    /// The other side did not want us: our certificate does not name the host it reached, or is of another
    /// authority than its own.
    ByPeer,
    /// The handshake took too long.
    TooSlow,
    /// The connection broke, or was closed, in the middle.
    Broken,
}

impl TlsRefusal {
    pub(super) const ALL: [TlsRefusal; 8] = [
        TlsRefusal::NotTls,
        TlsRefusal::Incompatible,
        TlsRefusal::NoCertificate,
        TlsRefusal::BadCertificate,
        TlsRefusal::NotHttp2,
        TlsRefusal::ByPeer,
        TlsRefusal::TooSlow,
        TlsRefusal::Broken,
    ];

    /// The meaning of a handshake's error to a server.
    pub(super) fn of(error: &io::Error) -> TlsRefusal {
        let tls = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
        match tls {
            Some(Error::InvalidMessage(_)) => TlsRefusal::NotTls,
            Some(Error::PeerIncompatible(_) | Error::PeerMisbehaved(_)) => TlsRefusal::Incompatible,
            Some(Error::NoCertificatesPresented) => TlsRefusal::NoCertificate,
            Some(Error::InvalidCertificate(_)) => TlsRefusal::BadCertificate,
            Some(Error::NoApplicationProtocol) => TlsRefusal::NotHttp2,
            Some(Error::AlertReceived(_)) => TlsRefusal::ByPeer,
            _ => TlsRefusal::Broken,
        }
    }
}

impl fmt::Display for TlsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsRefusal::NotTls => "it does not speak TLS",
            TlsRefusal::Incompatible => "it does not speak TLS 1.3 as we do",
            TlsRefusal::NoCertificate => "it shows no certificate",
            TlsRefusal::BadCertificate => "its certificate is not accepted",
            TlsRefusal::NotHttp2 => "it does not speak HTTP/2",
            TlsRefusal::ByPeer => "it refuses us",
            TlsRefusal::TooSlow => "its handshake takes too long",
            TlsRefusal::Broken => "the connection broke during the handshake",
        })
    }
}
