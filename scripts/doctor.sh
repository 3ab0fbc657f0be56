# shellcheck shell=bash
# A look at the machine: ./dev doctor. Sourced by ./dev.

help_doctor() {
    cat <<'HELP'
usage: ./dev doctor

Says what this machine has and what is missing, installs nothing. Exit status 1 when something required is missing.
HELP
}

verb_doctor() {
    [[ $# -eq 0 ]] || usage_error doctor "it takes no arguments"
    export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    local problems=0 required
    required=$(rust_required)
    doctor_require "C and C++ compiler" "$(have_cxx && c++ --version | head -n 1)" "apt package build-essential"
    doctor_require "clang and libclang" "$(have_clang && "${CXX:-clang++}" --version | head -n 1)" "apt package clang"
    doctor_require "Rust $required or newer" "$(rust_suffices "$required" && rustc --version)" "https://rustup.rs"
    doctor_require "rustfmt" "$(cargo fmt --version 2>/dev/null)" "rustup component add rustfmt"
    doctor_require "clippy" "$(cargo clippy --version 2>/dev/null)" "rustup component add clippy"
    doctor_require "Python with venv" "$(have_python && python3 --version)" "apt packages python3 python3-venv"
    doctor_say "cargo-deny" "$(cargo deny --version 2>/dev/null || echo "not installed; ./dev check skips it")"
    doctor_say "shellcheck" "$(have shellcheck && echo found || echo "not installed; ./dev check skips it")"
    doctor_say "promtool" "$(have promtool && echo found || echo "not installed; ./dev check skips it")"
    doctor_rocksdb
    doctor_say "cache" "$cache ($(du -sh "$cache" 2>/dev/null | cut -f1 || echo empty))"
    doctor_say "machine" "$(nproc) cores, $(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo) memory"
    doctor_say "kernel" "$(uname -sr), $(uname -m)"
    doctor_require "$DISK_GIB_MIN GiB of disk" "$(doctor_disk)" "only $(df -h --output=avail "$root" | tail -n 1 | xargs echo) left in the checkout"
    doctor_require "$MEMORY_GIB_MIN GiB of memory" "$(doctor_memory)" "only $(awk '/^MemAvailable/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo) available"
    doctor_say "space in checkout" "$(df -h --output=avail,fstype "$root" | tail -n 1 | xargs echo)"
    doctor_say "fdatasync" "$(doctor_fdatasync) per 4 KiB write in the checkout"
    if ((problems > 0)); then
        say "$problems missing; every other verb installs what it can"
        return 1
    fi
}

# What a debug build, its tests and RocksDB leave behind (docs/building.md), and the largest compilers of two cores at their peak.
readonly DISK_GIB_MIN=6
readonly MEMORY_GIB_MIN=3

doctor_disk() { df -BG --output=avail "$root" | tail -n 1 | awk -v least="$DISK_GIB_MIN" '$1 + 0 >= least { print $1 + 0 " GiB free" }'; }

doctor_memory() { awk -v least="$MEMORY_GIB_MIN" '/^MemAvailable/ && $2 >= least * 1048576 { printf "%.1f GiB available", $2 / 1048576 }' /proc/meminfo; }

doctor_require() {
    if [[ -n $2 ]]; then
        doctor_say "$1" "$2"
    else
        doctor_say "$1" "MISSING: $3"
        problems=$((problems + 1))
    fi
}

doctor_say() { printf '%-24s %s\n' "$1" "$2"; }

doctor_rocksdb() {
    local directory=${ROCKSDB_LIB_DIR:-}
    if [[ -z $directory ]] && have rustc && have_cxx; then directory=$(rocksdb_dir); fi
    if [[ -n $directory && -e $directory/librocksdb.a ]]; then
        doctor_say "RocksDB" "$directory"
    else
        doctor_say "RocksDB" "not built yet; the first verb that compiles does it, a few minutes on two cores"
        [[ -z $directory ]] || doctor_say "" "into $directory"
    fi
}

# Median would need a tool of its own; the mean of 100 synchronous writes is enough to tell 0.05 ms from 10 ms.
doctor_fdatasync() {
    local writes=100 file start
    file=$(mktemp "$root/.doctor.XXXXXX")
    start=$(date +%s%N)
    dd if=/dev/zero of="$file" bs=4096 count=$writes oflag=dsync status=none
    awk -v ns=$(($(date +%s%N) - start)) -v n=$writes 'BEGIN { printf "%.2f ms", ns / n / 1000000 }'
    rm -f "$file"
}
