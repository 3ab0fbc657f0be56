# shellcheck shell=bash
# Measurements: ./dev bench. Sourced by ./dev.

help_bench() {
    cat <<'HELP'
usage: ./dev bench [NAME [arguments of the benchmark]]

Builds the benchmark NAME of benches/, with the release binary when it measures that, and runs it. Without a name, lists the names.
Temporary data goes to TMPDIR: point it at the disk to be measured. The first one of a checkout compiles everything again with optimization.
What each takes as arguments is in benches/README.md; s3, blocks, namespace, space, wal and multiraft know --quick.

build [--beside] [--tests] [--release] times what a new user waits for: a fresh clone with nothing in any cache but downloaded packages, until `ready`; with --beside also
RocksDB as cargo compiles it, with --tests `./dev test` twice, with --release `./dev release --check`.
HELP
}

verb_bench() {
    local names name=${1:-}
    names=$(printf 'build\n%s\n' "$(bench_names)" | sort)
    if [[ -z $name ]]; then
        echo "${names:-(none yet)}"
        return
    fi
    grep -qxF -- "$name" <<<"$names" || usage_error bench "there is no benchmark '$name', only: ${names//$'\n'/ }"
    shift
    if [[ $name == build ]]; then
        bench_build "$@"
        return
    fi
    ensure_build_environment
    cd "$root"
    case $name in
    blocks | namespace | pipelines | s3 | space)
        # Measures the release binary as a process of its own. One choice of features for both, as in build_binary.
        cargo build --locked --release --workspace --bin flotilla --bench "$name" >&2
        cargo bench --locked --workspace --bench "$name" -- "$@"
        ;;
    raft | kv)
        # They measure the release binary of a node of their own.
        cargo build --locked --release -p flotilla-kvnode -p flotilla-benches --bin kvnode --bench "$name" >&2
        cargo bench --locked -p flotilla-kvnode -p flotilla-benches --bench "$name" -- "$@"
        ;;
    # What it compares our log with is compiled for nothing else.
    wal) cargo bench --locked -p flotilla-benches --features peers --bench wal -- "$@" ;;
    *) cargo bench --locked -p flotilla-benches --bench "$name" -- "$@" ;;
    esac
}

# bench_build [--beside] [--tests] [--release]: what a new user waits for, from a fresh clone, an empty cache and an empty target directory. --beside also
# has cargo compile RocksDB file by file, as it would without ./dev; --tests and --release go on with those verbs.
bench_build() {
    local argument beside="" tests="" release="" place started=$SECONDS
    for argument in "$@"; do
        case $argument in
        --beside | --tests | --release) printf -v "${argument#--}" yes ;;
        *) usage_error bench "build: what is '$argument'?" ;;
        esac
    done
    export LC_ALL=C # a decimal point in what the shell says of times
    scratch=$(mktemp -d)
    place=$scratch/clone
    figures=()
    git clone --quiet "$root" "$place"
    export FLOTILLA_CACHE=$scratch/cache
    unset ROCKSDB_LIB_DIR ROCKSDB_STATIC CARGO_TARGET_DIR
    bench_build_step rocksdb "$place/dev" env
    bench_build_step build "$place/dev" build
    bench_build_step ready bench_build_ready "$place"
    figures+=("\"clone_to_ready_s\":$((SECONDS - started))" "\"target_mib\":$(du -sm "$place/target" | cut -f 1)")
    touch "$place/crates/types/src/lib.rs"
    bench_build_step after_types "$place/dev" build
    [[ -z $beside ]] || bench_build_step rocksdb_by_cargo bench_build_by_cargo "$place"
    if [[ -n $tests ]]; then
        bench_build_step test "$place/dev" test
        bench_build_step test_again "$place/dev" test
        figures+=("\"target_with_tests_mib\":$(du -sm "$place/target" | cut -f 1)")
    fi
    [[ -z $release ]] || bench_build_step release "$place/dev" release --check
    (
        IFS=,
        echo "{${figures[*]},\"cores\":$(nproc)}"
    )
}

# bench_build_step NAME COMMAND…: adds its wall and processor time to `figures`. What it prints goes to stderr.
bench_build_step() {
    local name=$1 started=${EPOCHREALTIME/./} times=$scratch/times
    shift
    say "$name"
    ("$@" >&2 && times >"$times") || die "$name: failed"
    figures+=("$(awk -v name="$name" -v wall="$((${EPOCHREALTIME/./} - started))" '
        function seconds(text) { split(text, part, /[ms]/); return 60 * part[1] + part[2] }
        { cpu += seconds($1) + seconds($2) }
        END { printf "\"%s\":{\"wall_s\":%.1f,\"cpu_s\":%.1f}", name, wall / 1e6, cpu }' "$times")")
    say "${figures[-1]}"
}

# Until ./dev run of the clone has said that it is ready; then it is stopped.
bench_build_ready() {
    local pid deadline=$((SECONDS + SERVER_READY_SECONDS_MAX))
    "$1/dev" run --data "$scratch/data" --s3-port 0 --rpc-port 0 --http-port 0 --ready-file "$scratch/ready" >"$scratch/server.log" 2>&1 &
    pid=$!
    until [[ -s $scratch/ready ]]; do
        if ! kill -0 "$pid" 2>/dev/null || ((SECONDS > deadline)); then
            tail -n 40 "$scratch/server.log"
            kill "$pid" 2>/dev/null || true
            return 1
        fi
        sleep 0.1
    done
    kill -TERM "$pid"
    wait "$pid"
}

bench_build_by_cargo() {
    cd "$1" || return
    ROCKSDB_COMPILE=1 CARGO_TARGET_DIR=$scratch/by-cargo CXXFLAGS=-g0 RUSTFLAGS="-C target-feature=+sse4.2,+pclmulqdq" \
        cargo build --locked --release --package librocksdb-sys
}

# Cargo names a benchmark after its [[bench]] section.
bench_names() {
    awk '/^\[/ { bench = ($0 == "[[bench]]") }
         bench && /^name *=/ { gsub(/^name *= *"|".*$/, ""); print }' "$root/benches/Cargo.toml" | sort
}
