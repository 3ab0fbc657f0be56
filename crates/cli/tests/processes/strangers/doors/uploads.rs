//! Uploads by parts, buckets and lists: what was dropped silently, or blinded whoever listed.

use super::house::House;
use super::request::{Answer, Request};
use super::{Failed, Seen};

pub(super) async fn acl_on_multipart(house: &House) -> Seen {
    let begin = || Request::new("POST", "/first/public").query("uploads", "");
    let answer = house.ask_signed(begin().header("x-amz-acl", "public-read")).await?;
    answer.refuses("an upload for everybody to read", 400, "AccessControlListNotSupported")?;
    let uploads = list(house, &[("uploads", ""), ("prefix", "public")]).await?;
    if uploads.body.contains("<Upload>") {
        return Err(format!("an upload was begun without what it asked for: {}", uploads.body));
    }
    house.ask_signed(begin().header("x-amz-acl", "private")).await?.succeeds("an upload of one's own")?;
    Ok("400 AccessControlListNotSupported, and no upload".to_owned())
}

pub(super) async fn bucket_tags(house: &House) -> Seen {
    let create = |inside: &str| {
        let xmlns = "http://s3.amazonaws.com/doc/2006-03-01/";
        let text =
            format!("<CreateBucketConfiguration xmlns=\"{xmlns}\">{inside}</CreateBucketConfiguration>");
        Request::new("PUT", "/tagged").body(text)
    };
    let tags = "<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>";
    let answer = house.ask_signed(create(tags)).await?;
    if house.buckets().await?.contains("<Name>tagged</Name>") {
        return Err(format!("a bucket was made without its tags: {}", answer.said()));
    }
    answer.refuses("a bucket with tags", 501, "NotImplemented")?;
    let region = "<LocationConstraint>US</LocationConstraint>";
    house.ask_signed(create(region)).await?.succeeds("a bucket without tags")?;
    Ok("501 NotImplemented, and no bucket".to_owned())
}

pub(super) async fn complete_again(house: &House) -> Seen {
    let path = "/first/completed";
    let begun = house.ask_signed(Request::new("POST", path).query("uploads", "")).await?;
    let upload = begun.element("UploadId").ok_or_else(|| begun.said())?.to_owned();
    let part = Request::new("PUT", path).query("partNumber", "1").query("uploadId", &upload).body("part");
    let part = house.ask_signed(part).await?;
    part.succeeds("a part")?;
    let etag = part.head.lines().find_map(|line| line.strip_prefix("etag: \"")).unwrap_or_default();
    let etag = etag.trim_end_matches('"').to_owned();
    let complete = |etag: &str| {
        let part = format!("<Part><PartNumber>1</PartNumber><ETag>\"{etag}\"</ETag></Part>");
        let text = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        Request::new("POST", path).query("uploadId", &upload).body(text)
    };
    let first = house.ask_signed(complete(&etag)).await?;
    first.succeeds("the first Complete")?;
    let again = house.ask_signed(complete(&etag)).await?;
    again.succeeds("the same Complete, by a client that lost the answer")?;
    if first.element("ETag") != again.element("ETag") {
        return Err(format!("Complete again is another object: {} {}", first.body, again.body));
    }
    let location = first.element("Location").unwrap_or_default();
    if location != format!("http://{}{path}", house.address) {
        return Err(format!("the Location of a completed upload is {location:?}"));
    }
    let other = house.ask_signed(complete(&"0".repeat(32))).await?;
    other.refuses("Complete again with other parts", 404, "NoSuchUpload")?;
    house.still_has("completed", Some("part")).await?;
    Ok("200 with the same ETag; 404 NoSuchUpload for other parts".to_owned())
}

