use axum::http::{HeaderMap, Method};

/// The checksum headers of no bytes at all.
///
/// The AWS SDK for Java sends one with every GET, whose body is nothing. The SDK for JavaScript signs one
/// into the URL of a PUT before there is a body: it says nothing of the body that comes, and AWS looks past
/// it. Any other checksum is taken at its word.
const OF_NOTHING: [(&str, &str); 5] = [
    ("x-amz-checksum-crc32", "AAAAAA=="),
    ("x-amz-checksum-crc32c", "AAAAAA=="),
    ("x-amz-checksum-crc64nvme", "AAAAAAAAAAA="),
    ("x-amz-checksum-sha1", "2jmj7l5rSw0yVb/vlWAYkK/YBwk="),
    ("x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
];

pub(super) fn is_sum_of_nothing(name: &str, value: &str) -> bool {
    OF_NOTHING.contains(&(name, value))
}

/// Takes the checksums of no bytes out of the headers of a request without a body: they are true of every
/// such request, and ask for nothing.
pub(super) fn take_sums_of_nothing(method: &Method, headers: &mut HeaderMap) {
    if ![Method::GET, Method::HEAD, Method::DELETE].contains(method) {
        return;
    }
    for (name, nothing) in OF_NOTHING {
        let mut values = headers.get_all(name).iter().peekable();
        if values.peek().is_some() && values.all(|value| value == nothing) {
            headers.remove(name);
        }
    }
}
