//! Signature Version 4: whose request it is, and which of its headers are signed.

use super::query::{Plus, Query, Slash, decode, encode};
use crate::error::{GatewayError, Result};
use axum::http::header::{AUTHORIZATION, REFERER, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use time::macros::format_description;
use time::{Duration, OffsetDateTime, PrimitiveDateTime};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// The time by which the clock of a client may be off.
const SKEW_MAX: Duration = Duration::minutes(15);

/// The time for which a presigned URL may be good: a week, as in AWS.
const EXPIRES_SECONDS_MAX: u64 = 604_800;

/// The parameters of a presigned URL.
const PRESIGNED: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
];
const SIGNATURE: &str = PRESIGNED[5];

/// A key pair. Does not show its secret.
#[derive(Clone)]
pub(super) struct KeyPair {
    pub(super) access_key: String,
    pub(super) secret_key: String,
}

/// The part of a request that a signature covers, as the request has it.
pub(super) struct Covered<'a> {
    pub(super) method: &'a Method,
    /// The path as it came.
    pub(super) path: &'a str,
    pub(super) query: &'a Query,
    pub(super) headers: &'a HeaderMap,
}

/// A request whose signature is right.
pub(super) struct Verified {
    pub(super) is_presigned: bool,
    /// Names of headers, in small letters.
    pub(super) signed_headers: Vec<String>,
    pub(super) seed: Seed,
}

/// The seed from which the signatures of a body's chunks follow.
#[derive(Clone)]
pub(crate) struct Seed {
    scope: Scope,
    key: [u8; 32],
    previous: String,
}

#[derive(Clone)]
struct Scope {
    /// The time of the signature, such as 20261122T093000Z.
    time: String,
    /// The scope as it is signed: date/region/s3/aws4_request
    text: String,
}

/// The claim that a client makes of its signature, in a header or in parameters.
struct Claim {
    access_key: String,
    scope: Scope,
    signed_headers: Vec<String>,
    signature: String,
    /// The time for which a presigned URL is good; `None` for a signature in headers.
    expires: Option<Duration>,
}

impl KeyPair {
    /// Verifies that this key pair signed the request. An anonymous request is refused: nothing is public.
    pub(super) fn verify(&self, covered: &Covered<'_>, now: OffsetDateTime) -> Result<Verified> {
        let claim = Claim::of(covered)?;
        check_signed_headers(&claim.signed_headers, covered.headers)?;
        claim.check_time(now)?;
        if claim.access_key != self.access_key || self.access_key.is_empty() {
            let why = "The AWS Access Key Id you provided does not exist in our records.";
            return Err(GatewayError::refused("InvalidAccessKeyId", 403, why));
        }
        let key = claim.scope.signing_key(&self.secret_key);
        let signature = unhex(&claim.signature).ok_or_else(mismatch)?;
        let is_right =
            |request: String| hmac(&key, &claim.string_to_sign(&request)).verify_slice(&signature).is_ok();
        if !claim.canonical_requests(covered)?.into_iter().any(is_right) {
            return Err(mismatch());
        }
        let seed = Seed { scope: claim.scope.clone(), key, previous: claim.signature };
        Ok(Verified { is_presigned: claim.expires.is_some(), signed_headers: claim.signed_headers, seed })
    }
}

/// Whether a parameter belongs to the signature and not to the operation.
pub(super) fn is_presigned_parameter(name: &str) -> bool {
    PRESIGNED.contains(&name)
}

impl Claim {
    fn of(covered: &Covered<'_>) -> Result<Claim> {
        let authorization = covered.headers.get(AUTHORIZATION);
        let presigned = PRESIGNED.iter().any(|name| covered.query.has(name));
        match (authorization, presigned) {
            (None, false) => Err(GatewayError::refused("AccessDenied", 403, "Access Denied.")),
            (Some(_), true) => {
                let why = "Only one auth mechanism allowed: the Authorization header or the parameters of a presigned URL.";
                Err(GatewayError::InvalidArgument(why.to_owned()))
            }
            (Some(header), false) => {
                let header = header.to_str().map_err(|_| malformed_header("it is not text"))?;
                Claim::of_header(header, covered.headers)
            }
            (None, true) => Claim::of_query(covered.query),
        }
    }

