# shellcheck shell=bash
# The tests: ./dev test, ./dev check, and the stock S3 clients against a store of their own. Sourced by ./dev.

readonly SERVER_READY_SECONDS_MAX=60
readonly SERVER_STOP_SECONDS_MAX=20
# Of ./dev e2e: those that install in seconds, spend seconds, and are not of botocore.
readonly QUICK_CLIENTS=(minio-py pyarrow obstore)

help_test() {
    cat <<'HELP'
usage: ./dev test [filter]

Without a filter: all tests of the workspace, side by side, each in a process of its own (testing/runner), then the aws cli and boto3,
then the quick clients of ./dev e2e, against a `flotilla dev` started for the purpose on free ports and a temporary directory. With a filter: only the tests that, written as in
the output ("raft/groups reads::…"), contain it; `./dev test clients` runs only the part with the clients.
A line for each test says how long it took, and how long it computed, with all that it started. What it prints is shown when it fails; up to three
that failed beside others are tried once more, alone, and are told of as unsteady where they pass then. At the end stands which took longest and
computed most; the last line is `N passed, M failed`, and the exit status is 0 only when M is 0. One crate:  ./dev test raft   One binary of it:  ./dev test raft/groups
HELP
}

verb_test() {
    [[ $# -le 1 && ${1:-} != -* ]] || usage_error test "it takes one filter at most"
    local filter=${1:-}
    ensure_build_environment
    scratch=$(mktemp -d)
    passed=0 failed=0 ignored=0
    [[ $filter == clients ]] || test_cargo "$filter"
    [[ -n $filter && $filter != clients ]] || test_clients
    if ((ignored > 0)); then echo "$ignored ignored"; fi
    if ((passed + failed == 0)); then
        say "no test matches '$filter'"
        failed=1
    fi
    echo "$passed passed, $failed failed"
    ((failed == 0))
}

help_check() {
    cat <<'HELP'
usage: ./dev check

Fails on: unformatted code; any clippy warning in any target; a Cargo.lock that does not fit the manifests; a licence, source or
crate that deny.toml refuses (when cargo-deny is installed); a shell script that does not parse, or that shellcheck
(when installed) complains about; alert rules that promtool (when installed) refuses or that do not fire.
HELP
}

verb_check() {
    [[ $# -eq 0 ]] || usage_error check "it takes no arguments"
    ensure_build_environment
    ensure_rust_component fmt rustfmt rustfmt
    ensure_rust_component clippy clippy rust-clippy
    cd "$root"
    step "shell scripts" shell_scripts_parse
    if have shellcheck; then
        step "shellcheck" shellcheck --external-sources dev .ci/run
    else
        say "shellcheck: not installed, skipped"
    fi
    step "formatting" cargo fmt --all -- --check
    step "clippy" cargo clippy --locked --workspace --all-targets -- -D warnings
    if have promtool; then
        step "alerts" promtool check config deploy/monitoring/prometheus.yml
        step "alerts that fire" promtool test rules deploy/monitoring/alerts-test.yml
    else
        say "promtool: not installed, skipped"
    fi
    # Advisories are left out on purpose: they change by the day, and a commit that was green must stay green.
    if have cargo-deny; then
        step "cargo deny" cargo deny check bans licenses sources
    else
        say "cargo deny: not installed, skipped"
    fi
    say "check: ok"
}

shell_scripts_parse() {
    local script
    for script in dev scripts/*.sh .ci/run; do bash -n "$script" || return; done
}

# Builds all test binaries and has the runner run what is in them; adds its counts to `passed`, `failed` and `ignored`.
test_cargo() {
    local filter=$1 log=$scratch/tests.log directory line status=0
    [[ -t 2 && -z ${NO_COLOR:-} ]] && export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
    directory=$(target_directory)
    if ! step "build of the tests" test_build >"$scratch/artifacts.json"; then
        say "the tests do not build"
        failed=$((failed + 1))
        return
    fi
    step "tests" "$directory/debug/flotilla-runner" --artifacts "$scratch/artifacts.json" --times "$directory/test-times.json" \
        ${filter:+"$filter"} | tee "$log" || status=$?
    line=$(grep -E '^tests: ' "$log" | tail -n 1 || true)
    if [[ $line =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ ignored ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) ignored=$((ignored + BASH_REMATCH[3]))
    elif [[ $status -eq 0 ]]; then
        status=1
    fi
    if ((status != 0 && failed == 0)); then
        say "the runner ended before the tests did"
        failed=$((failed + 1))
    fi
}

test_build() { (cd "$root" && cargo test --locked --workspace --no-run --message-format json-render-diagnostics); }

# Runs the stock S3 clients against a store started here, and counts the store's clean stop as one more test.
test_clients() {
    local clients=$root/crates/s3gw/tests/clients log=$scratch/clients.log status=0 line
    local p=0 f=0
    ensure_python
    ensure_client_venv "$clients/requirements.txt"
    ensure_e2e_python
    if ! build_binary || ! start_server; then
        failed=$((failed + 1))
        return
    fi
    run_clients 2>&1 | tee "$log" || status=1
    while read -r line; do
        [[ $line =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed ]] || continue
        p=$((p + BASH_REMATCH[1])) f=$((f + BASH_REMATCH[2]))
    done <"$log"
    if ((p + f == 0)) || ((status != 0 && f == 0)); then
        say "the client test died before it counted its results"
        f=$((f + 1))
    fi
    if stop_server; then
        p=$((p + 1))
    else
        f=$((f + 1))
    fi
    if ((f > 0)); then
        say "the end of the store's own log:"
        tail -n 40 "$scratch/server.log" >&2
    fi
    passed=$((passed + p)) failed=$((failed + f))
}

# The aws cli, boto3 and the quick clients against the store of `ready_value`; each ends with "N passed, M failed".
run_clients() {
    local status=0
    # The clients see this store and nothing of the person's own AWS set-up or proxies.
    env -u AWS_PROFILE -u AWS_SESSION_TOKEN -u AWS_ENDPOINT_URL -u AWS_ENDPOINT_URL_S3 \
        AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_EC2_METADATA_DISABLED=true \
        AWS_DEFAULT_REGION=us-east-1 AWS_PAGER="" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 \
        AWS_ACCESS_KEY_ID="$(ready_value ACCESS_KEY)" AWS_SECRET_ACCESS_KEY="$(ready_value SECRET_KEY)" \
        FLOTILLA_S3_ENDPOINT="$(ready_value S3_ENDPOINT)" \
        PATH="$client_venv/bin:$PATH" PYTHONUNBUFFERED=1 TMPDIR="$scratch" \
        "$client_venv/bin/python" "$root/crates/s3gw/tests/clients/s3_smoke.py" || status=1
    client_days "${QUICK_CLIENTS[@]}" || status=1
    return "$status"
}

start_server() {
    local deadline=$((SECONDS + SERVER_READY_SECONDS_MAX))
    "$(binary_path)" dev --data "$scratch/data" --s3-port 0 --rpc-port 0 --http-port 0 --ready-file "$scratch/ready" \
        >"$scratch/server.log" 2>&1 &
    server_pid=$!
    until [[ -n $(ready_value S3_ENDPOINT) && -n $(ready_value SECRET_KEY) ]]; do
        if ! kill -0 "$server_pid" 2>/dev/null || ((SECONDS >= deadline)); then
            say "flotilla dev did not get ready within $SERVER_READY_SECONDS_MAX s; the end of its log:"
            tail -n 40 "$scratch/server.log" >&2
            stop_server || true
            return 1
        fi
        sleep 0.05
    done
}

# One value of the ready file, or nothing while the file is not there.
ready_value() {
    [[ ! -r $scratch/ready ]] || sed -n "s/^$1=//p" "$scratch/ready"
}

# Stops the store; true when it went by itself, with status 0, after SIGTERM.
stop_server() {
    local pid=$server_pid deadline=$((SECONDS + SERVER_STOP_SECONDS_MAX)) status=0
    server_pid=""
    kill -TERM "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do
        if ((SECONDS >= deadline)); then
            say "flotilla dev did not stop within $SERVER_STOP_SECONDS_MAX s of SIGTERM"
            kill -KILL "$pid" 2>/dev/null || true
            break
        fi
        sleep 0.05
    done
    wait "$pid" || status=$?
    [[ $status -eq 0 ]] || say "flotilla dev ended with status $status"
    return "$status"
}

# Makes `client_venv` a directory with the pinned clients: one per requirements and Python version, kept in the cache.
ensure_client_venv() {
    local requirements=$1
    client_venv=$cache/venv-$(short_hash "$(cat "$requirements")" "$(python3 --version)")
    [[ -e $client_venv/complete ]] || with_cache_lock client_venv_build "$requirements"
}

# Built in place, since a venv cannot be moved; the file `complete` is written last.
client_venv_build() {
    [[ -e $client_venv/complete ]] && return
    say "installing the aws cli and boto3 into $client_venv"
    rm -rf "$client_venv"
    python3 -m venv "$client_venv"
    "$client_venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$1" >&2 \
        || die "pip could not install $1"
    touch "$client_venv/complete"
}
