# shellcheck shell=bash
# Trying what ./dev release made: ./dev release --check. Sourced by ./dev.

release_check() {
    local tree=$scratch/unpacked/$release_name
    mkdir "$scratch/unpacked"
    tar --directory "$scratch/unpacked" --extract --xz --file "$release_archive"
    step "check: checksums, licences, SBOM" check_contents "$tree"
    step "check: the binary" refuse_unportable "$tree/bin/flotilla"
    refuse_paths "$tree/bin/flotilla"
    refuse_planted_binary "$tree/bin/flotilla"
    check_units "$tree"
    check_example "$tree"
    check_package "$tree"
    say "check: ok"
}

check_contents() {
    local tree=$1 file
    (cd "$tree" && sha256sum --check --quiet SHA256SUMS) || die "SHA256SUMS does not fit"
    [[ $(cd "$tree" && find . -type f | wc -l) -eq $(($(wc -l <"$tree/SHA256SUMS") + 1)) ]] || die "there are files that SHA256SUMS lacks"
    for file in README.md LICENSE docs/operations.md deploy/flotilla.service deploy/flotilla.env completions/flotilla.bash BUILD-INFO; do
        [[ -s $tree/$file ]] || die "$file is not there"
    done
    python3 - "$tree" <<'PYTHON'
import json, re, sys
tree = sys.argv[1]
sbom = json.load(open(f"{tree}/sbom.cdx.json"))
assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.5")
components = {component["bom-ref"]: component for component in sbom["components"]}
known = set(components) | {sbom["metadata"]["component"]["bom-ref"]}
for entry in sbom["dependencies"]:
    assert entry["ref"] in known and known.issuperset(entry["dependsOn"]), entry
linked = {(c["name"], c["version"]) for c in components.values() if c["scope"] == "required" and not c["name"].startswith("flotilla-")}
assert {"rocksdb", "lz4", "ring", "tokio", "rust-std"} <= {name for name, _ in linked}, linked
text = open(f"{tree}/licences/THIRD-PARTY-LICENSES").read()
for name, version in sorted(linked):
    named = re.findall(rf"^{re.escape(name)} {re.escape(version)} \(", text, re.MULTILINE)
    assert named or name.startswith("base2histogram"), f"no licence text of {name} {version}"
print(f"[dev] {len(components)} components in the SBOM, licence texts of {len(linked)}", file=sys.stderr)
PYTHON
}

# The units as systemd reads them. It looks whether the program is there, so the one that was unpacked stands in for the installed.
check_units() {
    local units=$scratch/units said
    if ! have systemd-analyze; then
        say "check: units: no systemd-analyze here, skipped"
        return
    fi
    mkdir -p "$units/flotilla.service.d"
    sed "s|/usr/bin/flotilla|$1/bin/flotilla|" "$1/deploy/flotilla.service" >"$units/flotilla.service"
    cp "$1/deploy/flotilla-disks.conf" "$units/flotilla.service.d/disks.conf"
    # Without a running systemd it complains about much of the machine, and names our file only when it means ours.
    said=$(SYSTEMD_UNIT_PATH="$units:" systemd-analyze verify --man=no "$units/flotilla.service" 2>&1 | grep -F "$units" || true)
    [[ -z $said ]] || die "systemd-analyze verify: $said"
    say "check: units: ok"
}

