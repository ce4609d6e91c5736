#!/bin/sh
# Builds .venv with the pinned versions, or updates it. `make` calls this; it can also be called by hand.
#
#   scripts/environment.sh            what running hasten and its examples needs
#   scripts/environment.sh tools      that, and what tests, lint and types need
#
# PYTHON=/path/to/python chooses the interpreter. Without it, the first one that fits is taken, your own `python3` before
# any other, so that an interpreter chosen by pyenv, conda or a CI job is respected.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

case "${1:-}" in
    "") extra=examples; stamp=.venv/.installed ;;
    tools) extra=dev; stamp=.venv/.tools ;;
    *) say "unknown argument: $1 (scripts/environment.sh)"; say "  → give none, or: tools"; exit 2 ;;
esac

# Candidates are run, not only looked up: a pyenv shim exists for versions that it then refuses to start.
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }
can_make_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

refuse_incomplete() {
    version="$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    say "$1 is Python $version without the modules venv and ensurepip, so it cannot create an environment."
    say "  → On Debian and Ubuntu: apt install python$version-venv. Elsewhere: install Python from python.org."
    return 1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" || { say "PYTHON=$PYTHON does not run as Python 3.11 or newer."; return 1; }
        can_make_environments "$PYTHON" || refuse_incomplete "$PYTHON" || return 1
        printf '%s' "$PYTHON"
        return
    fi
    incomplete=""
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$candidate" 2>/dev/null; then
            can_make_environments "$candidate" && printf '%s' "$candidate" && return
            incomplete="${incomplete:-$candidate}"
        fi
    done
    [ -z "$incomplete" ] || refuse_incomplete "$incomplete" || return 1
    say "No Python 3.11 or newer was found."
    say "  → Install one, or name it: make PYTHON=/path/to/python …"
    return 1
}

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python="$(find_python)"
    say "Creating .venv with $("$python" --version); the packages take a few minutes, once."
    "$python" -m venv --clear .venv
fi

# torch first: it is nearly all of the download, so what fails fails before the rest is fetched.
.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt torch
.venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[$extra]"
touch .venv/.installed "$stamp"
