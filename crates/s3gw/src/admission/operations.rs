//! The table of all that a request may be: every operation with all parameters, `x-amz-*` and `x-flotilla-*`
//! headers and XML elements it may come with. A request that is none of these, or brings more, is
//! `NotImplemented`, and nothing of it is done: to leave out what a client asked for and answer with success
//! would be a lie, and a sub-resource left out makes another operation of it.

use super::query::Query;
use axum::http::Method;

/// An operation of S3 that this gateway has.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    method: Method,
    scope: Scope,
    /// The parameters that make a request this operation, with their value where it matters.
    chosen_by: &'static [(&'static str, Option<&'static str>)],
    /// Whether it is a copy: the header that names its source is there.
    copies: bool,
    /// Other parameters that a request of this operation may have.
    parameters: &'static [&'static str],
    /// The headers that say what is asked for ([`says_what`]) and that such a request may have besides those
    /// of [`ANYWHERE`]; one that ends in `*` stands for all that begin so.
    headers: &'static [&'static str],
    pub(super) body: Body,
}

/// The scope that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Service,
    Bucket,
    Object,
}

/// The purpose of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Nothing; not a byte is read.
    None,
    /// The bytes of an object.
    Data,
    /// A document with these elements, in memory as a whole.
    Xml { bytes_max: usize, elements: &'static [&'static str], sums: Sums },
}

/// The bytes that the checksum headers beside a document are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    OfDocument,
    OfObject,
}

pub(super) const COPY_SOURCE: &str = "x-amz-copy-source";
const ACK: &str = "x-flotilla-ack";

/// The most bytes of a document; the one that names 10 000 parts with their checksums may be twice as long.
const XML_BYTES_MAX: usize = 2 << 20;
const PARTS_XML_BYTES_MAX: usize = 4 << 20;

/// Headers that any request may have. They are about the request itself (when it was signed, how its body
/// travels), are looked at in `admission`, or change nothing: there are no requesters that could pay, and no
/// trailer is ever asked for.
const ANYWHERE: &[&str] = &[
    "x-amz-api-version",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-expected-bucket-owner",
    "x-amz-request-payer",
    "x-amz-te",
    "x-amz-user-agent",
];

const READ: &[&str] = &[
    "partNumber",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "versionId",
];

/// Conditions of HTTP. A read that does not look at one answers with more than was asked for; a change that
/// does not would be made although its client wanted none.
const CONDITIONS: &[&str] =
    &["content-range", "if-match", "if-modified-since", "if-none-match", "if-unmodified-since"];

const WRITTEN_IF: [&str; 2] = ["if-match", "if-none-match"];

const LISTED: &[&str] = &["x-amz-optional-object-attributes"];

/// Headers that come with a body that is kept or checked.
const SENT: &[&str] = &[
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
    "x-amz-decoded-content-length",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-trailer",
];

impl Operation {
    const fn new(name: &'static str, method: Method, scope: Scope) -> Operation {
        let none: &[&str] = &[];
        Operation {
            name,
            method,
            scope,
            chosen_by: &[],
            copies: false,
            parameters: none,
            headers: none,
            body: Body::None,
        }
    }

    const fn by(mut self, chosen_by: &'static [(&'static str, Option<&'static str>)]) -> Operation {
        self.chosen_by = chosen_by;
        self
    }

    const fn copying(mut self) -> Operation {
        self.copies = true;
        self
    }