    /// Reads an Authorization header: `AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…`, each
    /// once.
    fn of_header(header: &str, headers: &HeaderMap) -> Result<Claim> {
        let (algorithm, rest) = header.trim().split_once(' ').unwrap_or((header, ""));
        check_algorithm(algorithm)?;
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        for field in rest.split(',') {
            let (name, value) =
                field.trim().split_once('=').ok_or_else(|| malformed_header("a field has no value"))?;
            let slot = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut signed_headers,
                "Signature" => &mut signature,
                _ => return Err(malformed_header("it has a field that is none")),
            };
            if slot.replace(value).is_some() {
                return Err(malformed_header("a field is there twice"));
            }
        }
        let missing = || malformed_header("Credential, SignedHeaders and Signature must be there");
        let date = headers.get("x-amz-date").and_then(|date| date.to_str().ok());
        let date = date.ok_or_else(|| {
            let why = "AWS authentication requires a valid x-amz-date header.";
            GatewayError::refused("AccessDenied", 403, why)
        })?;
        let (access_key, scope) =
            parse_credential(credential.ok_or_else(missing)?, date).map_err(malformed_header)?;
        Ok(Claim {
            access_key,
            scope,
            signed_headers: parse_signed_headers(signed_headers.ok_or_else(missing)?),
            signature: signature.ok_or_else(missing)?.to_owned(),
            expires: None,
        })
    }

    fn of_query(query: &Query) -> Result<Claim> {
        let [algorithm, credential, date, expires, signed_headers, signature] =
            PRESIGNED.map(|name| query.get(name));
        let missing = || {
            malformed_query(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, \
                 X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.",
            )
        };
        check_algorithm(algorithm.ok_or_else(missing)?)?;
        let (credential, date) = (credential.ok_or_else(missing)?, date.ok_or_else(missing)?);
        let (access_key, scope) = parse_credential(credential, date).map_err(malformed_query)?;
        let expires = expires.ok_or_else(missing)?;
        if expires.is_empty() || !expires.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed_query("X-Amz-Expires should be a number, and not negative."));
        }
        let seconds = expires.parse::<u64>().ok().filter(|seconds| *seconds <= EXPIRES_SECONDS_MAX);
        let seconds = seconds.ok_or_else(|| {
            malformed_query("X-Amz-Expires must be less than a week (in seconds) that is 604800.")
        })?;
        Ok(Claim {
            access_key,
            scope,
            signed_headers: parse_signed_headers(signed_headers.ok_or_else(missing)?),
            signature: signature.ok_or_else(missing)?.to_owned(),
            expires: Some(Duration::seconds(seconds as i64)), // at most a week
        })
    }

    fn check_time(&self, now: OffsetDateTime) -> Result<()> {
        let signed_at = self.scope.signed_at().ok_or_else(mismatch)?; // parsed once already
        let Some(expires) = self.expires else {
            if (now - signed_at).abs() <= SKEW_MAX {
                return Ok(());
            }
            let why = "The difference between the request time and the current time is too large.";
            return Err(GatewayError::refused("RequestTimeTooSkewed", 403, why));
        };
        if signed_at - now > SKEW_MAX {
            return Err(GatewayError::refused("AccessDenied", 403, "Request is not valid yet."));
        }
        if now - signed_at > expires {
            return Err(GatewayError::refused("AccessDenied", 403, "Request has expired."));
        }
        Ok(())
    }

    /// The texts one of which must have been signed. Clients differ in whether they encode a path that has
    /// unencoded characters in it, and in what they take for the body of a URL that is signed before there is
    /// one.
    fn canonical_requests(&self, covered: &Covered<'_>) -> Result<Vec<String>> {
        let encoded = encode(&decode(covered.path, Plus::IsPlus)?, Slash::Kept);
        let mut paths = vec![encoded.as_str()];
        paths.extend((covered.path != encoded).then_some(covered.path));
        let hash =
            covered.headers.get("x-amz-content-sha256").map(|hash| hash.to_str().map_err(|_| mismatch()));
        let hash = hash.transpose()?;
        let payloads = match (self.expires, hash) {
            (None, None) => {
                let why = "Missing required header for this request: x-amz-content-sha256";
                return Err(GatewayError::refused("MissingSecurityHeader", 400, why));
            }
            (None, Some(hash)) => vec![hash],
            (Some(_), hash) => {
                let named = covered.query.get("X-Amz-Content-Sha256").or(hash);
                vec![UNSIGNED_PAYLOAD]
                    .into_iter()
                    .chain(named.filter(|hash| *hash != UNSIGNED_PAYLOAD))
                    .collect()
            }
        };
        let query = covered.query.canonical(|name| name != SIGNATURE || self.expires.is_none());
        let headers = canonical_headers(&self.signed_headers, covered.headers);
        let names = self.signed_headers.join(";");
        let request = |path: &str, payload: &str| {
            format!("{}\n{path}\n{query}\n{headers}\n{names}\n{payload}", covered.method)
        };
        let pairs = paths.iter().flat_map(|path| payloads.iter().map(move |payload| (*path, *payload)));
        Ok(pairs.map(|(path, payload)| request(path, payload)).collect())
    }

    fn string_to_sign(&self, canonical_request: &str) -> String {
        let hash = hex(&Sha256::digest(canonical_request));
        format!("{ALGORITHM}\n{}\n{}\n{hash}", self.scope.time, self.scope.text)
    }
}

