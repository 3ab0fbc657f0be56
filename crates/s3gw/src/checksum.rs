use crate::error::{GatewayError, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The checksums clients may ask us to verify and keep (`x-amz-checksum-*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

/// Algorithms that AWS has and we have not.
const NOT_OURS: [&str; 5] = ["SHA512", "MD5", "XXHASH64", "XXHASH3", "XXHASH128"];

/// The way in which a multipart object's checksum is made of those of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The checksum of all bytes, as if sent at once.
    FullObject,
    /// The checksum of the parts' checksums, with `-<number of parts>` behind it.
    Composite,
}

impl Algorithm {
    pub(crate) const ALL: [Algorithm; 5] =
        [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme, Algorithm::Sha1, Algorithm::Sha256];

    /// The algorithm that we take when the client asks for none, as AWS does.
    pub(crate) const DEFAULT: Algorithm = Algorithm::Crc64Nvme;

    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Crc64Nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    pub(crate) fn header(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "x-amz-checksum-crc32",
            Algorithm::Crc32c => "x-amz-checksum-crc32c",
            Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Sha256 => "x-amz-checksum-sha256",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Algorithm> {
        let is_it = |known: &str| known.eq_ignore_ascii_case(name);
        if let Some(algorithm) = Algorithm::ALL.into_iter().find(|algorithm| is_it(algorithm.name())) {
            return Ok(algorithm);
        }
        Err(match NOT_OURS.into_iter().any(is_it) {
            true => GatewayError::NotImplemented("A checksum of this algorithm"),
            false => GatewayError::InvalidRequest(
                "Checksum algorithm provided is unsupported. Please try again with any of the valid types: \
                 [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]"
                    .to_owned(),
            ),
        })
    }

    /// The kind of a multipart upload that names an algorithm and no kind.
    pub(crate) fn default_kind(self) -> Kind {
        if self == Algorithm::Crc64Nvme { Kind::FullObject } else { Kind::Composite }
    }

    pub(crate) fn allows(self, kind: Kind) -> bool {
        match kind {
            Kind::FullObject => self.crc().is_some(),
            Kind::Composite => self != Algorithm::Crc64Nvme,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Algorithm::Crc32 | Algorithm::Crc32c => 4,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 => 32,
        }
    }

    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 | Algorithm::Sha256 => None,
        }
    }

    /// Reads a checksum as it travels.
    pub(crate) fn decode(self, text: &str) -> Result<Vec<u8>> {
        let sum = BASE64.decode(text).ok().filter(|sum| sum.len() == self.bytes());
        sum.ok_or_else(|| {
            GatewayError::InvalidRequest(format!("Value for {} header is invalid.", self.header()))
        })
    }

    fn encode_crc(self, crc: u64) -> String {
        let all = crc.to_be_bytes();
        BASE64.encode(&all[all.len() - self.bytes()..])
    }
}

/// A checksum being computed.
pub(crate) enum Hasher {
    Crc(Algorithm, crc_fast::Digest),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Hasher {
        match algorithm.crc() {
            Some(crc) => Hasher::Crc(algorithm, crc_fast::Digest::new(crc)),
            None if algorithm == Algorithm::Sha1 => Hasher::Sha1(Sha1::new()),
            None => Hasher::Sha256(Sha256::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Crc(_, digest) => digest.update(bytes),
            Hasher::Sha1(sha) => sha.update(bytes),
            Hasher::Sha256(sha) => sha.update(bytes),
        }
    }

    /// The sum in base64, as it travels.
    pub(crate) fn finish(self) -> String {
        match self {
            Hasher::Crc(algorithm, digest) => algorithm.encode_crc(digest.finalize()),
            Hasher::Sha1(sha) => BASE64.encode(sha.finalize()),
            Hasher::Sha256(sha) => BASE64.encode(sha.finalize()),
        }
    }
}

/// The checksum of a multipart object, from the sums (in base64) and lengths of its parts.
pub(crate) fn of_parts(algorithm: Algorithm, kind: Kind, parts: &[(String, u64)]) -> Result<String> {
    match (kind, algorithm.crc()) {
        (Kind::FullObject, Some(crc)) => {
            let mut whole = 0;
            for (n, (sum, length)) in parts.iter().enumerate() {
                let sum = crc_value(&algorithm.decode(sum)?);
                whole = if n == 0 { sum } else { crc_fast::checksum_combine(crc, whole, sum, *length) };
            }
            Ok(algorithm.encode_crc(whole))
        }
        (Kind::FullObject, None) => Err(GatewayError::InvalidRequest(format!(
            "The FULL_OBJECT checksum type cannot be used with the {} checksum algorithm.",
            algorithm.name().to_lowercase()
        ))),
        (Kind::Composite, _) => {
            let mut hasher = Hasher::new(algorithm);
            for (sum, _) in parts {
                hasher.update(&algorithm.decode(sum)?);
            }
            Ok(format!("{}-{}", hasher.finish(), parts.len()))
        }
    }
}

fn crc_value(big_endian: &[u8]) -> u64 {
    big_endian.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Reads the value of a `Content-MD5` header.
pub(crate) fn decode_md5(text: &str) -> Result<[u8; 16]> {
    let md5 = BASE64.decode(text).ok().and_then(|md5| md5.try_into().ok());
    md5.ok_or(GatewayError::InvalidDigest { what: "Content-MD5".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(algorithm: Algorithm, bytes: &[u8]) -> String {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn sums_are_those_of_aws() {
        // The check values of the CRC catalogue and FIPS 180 for "123456789" and "abc", in base64.
        assert_eq!(sum(Algorithm::Crc32, b"123456789"), "y/Q5Jg==");
        assert_eq!(sum(Algorithm::Crc32c, b"123456789"), "4waSgw==");
        assert_eq!(sum(Algorithm::Crc64Nvme, b"123456789"), "rosUhgp5mIg=");
        assert_eq!(sum(Algorithm::Sha1, b"abc"), "qZk+NkcGgWq6PiVxeFDCbJzQ2J0=");
        assert_eq!(sum(Algorithm::Sha256, b"abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn what_aws_has_and_we_have_not_is_not_implemented() {
        assert!(matches!(Algorithm::parse("sha256"), Ok(Algorithm::Sha256)));
        assert!(matches!(Algorithm::parse("Sha512"), Err(GatewayError::NotImplemented(_))));
        assert!(matches!(Algorithm::parse("CRC31"), Err(GatewayError::InvalidRequest(_))));
    }

    #[test]
    fn full_object_sums_of_parts_equal_the_sum_of_the_whole() {
        let whole: Vec<u8> = (0..100_000u32).map(|n| (n * 7 % 251) as u8).collect();
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts: Vec<(String, u64)> =
                whole.chunks(33_333).map(|part| (sum(algorithm, part), part.len() as u64)).collect();
            assert_eq!(of_parts(algorithm, Kind::FullObject, &parts).unwrap(), sum(algorithm, &whole));
        }
        assert!(of_parts(Algorithm::Sha256, Kind::FullObject, &[]).is_err());
    }

    #[test]
    fn composite_sums_name_the_number_of_parts() {
        let parts = vec![(sum(Algorithm::Sha256, b"a"), 1), (sum(Algorithm::Sha256, b"b"), 1)];
        let mut both = Sha256::digest(b"a").to_vec();
        both.extend_from_slice(&Sha256::digest(b"b"));
        let expect = format!("{}-2", BASE64.encode(Sha256::digest(&both)));
        assert_eq!(of_parts(Algorithm::Sha256, Kind::Composite, &parts).unwrap(), expect);
    }

    #[test]
    fn sums_of_the_wrong_length_are_refused() {
        assert!(Algorithm::Crc32.decode("y/Q5Jg==").is_ok());
        assert!(Algorithm::Crc32.decode("rosUhgp5mIg=").is_err());
        assert!(Algorithm::Crc32.decode("not base64").is_err());
        assert!(decode_md5("1B2M2Y8AsgTpgAmY7PhCfg==").is_ok());
        assert!(decode_md5("1B2M2Y8AsgTpgAmY7PhC").is_err());
        assert!(Algorithm::parse("crc64nvme").is_ok());
        assert!(Algorithm::parse("MD5").is_err());
    }
}
