# shellcheck shell=bash
# What a build needs, and the builds: ./dev run, build, cargo, env, fmt. Sourced by ./dev.

help_build() {
    cat <<'HELP'
usage: ./dev build [--release]

Builds the binary and prints where it is, for: flotilla=$(./dev build --release). With --release it is the optimized one of ./dev release,
before stripping; otherwise the one of the dev profile, which ./dev run and ./dev test use.
HELP
}

verb_build() {
    local profile=debug
    if [[ ${1:-} == --release ]]; then
        profile=release
        shift
    fi
    [[ $# -eq 0 ]] || usage_error build "it takes nothing but --release"
    ensure_build_environment
    build_binary "$profile"
    binary_path "$profile"
}

help_run() {
    cat <<'HELP'
usage: ./dev run [--release] [arguments of `flotilla dev`]

Builds the binary as ./dev build does and becomes `flotilla dev`: all services in one process. Data is kept in ./data of the checkout
unless --data DIR is given. Ctrl-C stops it; the next run finds the data again.
All flags of `flotilla dev`:  "$(./dev build)" dev --help
HELP
}

verb_run() {
    local profile=debug
    if [[ ${1:-} == --release ]]; then
        profile=release
        shift
    fi
    ensure_build_environment
    build_binary "$profile"
    local data=(--data "$root/data") argument
    for argument in "$@"; do
        case $argument in --data | --data=*) data=() ;; esac
    done
    # exec: signals and the exit status are the server's own, nothing of this script stays behind.
    exec "$(binary_path "$profile")" dev "${data[@]}" "$@"
}

help_fmt() {
    cat <<'HELP'
usage: ./dev fmt

Formats all Rust code in place.
HELP
}

verb_fmt() {
    [[ $# -eq 0 ]] || usage_error fmt "it takes no arguments"
    ensure_rust
    ensure_rust_component fmt rustfmt rustfmt
    cd "$root"
    cargo fmt --all
}

help_cargo() {
    cat <<'HELP'
usage: ./dev cargo ARGUMENTS

Runs cargo with the environment of this checkout, in your directory when that is inside the checkout, else at its root.
HELP
}

verb_cargo() {
    [[ $# -gt 0 ]] || usage_error cargo "it needs a cargo command"
    ensure_build_environment
    [[ $PWD/ == "$root"/* ]] || cd "$root"
    exec cargo "$@"
}

help_env() {
    cat <<'HELP'
usage: eval "$(./dev env)"

Prints the exports that plain cargo, or an editor started from this shell, needs to build this checkout.
HELP
}

verb_env() {
    [[ $# -eq 0 ]] || usage_error env "it takes no arguments"
    local name path_before=$PATH
    ensure_build_environment
    [[ $PATH == "$path_before" ]] || printf 'export PATH=%q\n' "$PATH"
    for name in RUSTUP_TOOLCHAIN ROCKSDB_LIB_DIR ROCKSDB_STATIC; do
        [[ -z ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
    done
}

# build_binary [PROFILE]: debug, which is the default, or release.
#
# In debug, naming the whole workspace and one test target makes cargo choose the features of dependencies as `cargo test --workspace`
# does (dev-dependencies included). Without that, `./dev run` and `./dev test` would each compile tonic and all that is above it.
build_binary() {
    case ${1:-debug} in
    debug) (cd "$root" && cargo build --locked --workspace --bin flotilla --test layering) >&2 ;;
    release) build_release ;;
    esac
}

# binary_path [PROFILE]: where build_binary puts it.
binary_path() {
    case ${1:-debug} in
    debug) echo "$(target_directory)/debug/flotilla" ;;
    release) echo "$(target_directory)/$(rust_host)/release/flotilla" ;;
    esac
}

target_directory() {
    (cd "$root" && cargo metadata --no-deps --format-version 1) | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# What every verb that compiles needs: tools, Rust, and RocksDB as a library.
ensure_build_environment() {
    local missing=()
    have_cxx || missing+=(build-essential)
    have_clang || missing+=(clang)
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
    ensure_rust
    warn_of_room
    ensure_rocksdb
}

# A first build that would fill the disk or the memory is better known of now than in ten minutes. It is not refused: what it
# takes is a measured figure of other machines.
warn_of_room() {
    [[ ! -d $(target_directory)/debug ]] || return 0
    [[ -n $(doctor_disk) ]] || say "less than $DISK_GIB_MIN GiB of disk is free, which a first build and its tests may need (./dev doctor)"
    [[ -n $(doctor_memory) ]] || say "less than $MEMORY_GIB_MIN GiB of memory is available, which the compilers may need (./dev doctor)"
}

have_cxx() { have cc && have c++; }

# clang compiles RocksDB, and bindgen loads libclang, which comes with it, to read RocksDB's C header.
have_clang() {
    local directories=(/usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib)
    [[ -z ${LIBCLANG_PATH:-} ]] || directories=("$LIBCLANG_PATH")
    have "${CXX:-clang++}" && compgen_any "${directories[@]/%//libclang.so*}" "${directories[@]/%//libclang-*.so*}" \
        && compgen_any /usr/lib/llvm-*/lib/clang/*/include/stddef.h /usr/lib/clang/*/include/stddef.h \
            /usr/lib64/clang/*/include/stddef.h /usr/local/lib/clang/*/include/stddef.h
}

have_python() { have python3 && python3 -c 'import venv, ensurepip' 2>/dev/null; }

ensure_python() {
    have_python || install_packages python3 python3-venv
    have_python || die "python3 on the PATH cannot make virtual environments (python3 -m venv)"
}

# Puts cargo on the PATH, at least of the version the workspace asks for. There is no rust-toolchain.toml: any newer
# compiler is welcome, and nobody is made to download an older one.
ensure_rust() {
    local required
    required=$(rust_required)
    if rust_suffices "$required"; then return; fi
    export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    if rust_suffices "$required"; then return; fi
    have rustup || install_rustup "$required"
    if rust_suffices "$required"; then return; fi
    export RUSTUP_TOOLCHAIN=$required
    if rust_suffices "$required"; then return; fi
    say "installing Rust $required through rustup"
    rustup toolchain install "$required" --profile minimal --component rustfmt --component clippy >&2 || true
    rust_suffices "$required" || die "Rust $required or newer is needed and could not be installed: see https://rustup.rs"
}

rust_required() { sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$root/Cargo.toml"; }

rust_host() { rustc -vV | sed -n 's/^host: //p'; }

rust_found() { have cargo && rustc --version 2>/dev/null | awk '{ print $2 }'; }

rust_suffices() {
    local found
    found=$(rust_found) && [[ -n $found ]] && printf '%s\n' "$1" "$found" | sort -V -C
}

# Debian 13 and Ubuntu 24.04 have a package; elsewhere it is the official installer, which writes to ~/.rustup and
# ~/.cargo only.
install_rustup() {
    local required=$1 installer
    if [[ -n $(apt-cache --quiet search --names-only '^rustup$' 2>/dev/null) ]]; then
        install_packages rustup
        return
    fi
    have curl || install_packages curl ca-certificates
    say "installing Rust $required with the rustup installer"
    installer=$(mktemp)
    if ! curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$installer" \
        || ! sh "$installer" -y --no-modify-path --profile minimal --component rustfmt clippy \
            --default-toolchain "$required" >&2; then
        rm -f "$installer"
        die "Rust $required or newer is needed and could not be installed: see https://rustup.rs"
    fi
    rm -f "$installer"
}

# ensure_rust_component SUBCOMMAND COMPONENT PACKAGE
ensure_rust_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    if have rustup; then rustup component add "$2" >&2; else install_packages "$3"; fi
}
