"""Loaded by the fork server of a search: it imports what the trials share, before the first one is forked.

Each trial of a script that imports slow libraries would take these seconds again. Nothing of the user's own is imported
here, and what cannot be imported is left to the trial, which reports what is wrong with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from hasten.tuning.trials.preloaded_libraries import statement_of

NAMES = "HASTEN_SHARED_LIBRARIES"  # of the environment, which holds them as JSON


def _load(libraries: Sequence[str]) -> Mapping[str, str]:
    """The variables that they add to the environment."""
    before = dict(os.environ)
    with _as_a_script():
        for each in libraries:
            try:
                exec(statement_of(each), {})  # noqa: S102  an import
            except (Exception, SystemExit):  # noqa: S112  of the library, whatever it is: a trial reports it
                continue
    return {name: os.environ[name] for name in os.environ.keys() - before.keys()}


@contextmanager
def _as_a_script() -> Iterator[None]:
    """What they print is dropped, as that of trials is; and modules in the present folder are not found: a trial
    imports those from its copy."""
    search, kept = [*sys.path], [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    sys.path[:] = [each for each in search if os.path.realpath(each) != os.getcwd()]
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        sys.path[:] = search
        sys.stdout.flush()
        sys.stderr.flush()
        for number, own in enumerate(kept, 1):
            os.dup2(own, number)
        for each in (*kept, nowhere):
            os.close(each)


ADDED: Mapping[str, str] = _load(json.loads(os.environ[NAMES])) if NAMES in os.environ else {}
