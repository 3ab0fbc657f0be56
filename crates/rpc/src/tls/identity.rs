use super::HTTP2;
use super::pem::{TlsIdentityError, TlsPart, TlsPem};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::client::{ClientConfig, Resumption};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::time_provider::TimeProvider;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{Error, InconsistentKeys, RootCertStore};
use types::Clock;

/// Who a process is to others, and whom it believes. Cheap to clone. A certificate that is renewed makes
/// another one, for a new connector and a new listener.
#[derive(Clone)]
pub struct TlsIdentity {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl TlsIdentity {
    /// `clock` decides which certificates are in their time.
    pub fn new(pem: &TlsPem<'_>, clock: Arc<dyn Clock>) -> Result<TlsIdentity, TlsIdentityError> {
        let provider = Arc::new(ring::default_provider());
        let own = own_certificate(pem.parse_chain()?, pem.parse_private_key()?, &provider)?;
        let own = Arc::new(SingleCertAndKey::from(own));
        let roots = Arc::new(pem.parse_authorities()?);
        let time = Arc::new(CertificateTime(clock));
        Ok(TlsIdentity {
            client: Arc::new(client_config(own.clone(), roots.clone(), provider.clone(), time.clone())),
            server: Arc::new(server_config(own, roots, provider, time)),
        })
    }
}

fn own_certificate(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsIdentityError> {
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|error| TlsIdentityError::BadKey { why: error.to_string() })?;
    let own = CertifiedKey::new(chain, key);
    match own.keys_match() {
        Ok(()) => Ok(own),
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(TlsIdentityError::KeyOfAnother),
        Err(error) => {
            Err(TlsIdentityError::BadCertificate { part: TlsPart::Chain, number: 1, why: error.to_string() })
        }
    }
}

fn client_config(
    own: Arc<SingleCertAndKey>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    time: Arc<CertificateTime>,
) -> ClientConfig {
    let mut config = ClientConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&TLS13])
        .expect("ring has what TLS 1.3 needs")
        .with_root_certificates(roots)
        .with_client_cert_resolver(own);
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    config
}

fn server_config(
    own: Arc<SingleCertAndKey>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    time: Arc<CertificateTime>,
) -> ServerConfig {
    let of_authorities = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .expect("there are authorities, and no revocation lists");
    let mut config = ServerConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&TLS13])
        .expect("ring has what TLS 1.3 needs")
        .with_client_cert_verifier(of_authorities)
        .with_cert_resolver(own);
    config.alpn_protocols = vec![HTTP2.to_vec()];
    // A resumed session would not show its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

struct CertificateTime(Arc<dyn Clock>);

impl TimeProvider for CertificateTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0.now_ms())))
    }
}

impl fmt::Debug for CertificateTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateTime")
    }
}
