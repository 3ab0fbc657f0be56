"""s3cmd with a configuration of five lines, its region left as it comes (`US`)."""

from day import ACCESS_KEY, BUCKET, HOST, MIB, ODD_KEYS, SECRET_KEY, Skipped, WORK, bytes_of, day, fetch, make_tree, run, same_trees, step

CONFIG = f"""[default]
access_key = {ACCESS_KEY}
secret_key = {SECRET_KEY}
host_base = {HOST}
host_bucket = {HOST}
use_https = False
"""
(WORK / "config").write_text(CONFIG)


def s3cmd(*words, **more):
    return run("s3cmd", "--config", WORK / "config", "--no-progress", *words, **more)


def at(key=""):
    return f"s3://{BUCKET}/{key}"


@step
def make_bucket():
    s3cmd("mb", f"s3://{BUCKET}")
    assert f"s3://{BUCKET}" in s3cmd("ls")
    assert "Location" in s3cmd("info", f"s3://{BUCKET}")


@step
def put_get_copy_move():
    (WORK / "small").write_bytes(b"small")
    s3cmd("put", "--add-header", "x-amz-meta-who: b", WORK / "small", at("small"))
    assert "x-amz-meta-who: b" in s3cmd("info", at("small")).lower()
    s3cmd("cp", at("small"), at("small copied"))
    s3cmd("mv", at("small copied"), at("small moved"))
    s3cmd("get", at("small moved"), WORK / "small back")
    assert (WORK / "small back").read_bytes() == b"small"
    assert "small copied" not in s3cmd("ls", at())
    s3cmd("modify", "--add-header", "x-amz-meta-who: c", at("small"))
    assert "x-amz-meta-who: c" in s3cmd("info", at("small")).lower()


@step
def large_by_parts():
    body = bytes_of(33 * MIB + 5, 33)
    (WORK / "large").write_bytes(body)
    s3cmd("put", "--multipart-chunk-size-mb", "5", WORK / "large", at("large"))
    s3cmd("get", at("large"), WORK / "large back")
    assert (WORK / "large back").read_bytes() == body
    s3cmd("cp", at("large"), at("large copied"))


@step
def odd_names():
    (WORK / "odd").write_bytes(b"odd")
    for key in ODD_KEYS:
        s3cmd("put", WORK / "odd", at(key))
        assert s3cmd("get", at(key), "-") == "odd", key
    listed = [line.split(at(""), 1)[1] for line in s3cmd("ls", "--recursive", at("odd/")).splitlines()]
    assert sorted(listed) == sorted(ODD_KEYS), listed


@step
def sync_there_and_back():
    tree = make_tree("tree")
    s3cmd("sync", f"{tree}/", at("tree/"))
    (WORK / "back").mkdir()
    s3cmd("sync", at("tree/"), f"{WORK}/back/")
    same_trees(tree, WORK / "back")
    (tree / "small").unlink()
    s3cmd("sync", "--delete-removed", f"{tree}/", at("tree/"))
    assert "tree/small" not in s3cmd("ls", at("tree/"))
    assert s3cmd("du", at("tree/"))


@step
def signed_url():
    status, body = fetch(s3cmd("signurl", at("small"), "+3600").strip())
    if status != 200:
        assert status == 400 and b"signurl" in body, (status, body)
        raise Skipped("s3cmd signs URLs with Version 2 only, whatever it is told; they are refused, and the answer says so")


@step
def remove_everything():
    s3cmd("del", at("small"))
    s3cmd("rb", "--recursive", "--force", f"s3://{BUCKET}")
    assert BUCKET not in s3cmd("ls")


day(run("s3cmd", "--version").split()[-1])
