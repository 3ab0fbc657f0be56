use super::head::{META_BYTES_MAX, Malformed};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};

/// The bytes that a header takes in memory besides its own, roughly; in HTTP/2 it counts as much.
const HEADER_WEIGHT: usize = 32;
/// The most bytes that are left of a status that does not fit: of its sentence, which is cut, and of its
/// details, which go if they are longer. As they travel the sentence takes thrice as much, and the details a
/// third more.
const SENTENCE_BYTES_MAX: usize = 2 << 10;
const DETAILS_BYTES_MAX: usize = 4 << 10;
const _: () = assert!(3 * SENTENCE_BYTES_MAX + 4 * DETAILS_BYTES_MAX / 3 + 1024 < META_BYTES_MAX as usize);

/// A call's path and headers as they travel. `None`: they are too long.
pub(super) fn of_request<B>(request: &Request<B>) -> Option<Bytes> {
    let mut bytes = BytesMut::with_capacity(256);
    put(&mut bytes, request.uri().path().as_bytes())?;
    put_all(&mut bytes, request.headers())?;
    Some(bytes.freeze())
}

pub(super) fn request<B>(mut bytes: Bytes, body: B) -> Result<Request<B>, Malformed> {
    let path = Uri::from_maybe_shared(take(&mut bytes)?).map_err(|_| Malformed::Headers)?;
    let mut request = Request::new(body);
    *request.uri_mut() = path;
    *request.headers_mut() = of(bytes)?;
    Ok(request)
}

pub(super) fn of_response<B>(response: &Response<B>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(128);
    bytes.put_u16_le(response.status().as_u16());
    put_status(bytes, response.headers())
}

pub(super) fn response(mut bytes: Bytes) -> Result<Response<()>, Malformed> {
    let status = bytes.try_get_u16_le().map_err(|_| Malformed::Headers)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Malformed::Headers)?;
    *response.headers_mut() = of(bytes)?;
    Ok(response)
}

pub(super) fn of_trailers(trailers: &HeaderMap) -> Bytes {
    put_status(BytesMut::with_capacity(64), trailers)
}

/// Appends the headers with which a call is answered. How the call went is said in any case: where the
/// headers are too long, that alone, and shortened.
fn put_status(mut bytes: BytesMut, headers: &HeaderMap) -> Bytes {
    let begin = bytes.len();
    if put_all(&mut bytes, headers).is_none() {
        bytes.truncate(begin);
        put_all(&mut bytes, &shortened(headers)).expect("it is short");
    }
    bytes.freeze()
}

fn shortened(headers: &HeaderMap) -> HeaderMap {
    let status = Status::from_header_map(headers);
    let status = status.unwrap_or_else(|| Status::internal("the headers of the answer are too long"));
    let (said, details) = (status.message(), status.details());
    let said = &said[..said.floor_char_boundary(SENTENCE_BYTES_MAX)];
    let details = if details.len() <= DETAILS_BYTES_MAX { details } else { &[] };
    let short = Status::with_details(status.code(), said, Bytes::copy_from_slice(details));
    let mut headers = HeaderMap::new();
    short.add_header(&mut headers).expect("a sentence can be a header");
    headers
}

pub(super) fn of(mut bytes: Bytes) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::new();
    let mut weight = bytes.len();
    while bytes.has_remaining() {
        weight += HEADER_WEIGHT;
        if weight > META_BYTES_MAX as usize {
            return Err(Malformed::Headers);
        }
        let name = HeaderName::from_bytes(&take(&mut bytes)?).map_err(|_| Malformed::Headers)?;
        let value = HeaderValue::from_maybe_shared(take(&mut bytes)?).map_err(|_| Malformed::Headers)?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn put_all(bytes: &mut BytesMut, headers: &HeaderMap) -> Option<()> {
    for (name, value) in headers {
        put(bytes, name.as_str().as_bytes())?;
        put(bytes, value.as_bytes())?;
    }
    (bytes.len() + headers.len() * HEADER_WEIGHT <= META_BYTES_MAX as usize).then_some(())
}

fn put(bytes: &mut BytesMut, text: &[u8]) -> Option<()> {
    bytes.put_u16_le(text.len().try_into().ok()?);
    bytes.put_slice(text);
    Some(())
}

fn take(bytes: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = bytes.try_get_u16_le().map_err(|_| Malformed::Headers)?.into();
    if bytes.len() < length { Err(Malformed::Headers) } else { Ok(bytes.split_to(length)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_calls_and_answers_are_read_as_they_were_written() {
        let call = Request::builder()
            .uri("/a.B/C")
            .header("te", "trailers")
            .header("k-bin", "AAEC")
            .header("te", "x");
        let call = call.body(()).unwrap();
        let read = request(of_request(&call).unwrap(), ()).unwrap();
        assert_eq!((read.uri(), read.headers()), (call.uri(), call.headers()));
        let answer = Response::builder().status(418).header("grpc-status", "0").body(()).unwrap();
        let read = response(of_response(&answer)).unwrap();
        assert_eq!((read.status(), read.headers()), (answer.status(), answer.headers()));
    }

    #[test]
    fn what_is_cut_or_no_header_is_refused() {
        let whole =
            of_request(&Request::builder().uri("/a.B/C").header("te", "x").body(()).unwrap()).unwrap();
        for cut in [0, 1, 4, 9, 11, whole.len() - 1] {
            assert!(request(whole.slice(..cut), ()).is_err(), "{cut}");
        }
        assert_eq!(of(Bytes::from_static(b"\x01\x00 \x00\x00")), Err(Malformed::Headers));
        assert_eq!(of(Bytes::from_static(b"\x01\x00a\x01\x00\n")), Err(Malformed::Headers));
        let long = Request::builder().header("k", "v".repeat(META_BYTES_MAX as usize)).body(()).unwrap();
        assert_eq!(of_request(&long), None);
        let mut many = Request::builder();
        for n in 0..500 {
            many = many.header(format!("k{n}"), "v");
        }
        assert_eq!(of_request(&many.body(()).unwrap()), None);
    }

    #[test]
    fn a_status_that_is_too_long_arrives_as_far_as_it_fits() {
        let details = |bytes| Bytes::from(vec![1; bytes]);
        for (what, status, details_left) in [
            ("a long sentence", Status::aborted("€".repeat(9000)), 0),
            (
                "with details",
                Status::with_details(tonic::Code::NotFound, "é".repeat(9000), details(4000)),
                4000,
            ),
            ("long details", Status::with_details(tonic::Code::NotFound, "none", details(20_000)), 0),
        ] {
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers).unwrap();
            let mut answer = Response::new(());
            *answer.headers_mut() = trailers.clone();
            for read in [
                of(of_trailers(&trailers)),
                response(of_response(&answer)).map(|read| read.headers().clone()),
            ] {
                let read = Status::from_header_map(&read.unwrap()).unwrap();
                assert_eq!((read.code(), read.details().len()), (status.code(), details_left), "{what}");
                assert!(!read.message().is_empty() && status.message().starts_with(read.message()), "{what}");
            }
        }
        let long = Response::builder().header("k", "v".repeat(META_BYTES_MAX as usize)).body(()).unwrap();
        let read = response(of_response(&long)).unwrap();
        assert_eq!(Status::from_header_map(read.headers()).unwrap().code(), tonic::Code::Internal);
    }
}
