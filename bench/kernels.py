"""Operators in one pass beside torch's own, torch.compile, TorchScript and the formula as people write it (goal G8).

    python -m bench.kernels                                    # an hour or more; nothing else may run; writes records
    python -m bench.kernels --operators gelu --sizes 24        # one of them, on 2^24 numbers: ten minutes
    python -m bench.kernels --operators attention --dtype bfloat16
    python -m bench.kernels --quick                            # minutes; judges nothing

A step is a forward and a backward pass, in a process that keeps freed memory. Beside them, "copy" moves as many bytes
as a step has to, in memory. Its time over an operator's is that one's share of the bandwidth that a copy reaches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from bench.arms import LEAST_SECONDS, LEAST_STEPS, Arm, Protocol, run_arms
from bench.judging import conclude, controlled, middle_seconds, speed_targets
from bench.kernels_arms import FORMS, OPERATORS, arm, give_back_memory
from bench.options import parser_of
from bench.record import Record

from hasten.measure.paired_timing import compare

ARMS = Path(__file__).resolve().with_name("kernels_arms.py")
BASELINE = "composed"

# Fixed before the first run: (arm, over which other one, at least). Attention is mostly products, which take as long in
# any form.
OVER_TORCH = ("hasten", "torch", 0.95)
LEAST = {name: [OVER_TORCH] if name == "attention" else [("hasten", "composed", 6.0), OVER_TORCH] for name in OPERATORS}

SIZES = (20, 22, 24, 26)  # powers of two
ROUNDS, WARMUP_STEPS = 12, 3
_LONG_SECONDS = 10.0  # of a window


def main() -> None:
    options = _options()
    for operator in options.operators:
        for power in options.sizes:
            _measure(operator, 2**power, options, None if options.quick else options.records)


def _measure(operator: str, numbers: int, options: argparse.Namespace, records: Path | None) -> None:
    dtype, names = options.dtype, ["copy", *options.forms]
    chosen = "" if options.forms == [*FORMS] else f" --forms {' '.join(options.forms)}"
    power, arms = numbers.bit_length() - 1, [_arm(name, operator, numbers, dtype) for name in names]
    protocol = Protocol(rounds=ROUNDS, steps=50, warmup_steps=WARMUP_STEPS)
    itself = controlled(next(each for each in arms if each.name == "hasten"), protocol)
    measured = run_arms(arms, protocol)
    comparisons = [compare(measured.windows, baseline=BASELINE, challenger=name) for name in names if name != BASELINE]
    seconds = {name: middle_seconds(measured.windows, name) for name in names}
    for name in names:
        share = f"{seconds['copy'] / seconds[name]:.2f} of a copy's bandwidth"
        print(
            f"{operator}, {numbers:,} numbers of {dtype}, {name:12} {seconds[name] * 1e3:9.3f} ms  {share}", flush=True
        )
    shares = {name: seconds["copy"] / seconds[name] for name in names}
    record = Record(
        what=f"kernels-{operator}-{dtype}-{power}",
        claim=f"{operator}, forward and backward, {numbers:,} numbers of {dtype}: in one pass, and otherwise",
        command=f"python -m bench.kernels --operators {operator} --sizes {power} --dtype {dtype}{chosen}",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=speed_targets(measured.windows, LEAST[operator], "steps"),
        remarks=[
            "share of the bandwidth that a copy of as many bytes reaches: "
            + ", ".join(f"{name} {share:.2f}" for name, share in shares.items() if name != "copy")
            + ". Freed memory stays with the process in all of them"
        ],
    )
    conclude(record, records)


def _arm(name: str, operator: str, numbers: int, dtype: str) -> Arm:
    """With as many steps in a window as last two seconds, by the quickest of some, and twice as many to be sure."""
    arguments = {"form": name, "operator": operator, "numbers": numbers, "dtype": dtype}
    window = arm(**arguments)
    window(WARMUP_STEPS)
    seconds = min(_seconds(window) for _ in range(4))
    del window
    give_back_memory()
    # A step in this process may be slower than one there; what is quick enough takes the steps that are always enough.
    least = LEAST_STEPS if seconds * LEAST_STEPS < _LONG_SECONDS else 3
    steps = max(least, int(2 * LEAST_SECONDS / seconds))
    return Arm(name=name, entry=f"{ARMS}:arm", arguments=arguments, steps=steps)


def _seconds(window: Callable[[int], object]) -> float:
    start = time.perf_counter()
    window(1)
    return time.perf_counter() - start


def _options() -> argparse.Namespace:
    parser = parser_of("kernels", __doc__)
    parser.add_argument(
        "--operators", nargs="+", choices=list(OPERATORS), default=list(OPERATORS), help="all by default"
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=list(SIZES), metavar="POWER", help="of two: 20 22 24 26"
    )
    help_of_forms = "all by default; at 2^26 they need 28 GB beside each other"
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS), help=help_of_forms)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="float32 by default")
    options = parser.parse_args()
    if options.quick:
        options.sizes = [20]
    return options


if __name__ == "__main__":
    main()