impl Scope {
    fn signed_at(&self) -> Option<OffsetDateTime> {
        parse_time(&self.time)
    }

    fn signing_key(&self, secret_key: &str) -> [u8; 32] {
        let first = format!("AWS4{secret_key}").into_bytes();
        let key = self.text.split('/').fold(first, |key, word| finish(hmac(&key, word)).to_vec());
        key.try_into().expect("a SHA-256 has 32 bytes")
    }
}

impl Seed {
    /// Checks the signature of the next chunk, whose data has this SHA-256.
    pub(crate) fn check_chunk(&mut self, data: [u8; 32], signature: &str) -> Result<()> {
        let nothing = hex(&Sha256::digest(b""));
        self.check("AWS4-HMAC-SHA256-PAYLOAD", &format!("{nothing}\n{}", hex(&data)), signature)
    }

    /// Checks the signature of the trailers, in the form `name:value\n` each.
    pub(crate) fn check_trailers(&mut self, canonical: &str, signature: &str) -> Result<()> {
        self.check("AWS4-HMAC-SHA256-TRAILER", &hex(&Sha256::digest(canonical)), signature)
    }

    fn check(&mut self, kind: &str, what: &str, signature: &str) -> Result<()> {
        let text = format!("{kind}\n{}\n{}\n{}\n{what}", self.scope.time, self.scope.text, self.previous);
        let bytes = unhex(signature).ok_or(GatewayError::ChunkSignature)?;
        hmac(&self.key, &text).verify_slice(&bytes).map_err(|_| GatewayError::ChunkSignature)?;
        signature.clone_into(&mut self.previous);
        Ok(())
    }
}

/// Reads a credential, `KEY/20261122/region/s3/aws4_request`; any region will do. The date must be that of
/// `time`.
fn parse_credential(credential: &str, time: &str) -> Result<(String, Scope), &'static str> {
    let mut words = credential.rsplitn(5, '/');
    let [Some(end), Some(service), Some(region), Some(date), Some(access_key)] =
        [(); 5].map(|()| words.next())
    else {
        return Err("the credential is not of the form KEY/DATE/REGION/s3/aws4_request");
    };
    if end != "aws4_request" || service != "s3" || region.is_empty() {
        return Err("the credential is not of the form KEY/DATE/REGION/s3/aws4_request");
    }
    if parse_time(time).is_none() {
        return Err("the date is not of the form YYYYMMDDTHHMMSSZ");
    }
    if time.split_once('T').is_none_or(|(day, _)| day != date) {
        return Err("the date of the credential is not that of the request");
    }
    let text = format!("{date}/{region}/{service}/{end}");
    Ok((access_key.to_owned(), Scope { time: time.to_owned(), text }))
}

