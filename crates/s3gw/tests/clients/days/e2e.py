"""Installs stock S3 clients and lets each spend its day (day.py) with the store that the environment names.

    e2e.py --cache DIR [CLIENT...]

Which clients there are, and their versions, is in clients.txt. What is installed is kept in DIR, by what it is made of. The last line
is JSON: of each client its version, how many steps passed and failed, and what was skipped and why. Fails when a step failed, or when
a day ended otherwise than it should; a client that cannot be installed here is skipped.
"""

import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DAY_SECONDS_MAX = 600
INSTALL_SECONDS_MAX = 3600


class CannotInstall(Exception):
    """Why a client is not to be had on this machine."""


class Client:
    def __init__(self, line):
        self.name, self.registry, self.day, *self.packages = line.split()

    def place(self, cache):
        """What it is installed into: another one when anything that it is made of changes."""
        made_of = [self.registry, *self.packages, sys.version]
        if self.is_built():
            made_of += [path.read_text() for path in sorted((HERE / self.day).iterdir())]
        return cache / f"{self.name}-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}"

    def is_built(self):
        return self.day.endswith("/")


def clients():
    lines = (HERE / "clients.txt").read_text().splitlines()
    return [Client(line) for line in lines if line.strip() and not line.startswith("#")]


def install(client, cache):
    place = client.place(cache)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{client.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            print(f"[e2e] installing {client.name}", file=sys.stderr, flush=True)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            INSTALLERS[client.registry](client, place)
            (place / "complete").touch()
    return place


def call(*command, **more):
    """What a command prints; a client whose installer fails cannot be installed, and the end of what it said is why."""
    if not shutil.which(command[0]):
        raise CannotInstall(f"there is no {command[0]} on this machine")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, stdin=subprocess.DEVNULL, **more)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{command[0]} took longer than {INSTALL_SECONDS_MAX} s") from None
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        # No addresses: what is printed may be kept.
        raise CannotInstall(re.sub(r"\w+://\S+", "(address)", f"{command[0]}: " + " / ".join(said[-2:]))[:300])
    return done.stdout


def install_pip(client, place):
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(*pip, "--target", str(place / "python"), *client.packages)


def install_deb(client, place):
    """Unpacks what the machine lacks of the packages and of all that they depend on; installs nothing, and needs no root."""
    plan = call("apt-get", "--simulate", "install", "--no-install-recommends", *client.packages)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")] or client.packages
    call("apt-get", "download", *names, cwd=place)
    for package in place.glob("*.deb"):
        call("dpkg", "--extract", str(package), str(place / "root"))
        package.unlink()


def go_environment(place):
    return dict(os.environ, GOFLAGS="-mod=mod -buildvcs=false", GOBIN=str(place / "bin"), GOWORK="off")


def install_gobin(client, place):
    call("nice", "go", "install", "-p", "1", *client.packages, env=go_environment(place))


def install_go(client, place):
    """The day of a library is a program that is built with it."""
    for path in (HERE / client.day).iterdir():
        shutil.copy(path, place)
    environment = go_environment(place)
    call("go", "mod", "init", "day", cwd=place, env=environment)
    call("go", "get", *client.packages, cwd=place, env=environment)
    call("nice", "go", "build", "-p", "1", "-o", "day", ".", cwd=place, env=environment)


def install_npm(client, place):
    for path in (HERE / client.day).iterdir():
        shutil.copy(path, place)
    call("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *client.packages, cwd=place)


def install_maven(client, place):
    """The libraries only: Java runs a program of one file from its source."""
    for path in (HERE / client.day).iterdir():
        shutil.copy(path, place)
    depends = ""
    for package in client.packages:
        group, artifact, version = package.split(":")
        depends += f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
    (place / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>day</groupId><artifactId>day</artifactId><version>1</version>"
        f"<dependencies>{depends}</dependencies></project>"
    )
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    call("mvn", "--batch-mode", "--quiet", goal, f"-DoutputDirectory={place / 'jars'}", cwd=place)


INSTALLERS = {
    "pip": install_pip, "deb": install_deb, "gobin": install_gobin, "go": install_go, "npm": install_npm, "maven": install_maven,
}


def command(client, place):
    """The command of a client's day, and the folder it runs in."""
    if not client.is_built():
        return [sys.executable, client.day], HERE
    program = {"go": ["./day"], "npm": ["node", "day.mjs"], "maven": ["java", "-cp", "jars/*", "Day.java"]}
    return program[client.registry], place


def environment(client, place, scratch):
    """The client sees its own packages and this store, and nothing of the person's own set-up."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_", "RESTIC_", "PYTHON"))}
    roots = {"pip": [place / "python"], "deb": [place / "root/usr/lib/python3/dist-packages"]}
    bins = [place / "python/bin", place / "root/usr/bin", place / "bin"]
    return kept | {
        "AWS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"],
        "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-1", "AWS_PAGER": "", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        "HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(map(str, roots.get(client.registry, []))),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, (place / "root/usr/lib").glob("*-linux-gnu"))),
        "PATH": os.pathsep.join([*map(str, bins), os.environ["PATH"]]),
    }


def spend_day(client, place):
    """Runs a client's day, shows what it prints and counts its steps."""
    result = {"client": client.name, "version": "", "passed": 0, "failed": 0, "skipped": {}}
    words, folder = command(client, place)
    with tempfile.TemporaryDirectory(prefix="e2e-") as scratch:
        log = pathlib.Path(scratch) / "day.log"
        with log.open("w") as out:
            day = subprocess.Popen(
                words, cwd=folder, env=environment(client, place, scratch), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
            try:
                status = day.wait(DAY_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                day.kill()
                status = f"{day.wait()}, ended after {DAY_SECONDS_MAX} s"
        said = log.read_text(errors="replace")
    for line in said.splitlines():
        print(f"    {line[:2000]}", flush=True)
        if found := re.match(r"skipped (\w+): (.*)", line):
            result["skipped"][found[1]] = found[2]
        elif found := re.match(r"(version|ok|FAILED) (.+)", line):
            key = {"ok": "passed", "FAILED": "failed"}.get(found[1])
            if key:
                result[key] += 1
            else:
                result["version"] = found[2]
    if result["passed"] == 0 or (status != 0 and result["failed"] == 0):
        print(f"    the day ended early, with status {status}")
        result["failed"] += 1
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("clients", nargs="*")
    arguments = parser.parse_args()
    known = clients()
    if unknown := set(arguments.clients) - {client.name for client in known}:
        parser.error(f"no such client: {' '.join(unknown)}; there are {' '.join(client.name for client in known)}")
    results = []
    for client in known:
        if arguments.clients and client.name not in arguments.clients:
            continue
        try:
            place = install(client, arguments.cache)
        except CannotInstall as why:
            result = {"client": client.name, "version": "", "passed": 0, "failed": 0, "skipped": {"everything": f"cannot be installed: {why}"}}
        else:
            print(f"{client.name}", flush=True)
            result = spend_day(client, place)
        results.append(result)
        counts = f"{result['passed']} passed, {result['failed']} failed"
        print(f"{result['client']} {result['version']}: {counts}, {len(result['skipped'])} skipped", flush=True)
        for step, why in result["skipped"].items():
            print(f"    skipped {step}: {why}", flush=True)
    print(json.dumps(results))
    sys.exit(any(result["failed"] for result in results))


main()
