"""restic: a backup, its check, and what comes back."""

import os

from day import BUCKET, ENDPOINT, MIB, WORK, bytes_of, day, make_tree, run, same_trees, step

os.environ |= {
    "RESTIC_REPOSITORY": f"s3:{ENDPOINT}/{BUCKET}/backups", "RESTIC_PASSWORD": "of the test", "RESTIC_CACHE_DIR": str(WORK / "cache"),
}
TREE = WORK / "tree"


def restic(*words, **more):
    return run("restic", *words, **more)


@step
def init_makes_the_bucket():
    restic("init")


@step
def backup_and_check():
    make_tree("tree", large_bytes=60 * MIB + 3)
    restic("backup", ".", cwd=TREE)
    (TREE / "more").write_bytes(bytes_of(5 * MIB, 99))
    restic("backup", ".", cwd=TREE)
    assert "no errors were found" in restic("check", "--read-data")
    assert "2 snapshots" in restic("snapshots")


@step
def restore():
    restic("restore", "latest", "--target", WORK / "back")
    same_trees(TREE, WORK / "back")
    assert restic("dump", "latest", "/small") == "small"


@step
def forget_and_prune():
    (TREE / "large.bin").unlink()
    restic("backup", ".", cwd=TREE)
    restic("forget", "--keep-last", "1", "--prune")
    assert "no errors were found" in restic("check", "--read-data")
    restic("restore", "latest", "--target", WORK / "back again")
    same_trees(TREE, WORK / "back again")


@step
def a_lock_is_seen_and_removed():
    restic("unlock")
    assert restic("list", "locks").strip() == ""


day(run("restic", "version").split()[1])