fn parse_time(text: &str) -> Option<OffsetDateTime> {
    let format = format_description!("[year][month][day]T[hour][minute][second]Z");
    let is_plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let time = is_plain.then(|| PrimitiveDateTime::parse(text, &format).ok())??;
    Some(time.assume_utc())
}

fn parse_signed_headers(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text.split(';').map(str::to_owned).collect();
    names.sort_unstable();
    names
}

/// Checks the names of the headers that were signed. The host must be among them: without it a signature
/// would be good at any other store with the same keys.
fn check_signed_headers(names: &[String], headers: &HeaderMap) -> Result<()> {
    let denied = |why: String| Err(GatewayError::refused("AccessDenied", 403, why));
    if !names.iter().any(|name| name == "host") {
        return denied("The Host header must be signed: SignedHeaders does not list it.".to_owned());
    }
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return denied("SignedHeaders lists a header twice.".to_owned());
    }
    // The protocol layer leaves out headers that it cannot read; these two it does not use.
    let is_used = |name: &HeaderName| *name != USER_AGENT && *name != REFERER;
    let is_text = |value: &HeaderValue| std::str::from_utf8(value.as_bytes()).is_ok();
    if let Some((name, _)) = headers.iter().find(|(name, value)| is_used(name) && !is_text(value)) {
        return denied(format!("The header {name} is not UTF-8."));
    }
    let lower = |name: &String| !name.bytes().any(|byte| byte.is_ascii_uppercase());
    match names.iter().find(|name| !lower(name) || !headers.contains_key(name.as_str())) {
        Some(name) => denied(format!("SignedHeaders lists {name:?}, which is no header of this request.")),
        None => Ok(()),
    }
}

/// The signed headers as text, with single spaces in their values; several values of one name are joined with
/// commas.
fn canonical_headers(names: &[String], headers: &HeaderMap) -> String {
    let mut text = String::new();
    for name in names {
        let values = headers.get_all(name).iter().map(|value| {
            let value = String::from_utf8_lossy(value.as_bytes());
            value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
        });
        text.push_str(&format!("{name}:{}\n", values.collect::<Vec<_>>().join(",")));
    }
    text
}

fn check_algorithm(algorithm: &str) -> Result<()> {
    if algorithm == ALGORITHM {
        return Ok(());
    }
    let why = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.";
    Err(GatewayError::InvalidRequest(why.to_owned()))
}

fn malformed_header(why: &'static str) -> GatewayError {
    let why = format!("The authorization header is malformed; {why}.");
    GatewayError::refused("AuthorizationHeaderMalformed", 400, why)
}

fn malformed_query(why: &'static str) -> GatewayError {
    GatewayError::refused("AuthorizationQueryParametersError", 400, why)
}

fn mismatch() -> GatewayError {
    let why = "The request signature we calculated does not match the signature you provided. Check your key and signing \
               method.";
    GatewayError::refused("SignatureDoesNotMatch", 403, why)
}

fn hmac(key: &[u8], text: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are taken");
    mac.update(text.as_bytes());
    mac
}

