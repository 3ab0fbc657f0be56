"""boto3 as it comes: checksums on, signature version as it likes it."""

import concurrent.futures
import io

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.client import Config

from day import ACCESS_KEY, BUCKET, ENDPOINT, MANY, MIB, ODD_KEYS, SECRET_KEY, bytes_of, day, fetch, md5, refuses, step


def client(**config):
    names = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=ENDPOINT, config=Config(max_pool_connections=16, **config), **names)


S3 = client()
AT = {"Bucket": BUCKET}


def read(key, **more):
    return S3.get_object(**AT, Key=key, **more)["Body"].read()


@step
def make_bucket():
    S3.create_bucket(**AT)
    assert BUCKET in [bucket["Name"] for bucket in S3.list_buckets()["Buckets"]]


@step
def put_and_get():
    for size in (0, 1, 65537, 5 * MIB):
        body = bytes_of(size, size)
        assert S3.put_object(**AT, Key=f"size/{size}", Body=body)["ETag"] == f'"{md5(body)}"'
        assert read(f"size/{size}") == body
    assert read("size/65537", Range="bytes=65530-") == bytes_of(65537, 65537)[65530:]


@step
def large_by_parts():
    body = bytes_of(33 * MIB + 5, 3)
    S3.upload_fileobj(io.BytesIO(body), BUCKET, "large", Config=TransferConfig(multipart_chunksize=8 * MIB))
    back = io.BytesIO()
    S3.download_fileobj(BUCKET, "large", back)
    assert back.getvalue() == body
    S3.copy({**AT, "Key": "large"}, BUCKET, "large copied", Config=TransferConfig(multipart_threshold=16 * MIB))
    assert md5(read("large copied")) == md5(body)


@step
def odd_names():
    for key in ODD_KEYS:
        S3.put_object(**AT, Key=key, Body=key.encode(), Metadata={"n": "1"})
        assert read(key) == key.encode(), key
    listed = [entry["Key"] for entry in S3.list_objects_v2(**AT, Prefix="odd/")["Contents"]]
    assert listed == sorted(ODD_KEYS, key=str.encode), listed


@step
def many_pages_and_delete_many():
    keys = [f"many/{n:05d}" for n in range(MANY)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: S3.put_object(**AT, Key=key, Body=b""), keys))
    pages = S3.get_paginator("list_objects_v2").paginate(**AT, Prefix="many/", PaginationConfig={"PageSize": 100})
    assert [entry["Key"] for page in pages for entry in page["Contents"]] == keys
    bucket = boto3.resource("s3", endpoint_url=ENDPOINT, region_name="us-east-1").Bucket(BUCKET)
    bucket.objects.filter(Prefix="many/").delete()
    assert S3.list_objects_v2(**AT, Prefix="many/")["KeyCount"] == 0


@step
def metadata_and_checksums():
    S3.put_object(**AT, Key="meta", Body=b"m", ContentType="text/x-day", CacheControl="no-cache", Metadata={"a": "b c"})
    S3.copy_object(**AT, Key="meta", CopySource={**AT, "Key": "meta"}, Metadata={"c": "d"}, MetadataDirective="REPLACE")
    assert S3.head_object(**AT, Key="meta")["Metadata"] == {"c": "d"}
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
        try:
            S3.put_object(**AT, Key="summed", Body=b"sum", ChecksumAlgorithm=algorithm)
        except Exception as error:
            # boto3 has these two only with the package awscrt.
            assert type(error).__name__ == "MissingDependencyException", error
            continue
        assert S3.head_object(**AT, Key="summed", ChecksumMode="ENABLED")[f"Checksum{algorithm}"]


@step
def conditions():
    S3.put_object(**AT, Key="once", Body=b"1", IfNoneMatch="*")
    refuses(lambda: S3.put_object(**AT, Key="once", Body=b"2", IfNoneMatch="*"), "PreconditionFailed")
    etag = S3.head_object(**AT, Key="once")["ETag"]
    refuses(lambda: S3.get_object(**AT, Key="once", IfNoneMatch=etag), "304")
    S3.put_object(**AT, Key="once", Body=b"3", IfMatch=etag)
    refuses(lambda: S3.put_object(**AT, Key="once", Body=b"4", IfMatch=etag), "PreconditionFailed")
    refuses(lambda: S3.put_object(**AT, Key="never", Body=b"4", IfMatch=etag), "NoSuchKey")


@step
def presigned_with_version_4():
    signer = client(signature_version="s3v4")
    url = signer.generate_presigned_url("put_object", Params={**AT, "Key": "signed +%"})
    assert fetch(url, "PUT", b"by url")[0] == 200
    url = signer.generate_presigned_url("get_object", Params={**AT, "Key": "signed +%"})
    assert fetch(url) == (200, b"by url")


@step
def presigned_as_it_comes_says_what_to_set():
    url = S3.generate_presigned_url("get_object", Params={**AT, "Key": "signed +%"})
    status, body = fetch(url)
    if "X-Amz-Signature" in url:
        assert (status, body) == (200, b"by url")
    else:
        assert status == 400 and b"signature_version='s3v4'" in body.replace(b"&apos;", b"'"), (status, body)


@step
def delete_everything():
    bucket = boto3.resource("s3", endpoint_url=ENDPOINT, region_name="us-east-1").Bucket(BUCKET)
    bucket.objects.all().delete()
    bucket.delete()
    refuses(lambda: S3.head_bucket(**AT), "404")


day(boto3.__version__)
