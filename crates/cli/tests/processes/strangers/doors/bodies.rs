//! Bodies: of who has not signed nothing is read, and of who has, no more than its kind may be.

use super::Seen;
use super::house::{House, Peak};
use super::keys::UNSIGNED_PAYLOAD;
use super::request::Request;

const MIB: usize = 1 << 20;
/// As much as strangers are ready to send, where what is held of it shows.
const SENT_BYTES: usize = 256 * MIB;
/// Windows of a connection, chunks on their way to datanodes, and what else the gateway does.
const GROWTH_BYTES_MAX: u64 = 64 << 20;
/// What is read on of a client that was refused, and what kernels hold.
const READ_ON_BYTES_MAX: usize = 48 * MIB;
/// A part, a chunk and an object may have as much.
const OBJECT_BYTES_MAX: usize = 5 << 30;

pub(super) async fn form_body(house: &House) -> Seen {
    let peak = Peak::of(&house.cluster.gateway);
    for kind in ["Multipart/form-data; boundary=x", "multipart/FORM-DATA; boundary=x"] {
        let form = Request::new("POST", "/first").header("content-type", kind).body("--x\r\n");
        let form = house.keys.unsigned(form).with("content-length", &OBJECT_BYTES_MAX.to_string());
        let answer = house.ask(form.and_more(SENT_BYTES)).await?;
        if answer.taken_bytes > READ_ON_BYTES_MAX {
            return Err(format!(
                "{} MiB of a form that nobody signed were read ({kind})",
                answer.taken_bytes / MIB
            ));
        }
        // Of who goes on sending the connection ends, and the answer may be lost with it.
        if answer.status != 0 {
            answer.refuses("a form", 501, "NotImplemented")?;
        }
    }
    let grown = peak.stayed_below(GROWTH_BYTES_MAX, "a form that nobody signed")?;
    let small = Request::new("POST", "/first").header("content-type", "Multipart/form-data; boundary=x");
    let answer = house.ask(house.keys.unsigned(small.body("--x--\r\n"))).await?;
    answer.refuses("a small form", 501, "NotImplemented")?;
    Ok(format!("501 NotImplemented, the connection ended, {grown}"))
}

pub(super) async fn large_documents(house: &House) -> Seen {
    let object = "<Delete><Object><Key>nothing</Key></Object>";
    let delete = |padding: usize| {
        let text = format!("{object}{}</Delete>", " ".repeat(padding));
        Request::new("POST", "/first").query("delete", "").body(text)
    };
    house.ask_signed(delete(1000)).await?.succeeds("a document of a kilobyte")?;
    let upload = house.s3.begin_upload("large-document").await?;
    let complete = Request::new("POST", "/first/large-document").query("uploadId", &upload);
    let create = Request::new("PUT", "/large-document");
    for (what, request, limit) in [
        ("DeleteObjects", delete(2 * MIB), 2),
        ("CompleteMultipartUpload", complete.body(" ".repeat(4 * MIB + 1)), 4),
        ("CreateBucket", create.body(" ".repeat(2 * MIB + 1)), 2),
    ] {
        let answer = house.ask_signed(request).await?;
        let what = format!("{what} of more than {limit} MiB");
        answer.refuses(&what, 400, "MaxMessageLengthExceeded")?;
    }
    let peak = Peak::of(&house.cluster.gateway);
    let endless = Request::new("POST", "/first").query("delete", "");
    let endless = house.keys.in_headers(endless.header("x-amz-content-sha256", UNSIGNED_PAYLOAD));
    let answer = house.ask(endless.and_more(SENT_BYTES)).await?;
    if answer.taken_bytes > READ_ON_BYTES_MAX {
        return Err(format!("{} MiB of a document were read", answer.taken_bytes / MIB));
    }
    let grown = peak.stayed_below(GROWTH_BYTES_MAX, "one document")?;
    if house.buckets().await?.contains("large-document") {
        return Err("a bucket was made by a document that is too large".to_owned());
    }
    Ok(format!("400 MaxMessageLengthExceeded for three kinds, {grown}"))
}

/// One chunk of 5 GiB, of which 96 MiB come; with a signature of its own, and without.
pub(super) async fn endless_chunk(house: &House) -> Seen {
    const COMES_BYTES: usize = 96 * MIB;
    let chunked = |key: &str, payload: &str| {
        let put = Request::new("PUT", &format!("/first/{key}")).header("x-amz-content-sha256", payload);
        put.header("x-amz-trailer", "x-amz-checksum-crc32c")
    };
    let decoded = "x-amz-decoded-content-length";
    let length = OBJECT_BYTES_MAX.to_string();
    let signature = format!(";chunk-signature={}", "0".repeat(64));
    let mut said = Vec::new();
    for (payload, extension) in [
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", ""),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", signature.as_str()),
    ] {
        let peak = Peak::of(&house.cluster.gateway);
        let request = chunked("endless", payload).header(decoded, &length);
        let request = request.body(format!("{OBJECT_BYTES_MAX:x}{extension}\r\n"));
        let sent =
            house.keys.in_headers(request).with("content-length", &(OBJECT_BYTES_MAX + 1000).to_string());
        let answer = house.ask(sent.and_more(COMES_BYTES)).await?;
        if (200..300).contains(&answer.status) || answer.taken_bytes < COMES_BYTES {
            return Err(format!(
                "of one chunk {} bytes were taken, then {}",
                answer.taken_bytes,
                answer.said()
            ));
        }
        said.push(peak.stayed_below(GROWTH_BYTES_MAX, "one chunk of 5 GiB")?);
    }
    house.still_has("endless", None).await?;
    let whole = chunked("chunk", "STREAMING-UNSIGNED-PAYLOAD-TRAILER").header(decoded, "5");
    let whole = whole.body("5\r\nhello\r\n0\r\nx-amz-checksum-crc32c:mnG7TA==\r\n\r\n");
    house.ask_signed(whole).await?.succeeds("a chunk of 5 bytes")?;
    house.still_has("chunk", Some("hello")).await?;
    Ok(format!("{} MiB passed on, {}", COMES_BYTES / MIB, said.join(" and ")))
}

/// Node and Python send all before they read: a connection that is closed meanwhile is an error to them, and
/// no answer.
pub(super) async fn early_refusal(house: &House) -> Seen {
    let put = || Request::new("PUT", "/first/refused").header("x-amz-content-sha256", UNSIGNED_PAYLOAD);
    let request = house.keys.in_headers(put()).and_more(8 * MIB).forged();
    let answer = request.ask_at_its_end(&house.address).await?;
    answer.refuses("8 MiB with a wrong signature", 403, "SignatureDoesNotMatch")?;
    house.still_has("refused", None).await?;
    let right = house.keys.in_headers(put()).and_more(MIB).ask_at_its_end(&house.address).await?;
    right.succeeds("a right signature")?;
    Ok("403 SignatureDoesNotMatch is read after 8 MiB were sent".to_owned())
}