fn finish(mac: Hmac<Sha256>) -> [u8; 32] {
    mac.finalize().into_bytes().into()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads 64 small hexadecimal digits.
pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?));
    pairs.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    /// The key pair of the examples in AWS's documentation.
    pub(crate) fn example_keys() -> KeyPair {
        KeyPair {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        }
    }

    const DAY: &str = "20130524T000000Z";

    fn at(text: &str) -> OffsetDateTime {
        parse_time(text).unwrap()
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn verify(
        method: Method,
        path: &str,
        query: &str,
        pairs: &[(&str, &str)],
        now: &str,
    ) -> Result<Verified, String> {
        let (query, headers) = (Query::parse(query).map_err(|error| error.to_string())?, headers(pairs));
        let covered = Covered { method: &method, path, query: &query, headers: &headers };
        example_keys().verify(&covered, at(now)).map_err(|error| error.to_string())
    }

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");

    /// "GET Object" of AWS's documentation on signatures in headers.
    fn documented() -> Vec<(&'static str, &'static str)> {
        vec![
            HOST,
            ("range", "bytes=0-9"),
            ("x-amz-content-sha256", EMPTY),
            ("x-amz-date", DAY),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
                 SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
                 Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
        ]
    }

    #[test]
    fn documented_signatures_are_right() {
        let verified = verify(Method::GET, "/test.txt", "", &documented(), DAY).unwrap();
        assert_eq!(verified.signed_headers, ["host", "range", "x-amz-content-sha256", "x-amz-date"]);
        assert!(!verified.is_presigned);
        // "Get Bucket Lifecycle": a parameter without a value.
        let mut lifecycle = documented();
        lifecycle[4].1 = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
                          SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
                          Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543";
        lifecycle.remove(1);
        verify(Method::GET, "/", "lifecycle", &lifecycle, DAY).unwrap();
    }

    #[test]
    fn any_change_ends_a_signature() {
        let refused = |path: &str, query: &str, pairs: &[(&str, &str)], now: &str| {
            verify(Method::GET, path, query, pairs, now).err().unwrap()
        };
        let mismatch = "The request signature we calculated";
        assert!(refused("/test.txT", "", &documented(), DAY).starts_with(mismatch));
        assert!(refused("/test.txt", "acl", &documented(), DAY).starts_with(mismatch));
        let mut other = documented();
        other[1].1 = "bytes=0-8";
        assert!(refused("/test.txt", "", &other, DAY).starts_with(mismatch));
        other = documented();
        other[0].1 = "other.s3.amazonaws.com";
        assert!(refused("/test.txt", "", &other, DAY).starts_with(mismatch));
        assert!(refused("/test.txt", "", &documented()[..4], DAY).starts_with("Access Denied"));
        assert!(refused("/test.txt", "", &documented(), "20130524T001501Z").contains("too large"));
        assert!(refused("/test.txt", "", &documented(), "20130523T234459Z").contains("too large"));
        verify(Method::GET, "/test.txt", "", &documented(), "20130524T001500Z").unwrap();
    }

    #[test]
    fn malformed_authorizations_are_refused() {
        let credential = "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request";
        let signature = "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        let check = |authorization: String, why: &str| {
            let mut pairs = documented();
            pairs[4].1 = &authorization;
            let found = verify(Method::GET, "/test.txt", "", &pairs, DAY).err().unwrap();
            assert!(found.contains(why), "{authorization}: {found}");
        };
        let all = "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date";
        check(format!("AWS4-HMAC-SHA256 {credential},{signature}"), "must be there");
        check(format!("AWS4-HMAC-SHA256 {credential},{all},{all},{signature}"), "twice");
        check(format!("AWS4-HMAC-SHA256 {credential},{all},{signature},Other=1"), "none");
        check(format!("AWS4-ECDSA-P256-SHA256 {credential},{all},{signature}"), "not supported");
        check(format!("AWS4-HMAC-SHA256 Credential=A/b/s3/aws4_request,{all},{signature}"), "credential");
        let sts = credential.replace("/s3/", "/sts/");
        check(format!("AWS4-HMAC-SHA256 {sts},{all},{signature}"), "credential");
        let later = credential.replace("20130524", "20130525");
        check(format!("AWS4-HMAC-SHA256 {later},{all},{signature}"), "not that of the request");
        for (names, why) in [
            ("range;x-amz-content-sha256;x-amz-date", "The Host header must be signed"),
            ("Host;range;x-amz-content-sha256;x-amz-date", "The Host header must be signed"),
            ("host;host;range;x-amz-content-sha256;x-amz-date", "twice"),
            ("host;missing;range;x-amz-content-sha256;x-amz-date", "no header of this request"),
        ] {
            check(format!("AWS4-HMAC-SHA256 {credential},SignedHeaders={names},{signature}"), why);
        }
    }

    fn presigned(expires: &str, signature: &str) -> String {
        format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host&X-Amz-Signature={signature}"
        )
    }

    #[test]
    fn presigned_urls_are_good_for_a_time() {
        // The example of AWS's documentation on presigned URLs.
        let right = presigned("86400", "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
        let check = |query: &str, now: &str| verify(Method::GET, "/test.txt", query, &[HOST], now);
        assert!(check(&right, DAY).unwrap().is_presigned);
        check(&right, "20130525T000000Z").unwrap();
        assert!(check(&right, "20130525T000001Z").err().unwrap().contains("expired"));
        check(&right, "20130523T234500Z").unwrap();
        assert!(check(&right, "20130523T234459Z").err().unwrap().contains("not valid yet"));
        assert!(check(&right.replace("aeeed", "aeeee"), DAY).err().unwrap().contains("does not match"));

        let signature = "0".repeat(64);
        for (expires, why) in [
            ("604801", "less than a week"),
            ("99999999999999999999999", "less than a week"),
            ("-1", "number"),
            ("%2B60", "number"),
            ("1e3", "number"),
            ("", "number"),
            ("604800", "does not match"),
        ] {
            let found = check(&presigned(expires, &signature), DAY).err().unwrap();
            assert!(found.contains(why), "{expires}: {found}");
        }
        let twice = format!("{right}&X-Amz-Expires=1");
        assert!(check(&twice, DAY).err().unwrap().contains("more than once"));
        let without = right.replace("&X-Amz-Expires=86400", "");
        assert!(check(&without, DAY).err().unwrap().contains("requires"));
        let both = [HOST, documented()[4]];
        assert!(verify(Method::GET, "/test.txt", &right, &both, DAY).err().unwrap().contains("Only one"));
    }

    #[test]
    fn a_url_that_is_signed_without_the_host_is_refused() {
        let signed_with = |names: &str| {
            let query = presigned("60", &"0".repeat(64));
            let query = query.replace("SignedHeaders=host", &format!("SignedHeaders={names}"));
            let pairs = [HOST, ("range", "bytes=0-9")];
            let uri = sign(&Method::GET, &format!("/test.txt?{query}"), &mut headers(&pairs));
            verify(Method::GET, "/test.txt", uri.split_once('?').unwrap().1, &pairs, DAY)
        };
        assert!(signed_with("host%3Brange").unwrap().is_presigned);
        let refused = signed_with("range").err().unwrap();
        assert!(refused.contains("The Host header must be signed"), "{refused}");
    }

    #[test]
    fn times_have_one_form() {
        assert!(parse_time("20130524T000000Z").is_some());
        for wrong in ["2013-05-24T00:00:00Z", "20130524T000000", "20131324T000000Z", "+0130524T000000Z", ""] {
            assert!(parse_time(wrong).is_none(), "{wrong}");
        }
    }

    /// Puts the right signature in place of the one that the request has, in its header or its query.
    pub(crate) fn sign(method: &Method, uri: &str, headers: &mut HeaderMap) -> String {
        let (path, raw) = uri.split_once('?').unwrap_or((uri, ""));
        let query = Query::parse(raw).unwrap();
        let covered = Covered { method, path, query: &query, headers };
        let claim = Claim::of(&covered).unwrap();
        let request = claim.canonical_requests(&covered).unwrap().remove(0);
        let key = claim.scope.signing_key(&example_keys().secret_key);
        let signature = hex(&finish(hmac(&key, &claim.string_to_sign(&request))));
        let signed = |text: &str| text.replace(&claim.signature, &signature);
        if let Some(header) = headers.get_mut(AUTHORIZATION) {
            *header = HeaderValue::from_str(&signed(header.to_str().unwrap())).unwrap();
        }
        signed(uri)
    }
}
