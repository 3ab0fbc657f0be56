use super::head::{META_BYTES_MAX, Malformed};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};

/// What a header takes in memory besides its bytes, roughly; in HTTP/2 it counts as much.
const HEADER_WEIGHT: usize = 32;

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

pub(super) fn of_response<B>(response: &Response<B>) -> Option<Bytes> {
    let mut bytes = BytesMut::with_capacity(128);
    bytes.put_u16_le(response.status().as_u16());
    put_all(&mut bytes, response.headers())?;
    Some(bytes.freeze())
}

pub(super) fn response(mut bytes: Bytes) -> Result<Response<()>, Malformed> {
    let status = bytes.try_get_u16_le().map_err(|_| Malformed::Headers)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Malformed::Headers)?;
    *response.headers_mut() = of(bytes)?;
    Ok(response)
}

pub(super) fn of_trailers(trailers: &HeaderMap) -> Option<Bytes> {
    let mut bytes = BytesMut::with_capacity(64);
    put_all(&mut bytes, trailers)?;
    Some(bytes.freeze())
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
    (bytes.len() <= META_BYTES_MAX as usize).then_some(())
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
        let read = response(of_response(&answer).unwrap()).unwrap();
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
        let long = Response::builder().header("k", "v".repeat(META_BYTES_MAX as usize)).body(()).unwrap();
        assert_eq!(of_response(&long), None);
    }
}
