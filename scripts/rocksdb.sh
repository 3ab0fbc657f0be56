# shellcheck shell=bash
# RocksDB, built once per machine into the cache. Sourced by ./dev.
#
# The sources, and the list of them, are those of the librocksdb-sys crate that Cargo.lock pins; defines and flags are what its
# build script passes. It compiles 343 files, each of which reads the same headers again: most of the time goes there. Here
# the sources of a folder are compiled together, a few hundred KiB at a time
# (docs/adr/0001-rocksdb-built-once-per-machine.md has the numbers).

# One unit is at most so many bytes of source: 28 units, of which the largest takes 0.6 GiB with clang and 1.3 with gcc.
readonly ROCKSDB_UNIT_BYTES_MAX=700000
# Sources that define macros other sources test: each is a unit of its own, and nothing of it reaches a neighbour.
readonly ROCKSDB_ALONE='util/(crc32c|xxhash|random)\.cc|port/stack_trace\.cc'
# What one compiler may need at its peak; where memory is short, fewer run side by side.
readonly ROCKSDB_COMPILER_MIB=1400

# Exports where the static library is, and builds it first if this machine has none of this kind.
# A ROCKSDB_LIB_DIR that is already set, and holds a library, is the caller's decision and stays.
ensure_rocksdb() {
    export ROCKSDB_STATIC=1
    [[ -n $(locked librocksdb-sys version) ]] || die "Cargo.lock names no librocksdb-sys: is this checkout whole?"
    [[ -n ${ROCKSDB_LIB_DIR:-} && -e $ROCKSDB_LIB_DIR/librocksdb.a ]] && return
    ROCKSDB_LIB_DIR=$(rocksdb_dir)
    export ROCKSDB_LIB_DIR
    [[ -e $ROCKSDB_LIB_DIR/librocksdb.a ]] || with_cache_lock rocksdb_build
}

# The directory is named after everything that decides the bytes of the library, so another version, compiler or flag never
# finds a library that does not fit.
rocksdb_dir() {
    local version
    version=$(locked librocksdb-sys version)
    echo "$cache/rocksdb-$version-$(uname -m)-$(short_hash "$(locked librocksdb-sys checksum)" "$(locked lz4-sys checksum)" \
        "$(rocksdb_flags)" "$(rocksdb_compilers)" "$ROCKSDB_UNIT_BYTES_MAX" "$ROCKSDB_ALONE" \
        "$(declare -f rocksdb_units rocksdb_compile rocksdb_compile_file rocksdb_archive)")"
}

# locked PACKAGE FIELD: what Cargo.lock says of a package.
locked() {
    awk -F'"' -v package="$1" -v field="$2" '
        $1 == "name = " { ours = $2 == package }
        ours && $1 == field " = " { print $2; exit }' "$root/Cargo.lock"
}

# The compilers that will be tried, the first line of what each says of itself.
rocksdb_compilers() {
    local compiler
    for compiler in $(rocksdb_compiler_names); do
        have "$compiler" && "$compiler" --version | head -n 1
    done
}

# clang takes four fifths of gcc's time and about half of its memory for these sources; it comes with the libclang that bindgen needs.
rocksdb_compiler_names() { echo "${CXX:-clang++ c++}"; }

# The flags of librocksdb-sys's build script for Linux with the feature lz4, but for its warnings. The checksums want
# instructions that every x86-64 server since 2010 has, and every 64-bit ARM server.
rocksdb_flags() {
    local machine=()
    case $(uname -m) in
    x86_64) machine=(-march=x86-64 -msse4.2 -mpclmul) ;;
    aarch64) machine=(-march=armv8-a+crc+crypto) ;;
    esac
    echo "-O2 -g0 -std=c++20 -fPIC -ffunction-sections -fdata-sections ${machine[*]}" \
        "-w -include cstdint -DNDEBUG=1 -DLZ4=1 -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION" \
        "-DOS_LINUX -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX -DROCKSDB_SCHED_GETCPU_PRESENT" \
        "-DROCKSDB_AUXV_GETAUXVAL_PRESENT -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT"
}

# Builds in a directory of its own and renames it into place, so that a reader sees all of it or nothing.
rocksdb_build() {
    [[ -e $ROCKSDB_LIB_DIR/librocksdb.a ]] && return
    local sources lz4 compiler build started=$SECONDS
    sources=$(package_sources librocksdb-sys)
    lz4=$(package_sources lz4-sys)/liblz4/lib
    [[ -d $sources/rocksdb && -d $lz4 ]] || die "cargo did not fetch librocksdb-sys and lz4-sys"
    compiler=$(rocksdb_compiler)
    # What a killed build left; nobody else can be building, the lock is ours.
    rm -rf "$cache"/rocksdb-building.*
    build=$(mktemp -d "$cache/rocksdb-building.XXXXXX")
    building=$build
    mkdir "$build/units" "$build/result"
    rocksdb_units "$sources" "$build/units"
    say "building RocksDB $(locked librocksdb-sys version) once for this machine with $compiler, some minutes on two cores"
    rocksdb_compile_all "$sources" "$lz4" "$compiler" "$build/units"
    rocksdb_archive "$build/units" "$build/result/librocksdb.a"
    rm -rf "$ROCKSDB_LIB_DIR"
    mv -T "$build/result" "$ROCKSDB_LIB_DIR"
    rm -rf "$build"
    building=""
    say "RocksDB is built ($((SECONDS - started)) s): $ROCKSDB_LIB_DIR"
}

