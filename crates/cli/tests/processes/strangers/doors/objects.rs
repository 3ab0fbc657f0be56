//! Requests that were answered with success and did something else: each is done as it is meant, or refused
//! with nothing done.

use super::house::{BUCKET, House};
use super::request::Request;
use super::{Failed, Seen};

const OBJECT: &str = "/first/untouched";
const TEXT: &str = "as it was";

type Pairs = &'static [(&'static str, &'static str)];

/// Sub-resources and headers that we do not know, by method, path, parameters and headers: without them each
/// would be a plain operation.
const UNKNOWN: &[(&str, &str, Pairs, Pairs)] = &[
    ("PUT", OBJECT, &[("renameObject", "")], &[("x-amz-rename-source", "/first/here")]),
    ("PUT", OBJECT, &[("annotation", ""), ("annotationName", "a")], &[]),
    ("DELETE", OBJECT, &[("annotation", ""), ("annotationName", "a")], &[]),
    ("PUT", OBJECT, &[("encryption", "")], &[]),
    ("PUT", OBJECT, &[("acl", "")], &[]),
    ("PUT", OBJECT, &[("tagging", "")], &[]),
    ("PUT", OBJECT, &[("retention", "")], &[]),
    ("PUT", OBJECT, &[("legal-hold", "")], &[]),
    ("DELETE", OBJECT, &[("tagging", "")], &[]),
    ("POST", OBJECT, &[("restore", "")], &[]),
    ("POST", OBJECT, &[("select", ""), ("select-type", "2")], &[]),
    ("PUT", OBJECT, &[("unheard-of", "")], &[]),
    ("DELETE", OBJECT, &[("unheard-of", "")], &[]),
    ("GET", OBJECT, &[("annotation", "")], &[]),
    ("PUT", OBJECT, &[], &[("x-amz-unheard-of", "1")]),
    ("PUT", OBJECT, &[], &[("x-amz-tagging", "a=b")]),
    ("PUT", OBJECT, &[], &[("x-amz-server-side-encryption", "AES256")]),
    ("DELETE", "/empty", &[("metadataConfiguration", "")], &[]),
    ("DELETE", "/empty", &[("metadataTable", "")], &[]),
    ("DELETE", "/empty", &[("encryption", "")], &[]),
    ("DELETE", "/empty", &[("cors", "")], &[]),
    ("PUT", "/unmade", &[("versioning", "")], &[]),
    ("PUT", "/unmade", &[("metadataInventoryTable", "")], &[]),
    ("PUT", "/unmade", &[("unheard-of", "")], &[]),
    // Conditions that the operation does not look at, and a part of a whole that PUT would make the whole.
    ("DELETE", OBJECT, &[], &[("if-none-match", "*")]),
    ("PUT", OBJECT, &[], &[("content-range", "bytes 0-4/9")]),
];

pub(super) async fn sub_resources(house: &House) -> Seen {
    house.put("untouched", TEXT).await?;
    house.ask_signed(Request::new("PUT", "/empty")).await?.succeeds("a bucket")?;
    for (method, path, parameters, headers) in UNKNOWN {
        let mut request = Request::new(method, path).body(if *method == "PUT" { "other" } else { "" });
        request = parameters.iter().fold(request, |request, (name, value)| request.query(name, value));
        request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let what = format!("{method} {path} with {parameters:?} {headers:?}");
        let answer = house.ask_signed(request).await?;
        house.still_has("untouched", Some(TEXT)).await.map_err(|now| format!("{what}: {now}"))?;
        answer.refuses(&what, 501, "NotImplemented")?;
    }
    let buckets = house.buckets().await?;
    if !buckets.contains("<Name>empty</Name>") || buckets.contains("<Name>unmade</Name>") {
        return Err(format!("buckets were made or deleted: {buckets}"));
    }
    house.ask_signed(Request::new("PUT", OBJECT).body("other")).await?.succeeds("a plain PUT")?;
    house.still_has("untouched", Some("other")).await?;
    house.ask_signed(Request::new("DELETE", "/empty")).await?.succeeds("a plain DELETE")?;
    Ok(format!("501 NotImplemented for {}, and nothing done", UNKNOWN.len()))
}

pub(super) async fn unknown_host(house: &House) -> Seen {
    const HOST: &str = "first.s3.example.com";
    house.ask_signed(Request::new("PUT", "/hosted")).await?.succeeds("a bucket")?;
    for (method, path) in [("PUT", "/made"), ("DELETE", "/hosted"), ("GET", "/"), ("GET", "/here")] {
        let answer = house.ask_signed(Request::new(method, path).host(HOST)).await?;
        answer.refuses(&format!("{method} {path} at {HOST}"), 400, "InvalidRequest")?;
    }
    let buckets = house.buckets().await?;
    if buckets.contains("<Name>made</Name>") || !buckets.contains("<Name>hosted</Name>") {
        return Err(format!("a key became a bucket, or a bucket was deleted: {buckets}"));
    }
    let put = Request::new("PUT", "/virtual").host(&format!("{BUCKET}.localhost")).body(TEXT);
    house.ask_signed(put).await?.succeeds("a PUT at a host that is known")?;
    house.still_has("virtual", Some(TEXT)).await?;
    house.ask_signed(Request::new("DELETE", "/hosted")).await?.succeeds("a DELETE at an address")?;
    Ok(format!("400 InvalidRequest at {HOST}; {BUCKET}.localhost is the bucket"))
}

