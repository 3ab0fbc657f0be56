#!/usr/bin/env python3
"""What the binary is made of, for `./dev release` (scripts/release.sh).

    components.py sbom          a CycloneDX 1.5 document, to stdout
    components.py licences      the text of THIRD-PARTY-LICENSES, to stdout

Rust crates and their edges come from `cargo tree`, which resolves features as the build does (`cargo metadata` would add
what only other members of the workspace ask for); where their sources are comes from `cargo metadata`, checksums from
Cargo.lock. What crates bring that is not Rust is in VENDORED below. Only the standard library is used.

Both outputs depend on the commit, the compilers and SOURCE_DATE_EPOCH, and on nothing else: no path, no clock.
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = "flotilla-cli"

LICENCE_FILE = re.compile(r"^(un)?(licen[cs]e|copying|copyright|notice)", re.IGNORECASE)
# Folders of a crate whose licences cover code that is compiled into it; others hold tests, tools and what is not built.
LICENCE_FOLDERS = ("", "src", "third_party")


@dataclass
class Component:
    """One thing that is linked into the binary, or that ran while it was built (`linked` is false)."""

    name: str
    version: str
    licence: str  # an SPDX expression
    purl: str
    linked: bool
    url: str = ""
    checksum: str = ""  # sha256 of the package in its registry
    ours: bool = False
    needs: set = field(default_factory=set)  # purls
    texts: list = field(default_factory=list)  # (file name, text)


# What lies inside of a crate and is not Rust: crate -> (name, SPDX expression, purl without version, url, files with licences).
# The version is what stands behind the `+` of the crate's.
VENDORED = {
    "librocksdb-sys": (
        "rocksdb",
        "Apache-2.0 AND BSD-3-Clause AND BSD-2-Clause",
        "pkg:github/facebook/rocksdb@v",
        "https://rocksdb.org",
        [
            "rocksdb/LICENSE.Apache",
            "rocksdb/LICENSE.leveldb",
            "rocksdb/AUTHORS",
            "rocksdb/utilities/transactions/lock/range/range_tree/lib/README",
            "rocksdb/utilities/transactions/lock/range/range_tree/lib/COPYING.APACHEv2",
        ],
    ),
    "lz4-sys": (
        "lz4",
        "BSD-2-Clause",
        "pkg:github/lz4/lz4@v",
        "https://lz4.org",
        ["liblz4/lib/LICENSE"],
    ),
}

# Licences that crates name without bringing the text. The holders are those that the crate's manifest names.
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software
is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def main():
    outputs = {"sbom": sbom, "licences": licences}
    if len(sys.argv) != 2 or sys.argv[1] not in outputs:
        sys.exit(__doc__)
    sys.stdout.write(outputs[sys.argv[1]](collect()))


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


# What there is


def collect():
    """All components by purl, the product first."""
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1"))
    packages = {(package["name"], package["version"]): package for package in metadata["packages"]}
    checksums = {
        (name, version): checksum
        for name, version, checksum in re.findall(
            r'name = "(.*)"\nversion = "(.*)"\n(?:source = ".*"\n)?(?:checksum = "(.*)"\n)?', (ROOT / "Cargo.lock").read_text()
        )
    }
    components = {}
    for linked, edges in ((True, "normal,no-proc-macro"), (False, "normal,build")):
        for crate, parent in tree(edges):
            component = components.get(purl_of(crate))
            if component is None:
                component = crate_component(packages[crate], checksums[crate], linked)
                components[component.purl] = component
            if parent is not None:
                components[purl_of(parent)].needs.add(component.purl)
    for crate, package in packages.items():
        if purl_of(crate) in components and components[purl_of(crate)].linked:
            add_vendored(components, package)
    add_runtimes(components)
    texts_of_siblings(components)
    return components


def tree(edges):
    """Yields (crate, the crate that needs it or None), parents before children; a crate is (name, version)."""
    target = re.search(r"^host: (.*)$", run("rustc", "-vV"), re.MULTILINE).group(1)
    lines = run(
        "cargo", "tree", "--locked", "--package", PRODUCT, "--edges", edges, "--target", target, "--prefix", "depth", "--format", " {p}"
    )
    above = []
    for line in lines.splitlines():
        depth, name, version = re.match(r"(\d+) (\S+) v(\S+)", line).groups()
        del above[int(depth) :]
        yield (name, version), (above[-1] if above else None)
        above.append((name, version))


def purl_of(crate):
    return f"pkg:cargo/{crate[0]}@{crate[1].replace('+', '%2B')}"


def crate_component(package, checksum, linked):
    component = Component(
        name=package["name"],
        version=package["version"],
        licence=expression(package["license"] or "NOASSERTION"),
        purl=purl_of((package["name"], package["version"])),
        linked=linked,
        url=package["repository"] or package["homepage"] or "",
        checksum=checksum,
        ours=package["source"] is None,
    )
    if linked and not component.ours:
        component.texts = licence_texts(package)
    return component


def expression(licence):
    """The slash of old manifests means OR."""
    return re.sub(r"\s*/\s*", " OR ", licence)


def licence_texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = []
    for start in LICENCE_FOLDERS:
        if start == "":
            files += [path for path in folder.iterdir() if path.is_file()]
        else:
            files += [path for path in (folder / start).rglob("*") if path.is_file()]
    return [
        (path.relative_to(folder).as_posix(), read(path))
        for path in sorted(files)
        if LICENCE_FILE.match(path.name) and path.suffix not in (".rs", ".h", ".c")
    ]


def read(path):
    return path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")


def add_vendored(components, package):
    """RocksDB and lz4: in crates, but neither Rust nor under the crate's licence."""
    if package["name"] not in VENDORED:
        return
    name, licence, purl, url, files = VENDORED[package["name"]]
    version = package["version"].partition("+")[2].removeprefix("lz4-")
    folder = pathlib.Path(package["manifest_path"]).parent
    component = Component(name, version, licence, purl + version, True, url)
    component.texts = [(file, read(folder / file)) for file in files]
    if name == "rocksdb":
        component.texts.append(("util/xxhash.h", first_comment(read(folder / "rocksdb/util/xxhash.h"))))
    components[component.purl] = component
    components[purl_of((package["name"], package["version"]))].needs.add(component.purl)