    const fn parameters(mut self, parameters: &'static [&'static str]) -> Operation {
        self.parameters = parameters;
        self
    }

    const fn headers(mut self, headers: &'static [&'static str]) -> Operation {
        self.headers = headers;
        self
    }

    const fn body(mut self, body: Body) -> Operation {
        self.body = body;
        self
    }

    fn is_chosen(&self, method: &Method, scope: Scope, query: &Query, copies: bool) -> bool {
        let has = |(name, value): &(&str, Option<&str>)| {
            query.get(name).is_some_and(|given| value.is_none_or(|value| value == given))
        };
        self.method == *method
            && self.scope == scope
            && self.copies == copies
            && self.chosen_by.iter().all(has)
    }

    /// Whether the operation knows a parameter. SDKs repeat the operation's name in `x-id`.
    fn takes_parameter(&self, name: &str, query: &Query) -> bool {
        self.chosen_by.iter().any(|(chosen_by, _)| *chosen_by == name)
            || self.parameters.contains(&name)
            || (name == "x-id" && query.get(name) == Some(self.name))
    }

    fn takes_header(&self, name: &str) -> bool {
        let takes = |pattern: &str| match pattern.strip_suffix('*') {
            Some(beginning) => name.strip_prefix(beginning).is_some_and(|rest| !rest.is_empty()),
            None => name == pattern,
        };
        let sent = self.body != Body::None && SENT.contains(&name);
        sent || ANYWHERE.contains(&name) || self.headers.iter().any(|pattern| takes(pattern))
    }
}

/// The names of all operations.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    OPERATIONS.iter().map(|operation| operation.name)
}

/// Whether a header is AWS's or Flotilla's: such a header an operation has or has not.
pub(super) fn are_ours(name: &str) -> bool {
    name.starts_with("x-amz-") || name.starts_with("x-flotilla-")
}

/// Whether an operation must know a header: to leave it out would be to do something else.
pub(super) fn says_what(method: &Method, name: &str) -> bool {
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    are_ours(name) || !is_read && CONDITIONS.contains(&name)
}

/// The one operation that a request is; the error says in words why it is none. `headers` are the names of
/// those of its headers that [say what](says_what) is asked for.
pub(super) fn operation(
    method: &Method,
    scope: Scope,
    query: &Query,
    headers: &[&str],
) -> Result<&'static Operation, String> {
    let copies = *method == Method::PUT && headers.contains(&COPY_SOURCE);
    let chosen = OPERATIONS
        .iter()
        .filter(|operation| operation.is_chosen(method, scope, query, copies))
        .max_by_key(|operation| operation.chosen_by.len());
    let Some(operation) = chosen else {
        let parameters: Vec<&str> = query.names().collect();
        return Err(format!("{method} of this resource with parameters {parameters:?}"));
    };
    if let Some(name) = query.names().find(|name| !operation.takes_parameter(name, query)) {
        return Err(format!("The parameter {name:?} of {}", operation.name));
    }
    match headers.iter().find(|name| !operation.takes_header(name)) {
        Some(name) => Err(format!("The header {name} of {}", operation.name)),
        None => Ok(operation),
    }
}

use Scope::{Bucket, Object, Service};

