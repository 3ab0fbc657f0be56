# shellcheck shell=bash
# What is known against our dependencies, and which are behind: ./dev audit. Sourced by ./dev.

readonly CARGO_AUDIT_VERSION=0.22.2

# What reads bytes that came from the network, in the binary: protocols, encodings, cryptography, and what moves them.
readonly AUDIT_FACING="axum axum-core bytes crc-fast h2 hickory-proto http http-body http-body-util httparse hyper hyper-util idna mio prost \
quick-xml ring rustls rustls-pki-types rustls-webpki s3s serde_json serde_urlencoded socket2 tokio tokio-rustls tokio-stream tokio-util \
tonic tonic-prost tower url urlencoding"

help_audit() {
    cat <<'HELP'
usage: ./dev audit

Advisories of the RustSec database on anything in Cargo.lock (cargo-audit, installed into the cache at first), and which dependencies that face
the network are behind their newest minor version. Needs the internet. It reports; the exit status says only whether it could. Findings
and what was decided about them are in docs/dependencies.md.
HELP
}

verb_audit() {
    [[ $# -eq 0 ]] || usage_error audit "it takes no arguments"
    ensure_rust
    scratch=$(mktemp -d)
    local failed=0
    audit_advisories || failed=1
    audit_behind || failed=1
    return "$failed"
}

audit_advisories() {
    local tool=$cache/cargo-audit-$CARGO_AUDIT_VERSION status=0
    [[ -x $tool/bin/cargo-audit ]] || with_cache_lock audit_install "$tool" || return
    "$tool/bin/cargo-audit" audit --file "$root/Cargo.lock" --db "$cache/advisory-db" --color never >"$scratch/advisories" 2>&1 || status=$?
    cat "$scratch/advisories"
    # It ends with 1 for advisories as for its own failures; only a scan that took place says what it scanned.
    if ! grep -q 'Scanning .* for vulnerabilities' "$scratch/advisories"; then
        say "no advisories were looked up: the database could not be fetched (cargo-audit ended with status $status)"
        return 1
    fi
    ((status == 0)) || say "there are advisories; docs/dependencies.md says what was decided about those it names"
}

audit_install() {
    [[ -x $1/bin/cargo-audit ]] && return
    say "installing cargo-audit $CARGO_AUDIT_VERSION into $1"
    # Unoptimized, and without the part that reads binaries: that halves a wait of minutes, and it reads one file.
    cargo install --quiet --locked --debug --no-default-features --version "=$CARGO_AUDIT_VERSION" --root "$1" --no-track cargo-audit >&2
}

# One line for each that is behind, and a count. A patch release counts too where there is one: it is the cheapest to take.
audit_behind() {
    (cd "$root" && cargo tree --locked -p flotilla-cli -e normal,no-proc-macro --prefix none --format '{p}') \
        | awk '{ print $1, substr($2, 2) }' | sort -u >"$scratch/linked"
    (cd "$root" && cargo update --dry-run --verbose --color never) >"$scratch/updates" 2>&1 || {
        cat "$scratch/updates" >&2
        say "what is newest could not be looked up"
        return 1
    }
    audit_compare "$scratch/linked" "$scratch/updates"
}

# audit_compare LINKED UPDATES: one line for each that faces the network and has a newer version, minor or major ones marked.
audit_compare() {
    awk -v facing="$AUDIT_FACING" '
        BEGIN { total = split(facing, names, " "); for (n in names) is_facing[names[n]] = 1 }
        NR == FNR { linked[$1, "v" $2] = 1; next }
        # "Updating NAME vOLD -> vNEW", or, where a requirement holds it back, "Unchanged NAME vOLD (available: vNEW, requires Rust 1.2.3)".
        $1 == "Updating" && $4 == "->" { remark = "cargo update takes it" }
        $1 == "Unchanged" && $4 == "(available:" { remark = "held back by a requirement"; if ($6 == "requires") remark = remark ", needs Rust " $8 }
        (($1 == "Updating" && $4 == "->") || ($1 == "Unchanged" && $4 == "(available:")) && is_facing[$2] && (($2, $3) in linked) {
            gsub(/[,()]/, "", $5)
            gsub(/\)/, "", remark)
            split($3, old, "."); split($5, new, ".")
            step = old[1] != new[1] ? "major" : old[2] != new[2] ? "minor" : "patch"
            if (step != "patch") behind++
            printf "%-20s %-10s -> %-10s %s, %s\n", $2, substr($3, 2), substr($5, 2), step, remark
        }
        END { printf "%d of %d that face the network are behind their newest minor version\n", behind, total }
    ' "$@"
}