def first_comment(source):
    """The licence of a file that carries its own."""
    return re.sub(r"(?m)^ ?\*/? ?", "", re.search(r"/\*\n(.*?Copyright.*?)\*/", source, re.DOTALL).group(1))


def add_runtimes(components):
    """The libraries of the compilers, which are linked statically."""
    rust = re.search(r"^release: (.*)$", run("rustc", "-vV"), re.MULTILINE).group(1)
    gcc = run("cc", "-dumpfullversion", "-dumpversion").strip()
    texts = pathlib.Path(run("rustc", "--print", "sysroot").strip()) / "share/doc/rust/licenses"
    for component, files in (
        (
            Component("rust-std", rust, "MIT OR Apache-2.0", f"pkg:github/rust-lang/rust@{rust}", True, "https://www.rust-lang.org"),
            ["MIT.txt", "Apache-2.0.txt"],
        ),
        (
            Component("libstdc++ and libgcc", gcc, "GPL-3.0-or-later WITH GCC-exception-3.1", f"pkg:generic/gcc@{gcc}", True, "https://gcc.gnu.org"),
            ["GCC-exception-3.1.txt", "GPL-3.0-or-later.txt"],
        ),
    ):
        # Debian's rustc brings none of these files; the expression then stands for them.
        component.texts = [(file, read(texts / file)) for file in files if (texts / file).exists()]
        components[component.purl] = component
        components[next(iter(components))].needs.add(component.purl)


def texts_of_siblings(components):
    """A crate without a licence file has the files of another crate of its repository, else what its manifest says."""
    crates = [component for component in components.values() if component.linked and not component.ours]
    for component in crates:
        if component.texts:
            continue
        siblings = (other for other in crates if other.texts and other.url and other.url == component.url and other.licence == component.licence)
        sibling = next(siblings, None)
        if sibling is not None:
            component.texts = sibling.texts
        elif "Apache-2.0" in component.licence:
            component.texts = [("LICENSE-APACHE", read(ROOT / "LICENSE"))]
        elif component.licence == "MIT":
            component.texts = [("LICENSE", f"Copyright (c) the authors of {component.url}\n\n{MIT}")]
        else:
            sys.exit(f"components.py: {component.name} {component.version} ({component.licence}) brings no licence text: add it here")


# What is written


def sbom(components):
    product, *others = components.values()
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": product.purl,
                "name": "flotilla",
                "version": os.environ.get("FLOTILLA_RELEASE_VERSION", product.version),
                "licenses": [{"expression": product.licence}],
                "purl": product.purl,
            },
        },
        "components": [sbom_component(component) for component in sorted(others, key=lambda other: other.purl)],
        "dependencies": [
            {"ref": component.purl, "dependsOn": sorted(component.needs)}
            for component in sorted(components.values(), key=lambda other: other.purl)
        ],
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def sbom_component(component):
    entry = {
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "version": component.version,
        # Excluded: ran during the build (macros, build scripts) and is not in the binary.
        "scope": "required" if component.linked else "excluded",
        "licenses": [{"expression": component.licence}],
        "purl": component.purl,
    }
    if component.checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": component.checksum}]
    if component.url:
        entry["externalReferences"] = [{"type": "vcs" if "git" in component.url else "website", "url": component.url}]
    return entry


def licences(components):
    """A list of all, then each text once, with those it is the text of."""
    foreign = sorted((c for c in components.values() if c.linked and not c.ours), key=lambda c: (c.name, c.version))
    owners, words = {}, {}
    for component in foreign:
        for file, text in component.texts:
            key = " ".join(text.split())
            words.setdefault(key, text.strip("\n"))
            owners.setdefault(key, []).append(f"{component.name} {component.version} ({file})")
    lines = [
        "What is linked into the flotilla binary, besides its own code (LICENSE), and under which licences.",
        "Where an expression says OR, Flotilla uses it under any of them that this file has the text of.",
        "",
    ]
    lines += [f"{c.name} {c.version}: {c.licence}{f' ({c.url})' if c.url else ''}" for c in foreign]
    for key, text in words.items():
        lines += ["", "=" * 100, *owners[key], "-" * 100, text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
