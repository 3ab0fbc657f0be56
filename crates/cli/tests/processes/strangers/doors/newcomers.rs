//! The first minutes of a new user: what clients ask before anybody tells them to, the region that one of
//! them signs for, and the words of a refusal, which are all that most of them show.

use super::house::House;
use super::keys::Keys;
use super::request::Request;
use super::{Failed, Seen};

/// Questions to a bucket, and what is in the answer of one that has nothing of it, and what is not.
const ANSWERED: &[(&str, &str, &str)] = &[
    ("versioning", "<VersioningConfiguration", "<Status>"),
    ("acl", "<Permission>FULL_CONTROL</Permission>", "AllUsers"),
    ("ownershipControls", "<ObjectOwnership>BucketOwnerEnforced</ObjectOwnership>", "ObjectWriter"),
    ("requestPayment", "<Payer>BucketOwner</Payer>", "Requester"),
    ("logging", "<BucketLoggingStatus", "<LoggingEnabled>"),
    ("notification", "<NotificationConfiguration", "<Event>"),
    ("accelerate", "<AccelerateConfiguration", "<Status>"),
];
/// Questions to a bucket, and the error by which AWS says that there is nothing of it.
const LACKING: &[(&str, &str)] = &[
    ("tagging", "NoSuchTagSet"),
    ("policy", "NoSuchBucketPolicy"),
    ("policyStatus", "NoSuchBucketPolicy"),
    ("cors", "NoSuchCORSConfiguration"),
    ("lifecycle", "NoSuchLifecycleConfiguration"),
    ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
    ("replication", "ReplicationConfigurationNotFoundError"),
    ("website", "NoSuchWebsiteConfiguration"),
    ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
    ("object-lock", "ObjectLockConfigurationNotFoundError"),
];

pub(super) async fn probes(house: &House) -> Seen {
    let ask = async |bucket: &str, what: &str| {
        house.ask_signed(Request::new("GET", &format!("/{bucket}")).query(what, "")).await
    };
    for (what, has, has_not) in ANSWERED {
        let answer = ask("first", what).await?;
        answer.succeeds(&format!("?{what}"))?;
        if !answer.body.contains(has) || answer.body.contains(has_not) {
            return Err(format!("?{what} of a bucket that has nothing of it: {}", answer.said()));
        }
    }
    for (what, code) in LACKING {
        ask("first", what).await?.refuses(&format!("?{what}"), 404, code)?;
    }
    let all = ANSWERED.iter().map(|(what, ..)| what).chain(LACKING.iter().map(|(what, _)| what));
    for what in all.chain(&["versions"]) {
        ask("nobodys", what).await?.refuses(&format!("?{what} of no bucket"), 404, "NoSuchBucket")?;
    }
    has_one_version(house).await?;
    has_attributes(house).await?;
    let questions = ANSWERED.len() + LACKING.len();
    Ok(format!("{questions} questions to a bucket, its versions and attributes: answered as by AWS"))
}

/// The object of a bucket that knows no versions is a version all the same, called `null`.
async fn has_one_version(house: &House) -> Result<(), Failed> {
    house.put("probed", "new").await?;
    house.put("probed", "text").await?;
    let versions = Request::new("GET", "/first").query("versions", "").query("prefix", "probed");
    let versions = house.ask_signed(versions).await?;
    versions.succeeds("a list of versions")?;
    let found = ["Key", "VersionId", "IsLatest", "Size"].map(|name| versions.element(name).unwrap_or("-"));
    match (versions.body.matches("<Version>").count(), found) {
        (1, ["probed", "null", "true", "4"]) => Ok(()),
        _ => Err(format!("one object's versions are {}", versions.said())),
    }
}

async fn has_attributes(house: &House) -> Result<(), Failed> {
    const MD5_OF_TEXT: &str = "1cb251ec0d568de6a929b520c4aed8d1";
    let ask = async |key: &str| {
        let get = Request::new("GET", &format!("/first/{key}")).query("attributes", "");
        house.ask_signed(get.header("x-amz-object-attributes", "ETag,ObjectSize,StorageClass")).await
    };
    let answer = ask("probed").await?;
    answer.succeeds("attributes")?;
    let found = ["ETag", "ObjectSize", "StorageClass"].map(|name| answer.element(name).unwrap_or("-"));
    if found != [MD5_OF_TEXT, "4", "STANDARD"] {
        return Err(format!("the attributes of an object are {}", answer.said()));
    }
    ask("never-was").await?.refuses("attributes of no object", 404, "NoSuchKey")
}

