"""obstore: Rust's object_store, which delta-rs, Polars and SlateDB stand on, from Python."""

import concurrent.futures
import datetime

import obstore
from obstore.store import S3Store

from bucket import make_bucket
from day import BUCKET, ENDPOINT, MANY, MIB, ODD_KEYS, bytes_of, day, fetch, md5, refuses, step

STORE = S3Store(BUCKET, endpoint=ENDPOINT, region="us-east-1", client_options={"allow_http": True})


def read(key):
    return bytes(obstore.get(STORE, key).bytes())


@step
def a_bucket_made_elsewhere():
    # object_store makes no buckets.
    make_bucket(BUCKET)


@step
def put_and_get():
    for size in (0, 1, 65537, 4 * MIB):
        body = bytes_of(size, size)
        assert obstore.put(STORE, f"size/{size}", body)["e_tag"] == f'"{md5(body)}"'
        assert read(f"size/{size}") == body
    ranges = obstore.get_ranges(STORE, "size/65537", starts=[0, 65530], ends=[9, 65537])
    assert [bytes(part) for part in ranges] == [bytes_of(65537, 65537)[0:9], bytes_of(65537, 65537)[65530:]]


@step
def large_by_parts():
    body = bytes_of(33 * MIB + 5, 33)
    obstore.put(STORE, "large", body, use_multipart=True, chunk_size=5 * MIB)
    assert read("large") == body
    obstore.copy(STORE, "large", "large copied")
    assert read("large copied") == body
    obstore.rename(STORE, "large copied", "large moved")
    refuses(lambda: obstore.head(STORE, "large copied"), "not found")


@step
def odd_names():
    # object_store's paths have no empty parts.
    keys = [key for key in ODD_KEYS if "//" not in key]
    for key in keys:
        obstore.put(STORE, key, key.encode())
        assert read(key) == key.encode(), key
    assert sorted(entry["path"] for entry in obstore.list(STORE, "odd").collect()) == sorted(keys)


@step
def many_pages_and_delete_many():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: obstore.put(STORE, f"many/{n:05d}", b""), range(MANY)))
    keys = [entry["path"] for entry in obstore.list(STORE, "many").collect()]
    assert len(keys) == MANY
    assert len(obstore.list(STORE, "many", offset="many/01000").collect()) == MANY - 1001
    obstore.delete(STORE, keys)
    assert not obstore.list(STORE, "many").collect()


@step
def conditions():
    first = obstore.put(STORE, "once", b"1", mode="create")
    refuses(lambda: obstore.put(STORE, "once", b"2", mode="create"), "AlreadyExists")
    obstore.put(STORE, "once", b"3", mode={"e_tag": first["e_tag"]})
    refuses(lambda: obstore.put(STORE, "once", b"4", mode={"e_tag": first["e_tag"]}), "Precondition")
    assert read("once") == b"3"


@step
def signed_url():
    assert fetch(obstore.sign(STORE, "GET", "once", datetime.timedelta(minutes=1))) == (200, b"3")


@step
def delete_everything():
    obstore.delete(STORE, [entry["path"] for entry in obstore.list(STORE).collect()])
    assert not obstore.list(STORE).collect()


day(obstore.__version__)
