#!/bin/sh
# Builds the source distribution, and from it the wheel, into dist/. Checks that the wheel holds the files of src/hasten
# and no others, installs it into an empty environment and uses it there. `make package` calls this.
#
# PYTHON=/path/to/python chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."

tools="pytest|pluggy|hypothesis|ruff|pyright|pre_commit|mkdocs.*|build|hatchling|scikit-learn|tensorboard"
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT

fail() { printf '%s\n' "$*" >&2; exit 1; }

build() {
    "${PYTHON:-python3}" -m venv "$place/build"
    "$place/build/bin/python" -m pip install --quiet --disable-pip-version-check build
    rm -rf dist
    "$place/build/bin/python" -m build --outdir dist > "$place/build.log" 2>&1 || fail "$(cat "$place/build.log")"
}

check_contents() {
    (cd src && find hasten -type f ! -path '*/__pycache__/*' | sort) > "$place/sources"
    "$place/build/bin/python" -m zipfile --list dist/*.whl |
        awk 'NR > 1 && !/\.dist-info\// { print $1 }' | sort > "$place/packed"
    diff "$place/sources" "$place/packed" || fail "The wheel (>) does not hold the files of src/hasten (<)."
}

install() {
    "${PYTHON:-python3}" -m venv --without-pip "$place/user"
    pip install --quiet --no-compile -c constraints.txt dist/*.whl
    pip check
    ! pip list --format=freeze | grep -E "^($tools)==" || fail "hasten must not install these tools."
}

pip() { "$place/build/bin/python" -m pip --disable-pip-version-check --python "$place/user/bin/python" "$@"; }

use() {
    text="$PWD/CHANGELOG.md"
    cp -r examples "$place/examples"
    cd "$place"
    hasten="$place/user/bin/hasten"
    "$hasten" --help > help
    status=0
    "$hasten" doctor examples/naive.py > findings || status=$?
    [ "$status" = 1 ] || fail "hasten doctor exited with $status instead of 1."
    grep "findings in" findings
    HASTEN_TEXT="$text" "$hasten" train examples/text.py:small_job --max-steps 20
}

build
check_contents
install
use
