use std::fmt;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ParsedCertificate;

/// The parts of an identity, as the caller read them from its files.
#[derive(Clone, Copy)]
pub struct TlsPem<'a> {
    /// Our certificate, and after it those between it and the authority. It must name the hosts we are
    /// reached at, and be good for servers and clients alike.
    pub chain: &'a [u8],
    /// The key of our certificate, not encrypted.
    pub private_key: &'a [u8],
    /// The authorities whose certificates others show.
    pub authorities: &'a [u8],
}

/// One of the three parts of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPart {
    Chain,
    PrivateKey,
    Authorities,
}

impl fmt::Display for TlsPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsPart::Chain => "the certificate chain",
            TlsPart::PrivateKey => "the private key",
            TlsPart::Authorities => "the authorities",
        })
    }
}

/// A fault of the bytes of an identity. Nothing of a private key is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsIdentityError {
    #[error("the PEM of {part} is damaged: {why}")]
    Damaged { part: TlsPart, why: String },
    #[error("there is no `BEGIN CERTIFICATE` in the PEM of {part}")]
    NoCertificate { part: TlsPart },
    /// There is no key that could be read; an encrypted one cannot.
    #[error("there is no unencrypted private key in the PEM of the private key")]
    NoKey,
    #[error("there are {count} private keys in the PEM of the private key, and one is used")]
    SeveralKeys { count: usize },
    /// `number` counts from 1.
    #[error("certificate {number} of {part} cannot be used: {why}")]
    BadCertificate { part: TlsPart, number: usize, why: String },
    #[error("the private key cannot be used: {why}")]
    BadKey { why: String },
    #[error("the private key is not that of the first certificate of the chain")]
    KeyOfAnother,
}

impl TlsPem<'_> {
    pub(super) fn parse_chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsIdentityError> {
        let part = TlsPart::Chain;
        let chain = certificates(part, self.chain)?;
        for (number, certificate) in (1..).zip(&chain) {
            ParsedCertificate::try_from(certificate).map_err(|error| TlsIdentityError::BadCertificate {
                part,
                number,
                why: error.to_string(),
            })?;
        }
        Ok(chain)
    }

    pub(super) fn parse_private_key(&self) -> Result<PrivateKeyDer<'static>, TlsIdentityError> {
        let keys: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(self.private_key).collect();
        let mut keys = keys.map_err(|error| damaged(TlsPart::PrivateKey, &error))?;
        match (keys.len(), keys.pop()) {
            (1, Some(key)) => Ok(key),
            (0, _) | (_, None) => Err(TlsIdentityError::NoKey),
            (count, Some(_)) => Err(TlsIdentityError::SeveralKeys { count }),
        }
    }

    pub(super) fn parse_authorities(&self) -> Result<RootCertStore, TlsIdentityError> {
        let part = TlsPart::Authorities;
        let mut roots = RootCertStore::empty();
        for (number, certificate) in (1..).zip(certificates(part, self.authorities)?) {
            roots.add(certificate).map_err(|error| TlsIdentityError::BadCertificate {
                part,
                number,
                why: error.to_string(),
            })?;
        }
        Ok(roots)
    }
}

/// The certificates of a part: at least one.
fn certificates(part: TlsPart, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsIdentityError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| damaged(part, &error))?;
    if found.is_empty() { Err(TlsIdentityError::NoCertificate { part }) } else { Ok(found) }
}

fn damaged(part: TlsPart, error: &pem::Error) -> TlsIdentityError {
    let why = match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("`{}` is missing", String::from_utf8_lossy(end_marker).trim_end())
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("`{}` begins no section", String::from_utf8_lossy(line).trim_end())
        }
        error => error.to_string(),
    };
    TlsIdentityError::Damaged { part, why }
}
