# shellcheck shell=bash
# The Debian package, from the same tree as the archive, with dpkg-deb alone. What it does when it is installed and removed is in
# deploy/deb/. Sourced by ./dev.

deb_architecture() {
    case ${release_target%%-*} in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) echo "${release_target%%-*}" ;;
    esac
}

# deb_pack TREE: makes `release_package`.
deb_pack() {
    local tree=$1 deb=$scratch/deb doc script
    doc=$deb/usr/share/doc/flotilla
    grep -q '^ExecStart=/usr/bin/flotilla ' "$tree/deploy/flotilla.service" || die "deploy/flotilla.service does not start /usr/bin/flotilla"
    install -D -m 755 "$tree/bin/flotilla" "$deb/usr/bin/flotilla"
    install -D -m 644 "$tree/deploy/flotilla.service" "$deb/usr/lib/systemd/system/flotilla.service"
    # Keys of a gateway go in there; systemd reads it as root.
    install -D -m 600 "$tree/deploy/flotilla.env" "$deb/etc/flotilla/flotilla.env"
    install -D -m 644 "$root/deploy/deb/logrotate" "$deb/etc/logrotate.d/flotilla"
    install -D -m 644 "$tree/completions/flotilla.bash" "$deb/usr/share/bash-completion/completions/flotilla"
    mkdir -p "$doc"
    cp -r "$tree"/{README.md,ARCHITECTURE.md,docs,licences,sbom.cdx.json,BUILD-INFO} "$doc/"
    cp -r "$tree/deploy" "$doc/examples"
    # Where the unit says that its documentation is.
    ln -s docs/operations.md "$doc/operations.md"
    install -m 644 "$root/deploy/deb/copyright" "$doc/copyright"

    mkdir "$deb/DEBIAN"
    for script in postinst prerm postrm; do install -m 755 "$root/deploy/deb/$script" "$deb/DEBIAN/$script"; done
    printf '%s\n' /etc/flotilla/flotilla.env /etc/logrotate.d/flotilla >"$deb/DEBIAN/conffiles"
    (cd "$deb" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    deb_control "$deb" >"$deb/DEBIAN/control"
    find "$deb" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    # One thread: how many there are shows in the bytes of xz.
    DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz -z6 --build "$deb" "$scratch/package" >&2
    mv "$scratch/package" "$release_package"
}

deb_control() {
    local kibibytes
    kibibytes=$(find "$1" -type f -printf '%s\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
    cat <<CONTROL
Package: flotilla
Version: $release_version
Architecture: $(deb_architecture)
Maintainer: The authors of Flotilla <flotilla@example.invalid>
Installed-Size: $kibibytes
Depends: libc6 (>= $(binary_glibc "$1/usr/bin/flotilla")), adduser
Section: net
Priority: optional
Description: object store with the S3 API, written through Raft
 Every byte is replicated by a Raft group of three and synced on a majority
 before it is acknowledged. One binary with all roles; this package has its
 systemd unit and example settings, and starts nothing by itself:
 edit /etc/flotilla/flotilla.env, then systemctl enable --now flotilla.
CONTROL
}
