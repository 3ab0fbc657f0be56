//! What a signature is good for: one request, as it was signed, at one host, for a bounded time.

use super::house::House;
use super::request::{Request, Sent};
use super::{Failed, Seen};
use time::OffsetDateTime;

const SECRET: &str = "top secret";
const WEEK_SECONDS: u64 = 604_800;
const CENTURY_SECONDS: u64 = 100 * 365 * 24 * 60 * 60;

fn put(key: &str) -> Request {
    Request::new("PUT", &format!("/first/{key}"))
}

fn copy_of(source: &str, key: &str) -> Request {
    put(key).header("x-amz-copy-source", &format!("/first/{source}"))
}

pub(super) async fn copy_source_presigned(house: &House) -> Seen {
    let plain = |key: &str| house.keys.in_url(put(key), 600);
    let copy = house.keys.in_url(copy_of("presigned-secret", "presigned-copy"), 600);
    copies(house, "presigned", plain, copy).await
}

pub(super) async fn copy_source_signed(house: &House) -> Seen {
    let plain = |key: &str| house.keys.in_headers(put(key));
    let copy = house.keys.in_headers(copy_of("signed-secret", "signed-copy"));
    copies(house, "signed", plain, copy).await
}

/// A PUT becomes no copy by a header that nobody signed; with the header signed it is one.
async fn copies(house: &House, name: &str, plain: impl Fn(&str) -> Sent, copy: Sent) -> Seen {
    let (secret, stolen) = (format!("{name}-secret"), format!("{name}-stolen"));
    house.put(&secret, SECRET).await?;
    let sent = plain(&stolen).with("x-amz-copy-source", &format!("/first/{secret}"));
    let answer = house.ask(sent).await?;
    let left = house.get(&stolen).await?;
    if left.as_deref() == Some(SECRET) {
        return Err(format!("a {name} PUT became a copy of what its signer may read: {SECRET:?}"));
    }
    answer.refuses("a PUT with a source that nobody signed", 403, "AccessDenied")?;
    house.still_has(&stolen, None).await?;
    house.ask(copy).await?.succeeds("a copy whose source is signed")?;
    house.still_has(&format!("{name}-copy"), Some(SECRET)).await?;
    Ok("403 AccessDenied, and nothing copied; with the header signed it is copied".to_owned())
}

pub(super) async fn host_unsigned(house: &House) -> Seen {
    let get = || Request::new("GET", "/first/here");
    let ranged = || get().header("range", "bytes=0-1");
    for sent in [
        house.keys.in_headers(get().without_signing_host()),
        house.keys.in_url(ranged().without_signing_host(), 600),
    ] {
        house.ask(sent).await?.refuses("a signature that is good at any host", 403, "AccessDenied")?;
    }
    for sent in [house.keys.in_headers(get()), house.keys.in_url(ranged(), 600)] {
        house.ask(sent).await?.succeeds("a signature with the host")?;
    }
    let elsewhere = house.keys.in_headers(get().host("127.0.0.1:1")).at_host(&house.address);
    let answer = house.ask(elsewhere).await?;
    answer.refuses("a signature for another host", 403, "SignatureDoesNotMatch")?;
    Ok("403 AccessDenied, in headers and in a URL".to_owned())
}

pub(super) async fn version_2(house: &House) -> Seen {
    house.put("of-version-2", SECRET).await?;
    let path = "/first/of-version-2";
    let expires = OffsetDateTime::now_utc().unix_timestamp() + 600;
    let signature = house.keys.version_2(&format!("GET\n\n\n{expires}\n{path}"));
    let signature = super::request::encode(&signature, b"");
    let access_key = &house.keys.access_key;
    let spellings = [
        ["AWSAccessKeyId", "Expires", "Signature"],
        ["%41WSAccessKeyId", "E%78pires", "%53ignature"],
        ["AWSAccessKey%49d", "%45xpires", "Sign%61ture"],
        ["awsaccesskeyid", "expires", "signature"],
    ];
    for [key, time, sum] in spellings {
        let query = format!("{key}={access_key}&{time}={expires}&{sum}={signature}");
        let sent = house.keys.unsigned(Request::new("GET", path)).with_query(&query);
        is_of_version_2(house, sent, &query).await?;
    }
    let date = "Fri, 27 Nov 2026 08:00:00 GMT";
    let signature = house.keys.version_2(&format!("GET\n\n\n{date}\n{path}"));
    let sent = house.keys.unsigned(Request::new("GET", path)).with("date", date);
    let sent = sent.with("authorization", &format!("AWS {access_key}:{signature}"));
    is_of_version_2(house, sent, "in a header").await?;
    let sent = house.keys.in_url(Request::new("GET", path), 600);
    house.ask(sent).await?.succeeds("a URL of Version 4")?;
    Ok(format!("400 InvalidRequest for {} spellings and a header; Version 4 is served", spellings.len()))
}

async fn is_of_version_2(house: &House, sent: Sent, what: &str) -> Result<(), Failed> {
    let answer = house.ask(sent).await?;
    if answer.body.contains(SECRET) {
        return Err(format!("Version 2, {what}: {SECRET:?}"));
    }
    answer.refuses(&format!("Version 2, {what}"), 400, "InvalidRequest")
}

pub(super) async fn century(house: &House) -> Seen {
    let url = |seconds| house.keys.in_url(Request::new("GET", "/first/here"), seconds);
    for seconds in [CENTURY_SECONDS, WEEK_SECONDS + 1, u64::MAX] {
        let answer = house.ask(url(seconds)).await?;
        answer.refuses(&format!("a URL for {seconds} s"), 400, "AuthorizationQueryParametersError")?;
    }
    house.ask(url(WEEK_SECONDS)).await?.succeeds("a URL for a week")?;
    Ok("400 AuthorizationQueryParametersError; a week is served".to_owned())
}
