"""Fifty million samples: start-up, memory, and what a batch costs at the start and at the end of an epoch.

    python -m bench.scale            # ten minutes; nothing else may run meanwhile; writes records
    python -m bench.scale --quick    # a minute; shows that it works, and judges nothing

For the loader over data sets that long, shuffled and not, and for the orders alone, which are printed, not recorded.
Start-up is from building the data set to its first batch, in a process that has loaded torch; it is taken at both ends
of an epoch, where a resumed run may begin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled, middle_seconds
from bench.options import parser_of
from bench.record import ROOT, Record, Target
from bench.scale_arms import BATCH, DATA, ORDERS, SAMPLES, STRETCH

from hasten.measure.paired_timing import Window, compare

ARMS = Path(__file__).resolve().with_name("scale_arms.py")

# Fixed before the first run.
MOST_SECONDS, MOST_BYTES = 2.0, 600e6
LEAST_SHARE = 0.9  # of the batches that a place in the epoch gives in a second, at any other

PLACES = {"start": 0.0, "quarter": 0.25, "middle": 0.5, "end": 1.0}
BASELINE = "start"
# Every window has the same whole number of stretches: an order's chunks are paid for in all of them alike.
FULL = Protocol(starts=12, rounds=3, steps=8 * STRETCH, warmup_steps=STRETCH, threads=1)
QUICK = Protocol(rounds=12, steps=STRETCH, warmup_steps=STRETCH, threads=1)


def main() -> None:
    options = parser_of("scale", __doc__).parse_args()
    protocol = QUICK if options.quick else FULL
    for shuffle in (True, False):
        called = "shuffled" if shuffle else "in-order"
        for order in ORDERS:
            arms = _arms("order_arm", {"order": order, "shuffle": shuffle})
            _show(f"order of {order}, {called}", run_arms(arms, protocol).windows)
        for data in DATA:
            given = {"data": data, "shuffle": shuffle}
            starts = {name: _start_up(given | {"share": PLACES[name]}) for name in ("start", "end")}
            records = None if options.quick else options.records
            _measure(f"{data}-{called}", given, protocol, starts, records)


def _start_up(arguments: Mapping[str, Any]) -> dict[str, float]:
    command = [sys.executable, str(ARMS), json.dumps(dict(arguments))]
    path = f"{ROOT}:{ROOT / 'src'}"
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    return json.loads(found.stdout)


def _arms(entry: str, arguments: Mapping[str, Any]) -> list[Arm]:
    return [Arm(name=name, entry=f"{ARMS}:{entry}", arguments={**arguments, "share": PLACES[name]}) for name in PLACES]


def _show(what: str, windows: Sequence[Window]) -> None:
    seconds = {name: middle_seconds(windows, name) for name in PLACES}
    print(f"{what}: {', '.join(f'{name} {each * 1e6:.2f}' for name, each in seconds.items())} µs a batch", flush=True)


def _measure(
    what: str,
    arguments: Mapping[str, Any],
    protocol: Protocol,
    starts: Mapping[str, Mapping[str, float]],
    records: Path | None,
) -> None:
    arms = _arms("arm", arguments)
    itself = controlled(arms[0], protocol)
    measured = run_arms(arms, protocol)
    _show(what, measured.windows)
    record = Record(
        what=f"scale-{what}",
        claim=f"{SAMPLES:,} samples ({what}) in batches of {BATCH}: a batch at the start of an epoch and further on",
        command="python -m bench.scale",
        protocol=protocol,
        control=itself,
        comparisons=[
            compare(measured.windows, baseline=BASELINE, challenger=name) for name in PLACES if name != BASELINE
        ],
        measured=measured,
        targets=judged(measured.windows, starts),
        packages=("psutil",),
        findings={"start_up": starts},
        remarks=["a batch of the data is as good as free here; its cost is that of the order and of the loader"],
    )
    conclude(record, records)


def judged(windows: Sequence[Window], starts: Mapping[str, Mapping[str, float]]) -> list[Target]:
    """Each start-up in seconds and bytes, and the cost of a batch at the end against that at the start."""
    ratio = compare(windows, baseline=BASELINE, challenger="end").speedup
    found = [
        _once(f"seconds to the first batch, at the {name}", MOST_SECONDS, start["seconds"])
        for name, start in starts.items()
    ]
    found += [
        _once(f"bytes that the process grew by, at the {name}", MOST_BYTES, start["bytes"])
        for name, start in starts.items()
    ]
    name = "batches at the end of an epoch in the time of one at its start"
    return [
        *found,
        Target(name=name, bound=LEAST_SHARE, at_most=False, low=ratio.low, value=ratio.ratio, high=ratio.high),
    ]


def _once(name: str, bound: float, value: float) -> Target:
    return Target(name=name, bound=bound, at_most=True, low=value, value=value, high=value)


if __name__ == "__main__":
    main()
