# shellcheck shell=bash
# Something to install: ./dev release. The archive is made here, the package in deb.sh, release-check.sh tries both. Sourced by ./dev.
#
# The same commit should give the same bytes wherever it is built with the same compilers (docs/releasing.md): paths of this machine are
# mapped away, times are the commit's, and everything is sorted.

help_release() {
    cat <<'HELP'
usage: ./dev release [--dirty] [--check]

Builds the binary with the release profile and makes of it, in dist/:
  flotilla-VERSION-TARGET.tar.xz    binary, units and settings, documents, licences, SBOM, checksums
  flotilla_VERSION_ARCH.deb         the same as a Debian package, where dpkg-deb is installed
  flotilla-VERSION-TARGET.sha256    the checksums of both
VERSION is that of Cargo.toml when the commit has the tag vVERSION; otherwise it has the commit's time and hash behind it, and sorts before
VERSION. Changes that are not committed are refused, or, with --dirty, part of the release and of its name.

--check makes what is missing of this in dist/, unpacks it into an empty directory, and tries it: checksums, licences, SBOM, units, the
README's example with the stock aws cli; and as root, the package's installation, removal and purge in a copy of this machine's files.
HELP
}

verb_release() {
    local argument check="" dirty=""
    for argument in "$@"; do
        case $argument in
        --check) check=yes ;;
        --dirty) dirty=yes ;;
        *) usage_error release "it knows no '$argument'" ;;
        esac
    done
    umask 022
    export LC_ALL=C TZ=UTC
    release_identify "$dirty"
    release_tools
    ensure_build_environment
    scratch=$(mktemp -d)
    # Nothing names the changes of a dirty tree, so what is there may be of other ones.
    if [[ -z $check || -n $dirty ]] || ! release_is_there; then release_make; fi
    [[ -z $check ]] || release_check
    release_list >&2
    echo "$release_archive"
}

# Sets what names the release, and SOURCE_DATE_EPOCH. Everything in it that has a time has the commit's.
release_identify() {
    local dirty_is_allowed=$1 dirty="" changes
    have git || install_packages git
    changes=$(git -C "$root" status --porcelain) || die "a release is made of a commit, and this is no checkout of git"
    if [[ -n $changes ]]; then
        [[ -n $dirty_is_allowed ]] || die "there are changes that are not committed; --dirty makes them part of the release:
$changes"
        dirty=.dirty
    fi
    SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    ensure_rust
    release_target=$(rust_host)
    release_version=$(product_version)
    if [[ -n $dirty ]] || ! git -C "$root" tag --points-at HEAD | grep -qxF "v$release_version"; then
        # Before the version that it leads to, for dpkg and `sort -V`, and among each other by time.
        release_version+="~$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).g$(git -C "$root" rev-parse --short=12 HEAD)$dirty"
    fi
    release_name=flotilla-$release_version-$release_target
    release_archive=$root/dist/$release_name.tar.xz
    release_package=$root/dist/flotilla_${release_version}_$(deb_architecture).deb
    release_sums=$root/dist/$release_name.sha256
}

