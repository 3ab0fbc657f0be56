# shellcheck shell=bash
# What all the others use: messages, packages, cleaning up. Sourced by ./dev.

say() { printf '[dev] %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

usage_error() {
    say "$1: $2"
    "help_$1" >&2
    exit 2
}

# step NAME COMMAND…: says what begins and how long it took; the status is the command's.
step() {
    local name=$1 started=$SECONDS status=0
    shift
    say "$name"
    "$@" || status=$?
    say "$name: $((SECONDS - started)) s"
    return "$status"
}

# Ends the compilers that a build left: they would compete with the next one.
end_children() {
    local child
    for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
        end_children "$child"
        kill "$child" 2>/dev/null || true
    done
}

have() { command -v "$1" >/dev/null; }

# True when any of the patterns, already expanded by the shell, names a file.
compgen_any() {
    local pattern
    for pattern in "$@"; do
        compgen -G "$pattern" >/dev/null && return
    done
    return 1
}

short_hash() { printf '%s\n' "$@" | sha256sum | cut -c 1-12; }

# Installs Debian packages, or says which are missing when this user may not.
install_packages() {
    local as_root=()
    have apt-get || die "missing, by their Debian names: $*. Install them with your package manager"
    if ((EUID != 0)); then
        sudo -n true 2>/dev/null || die "missing packages: $*. Install them with: sudo apt-get install $*"
        as_root=(sudo -n)
    fi
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 --yes)
    say "installing: $*"
    compgen_any '/var/lib/apt/lists/*_Packages*' || "${apt[@]}" --quiet update >&2
    # Lists that are too old name versions the mirror no longer has; only then is an update worth its time.
    "${apt[@]}" --quiet install --no-install-recommends "$@" >&2 \
        || { "${apt[@]}" --quiet update >&2 && "${apt[@]}" --quiet install --no-install-recommends "$@" >&2; } \
        || die "apt-get could not install: $*"
}

# Runs a command while no other ./dev of this machine builds in the cache; each command looks again whether there is
# still something to do. Descriptor 9 carries the lock: what goes to the background must close it.
with_cache_lock() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    if ! flock --nonblock 9; then
        say "another ./dev is building in $cache, waiting for it"
        flock 9
    fi
    # Not `"$@" || …`, which would switch errexit off in what it calls.
    "$@"
    local status=$?
    exec 9>&-
    return "$status"
}
