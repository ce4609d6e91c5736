"""The arms of the benchmark of planted faults: a job with its fault, or without it; and what the doctor says of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from math import isfinite

from bench.planted_jobs import ALL
from bench.windows import windows_of

import hasten
from hasten.facts.finding import Price

BY_NAME = {each.name: each for each in ALL}


def planted(name: str, mended: bool) -> Callable[[int], None]:
    """window(steps) takes whole optimizer steps of the job, with their data."""
    job = replace(BY_NAME[name].make(mended), epochs=None, max_steps=1_000_000_000)
    return windows_of(hasten.prepare(job, BY_NAME[name].plan(mended)))


def main() -> None:
    """Say in JSON what a look at the job of this name finds, the first finding first."""
    from hasten.doctor.profiling.run_profiler import profile_run
    from hasten.doctor.registry import found_in_run
    from hasten.facts.finding import ranked

    chosen = BY_NAME[sys.argv[1]]
    look = profile_run(chosen.make(False), chosen.plan(False))
    findings = [
        {"code": each.code, "place": each.place, "most_gain": _bound(each.price)} for each in ranked(found_in_run(look))
    ]
    print(json.dumps({"findings": findings, "growth": look.growth}))


def _bound(price: Price | None) -> float | None:
    """An infinite one bounds nothing."""
    return price.most_gain if price is not None and isfinite(price.most_gain) else None


if __name__ == "__main__":
    main()