pub(super) async fn uploads_of_odd_keys(house: &House) -> Seen {
    for key in ["odd\u{1}upload", "odd-upload", "odd\rupload"] {
        let begun = house.ask_signed(Request::new("POST", &format!("/first/{key}")).query("uploads", ""));
        begun.await?.succeeds("the begin of an upload")?;
    }
    let encoded = list(house, &[("uploads", ""), ("prefix", "odd"), ("encoding-type", "url")]).await?;
    names_all("a list in url's encoding", &encoded, ["odd%01upload", "odd-upload", "odd%0Dupload"])?;
    let plain = list(house, &[("uploads", ""), ("prefix", "odd")]).await?;
    names_all("a list", &plain, ["odd&#1;upload", "odd-upload", "odd&#13;upload"])?;
    Ok("three uploads, in references and in url's encoding".to_owned())
}

pub(super) async fn carriage_returns(house: &House) -> Seen {
    for key in ["cr\rkey", "cr\r\nkey", "cr-key"] {
        let put = Request::new("PUT", &format!("/first/{key}")).body("text");
        house.ask_signed(put).await?.succeeds("a key with a carriage return")?;
    }
    let keys = ["<Key>cr&#13;key</Key>", "<Key>cr-key</Key>", "<Key>cr&#13;"];
    names_all("a list", &list(house, &[("list-type", "2"), ("prefix", "cr")]).await?, keys)?;
    names_all("a list of Version 1", &list(house, &[("prefix", "cr")]).await?, keys)?;
    names_all("a list of versions", &list(house, &[("versions", ""), ("prefix", "cr")]).await?, keys)?;
    let missing = house.ask_signed(Request::new("GET", "/first/cr\rmissing")).await?;
    names_all("an error", &missing, ["NoSuchKey", "cr\\rmissing", "<Error>"])?;
    Ok("&#13; in three lists, and \\r in an error".to_owned())
}

pub(super) async fn max_parts_zero(house: &House) -> Seen {
    let upload = house.s3.begin_upload("none").await?;
    house.s3.put_part("none", &upload, 1, b"part".to_vec()).await?;
    let parts = async |max: &str| {
        let parts = Request::new("GET", "/first/none").query("uploadId", &upload).query("max-parts", max);
        let parts = house.ask_signed(parts).await?;
        parts.succeeds("a list of parts")?;
        Ok::<usize, Failed>(parts.body.matches("<Part>").count())
    };
    let zero = parts("0").await?;
    let lists: [(&str, Parameters<'_>, &str); 4] = [
        ("max-keys", &[("list-type", "2")], "<Contents>"),
        ("max-keys", &[], "<Contents>"),
        ("max-keys", &[("versions", "")], "<Version>"),
        ("max-uploads", &[("uploads", "")], "<Upload>"),
    ];
    for (max, parameters, element) in lists {
        for wanted in [0, 1] {
            let number = wanted.to_string();
            let listed = list(house, &[parameters, &[(max, number.as_str())]].concat()).await?;
            let found = listed.body.matches(element).count();
            if found != wanted {
                return Err(format!("{max}={wanted} {parameters:?}: {found} times {element}"));
            }
        }
    }
    match (zero, parts("1").await?) {
        (0, 1) => Ok("no part, no key in three lists and no upload".to_owned()),
        found => Err(format!("asked for no part, and for one: {found:?}")),
    }
}

/// The names of parameters and their values.
type Parameters<'a> = &'a [(&'a str, &'a str)];

async fn list(house: &House, parameters: Parameters<'_>) -> Result<Answer, Failed> {
    let bucket = Request::new("GET", "/first");
    let request = parameters.iter().fold(bucket, |request, (name, value)| request.query(name, value));
    let answer = house.ask_signed(request).await?;
    answer.succeeds(&format!("a list with {parameters:?}"))?;
    Ok(answer)
}

/// A document that a parser takes, with all of these in it.
fn names_all(what: &str, answer: &Answer, names: [&str; 3]) -> Result<(), Failed> {
    if let Some(raw) = answer.body.chars().find(|c| c.is_control() && *c != '\n') {
        return Err(format!("{what} has a raw {raw:?}: {}", answer.body.escape_debug()));
    }
    match names.into_iter().find(|name| !answer.body.contains(name)) {
        Some(name) => Err(format!("{what} does not have {name:?}: {}", answer.said())),
        None => Ok(()),
    }
}
