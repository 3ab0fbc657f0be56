"""Makes a bucket with nothing but the standard library, for clients that make none: `bucket.py NAME`."""

import datetime
import hashlib
import hmac
import sys

from day import ACCESS_KEY, ENDPOINT, HOST, SECRET_KEY, fetch

REGION = "us-east-1"


def make_bucket(name):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    headers = {"host": HOST, "x-amz-content-sha256": empty, "x-amz-date": now}
    names = ";".join(headers)
    lines = "".join(f"{header}:{value}\n" for header, value in headers.items())
    request = f"PUT\n/{name}\n\n{lines}\n{names}\n{empty}"
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{SECRET_KEY}".encode()
    for word in [*scope.split("/"), text]:
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    claim = f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope},SignedHeaders={names},Signature={key.hex()}"
    status, body = fetch(f"{ENDPOINT}/{name}", "PUT", b"", {**headers, "Authorization": claim})
    assert status == 200, (status, body)


if __name__ == "__main__":
    make_bucket(sys.argv[1])
