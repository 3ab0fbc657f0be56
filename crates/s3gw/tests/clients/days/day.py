"""What the days of all clients share: steps that are counted, what is sent, and how it is looked at afterwards.

A day is a program that uses a store as people use it with one client. It prints `version V`, and then of each step one line:
`ok NAME`, `FAILED NAME`, or `skipped NAME: why`. e2e.py counts them. The store is in the environment: FLOTILLA_S3_ENDPOINT,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Days in other languages print the same lines.
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import uuid

ENDPOINT = os.environ["FLOTILLA_S3_ENDPOINT"]
HOST = urllib.parse.urlsplit(ENDPOINT).netloc
ACCESS_KEY = os.environ["AWS_ACCESS_KEY_ID"]
SECRET_KEY = os.environ["AWS_SECRET_ACCESS_KEY"]
BUCKET = "day-" + uuid.uuid4().hex[:12]
WORK = pathlib.Path(tempfile.mkdtemp(prefix="day-"))
MIB = 1 << 20
MANY = 1203  # more than a page of 1000

ODD_KEYS = [
    "odd/with space", "odd/plus+plus", "odd/100%", "odd/%41", "odd/a//b", "odd/é/日本語/🚢", "odd/a&b<c>\"d'", "odd/?query#hash",
    "odd/=;:,@!$*()", "odd/" + "x" * 1000,
]
# Of these a file system can have files.
ODD_NAMES = ["with space", "plus+plus", "100%", "%41", "é/日本語/🚢", "a&b<c>\"d'", "?query#hash", "=;:,@!$()", "deep/" + "d/" * 40 + "x" * 200]

STEPS = []


class Skipped(Exception):
    """A step that has nothing to try here, and why."""


def step(function):
    STEPS.append(function)
    return function


def day(version):
    """Runs the steps in their order; each of them whatever became of those before."""
    print(f"version {version}", flush=True)
    failed = 0
    for function in STEPS:
        begun = time.monotonic()
        try:
            function()
            print(f"ok {function.__name__}  {time.monotonic() - begun:.1f} s", flush=True)
        except Skipped as why:
            print(f"skipped {function.__name__}: {why}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED {function.__name__}", flush=True)
    sys.exit(1 if failed else 0)


def run(*command, status=0, **more):
    """What a command prints; it must end with this status."""
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=300, **more)
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == status, f"{command[:4]} ended with {done.returncode}: {said[-1500:]}"
    return done.stdout.decode(errors="replace") if status == 0 else said


def fetch(url, method="GET", data=None, headers=None):
    """Status and body of a request without a client, as a browser would send a presigned URL."""
    request = urllib.request.Request(url, method=method, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def bytes_of(count, seed=1):
    """Bytes that repeat at no power of two, the same for the same seed."""
    block = hashlib.shake_256(b"%d" % seed).digest(1_000_003)
    return (block * (count // len(block) + 1))[:count]


def md5(data):
    return hashlib.md5(data).hexdigest()


def make_tree(name, large_bytes=20 * MIB + 7):
    """A folder of files as people have them: empty, small, large, of odd names."""
    tree = WORK / name
    contents = {"empty": b"", "small": b"small", "large.bin": bytes_of(large_bytes, 7), "many/64k": bytes_of(65536, 8)}
    contents |= {odd: odd.encode() for odd in ODD_NAMES}
    contents |= {f"many/{n:03d}": b"%d" % n for n in range(40)}
    for path, content in contents.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(content)
    return tree


def files_of(tree):
    return {str(path.relative_to(tree)): md5(path.read_bytes()) for path in sorted(tree.rglob("*")) if path.is_file()}


def same_trees(one, two):
    one, two = files_of(one), files_of(two)
    differ = [path for path in one.keys() | two.keys() if one.get(path) != two.get(path)]
    assert one and not differ, f"{len(differ)} of {len(one)} files differ: {sorted(differ)[:5]}"


def refuses(call, *words):
    """The call fails, and what it says has all the words in it."""
    try:
        call()
    except Exception as error:
        said = f"{type(error).__name__} {error}"
        assert all(word in said for word in words), said
        return
    raise AssertionError(f"expected {words}, and the call succeeded")