product_version() { sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' "$root/Cargo.toml"; }

release_tools() {
    local missing=()
    have xz || missing+=(xz-utils)
    have python3 || missing+=(python3)
    { have strip && have readelf; } || missing+=(binutils)
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
}

release_is_there() {
    [[ -e $release_sums ]] && (cd "$root/dist" && sha256sum --check --status "$release_sums")
}

release_make() {
    local tree=$scratch/$release_name binary
    refuse_planted_bugs
    build_binary release
    binary=$(binary_path release)
    refuse_other_commit "$binary"
    refuse_planted_binary "$binary"
    release_tree "$tree" "$binary"
    refuse_unportable "$tree/bin/flotilla"
    refuse_paths "$tree/bin/flotilla"
    mkdir -p "$root/dist"
    release_pack "$tree"
    if have dpkg-deb; then deb_pack "$tree"; else say "no dpkg-deb here: no .deb"; fi
    (
        cd "$root/dist"
        sums=("${release_archive##*/}")
        [[ ! -e $release_package ]] || sums+=("${release_package##*/}")
        sha256sum "${sums[@]}" >"$release_sums"
    )
}

release_list() {
    (cd "$root/dist" && cat "$release_sums" && du --apparent-size -h "$release_archive" "$release_package" 2>/dev/null) || true
}

# The binary

# Cargo's features for tests and campaigns that break the product on purpose.
refuse_planted_bugs() {
    local features
    features=$(cd "$root" && cargo tree --locked -p flotilla-cli -e features,normal --target "$release_target" --prefix none)
    [[ $features != *'feature "planted"'* ]] || die "the release would have the feature 'planted', with bugs for tests to find"
}

# The same, asked of the binary.
refuse_planted_binary() {
    [[ $("$1" --version) != *planted:* ]] || die "the binary has bugs for tests to find: $("$1" --version)"
}

# Builds what ./dev release packs: only the product, so that no test's features reach it; for a named target, so that flags and files
# are apart from those of ./dev bench and of build scripts.
build_release() {
    local target directory flags
    target=$(rust_host)
    directory=$(target_directory)
    release_link_directory "$directory/static-runtimes"
    flags=$(release_remaps "$directory" | sed 's/^/--remap-path-prefix=/')
    # The linker's id of the build covers debug information that the package does not have.
    flags+=$'\n-Lnative='$directory/static-runtimes$'\n-Clink-arg=-Wl,--build-id=none'
    (
        cd "$root"
        export CARGO_ENCODED_RUSTFLAGS=${flags//$'\n'/$'\x1f'} CARGO_INCREMENTAL=0
        # C of ring and lz4: the compiler puts paths into what it makes of assert() and into debug information.
        flags=$(release_remaps "$directory" | sed 's/^/-ffile-prefix-map=/' | tr '\n' ' ')
        export CFLAGS="$flags ${CFLAGS:-}" CXXFLAGS="$flags ${CXXFLAGS:-}"
        cargo build --locked --release --target "$target" -p flotilla-cli --bin flotilla
    ) >&2
}

# Lines of OLD=NEW for all directories of this machine that a compiler sees. The last that fits wins.
release_remaps() {
    local sysroot commit registry
    sysroot=$(rustc --print sysroot)
    commit=$(rustc -vV | sed -n 's/^commit-hash: //p')
    cat <<REMAPS
${CARGO_HOME:-$HOME/.cargo}=/cargo
$sysroot=/rust
$sysroot/lib/rustlib/src/rust=/rustc/$commit
$root=/flotilla
$1=/flotilla/target
REMAPS
    # Named after the registry or mirror that crates came from; what they are is in Cargo.lock.
    for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do echo "${registry%/}=/crates"; done
}

# A directory in which the linker finds the C++ library and the unwinder as static ones only: it takes the first directory that has
# either kind. librocksdb-sys asks for stdc++, Rust's library for gcc_s.
release_link_directory() {
    local directory=$1 stdcxx gcc_eh
    stdcxx=$(cc -print-file-name=libstdc++.a)
    gcc_eh=$(cc -print-file-name=libgcc_eh.a)
    rm -rf "$directory"
    mkdir -p "$directory"
    if [[ $stdcxx != /* || $gcc_eh != /* ]]; then
        say "no static libstdc++ here (Fedora: libstdc++-static): this binary needs the one of the machine it runs on"
        return
    fi
    ln -s "$gcc_eh" "$directory/libgcc_s.a"
    release_arc4random | cc -O2 -fPIC -fvisibility=hidden -x c -c - -o "$directory/arc4random.o"
    # A linker script.
    echo "INPUT(\"$stdcxx\" \"$directory/arc4random.o\")" >"$directory/libstdc++.a"
}

# The one thing in a libstdc++ of Debian 12 that wants glibc 2.36 is this function, for std::random_device. Ubuntu 22.04 has 2.35.
release_arc4random() {
    cat <<'SOURCE'
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

uint32_t arc4random(void) {
    uint32_t value;
    while (getrandom(&value, sizeof value, 0) != sizeof value)
        if (errno != EINTR) abort();
    return value;
}
SOURCE
}

# The build script asks git only when the commit changes; changes that were undone since leave a binary that calls itself dirty.
refuse_other_commit() {
    local binary=$1 commit
    commit=$(git -C "$root" rev-parse --short=12 HEAD)
    [[ $release_version != *.dirty ]] || return 0
    binary_is_of "$binary" "$commit" && return
    touch "$root/crates/cli/build.rs"
    build_binary release
    binary_is_of "$binary" "$commit" || die "the binary is not of commit $commit: $("$binary" --version)"
}

binary_is_of() { "$1" --version | grep -qxE "commit: +$2"; }

# Libraries that every Linux with glibc has, and no others.
refuse_unportable() {
    local others
    others=$(binary_libraries "$1" | grep -vE '^(libc|libm|libpthread|libdl|librt|ld-linux.*)\.so' || true)
    [[ -z $others ]] || die "the binary needs libraries of this machine: ${others//$'\n'/ }"
}

binary_libraries() { readelf --dynamic --wide "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# The newest version of glibc that any of its symbols asks for.
binary_glibc() {
    readelf --version-info --wide "$1" | sed -n 's/.*Name: GLIBC_\([0-9.]*\) .*/\1/p' | sort -uV | tail -n 1
}

# A path of the machine that built it differs on the next one, and is nobody's business.
refuse_paths() {
    local found path
    for path in "$root/" "$cache/" "$(target_directory)/" "${CARGO_HOME:-$HOME/.cargo}/" "$(rustc --print sysroot)/" "$HOME/"; do
        found=$(grep -aoE -m 3 "${path//./\\.}[[:graph:]]{0,80}" "$1" | head -n 3 || true)
        [[ -z $found ]] || die "the binary has paths of this machine in it: ${found//$'\n'/ }"
    done
}

# The archive

# release_tree DIRECTORY BINARY: all that is in the archive. Only files that git knows: what lies about is nobody's release.
release_tree() {
    local tree=$1 binary=$2 file
    mkdir -p "$tree/bin" "$tree/licences" "$tree/completions"
    strip --strip-all -o "$tree/bin/flotilla" "$binary"
    chmod 755 "$tree/bin/flotilla"
    while IFS= read -r file; do
        mkdir -p "$tree/$(dirname "$file")"
        install -m "$([[ -x $root/$file ]] && echo 755 || echo 644)" "$root/$file" "$tree/$file"
    done < <(git -C "$root" ls-files README.md ARCHITECTURE.md LICENSE docs deploy ':!deploy/deb')
    "$tree/bin/flotilla" completion bash >"$tree/completions/flotilla.bash"
    say "licences and SBOM"
    (
        export FLOTILLA_RELEASE_VERSION=$release_version
        python3 "$root/scripts/components.py" licences >"$tree/licences/THIRD-PARTY-LICENSES"
        python3 "$root/scripts/components.py" sbom >"$tree/sbom.cdx.json"
    )
    # Who wrote what in Rust's standard library. Not every distribution's Rust brings it.
    file=$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html
    [[ ! -e $file ]] || install -m 644 "$file" "$tree/licences/rust-standard-library.html"
    release_build_info "$tree/bin/flotilla" >"$tree/BUILD-INFO"
    (cd "$tree" && find . -type f ! -name SHA256SUMS -printf '%P\0' | sort -z | xargs -0 sha256sum >SHA256SUMS)
}

release_build_info() {
    cat <<INFO
version:       $release_version
commit:        $(git -C "$root" rev-parse HEAD)
committed:     $(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
target:        $release_target
needs:         glibc $(binary_glibc "$1") or newer ($(binary_libraries "$1" | xargs))
Rust:          $(rustc --version)
linked by:     $(cc --version | head -n 1)
RocksDB:       $(locked librocksdb-sys version), compiled by $("$(rocksdb_compiler)" --version | head -n 1)
INFO
}

# ustar and gnu headers hold what is said here and nothing else; pax ones would have the process id of tar.
release_pack() {
    tar --directory "${1%/*}" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --create "${1##*/}" | XZ_OPT="" xz --threads=1 -6 --stdout >"$scratch/archive"
    mv "$scratch/archive" "$release_archive"
    say "$(grep '^needs:' "$1/BUILD-INFO" | sed 's/^needs: */needs /'): $release_archive"
}
