use super::outgoing::{Outgoing, Verdict};
use super::{HTTP2, TlsIdentity};
use crate::connector::{Channel, Connector, endpoint};
use crate::limits::Windows;
use hyper_util::rt::TokioIo;
use std::io;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Status;
use tonic::codegen::http::Uri;
use tower::util::{BoxCloneSyncService, MapErr};

/// HTTP/2 over TLS over TCP, one connection for each channel. The certificate of the server must name the
/// host of its address.
pub struct TlsConnector {
    identity: TlsIdentity,
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
enum TlsConnectError {
    #[error("connect to {address}: {source}")]
    Tcp { address: String, source: io::Error },
    #[error("what listens at {address} does not speak TLS: {source}")]
    NotTls { address: String, source: io::Error },
    #[error("the server at {address} is not accepted: {source}")]
    BadCertificate { address: String, source: io::Error },
    #[error("TLS handshake with {address}: {source}")]
    Handshake { address: String, source: io::Error },
    #[error("the server at {address} does not speak HTTP/2")]
    NotHttp2 { address: String },
}

impl TlsConnector {
    pub fn new(identity: TlsIdentity) -> TlsConnector {
        TlsConnector { identity }
    }
}

impl Connector for TlsConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let endpoint = endpoint("https", address, Windows::default())?;
        let name = server_name(endpoint.uri())
            .ok_or_else(|| format!("`{address}` is not a host:port whose host a certificate can name"))?;
        let tls = tokio_rustls::TlsConnector::from(self.identity.client.clone());
        let (verdict, address) = (Verdict::default(), address.to_owned());
        let (judged, reached) = (verdict.clone(), address.clone());
        let connect = tower::service_fn(move |_uri: Uri| {
            let (tls, name, address, verdict) = (tls.clone(), name.clone(), reached.clone(), judged.clone());
            async move {
                verdict.reset();
                let stream = open(tls, name, address).await?;
                Ok::<_, TlsConnectError>(TokioIo::new(Outgoing::new(stream, verdict)))
            }
        });
        let channel = endpoint.connect_with_connector_lazy(connect);
        let channel = MapErr::new(channel, move |error| failed(&address, &verdict, error));
        Ok(BoxCloneSyncService::new(channel))
    }
}

/// The name of a host with a port.
fn server_name(uri: &Uri) -> Option<ServerName<'static>> {
    uri.port_u16()?;
    let host = uri.host()?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).ok()
}

/// Opens a connection and makes its handshake; the deadline is the endpoint's.
async fn open(
    tls: tokio_rustls::TlsConnector,
    name: ServerName<'static>,
    address: String,
) -> Result<TlsStream<TcpStream>, TlsConnectError> {
    let connected = TcpStream::connect(&address).await.and_then(|tcp| tcp.set_nodelay(true).map(|()| tcp));
    let tcp = match connected {
        Ok(tcp) => tcp,
        Err(source) => return Err(TlsConnectError::Tcp { address, source }),
    };
    let stream = tls.connect(name, tcp).await.map_err(|source| refused(address.clone(), source))?;
    if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
        return Err(TlsConnectError::NotHttp2 { address });
    }
    Ok(stream)
}

fn refused(address: String, source: io::Error) -> TlsConnectError {
    match source.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => TlsConnectError::NotTls { address, source },
        Some(rustls::Error::InvalidCertificate(_)) => TlsConnectError::BadCertificate { address, source },
        _ => TlsConnectError::Handshake { address, source },
    }
}

fn failed(address: &str, verdict: &Verdict, error: tonic::transport::Error) -> Status {
    match verdict.refused_because() {
        // The server answered nothing, so it did nothing.
        Some(why) => Status::unavailable(format!("the server at {address} refuses us: {why}")),
        None => Status::from_error(Box::new(error)),
    }
}
