# shellcheck shell=bash
# Stock S3 clients against a store whose OMs are killed one after the other: ./dev drill clients. Sourced by ./dev.

# From the return of one OM to the end of the next one, and what it stays away.
readonly OM_KILL_INTERVAL_SECONDS=4
readonly OM_AWAY_SECONDS=2
readonly DRILL_ACCESS_KEY=FLOTDRILLDRILLDRILL0
readonly DRILL_SECRET_KEY=drill-secret-key-of-some-length

# Who kills and starts OMs, while it runs.
drill_killer=""
# The processes of the store by name, and their command lines.
declare -A drill_pids=() drill_lines=()

drill_clients() {
    local status=0 kills=0 steps
    ensure_build_environment
    ensure_python
    ensure_client_venv "$root/crates/s3gw/tests/clients/requirements.txt"
    ensure_e2e_python
    build_binary || die "flotilla does not build"
    scratch=$(mktemp -d)
    start_drill_store
    kill_oms >"$scratch/kills" &
    drill_killer=$!
    run_clients 2>&1 | tee "$scratch/clients.log" >&2 || status=1
    stop_drill_store
    kills=$(wc -l <"$scratch/kills")
    steps=$(grep -oE '[0-9]+ passed, [0-9]+ failed' "$scratch/clients.log" \
        | awk '{ passed += $1; failed += $3 } END { printf "\"failed\":%d,\"passed\":%d", failed, passed }')
    [[ $steps != *'"passed":0' && $kills -gt 0 ]] || status=1
    echo "{\"drill\":\"clients\",\"om_kills\":$kills,$steps}"
    return "$status"
}

# SCM, three OMs, three datanodes and a gateway, each a process.
start_drill_store() {
    local scm at
    scm=127.0.0.1:$(free_port)
    drill_lines[scm]="--roles scm --rpc $scm --meta $scratch/scm"
    for at in 1 2 3; do
        drill_lines[om$at]="--roles om --rpc 127.0.0.1:$(free_port) --meta $scratch/om$at --scm $scm"
        drill_lines[dn$at]="--roles datanode --rpc 127.0.0.1:$(free_port) --disk $scratch/dn$at --scm $scm"
    done
    drill_lines[gateway]="--roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --scm $scm --access-key $DRILL_ACCESS_KEY --secret-key $DRILL_SECRET_KEY"
    for at in scm om1 om2 om3 dn1 dn2 dn3 gateway; do start_drill_process "$at"; done
    for at in scm om1 om2 om3 dn1 dn2 dn3 gateway; do await_drill_process "$at"; done
    # Kills one of three members only where there are three: groups grow when OMs come.
    local deadline=$((SECONDS + SERVER_READY_SECONDS_MAX))
    until [[ $("$(binary_path)" admin --scm "$scm" om groups --json 2>/dev/null | grep -oE '"role": *"(leader|follower)"' | wc -l) -ge 12 ]]; do
        ((SECONDS < deadline)) || die "the groups of names do not come to three members each"
        sleep 0.2
    done
    { echo "S3_ENDPOINT=$(sed -n 's/^S3_ENDPOINT=//p' "$scratch/gateway.ready")"; echo "ACCESS_KEY=$DRILL_ACCESS_KEY"; echo "SECRET_KEY=$DRILL_SECRET_KEY"; } >"$scratch/ready"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_drill_process() {
    rm -f "$scratch/$1.ready"
    # shellcheck disable=SC2086 # words on purpose
    "$(binary_path)" server ${drill_lines[$1]} --http 127.0.0.1:0 --ready-file "$scratch/$1.ready" >>"$scratch/$1.log" 2>&1 &
    drill_pids[$1]=$!
    # The shell would tell of each kill.
    disown
}

await_drill_process() {
    local deadline=$((SECONDS + SERVER_READY_SECONDS_MAX))
    until [[ -s $scratch/$1.ready ]]; do
        if ! kill -0 "${drill_pids[$1]}" 2>/dev/null || ((SECONDS >= deadline)); then
            tail -n 40 "$scratch/$1.log" >&2
            stop_drill_store
            die "$1 did not get ready within $SERVER_READY_SECONDS_MAX s"
        fi
        sleep 0.05
    done
}

# Runs until it is killed; a line for each kill. What it started ends with it.
kill_oms() {
    trap 'kill -KILL "${drill_pids[om1]}" "${drill_pids[om2]}" "${drill_pids[om3]}" 2>/dev/null; exit 0' INT TERM
    while true; do
        for at in om1 om2 om3; do
            sleep "$OM_KILL_INTERVAL_SECONDS"
            kill -KILL "${drill_pids[$at]}"
            echo "$at"
            sleep "$OM_AWAY_SECONDS"
            start_drill_process "$at"
            await_drill_process "$at"
        done
    done
}

stop_drill_store() {
    local at
    # First: it knows of OMs that it has started since, and would start more.
    if [[ -n $drill_killer ]]; then
        kill "$drill_killer" 2>/dev/null && wait "$drill_killer" || true
        drill_killer=""
    fi
    for at in "${!drill_pids[@]}"; do kill -KILL "${drill_pids[$at]}" 2>/dev/null || true; done
    drill_pids=()
}
