"""rclone with a remote of provider `Other`."""

import os

from day import ACCESS_KEY, BUCKET, ENDPOINT, MANY, MIB, ODD_KEYS, SECRET_KEY, WORK, bytes_of, day, fetch, make_tree, refuses, run, same_trees, step

os.environ |= {
    "RCLONE_CONFIG": "/dev/null", "RCLONE_CONFIG_F_TYPE": "s3", "RCLONE_CONFIG_F_PROVIDER": "Other",
    "RCLONE_CONFIG_F_ENDPOINT": ENDPOINT, "RCLONE_CONFIG_F_ACCESS_KEY_ID": ACCESS_KEY, "RCLONE_CONFIG_F_SECRET_ACCESS_KEY": SECRET_KEY,
}


def rclone(*words, **more):
    return run("rclone", "--retries", "1", *words, **more)


def at(path=""):
    return f"f:{BUCKET}/{path}"


@step
def make_bucket():
    rclone("mkdir", f"f:{BUCKET}")
    assert f"{BUCKET}/" in rclone("lsf", "f:")


@step
def copy_check_sync():
    tree = make_tree("tree", large_bytes=33 * MIB + 5)
    rclone("copy", tree, at("tree"), "--s3-upload-cutoff", "16M", "--metadata")
    rclone("check", tree, at("tree"))
    rclone("check", "--download", tree, at("tree"))
    rclone("copy", at("tree"), WORK / "back", "--multi-thread-cutoff", "10M")
    same_trees(tree, WORK / "back")
    (tree / "small").unlink()
    (tree / "new").write_bytes(b"new")
    refuses(lambda: rclone("check", tree, at("tree")), "differences found")
    rclone("sync", tree, at("tree"))
    rclone("check", tree, at("tree"))
    rclone("sync", at("tree"), at("tree copied"), "--s3-copy-cutoff", "10M")
    rclone("check", tree, at("tree copied"))


@step
def odd_names():
    # rclone's paths have no empty parts.
    keys = [key for key in ODD_KEYS if "//" not in key]
    for key in keys:
        rclone("rcat", at(key), input=key.encode())
        assert rclone("cat", at(key)) == key, key
    assert sorted(rclone("lsf", "-R", "--files-only", at("odd")).splitlines()) == sorted(key[4:] for key in keys)


@step
def ranges():
    body = bytes_of(20 * MIB, 5)
    (WORK / "large").write_bytes(body)
    rclone("copyto", WORK / "large", at("large"))
    rclone("copyto", at("large"), WORK / "large back", "--multi-thread-cutoff", "1M", "--multi-thread-streams", "4")
    assert (WORK / "large back").read_bytes() == body
    (WORK / "text").write_bytes(b"0123456789")
    rclone("copyto", WORK / "text", at("text"))
    assert rclone("cat", "--offset", "3", "--count", "4", at("text")) == "3456"


@step
def many_pages_and_purge():
    (WORK / "many").mkdir()
    for n in range(MANY):
        (WORK / "many" / f"{n:05d}").write_bytes(b"")
    rclone("copy", "--transfers", "8", WORK / "many", at("many"))
    assert rclone("lsf", at("many")).count("\n") == MANY
    rclone("purge", at("many"))
    assert rclone("lsf", at("many")) == ""


@step
def move_and_link():
    rclone("rcat", at("here"), input=b"x")
    rclone("moveto", at("here"), at("signed +%"))
    assert fetch(rclone("link", at("signed +%")).strip()) == (200, b"x")


@step
def remove_everything():
    rclone("purge", f"f:{BUCKET}")
    assert BUCKET not in rclone("lsf", "f:")


day(run("rclone", "version").split()[1])