# The README's example, with nothing of this checkout but the pinned clients.
check_example() {
    local tree=$1 flotilla=$1/bin/flotilla work=$scratch/example
    ensure_python
    ensure_client_venv "$root/crates/s3gw/tests/clients/requirements.txt"
    mkdir "$work"
    say "check: the README's example"
    check_start "$flotilla" "$work" || die "the binary of the archive did not get ready"
    # A shell of its own: errexit is off in whatever stands before `||`, and each command here has to succeed.
    cat >"$work/example" <<'EXAMPLE'
tree=$1 flotilla=$2
aws s3 mb s3://photos
aws s3 cp --no-progress "$tree/README.md" s3://photos/
aws s3 ls s3://photos/ | grep README.md
aws s3 cp --no-progress s3://photos/README.md back
cmp back "$tree/README.md"
"$flotilla" fs -ls /s3v/photos | grep README.md
"$flotilla" fs -put "$tree/LICENSE" /s3v/photos/
"$flotilla" fs -cat /s3v/photos/LICENSE | cmp - "$tree/LICENSE"
"$flotilla" admin pipeline list
"$flotilla" admin datanode list
"$flotilla" admin container report
"$flotilla" admin registry services
"$flotilla" health --http "$3"
EXAMPLE
    (
        cd "$work" || exit
        unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL_S3
        export AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_EC2_METADATA_DISABLED=true AWS_PAGER="" \
            NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 AWS_DEFAULT_REGION=us-east-1
        AWS_ENDPOINT_URL=$(ready_value S3_ENDPOINT)
        # shellcheck disable=SC2046 # two words, NAME=value each, as the README has it
        export AWS_ENDPOINT_URL PATH="$client_venv/bin:$PATH" $(cat data/credentials)
        FLOTILLA_SCM=$(ready_value RPC)
        export FLOTILLA_SCM
        health=$(ready_value HTTP)
        bash -euxo pipefail example "$tree" "$flotilla" "${health#http://}"
    ) >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        die "the README's example failed"
    }
    stop_server || die "flotilla dev did not stop cleanly on SIGTERM"
    "$flotilla" debug log verify "$work/data/dn1/disk1" >"$work/verify" || die "debug log verify: $(tail -n 5 "$work/verify")"
    "$flotilla" debug container verify "$work/data/dn1/disk1" >>"$work/verify" || die "debug container verify: $(tail -n 5 "$work/verify")"
}

check_start() {
    local deadline=$((SECONDS + SERVER_READY_SECONDS_MAX))
    (cd "$2" && exec "$1" dev --data data --s3-port 0 --rpc-port 0 --http-port 0 --ready-file "$scratch/ready") >"$2/server.log" 2>&1 &
    server_pid=$!
    until [[ -n $(ready_value HTTP) ]]; do
        if ! kill -0 "$server_pid" 2>/dev/null || ((SECONDS >= deadline)); then
            tail -n 40 "$2/server.log" >&2
            return 1
        fi
        sleep 0.05
    done
}

# What is in the package, and, as root where the kernel lets us, what it does to a machine: in a mount namespace whose root is an
# overlay over this machine's, in memory, so that nothing of it is left.
check_package() {
    if [[ ! -e $release_package ]]; then
        say "check: no package was made here, skipped"
        return
    fi
    local contents file
    contents=$(dpkg-deb --contents "$release_package")
    for file in usr/bin/flotilla usr/lib/systemd/system/flotilla.service etc/flotilla/flotilla.env etc/logrotate.d/flotilla usr/share/doc/flotilla/copyright; do
        grep -qE "root/root .* \./$file$" <<<"$contents" || die "the package lacks $file, or it is not root's"
    done
    mkdir -p "$scratch/machine"
    if ((EUID != 0)) || ! have dpkg || ! check_in_overlay true 2>/dev/null; then
        say "check: the package was not installed: that takes root, dpkg, and a kernel that lets it mount an overlay"
        return
    fi
    install -m 755 "$root/deploy/deb/try" "$scratch/try"
    say "check: the package is installed, upgraded, removed and purged"
    check_in_overlay "$scratch/try" "$release_package" "$1/bin/flotilla" >"$scratch/try.log" 2>&1 || {
        tail -n 30 "$scratch/try.log" >&2
        die "the package did not install, remove and purge as it should"
    }
}

# Runs a command in a copy of this machine's files.
check_in_overlay() {
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --fork sh -ec '
        machine=$1
        shift
        mount -t tmpfs tmpfs "$machine"
        mkdir "$machine/upper" "$machine/work" "$machine/root"
        mount -t overlay overlay -o "lowerdir=/,upperdir=$machine/upper,workdir=$machine/work" "$machine/root"
        mount --rbind /proc "$machine/root/proc"
        mount --rbind /dev "$machine/root/dev"
        # No systemd to talk to: a package must stand that.
        mount -t tmpfs tmpfs "$machine/root/run"
        exec chroot "$machine/root" "$@"
    ' sh "$scratch/machine" "$@"
}
