"""The aws cli, version 1 or 2: whichever `aws` is first on the path."""

import json
import os
import re

from day import BUCKET, ENDPOINT, MANY, MIB, ODD_KEYS, WORK, bytes_of, day, fetch, make_tree, refuses, run, same_trees, step

VERSION = re.search(r"aws-cli/(\S+)", run("aws", "--version"))[1]


def aws(*words, **more):
    return run("aws", "--endpoint-url", ENDPOINT, *words, **more)


def api(*words, **more):
    return json.loads(aws("s3api", *words, "--output", "json", **more) or "{}")


def at(key=""):
    return f"s3://{BUCKET}/{key}"


@step
def make_bucket():
    aws("s3", "mb", f"s3://{BUCKET}")
    assert BUCKET in aws("s3", "ls")


@step
def sync_there_and_back():
    tree = make_tree("tree")
    aws("s3", "sync", "--quiet", tree, at("tree/"))
    aws("s3", "sync", "--quiet", at("tree/"), WORK / "back")
    same_trees(tree, WORK / "back")
    assert aws("s3", "sync", "--dryrun", tree, at("tree/")) == "", "a second sync has something to do"
    (tree / "small").unlink()
    aws("s3", "sync", "--delete", "--quiet", tree, at("tree/"))
    assert "small" not in aws("s3", "ls", at("tree/"))


@step
def large_by_parts():
    body = bytes_of(33 * MIB + 5, 33)
    (WORK / "large").write_bytes(body)
    aws("s3", "cp", "--quiet", WORK / "large", at("large"))
    aws("s3", "cp", "--quiet", at("large"), at("large copied"))
    aws("s3", "cp", "--quiet", at("large copied"), WORK / "large back")
    assert (WORK / "large back").read_bytes() == body
    api("get-object", "--bucket", BUCKET, "--key", "large", "--range", "bytes=8388600-8388615", WORK / "range")
    assert (WORK / "range").read_bytes() == body[8388600:8388616]


@step
def odd_names():
    for key in ODD_KEYS:
        aws("s3", "cp", "--quiet", "-", at(key), input=key.encode())
        assert aws("s3", "cp", at(key), "-") == key, key
    listed = [entry["Key"] for entry in api("list-objects-v2", "--bucket", BUCKET, "--prefix", "odd/")["Contents"]]
    assert listed == sorted(ODD_KEYS, key=str.encode), listed


@step
def many_pages_and_remove_them():
    (WORK / "many").mkdir()
    for n in range(MANY):
        (WORK / "many" / f"{n:05d}").write_bytes(b"")
    aws("s3", "cp", "--quiet", "--recursive", WORK / "many", at("many/"))
    assert aws("s3", "ls", at("many/")).count("\n") == MANY
    assert len(api("list-objects-v2", "--bucket", BUCKET, "--prefix", "many/", "--page-size", "100")["Contents"]) == MANY
    objects = [{"Key": f"many/{n:05d}"} for n in range(100)]
    done = api("delete-objects", "--bucket", BUCKET, "--delete", json.dumps({"Objects": objects}))
    assert len(done["Deleted"]) == 100 and "Errors" not in done
    aws("s3", "rm", "--quiet", "--recursive", at("many/"))
    assert "Contents" not in api("list-objects-v2", "--bucket", BUCKET, "--prefix", "many/")


@step
def conditions_and_metadata():
    put = ("put-object", "--bucket", BUCKET, "--key", "once", "--metadata", "who=b", "--content-type", "text/x-day")
    etag = api(*put)["ETag"]
    head = api("head-object", "--bucket", BUCKET, "--key", "once")
    assert head["Metadata"] == {"who": "b"} and head["ContentType"] == "text/x-day"
    refuses(lambda: api("get-object", "--bucket", BUCKET, "--key", "once", "--if-none-match", etag, WORK / "x"), "304")
    refuses(lambda: api("head-object", "--bucket", BUCKET, "--key", "never-was"), "404")


@step
def presign():
    aws("s3", "cp", "--quiet", "-", at("signed +%"), input=b"by url")
    status, body = fetch(aws("s3", "presign", at("signed +%")).strip())
    if status != 200:
        # Version 1 signs with Version 2 unless told otherwise; what the user sees says what to tell it.
        assert VERSION.startswith("1.") and b"default.s3.signature_version s3v4" in body, (status, body)
        (WORK / "config").write_text("[default]\ns3 =\n  signature_version = s3v4\n")
        environment = dict(os.environ, AWS_CONFIG_FILE=str(WORK / "config"))
        status, body = fetch(aws("s3", "presign", at("signed +%"), env=environment).strip())
    assert (status, body) == (200, b"by url"), (status, body)


@step
def remove_bucket():
    aws("s3", "rb", "--force", f"s3://{BUCKET}")
    assert BUCKET not in aws("s3", "ls")


day(VERSION)
