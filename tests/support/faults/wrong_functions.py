"""How a job is made of which one function raises or gives something wrong, at its first call or at a later one.

`JOBS` is a table: name -> a function that makes the job. Each of them trains eight steps with an evaluation after every
fourth, if nothing is wrong. What goes wrong in a later call goes wrong after some steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import hasten
from support import small_job

ROWS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(0))
SAMPLES = list(zip(ROWS, LABELS, strict=True))
CALLS = Counter[str]()  # of each job's faulty function: a count in the function itself would be undeclared state

JOBS: dict[str, Callable[[], hasten.Job]] = {}


class NoText(Exception):
    """It cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("has no text")


class Unusual:
    """Neither a number, nor a tensor, nor a text."""

    def __repr__(self) -> str:
        return "<something unusual>"


class HasNoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("has no repr")


def raising(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def raise_it(*_: Any, **__: Any) -> Any:
        raise error()

    return raise_it


def of_a_library(*_: Any, **__: Any) -> Any:
    return torch.zeros(2, 3) @ torch.zeros(2, 3)


def returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


RAISES: dict[str, Callable[..., Any]] = {
    "raises": raising(lambda: ValueError("not this one")),
    "raises_a_key": raising(lambda: KeyError("label")),
    "raises_without_text": raising(lambda: AssertionError()),
    "raises_stop_iteration": raising(lambda: StopIteration()),
    "raises_what_cannot_be_shown": raising(NoText),
    "exits": raising(lambda: SystemExit(0)),
    "fails_in_a_library": of_a_library,
}
RETURNS: dict[str, Callable[..., Any]] = {
    "returns_none": returning(None),
    "returns_text": returning("text"),
    "returns_something_unusual": returning(Unusual()),
    "returns_what_has_no_repr": returning(HasNoRepr()),
    "returns_an_empty_list": returning([]),
}


def wrong_after(name: str, calls: int, right: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Right for the first `calls` calls."""
    CALLS[name] = 0

    def called(*given: Any, **named: Any) -> Any:
        CALLS[name] += 1
        return (right if CALLS[name] <= calls else wrong)(*given, **named)

    return called


def job(**changes: Any) -> hasten.Job:
    fields: dict[str, Any] = {"valid": (ROWS, LABELS), "train": (ROWS, LABELS), "evaluate_every": 4, "epochs": None}
    return small_job(**(fields | {"max_steps": 8, "log_every": 1} | changes))


def enrolled(
    seam: str,
    make: Callable[[Callable[..., Any]], dict[str, Any]],
    right: Callable[..., Any],
    later: int,
    wrongs: dict[str, Callable[..., Any]],
) -> None:
    """make: from a function, the fields of a job that uses it. later: after how many calls it is wrong."""
    for what, wrong in wrongs.items():
        for when, calls in {"at_first": 0, "later": later}.items() if later else {"at_first": 0}.items():
            name = f"{seam}_{what}_{when}"
            JOBS[name] = lambda name=name, calls=calls, wrong=wrong: job(**make(wrong_after(name, calls, right, wrong)))
