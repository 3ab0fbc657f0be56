"""minio-py, of which clients for other stores than MinIO's are made, too."""

import concurrent.futures
import datetime
import io

import minio
from minio.commonconfig import CopySource
from minio.deleteobjects import DeleteObject

from day import ACCESS_KEY, BUCKET, HOST, MANY, MIB, ODD_KEYS, SECRET_KEY, WORK, bytes_of, day, fetch, md5, refuses, step

S3 = minio.Minio(HOST, access_key=ACCESS_KEY, secret_key=SECRET_KEY, secure=False)


def put(key, body, **more):
    return S3.put_object(BUCKET, key, io.BytesIO(body), len(body), **more)


def read(key, **more):
    answer = S3.get_object(BUCKET, key, **more)
    try:
        return answer.read()
    finally:
        answer.close()
        answer.release_conn()


@step
def make_bucket():
    S3.make_bucket(BUCKET)
    assert S3.bucket_exists(BUCKET) and BUCKET in [bucket.name for bucket in S3.list_buckets()]


@step
def put_and_get():
    for size in (0, 1, 65537, 4 * MIB):
        body = bytes_of(size, size)
        assert put(f"size/{size}", body).etag == md5(body)
        assert read(f"size/{size}") == body
    assert read("size/65537", offset=65530, length=5) == bytes_of(65537, 65537)[65530:65535]


@step
def large_by_parts():
    body = bytes_of(23 * MIB + 1, 23)
    S3.put_object(BUCKET, "large", io.BytesIO(body), -1, part_size=5 * MIB)
    S3.fget_object(BUCKET, "large", str(WORK / "large"))
    assert (WORK / "large").read_bytes() == body
    S3.copy_object(BUCKET, "large copied", CopySource(BUCKET, "large"))
    assert S3.stat_object(BUCKET, "large copied").size == len(body)


@step
def odd_names():
    for key in ODD_KEYS:
        put(key, key.encode())
        assert read(key) == key.encode(), key
        S3.copy_object(BUCKET, "copy/" + key[:900], CopySource(BUCKET, key))
    listed = [entry.object_name for entry in S3.list_objects(BUCKET, prefix="odd/", recursive=True)]
    assert listed == sorted(ODD_KEYS, key=str.encode), listed


@step
def many_pages_and_delete_many():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: put(f"many/{n:05d}", b""), range(MANY)))
    keys = [entry.object_name for entry in S3.list_objects(BUCKET, prefix="many/", recursive=True)]
    assert len(keys) == MANY
    assert [entry.object_name for entry in S3.list_objects(BUCKET, prefix="many/", use_api_v1=True)] == keys
    assert not list(S3.remove_objects(BUCKET, [DeleteObject(key) for key in keys]))
    assert not list(S3.list_objects(BUCKET, prefix="many/"))


@step
def metadata():
    put("meta", b"m", content_type="text/x-day", metadata={"Who": "b c"})
    stat = S3.stat_object(BUCKET, "meta")
    assert stat.content_type == "text/x-day" and stat.metadata["x-amz-meta-who"] == "b c", stat.metadata


@step
def presigned():
    hour = datetime.timedelta(hours=1)
    assert fetch(S3.presigned_put_object(BUCKET, "signed +%", hour), "PUT", b"by url")[0] == 200
    assert fetch(S3.presigned_get_object(BUCKET, "signed +%", hour)) == (200, b"by url")


@step
def a_missing_key_is_said():
    refuses(lambda: S3.stat_object(BUCKET, "never-was"), "NoSuchKey")


@step
def delete_everything():
    for entry in S3.list_objects(BUCKET, recursive=True):
        S3.remove_object(BUCKET, entry.object_name)
    S3.remove_bucket(BUCKET)
    assert not S3.bucket_exists(BUCKET)


day(minio.__version__)