pub(super) async fn copy_if_none_match(house: &House) -> Seen {
    house.put("copied", "new").await?;
    house.put("copied-onto", TEXT).await?;
    let copy = |key: &str| {
        let copy = Request::new("PUT", &format!("/first/{key}"));
        copy.header("x-amz-copy-source", "/first/copied").header("if-none-match", "*")
    };
    let answer = house.ask_signed(copy("copied-onto")).await?;
    house.still_has("copied-onto", Some(TEXT)).await?;
    answer.refuses("a copy onto what is there", 412, "PreconditionFailed")?;
    house.s3.delete("copied-new").await?;
    house.ask_signed(copy("copied-new")).await?.succeeds("a copy to where nothing is")?;
    house.still_has("copied-new", Some("new")).await?;
    Ok("412 PreconditionFailed, and what was there stays".to_owned())
}

const BODY: &str = "shut the door";
/// Of `BODY`; those that the gateway has.
const RIGHT: [(&str, &str); 5] = [
    ("crc32", "diiy+g=="),
    ("crc32c", "47h6aA=="),
    ("crc64nvme", "17L0Iw+acW8="),
    ("sha1", "Feu+/8WL7hKepouy4XhoAErwUTM="),
    ("sha256", "QcwWaPvICpBCuNx3IMVIDET9vRlHy/HX7njq/gle90U="),
];
/// Those that it has not, whatever their value.
const UNVERIFIED: [(&str, &str); 5] = [
    ("md5", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ("sha512", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="),
    ("xxhash64", "AAAAAAAAAAA="),
    ("xxhash3", "AAAAAAAAAAA="),
    ("xxhash128", "AAAAAAAAAAAAAAAAAAAAAA=="),
];

pub(super) async fn checksums(house: &House) -> Seen {
    let put = || Request::new("PUT", "/first/summed").body(BODY);
    let refused = async |what: String, request: Request, status: u16, code: &str| {
        let answer = house.ask_signed(request).await?;
        house.still_has("summed", None).await.map_err(|now| format!("{what}: {now}"))?;
        answer.refuses(&what, status, code)
    };
    house.s3.delete("summed").await?;
    for (name, right) in RIGHT {
        let (header, wrong) = (format!("x-amz-checksum-{name}"), wrong(right));
        refused(format!("a wrong {header}"), put().header(&header, &wrong), 400, "BadDigest").await?;
        refused(format!("a wrong trailer {header}"), trailed(&header, &wrong), 400, "BadDigest").await?;
    }
    for (name, any) in UNVERIFIED {
        let header = format!("x-amz-checksum-{name}");
        refused(header.clone(), put().header(&header, any), 501, "NotImplemented").await?;
        refused(format!("a trailer {header}"), trailed(&header, any), 501, "NotImplemented").await?;
    }
    let wrong_md5 = put().header("content-md5", UNVERIFIED[0].1);
    refused("a wrong Content-MD5".to_owned(), wrong_md5, 400, "BadDigest").await?;
    for (name, right) in RIGHT {
        let header = format!("x-amz-checksum-{name}");
        are_taken(house, &header, [put().header(&header, right), trailed(&header, right)]).await?;
    }
    are_taken(house, "content-md5", [put().header("content-md5", "Vk+J0UjS9L8fOAX70ghY6A==")]).await?;
    Ok("400 BadDigest for six that are wrong, 501 NotImplemented for five that are not verified".to_owned())
}

async fn are_taken<const N: usize>(house: &House, what: &str, all: [Request; N]) -> Result<(), Failed> {
    for request in all {
        house.ask_signed(request).await?.succeeds(&format!("a right {what}"))?;
        house.still_has("summed", Some(BODY)).await?;
        house.s3.delete("summed").await?;
    }
    Ok(())
}

/// Another one of the same length.
fn wrong(right: &str) -> String {
    let other = if right.starts_with('A') { "B" } else { "A" };
    format!("{other}{}", &right[1..])
}

/// With the checksum behind its body.
fn trailed(header: &str, sum: &str) -> Request {
    let put = Request::new("PUT", "/first/summed");
    let put = put.header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER");
    let put = put.header("x-amz-decoded-content-length", &BODY.len().to_string());
    let put = put.header("x-amz-trailer", header);
    put.body(format!("{:x}\r\n{BODY}\r\n0\r\n{header}:{sum}\r\n\r\n", BODY.len()))
}
