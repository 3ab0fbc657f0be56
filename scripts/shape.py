#!/usr/bin/env python3
"""The shape of the code, per crate: how much there is, how it is cut into files and functions, how much of it others see.

usage: scripts/shape.py [REVISION]        without one, the files of the checkout

Tests are not counted: neither files of tests/ nor tests.rs, *_tests.rs, nor modules that are declared under #[cfg(test)], in a file of their own or
at the end of one. Code is formatted by
rustfmt, so a function ends at the first `}` as far to the left as its beginning. Circles of imports are held, and printed, by a test:
`./dev cargo test -p flotilla-cli --test layering no_crate_has_a_circle -- --nocapture`.

A second table counts the files of the product that name what docs/building.md has as a model of something to add: about as many as adding another one takes.
"""

import re
import subprocess
import sys

FUNCTION = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern \"C\" )*fn \w")
PUBLIC = re.compile(r"^ *pub (?:const |async |unsafe )*(?:fn|struct|enum|trait|type|const|static|mod|use) ")


# Something to add, and the names that its model has.
MODELS = [
    ("an admin command that changes what SCM remembers", r"\b(SetRacks|set_racks)"),
    ("an order for datanodes", r"\b(MoveLeader|move_leader)\b"),
    ("a change inside a bucket", r"\b(AbortUpload|abort_upload)"),
    ("a question about names", r"\b(HeadBucket|head_bucket)"),
]


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def sources(revision):
    """Crate, path and text of each file of the product that is no test."""
    listed = git("ls-tree", "-r", "--name-only", revision) if revision else git("ls-files")
    texts = {}
    for path in listed.splitlines():
        parts = path.split("/")
        if not path.endswith((".rs", ".proto")) or parts[0] not in ("crates", "testing") or not {"src", "proto"} & set(parts[2:]):
            continue
        if "tests" in parts or re.search(r"(^|_)tests\.rs$", parts[-1]):
            continue
        texts[path] = git("show", f"{revision}:{path}") if revision else open(path, encoding="utf-8").read()
    tested = {module for path, text in texts.items() for module in test_modules(path, text)}
    for path, text in texts.items():
        if not any(path == f"{module}.rs" or path.startswith(f"{module}/") for module in tested):
            yield path.split("/")[1], path, without_tests(text)


def test_modules(path, text):
    """The paths, without `.rs`, of the modules that a file declares under #[cfg(test)]."""
    directory, name = path.rsplit("/", 1)
    if name not in ("lib.rs", "main.rs", "mod.rs"):
        directory = path.removesuffix(".rs")
    for module in re.findall(r"#\[cfg\(test\)\]\n *(?:#\[.*\]\n *)*(?:pub(?:\([^)]*\))? )?mod (\w+);", text):
        yield f"{directory}/{module}"


def without_tests(text):
    """Without the module of tests that ends a file."""
    return re.split(r"\n#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod \w+ \{\n", text)[0]


def functions(lines):
    """The lines of each body, from the line of its name to its closing brace."""
    for start, line in enumerate(lines):
        begun = FUNCTION.match(line)
        if begun is None:
            continue
        closing = begun.group(1) + "}"
        for end in range(start, len(lines)):
            if lines[end] == closing or (end == start and line.endswith("}")):
                yield end - start + 1
                break
            if lines[end].startswith(begun.group(1)) and lines[end].endswith(";") and lines[end][len(begun.group(1))] != " ":
                break  # declared, not defined


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def main():
    revision = sys.argv[1] if len(sys.argv) > 1 else None
    crates, touched = {}, dict.fromkeys(MODELS, 0)
    for crate, path, text in sources(revision):
        for model in MODELS:
            touched[model] += re.search(model[1], text) is not None
        if path.endswith(".proto"):
            continue
        lines = text.splitlines()
        of = crates.setdefault(crate, {"files": 0, "code": 0, "comments": 0, "public": 0, "functions": []})
        filled = [line for line in lines if line.strip()]
        comments = sum(line.lstrip().startswith("//") for line in filled)
        of["files"] += 1
        of["code"] += len(filled) - comments
        of["comments"] += comments
        of["public"] += sum(PUBLIC.match(line) is not None for line in filled)
        of["functions"] += functions(lines)
    print("| crate | files | lines of code | of comments | public items | functions | median | 99 % | longest |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for crate, of in sorted(crates.items()):
        lengths = of["functions"]
        figures = [of["files"], of["code"], of["comments"], of["public"], len(lengths)]
        figures += [percentile(lengths, 0.5), percentile(lengths, 0.99), max(lengths, default=0)]
        print(f"| {crate} | " + " | ".join(map(str, figures)) + " |")
    print("\n| to add | files that name its model |\n|---|---:|")
    for (what, _), files in touched.items():
        print(f"| {what} | {files} |")


if __name__ == "__main__":
    main()