# Where cargo unpacked a package of Cargo.lock; it is downloaded first if it must be.
package_sources() {
    (cd "$root" && cargo metadata --locked --format-version 1) \
        | grep -oE "\"manifest_path\":\"[^\"]*/$1-$(locked "$1" version | sed 's/[+.]/\\&/g')/Cargo.toml\"" \
        | sed 's/^.*:"\(.*\)\/Cargo.toml"$/\1/' | head -n 1
}

# The first compiler that can build a program: an installed clang may lack the C++ library it looks for.
rocksdb_compiler() {
    local compiler
    for compiler in $(rocksdb_compiler_names); do
        have "$compiler" || continue
        if "$compiler" -std=c++20 -x c++ -o /dev/null - 2>/dev/null <<<'#include <string>
int main() { return std::string("x").empty(); }'; then
            echo "$compiler"
            return
        fi
    done
    die "none of these can build a C++20 program: $(rocksdb_compiler_names)"
}

# rocksdb_units SOURCES DIRECTORY: writes the files that include the sources, named after their folder.
rocksdb_units() {
    (cd "$1/rocksdb" && grep -vx 'util/build_version.cc' ../rocksdb_lib_sources.txt | LC_ALL=C sort | xargs stat --format '%s %n') \
        | awk -v directory="$2" -v bytes_max="$ROCKSDB_UNIT_BYTES_MAX" -v alone="^($ROCKSDB_ALONE)$" '
            function unit(name) { return sprintf("%s/%02d-%s.cc", directory, ++units, name) }
            { folder = $2; sub("/.*", "", folder) }
            $2 ~ alone { printf "#include \"%s\"\n", $2 >unit(folder); next }
            folder != open || bytes + $1 > bytes_max { file = unit(folder); open = folder; bytes = 0 }
            { bytes += $1; printf "#include \"%s\"\n", $2 >file }
            END { print "#include \"../build_version.cc\"" >unit("version") }'
}

# Compiles all units, the largest first, as many side by side as cores and memory allow, and says how far it is.
rocksdb_compile_all() {
    local sources=$1 lz4=$2 compiler=$3 units=$4 jobs unit bytes bytes_all=0 bytes_done=0 started=$SECONDS
    local -A weight=() running=()
    jobs=$(rocksdb_jobs)
    while read -r bytes unit; do
        weight[$unit]=$bytes
        bytes_all=$((bytes_all + bytes))
    done < <(rocksdb_weights "$sources" "$units")
    for unit in $(for unit in "${!weight[@]}"; do echo "${weight[$unit]} $unit"; done | sort -rn | cut -d ' ' -f 2) ""; do
        while ((${#running[@]} >= jobs)) || [[ -z $unit && ${#running[@]} -gt 0 ]]; do
            rocksdb_await_one
        done
        [[ -n $unit ]] || break
        rocksdb_compile "$sources" "$lz4" "$compiler" "$units/$unit" 9>&- &
        running[$!]=$unit
    done
}

# Waits for one of `running`; the variables are those of `rocksdb_compile_all`.
rocksdb_await_one() {
    local finished
    wait -n -p finished "${!running[@]}" || die "RocksDB did not build: ${running[$finished]} (what it said is above)"
    bytes_done=$((bytes_done + ${weight[${running[$finished]}]}))
    unset "running[$finished]"
    say "RocksDB: $((100 * bytes_done / bytes_all)) %, about $(((bytes_all - bytes_done) * (SECONDS - started) / bytes_done)) s more"
}

# How much each unit has to compile: its sources, and what the headers of each of them weigh.
rocksdb_weights() {
    local unit
    for unit in "$2"/*.cc; do
        (cd "$1/rocksdb" && sed 's/^#include "\(.*\)"$/\1/' "$unit" | xargs stat --format %s) \
            | awk -v unit="${unit##*/}" '{ bytes += $1 + 8000 } END { print bytes, unit }'
    done
}

rocksdb_jobs() {
    local cores memory_mib
    cores=$(nproc)
    memory_mib=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
    awk -v cores="$cores" -v fit="$((memory_mib / ROCKSDB_COMPILER_MIB))" 'BEGIN { print fit < 1 ? 1 : (fit < cores ? fit : cores) }'
}

# rocksdb_compile SOURCES LZ4 COMPILER UNIT: the paths in it are relative to SOURCES, so that none of this machine gets into the
# library. A unit that does not compile (names that clash in a newer version, too little memory) is compiled source by source.
rocksdb_compile() {
    local unit=$4 include number=0
    rocksdb_compile_file "$@" 2>"${unit%.cc}.log" && return
    if (($(wc -l <"$unit") == 1)); then
        cat "${unit%.cc}.log" >&2
        return 1
    fi
    say "RocksDB: ${unit##*/} does not compile as one, its sources follow one by one"
    while read -r include; do
        number=$((number + 1))
        echo "$include" >"${unit%.cc}-$number.cc"
        rocksdb_compile_file "$1" "$2" "$3" "${unit%.cc}-$number.cc" || return
    done <"$unit"
}

# shellcheck disable=SC2046 # the flags are words
rocksdb_compile_file() {
    (cd "$1" && "$3" $(rocksdb_flags) -Irocksdb/include -Irocksdb -I. "-I$2" -c "$4" -o "${4%.cc}.o")
}

# rocksdb_archive UNITS LIBRARY: the same bytes from the same objects (D: no times, no owners).
rocksdb_archive() { (cd "$1" && ar -rcsD "$2" ./*.o); }
