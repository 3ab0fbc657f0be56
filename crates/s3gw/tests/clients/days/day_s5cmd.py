"""s5cmd, whose module the registry must have for it to be tried."""

import os

from day import BUCKET, ENDPOINT, MIB, ODD_KEYS, WORK, day, make_tree, run, same_trees, step

os.environ["S3_ENDPOINT_URL"] = ENDPOINT


def at(key=""):
    return f"s3://{BUCKET}/{key}"


@step
def make_bucket():
    run("s5cmd", "mb", f"s3://{BUCKET}")
    assert BUCKET in run("s5cmd", "ls")


@step
def there_and_back():
    tree = make_tree("tree", large_bytes=60 * MIB + 3)
    run("s5cmd", "sync", f"{tree}/", at("tree/"))
    run("s5cmd", "cp", at("tree/*"), f"{WORK}/back/")
    same_trees(tree, WORK / "back")


@step
def odd_names():
    for key in ODD_KEYS:
        run("s5cmd", "pipe", "--raw", at(key), input=key.encode())
        assert run("s5cmd", "cat", "--raw", at(key)) == key, key


@step
def remove_everything():
    run("s5cmd", "rm", at("*"))
    run("s5cmd", "rb", f"s3://{BUCKET}")


day(run("s5cmd", "version").strip())