/// s3cmd signs for `US`, and makes its buckets there, unless it is told otherwise.
pub(super) async fn region_us(house: &House) -> Seen {
    let get = || Request::new("GET", "/first/here").region("US");
    let both = || [house.keys.in_headers(get()), house.keys.in_url(get(), 600)];
    for (sent, other) in both().into_iter().zip(both()) {
        let answer = house.ask(other.forged()).await?;
        answer.refuses("a wrong signature for US", 403, "SignatureDoesNotMatch")?;
        house.ask(sent).await?.succeeds("a signature for US")?;
    }
    let inside = "<LocationConstraint>US</LocationConstraint>";
    let text = format!("<CreateBucketConfiguration>{inside}</CreateBucketConfiguration>");
    for (request, what) in [
        (Request::new("PUT", "/of-s3cmd").body(text), "a bucket in US"),
        (Request::new("GET", "/of-s3cmd").query("location", ""), "where it is"),
        (Request::new("PUT", "/of-s3cmd/key").body("text"), "an object"),
        (Request::new("DELETE", "/of-s3cmd/key"), "its end"),
        (Request::new("DELETE", "/of-s3cmd"), "the bucket's end"),
    ] {
        house.ask_signed(request.region("US")).await?.succeeds(what)?;
    }
    Ok("a bucket is made, asked, filled and deleted by who signs for US".to_owned())
}

/// [`Answer::refuses`] asks for words in each refusal of each door; here are those of no other door.
pub(super) async fn messages(house: &House) -> Seen {
    house.put("worded", "text").await?;
    let get = || Request::new("GET", "/first/worded");
    let put = || Request::new("PUT", "/first/worded").body("other");
    let upload = house.s3.begin_upload("unworded").await?;
    let complete = |upload: &str| {
        let part = "<Part><PartNumber>1</PartNumber><ETag>\"none\"</ETag></Part>";
        let text = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        Request::new("POST", "/first/unworded").query("uploadId", upload).body(text)
    };
    let no_upload = "0".repeat(32);
    let long_key = format!("/first/{}", "k".repeat(1025));
    let refused = [
        (Request::new("GET", "/first/never-was"), 404, "NoSuchKey"),
        (Request::new("GET", "/nobodys/key"), 404, "NoSuchBucket"),
        (Request::new("DELETE", "/nobodys"), 404, "NoSuchBucket"),
        (Request::new("PUT", "/first"), 409, "BucketAlreadyOwnedByYou"),
        (Request::new("DELETE", "/first"), 409, "BucketNotEmpty"),
        (Request::new("PUT", "/Not_A_Name"), 400, "InvalidBucketName"),
        (Request::new("PUT", &long_key).body("text"), 400, "KeyTooLongError"),
        (Request::new("PATCH", "/first/worded"), 501, "NotImplemented"),
        (get().header("range", "bytes=100-"), 416, "InvalidRange"),
        (get().header("if-match", "\"none\""), 412, "PreconditionFailed"),
        (get().query("versionId", "none"), 404, "NoSuchVersion"),
        (put().header("if-none-match", "*"), 412, "PreconditionFailed"),
        (put().header("content-md5", "none"), 400, "InvalidDigest"),
        (put().header("x-amz-storage-class", "NONE"), 400, "InvalidStorageClass"),
        (put().header("x-amz-content-sha256", &no_upload.repeat(2)), 400, "XAmzContentSHA256Mismatch"),
        (put().header("x-amz-copy-source", "/first/never-was"), 404, "NoSuchKey"),
        (put().query("partNumber", "0").query("uploadId", &upload), 400, "InvalidArgument"),
        (complete(&no_upload), 404, "NoSuchUpload"),
        (complete(&upload), 400, "InvalidPart"),
        (complete(&upload).body("<CompleteMultipartUpload>"), 400, "MalformedXML"),
        (Request::new("POST", "/first").query("delete", "").body("<Delete>"), 400, "MalformedXML"),
        (Request::new("GET", "/first").query("max-keys", "none"), 400, "InvalidArgument"),
    ];
    let number = refused.len();
    for (request, status, code) in refused {
        let what = format!("{} {} for {code}", request.method, &request.path[..20.min(request.path.len())]);
        house.ask_signed(request).await?.refuses(&what, status, code)?;
    }
    let nobody = Keys { access_key: "NOBODY".to_owned(), ..house.keys.clone() };
    let answer = house.ask(nobody.in_headers(get())).await?;
    answer.refuses("a key that nobody has", 403, "InvalidAccessKeyId")?;
    house.ask(house.keys.unsigned(get())).await?.refuses("no signature", 403, "AccessDenied")?;
    one_of_many(house).await?;
    house.still_has("worded", Some("text")).await?;
    Ok(format!("{} refusals, each with words", number + 3))
}

/// The error of one of several objects stands in a document of success.
async fn one_of_many(house: &House) -> Result<(), Failed> {
    let other = "<Object><Key>worded</Key><VersionId>none</VersionId></Object>";
    let text = format!("<Delete><Object><Key>never-was</Key></Object>{other}</Delete>");
    let delete = Request::new("POST", "/first").query("delete", "").body(text);
    let answer = house.ask_signed(delete).await?;
    answer.succeeds("a request to delete two objects")?;
    let is_told = answer.element("Code") == Some("NoSuchVersion") && answer.has_words();
    match is_told && answer.body.contains("<Deleted><Key>never-was</Key></Deleted>") {
        true => Ok(()),
        false => Err(format!("of two objects, one of a version that is not: {}", answer.said())),
    }
}
