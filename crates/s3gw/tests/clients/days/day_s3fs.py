"""s3fs of fsspec, through which pandas, dask and zarr come."""

import s3fs

from day import ACCESS_KEY, BUCKET, ENDPOINT, MANY, MIB, ODD_KEYS, SECRET_KEY, WORK, bytes_of, day, fetch, make_tree, refuses, same_trees, step


def filesystem(**more):
    return s3fs.S3FileSystem(key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=ENDPOINT, use_listings_cache=False, **more)


FS = filesystem()


@step
def make_bucket():
    FS.mkdir(BUCKET)
    assert FS.exists(BUCKET) and BUCKET in FS.ls("")


@step
def put_and_get():
    for size in (0, 1, 65537, 6 * MIB):
        FS.pipe_file(f"{BUCKET}/size/{size}", bytes_of(size, size))
        assert FS.cat_file(f"{BUCKET}/size/{size}") == bytes_of(size, size)
        assert FS.size(f"{BUCKET}/size/{size}") == size
    assert FS.cat_file(f"{BUCKET}/size/65537", start=65530, end=65535) == bytes_of(65537, 65537)[65530:65535]


@step
def large_by_parts():
    body = bytes_of(33 * MIB + 5, 33)
    with FS.open(f"{BUCKET}/large", "wb", block_size=5 * MIB) as file:
        for start in range(0, len(body), MIB):
            file.write(body[start : start + MIB])
    with FS.open(f"{BUCKET}/large", "rb") as file:
        file.seek(20 * MIB)
        assert file.read(99) == body[20 * MIB : 20 * MIB + 99]
    FS.cp_file(f"{BUCKET}/large", f"{BUCKET}/large copied")
    assert FS.cat_file(f"{BUCKET}/large copied") == body


@step
def odd_names():
    for key in ODD_KEYS:
        FS.pipe_file(f"{BUCKET}/{key}", key.encode())
        assert FS.cat_file(f"{BUCKET}/{key}") == key.encode(), key
    assert sorted(FS.find(f"{BUCKET}/odd")) == sorted(f"{BUCKET}/{key}" for key in ODD_KEYS)


@step
def folders_there_and_back():
    tree = make_tree("tree")
    FS.put(f"{tree}/", f"{BUCKET}/tree", recursive=True)
    FS.get(f"{BUCKET}/tree/", str(WORK / "back"), recursive=True)
    same_trees(tree, WORK / "back")


@step
def many_pages_and_remove_them():
    FS.pipe({f"{BUCKET}/many/{n:05d}": b"" for n in range(MANY)})
    assert len(FS.ls(f"{BUCKET}/many")) == MANY
    FS.rm(f"{BUCKET}/many", recursive=True)
    assert not FS.exists(f"{BUCKET}/many")


@step
def metadata_and_conditions():
    FS.pipe_file(f"{BUCKET}/once", b"1", mode="create")
    refuses(lambda: FS.pipe_file(f"{BUCKET}/once", b"2", mode="create"), "exists")
    FS.setxattr(f"{BUCKET}/once", who="b")
    assert FS.getxattr(f"{BUCKET}/once", "who") == "b"
    refuses(lambda: FS.cat_file(f"{BUCKET}/never-was"), "FileNotFound")


@step
def presigned_with_version_4():
    url = filesystem(config_kwargs={"signature_version": "s3v4"}).url(f"{BUCKET}/once")
    assert fetch(url) == (200, b"1")


@step
def presigned_as_it_comes_says_what_to_set():
    status, body = fetch(FS.url(f"{BUCKET}/once"))
    assert (status, body) == (200, b"1") or b"signature_version='s3v4'" in body.replace(b"&apos;", b"'"), (status, body)


@step
def remove_everything():
    FS.rm(BUCKET, recursive=True)
    assert not FS.exists(BUCKET)


day(s3fs.__version__)