static OPERATIONS: &[Operation] = &[
    Operation::new("ListBuckets", Method::GET, Service).parameters(&[
        "continuation-token",
        "max-buckets",
        "prefix",
    ]),
    // Buckets.
    Operation::new("HeadBucket", Method::HEAD, Bucket),
    Operation::new("CreateBucket", Method::PUT, Bucket)
        .headers(&["x-amz-acl", "x-amz-bucket-object-lock-enabled", "x-amz-object-ownership"])
        .body(Body::Xml {
            bytes_max: XML_BYTES_MAX,
            elements: &["CreateBucketConfiguration", "LocationConstraint"],
            sums: Sums::OfDocument,
        }),
    Operation::new("DeleteBucket", Method::DELETE, Bucket),
    Operation::new("GetBucketLocation", Method::GET, Bucket).by(&[("location", None)]),
    // Questions that an ordinary bucket answers.
    Operation::new("GetBucketAccelerateConfiguration", Method::GET, Bucket).by(&[("accelerate", None)]),
    Operation::new("GetBucketAcl", Method::GET, Bucket).by(&[("acl", None)]),
    Operation::new("GetBucketCors", Method::GET, Bucket).by(&[("cors", None)]),
    Operation::new("GetBucketEncryption", Method::GET, Bucket).by(&[("encryption", None)]),
    Operation::new("GetBucketLifecycleConfiguration", Method::GET, Bucket).by(&[("lifecycle", None)]),
    Operation::new("GetBucketLogging", Method::GET, Bucket).by(&[("logging", None)]),
    Operation::new("GetBucketNotificationConfiguration", Method::GET, Bucket).by(&[("notification", None)]),
    Operation::new("GetBucketOwnershipControls", Method::GET, Bucket).by(&[("ownershipControls", None)]),
    Operation::new("GetBucketPolicy", Method::GET, Bucket).by(&[("policy", None)]),
    Operation::new("GetBucketPolicyStatus", Method::GET, Bucket).by(&[("policyStatus", None)]),
    Operation::new("GetBucketReplication", Method::GET, Bucket).by(&[("replication", None)]),
    Operation::new("GetBucketRequestPayment", Method::GET, Bucket).by(&[("requestPayment", None)]),
    Operation::new("GetBucketTagging", Method::GET, Bucket).by(&[("tagging", None)]),
    Operation::new("GetBucketVersioning", Method::GET, Bucket).by(&[("versioning", None)]),
    Operation::new("GetBucketWebsite", Method::GET, Bucket).by(&[("website", None)]),
    Operation::new("GetObjectLockConfiguration", Method::GET, Bucket).by(&[("object-lock", None)]),
    Operation::new("GetPublicAccessBlock", Method::GET, Bucket).by(&[("publicAccessBlock", None)]),
    // Lists.
    Operation::new("ListObjects", Method::GET, Bucket)
        .parameters(&["delimiter", "encoding-type", "marker", "max-keys", "prefix"])
        .headers(LISTED),
    Operation::new("ListObjectsV2", Method::GET, Bucket)
        .by(&[("list-type", Some("2"))])
        .parameters(&[
            "continuation-token",
            "delimiter",
            "encoding-type",
            "fetch-owner",
            "max-keys",
            "prefix",
            "start-after",
        ])
        .headers(LISTED),
    Operation::new("ListObjectVersions", Method::GET, Bucket)
        .by(&[("versions", None)])
        .parameters(&["delimiter", "encoding-type", "key-marker", "max-keys", "prefix", "version-id-marker"])
        .headers(LISTED),
    Operation::new("ListMultipartUploads", Method::GET, Bucket).by(&[("uploads", None)]).parameters(&[
        "delimiter",
        "encoding-type",
        "key-marker",
        "max-uploads",
        "prefix",
        "upload-id-marker",
    ]),
    // Objects.
    Operation::new("HeadObject", Method::HEAD, Object).parameters(READ).headers(&["x-amz-checksum-mode"]),
    Operation::new("GetObject", Method::GET, Object).parameters(READ).headers(&["x-amz-checksum-mode"]),
    Operation::new("GetObjectAcl", Method::GET, Object).by(&[("acl", None)]).parameters(&["versionId"]),
    Operation::new("GetObjectAttributes", Method::GET, Object)
        .by(&[("attributes", None)])
        .parameters(&["versionId"])
        .headers(&["x-amz-max-parts", "x-amz-object-attributes", "x-amz-part-number-marker"]),
    Operation::new("GetObjectTagging", Method::GET, Object)
        .by(&[("tagging", None)])
        .parameters(&["versionId"]),
    Operation::new("PutObject", Method::PUT, Object)
        .headers(&[
            WRITTEN_IF[0],
            WRITTEN_IF[1],
            "x-amz-acl",
            "x-amz-checksum-type",
            "x-amz-meta-*",
            "x-amz-storage-class",
            ACK,
        ])
        .body(Body::Data),
    Operation::new("CopyObject", Method::PUT, Object).copying().headers(&[
        WRITTEN_IF[0],
        WRITTEN_IF[1],
        "x-amz-acl",
        "x-amz-checksum-algorithm",
        COPY_SOURCE,
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-if-modified-since",
        "x-amz-copy-source-if-none-match",
        "x-amz-copy-source-if-unmodified-since",
        "x-amz-meta-*",
        "x-amz-metadata-directive",
        "x-amz-source-expected-bucket-owner",
        "x-amz-storage-class",
        // An object without tags has none to copy or to replace.
        "x-amz-tagging-directive",
        ACK,
    ]),
    // Nothing is locked, so there is no lock to pass by.
    Operation::new("DeleteObject", Method::DELETE, Object)
        .parameters(&["versionId"])
        .headers(&["if-match", "x-amz-bypass-governance-retention"]),
    Operation::new("DeleteObjects", Method::POST, Bucket)
        .by(&[("delete", None)])
        .headers(&["x-amz-bypass-governance-retention"])
        .body(Body::Xml {
            bytes_max: XML_BYTES_MAX,
            elements: &["Delete", "ETag", "Key", "LastModifiedTime", "Object", "Quiet", "Size", "VersionId"],
            sums: Sums::OfDocument,
        }),
    // Uploads by parts.
    Operation::new("CreateMultipartUpload", Method::POST, Object).by(&[("uploads", None)]).headers(&[
        "x-amz-acl",
        "x-amz-checksum-algorithm",
        "x-amz-checksum-type",
        "x-amz-meta-*",
        "x-amz-storage-class",
    ]),
    Operation::new("UploadPart", Method::PUT, Object)
        .by(&[("partNumber", None), ("uploadId", None)])
        .headers(&["x-amz-checksum-type", ACK])
        .body(Body::Data),
    Operation::new("UploadPartCopy", Method::PUT, Object)
        .by(&[("partNumber", None), ("uploadId", None)])
        .copying()
        .headers(&[
            COPY_SOURCE,
            "x-amz-copy-source-if-match",
            "x-amz-copy-source-if-modified-since",
            "x-amz-copy-source-if-none-match",
            "x-amz-copy-source-if-unmodified-since",
            "x-amz-copy-source-range",
            "x-amz-source-expected-bucket-owner",
            ACK,
        ]),
    Operation::new("CompleteMultipartUpload", Method::POST, Object)
        .by(&[("uploadId", None)])
        .headers(&[WRITTEN_IF[0], WRITTEN_IF[1], "x-amz-checksum-type", "x-amz-mp-object-size"])
        .body(Body::Xml {
            bytes_max: PARTS_XML_BYTES_MAX,
            elements: &[
                "ChecksumCRC32",
                "ChecksumCRC32C",
                "ChecksumCRC64NVME",
                "ChecksumSHA1",
                "ChecksumSHA256",
                "CompleteMultipartUpload",
                "ETag",
                "Part",
                "PartNumber",
            ],
            sums: Sums::OfObject,
        }),
    Operation::new("AbortMultipartUpload", Method::DELETE, Object).by(&[("uploadId", None)]),
    Operation::new("ListParts", Method::GET, Object)
        .by(&[("uploadId", None)])
        .parameters(&["max-parts", "part-number-marker"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, scope: Scope, query: &str, headers: &[&str]) -> Option<&'static str> {
        let query = Query::parse(query).unwrap();
        operation(&method, scope, &query, headers).ok().map(|operation| operation.name)
    }

    #[test]
    fn requests_are_the_operations_they_name() {
        assert_eq!(check(Method::GET, Service, "", &[]), Some("ListBuckets"));
        assert_eq!(check(Method::PUT, Object, "", &["x-amz-meta-a", "x-amz-date"]), Some("PutObject"));
        assert_eq!(check(Method::PUT, Object, "x-id=PutObject", &[]), Some("PutObject"));
        assert_eq!(check(Method::PUT, Object, "", &["x-amz-copy-source"]), Some("CopyObject"));
        assert_eq!(check(Method::PUT, Object, "partNumber=1&uploadId=u", &[]), Some("UploadPart"));
        assert_eq!(
            check(Method::PUT, Object, "partNumber=1&uploadId=u", &["x-amz-copy-source"]),
            Some("UploadPartCopy")
        );
        assert_eq!(check(Method::GET, Object, "versionId=null&partNumber=2", &[]), Some("GetObject"));
        assert_eq!(check(Method::GET, Bucket, "list-type=2&prefix=a", &[]), Some("ListObjectsV2"));
        assert_eq!(check(Method::POST, Object, "uploads", &[]), Some("CreateMultipartUpload"));
        assert_eq!(check(Method::DELETE, Object, "uploadId=u", &[]), Some("AbortMultipartUpload"));
    }

    #[test]
    fn what_nobody_knows_is_no_operation() {
        for (method, scope, query) in [
            (Method::PUT, Object, "encryption"),
            (Method::PUT, Object, "annotation&annotationName=x"),
            (Method::PUT, Object, "renameObject"),
            (Method::DELETE, Object, "annotation"),
            (Method::DELETE, Bucket, "metadataConfiguration"),
            (Method::PUT, Object, "Tagging"),
            (Method::PUT, Object, "tagging"),
            (Method::PUT, Object, "uploadId=u"),
            (Method::PUT, Object, "uploads"),
            (Method::PUT, Object, "x-id=RenameObject"),
            (Method::GET, Bucket, "list-type=1"),
            (Method::GET, Bucket, "list-type=2&uploads"),
            (Method::GET, Bucket, "acl&policy"),
            (Method::GET, Bucket, "session"),
            (Method::GET, Object, "torrent"),
            (Method::GET, Object, "Signature=x"),
            (Method::POST, Object, ""),
            (Method::POST, Bucket, ""),
            (Method::POST, Service, ""),
            (Method::OPTIONS, Object, ""),
        ] {
            assert_eq!(check(method.clone(), scope, query, &[]), None, "{method} {query}");
        }
        for header in [
            "x-amz-tagging",
            "x-amz-meta-",
            "x-amz-checksum-sha512",
            "x-amz-checksum-md5",
            "x-amz-checksum-xxhash64",
            "x-amz-grant-read",
            "x-amz-website-redirect-location",
            "x-amz-server-side-encryption",
            "x-amz-write-offset-bytes",
            "x-amz-object-lock-mode",
            "x-amz-never-heard-of",
        ] {
            assert_eq!(check(Method::PUT, Object, "", &[header]), None, "{header}");
        }
        assert_eq!(check(Method::GET, Object, "", &["x-amz-copy-source"]), None);
        assert_eq!(check(Method::PUT, Object, "partNumber=1&uploadId=u", &["x-amz-meta-a"]), None);
        assert_eq!(check(Method::DELETE, Object, "", &["x-amz-if-match-size"]), None);
    }

    /// A condition that nobody looks at would be answered with success: a key would be deleted that was to be
    /// deleted only if there was none.
    #[test]
    fn a_change_with_a_condition_that_it_does_not_look_at_is_no_operation() {
        let parts = "partNumber=1&uploadId=u";
        for (method, scope, query, taken) in [
            (Method::PUT, Object, "", &WRITTEN_IF[..]),
            (Method::POST, Object, "uploadId=u", &WRITTEN_IF),
            (Method::DELETE, Object, "", &["if-match"]),
            (Method::PUT, Object, parts, &[]),
            (Method::POST, Object, "uploads", &[]),
            (Method::DELETE, Object, "uploadId=u", &[]),
            (Method::POST, Bucket, "delete", &[]),
            (Method::PUT, Bucket, "", &[]),
            (Method::DELETE, Bucket, "", &[]),
        ] {
            for condition in CONDITIONS {
                assert!(says_what(&method, condition) && !says_what(&Method::GET, condition));
                let is_operation = check(method.clone(), scope, query, &[condition]).is_some();
                assert_eq!(is_operation, taken.contains(condition), "{method} {query:?} with {condition}");
            }
        }
    }
}
