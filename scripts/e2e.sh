# shellcheck shell=bash
# Stock S3 clients, installed from their own registries, against a store: ./dev e2e. Sourced by ./dev.

help_e2e() {
    cat <<'HELP'
usage: ./dev e2e [CLIENT…]

Installs stock S3 clients from their ordinary registries (pip, npm, Go, Maven, Debian) into the cache, starts a store on free ports and a
temporary directory, and lets each client, or only those named, spend its ordinary day with it: buckets, objects small, large and oddly
named, lists of many pages, ranges, copies, presigned URLs, conditional requests, checksums, backups that come back. Clients and versions are in
crates/s3gw/tests/clients/days/clients.txt, what works and what has to be set in docs/compatibility.md. A client that cannot be
installed here is skipped and says why. The last line is JSON, and the exit status is 0 only when no step failed.
The first time rclone and the SDKs for Go are compiled, which takes minutes.
HELP
}

verb_e2e() {
    [[ ${1:-} != -* ]] || usage_error e2e "what is '$1'?"
    local status=0
    ensure_build_environment
    ensure_python
    ensure_e2e_python
    build_binary || die "flotilla does not build"
    scratch=$(mktemp -d)
    start_server || die "no store to try clients against"
    client_days "$@" || status=$?
    stop_server || status=1
    if ((status != 0)); then
        say "the end of the store's own log:"
        tail -n 40 "$scratch/server.log" >&2
    fi
    return "$status"
}

# client_days CLIENT…: the days of these clients, or of all, with the store that runs.
client_days() {
    AWS_ACCESS_KEY_ID="$(ready_value ACCESS_KEY)" AWS_SECRET_ACCESS_KEY="$(ready_value SECRET_KEY)" \
        FLOTILLA_S3_ENDPOINT="$(ready_value S3_ENDPOINT)" TMPDIR="$scratch" \
        "$cache/e2e/python/bin/python" "$root/crates/s3gw/tests/clients/days/e2e.py" --cache "$cache/e2e" "$@"
}

# A Python with nothing but pip: clients are installed beside it, each in a place of its own.
ensure_e2e_python() {
    [[ -e $cache/e2e/python/complete ]] || with_cache_lock e2e_python_build "$cache/e2e/python"
}

e2e_python_build() {
    [[ -e $1/complete ]] && return
    rm -rf "$1"
    python3 -m venv "$1"
    touch "$1/complete"
}
