"""What a trainer costs a step, beyond a plain loop: hasten, Lightning and Accelerate on one tiny job (goal G5).

    pip install -e ".[bench]"
    python -m bench.overhead            # a quarter of an hour; nothing else may run meanwhile; writes a record
    python -m bench.overhead --quick    # seconds; shows that it works, and judges nothing

A three-layer network on batches of 32 rows, momentum, the loss written down every 50 steps. Peers run as their
documentation begins (default) and with every public setting that makes them faster here (tuned).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench.arms import Arm, Protocol, control, run_arms
from bench.options import parser_of
from bench.record import Record, Target, write_record

from hasten.measure.paired_timing import Comparison, compare, estimate

ARMS = Path(__file__).resolve().with_name("overhead_arms.py")
BASELINE = "plain"
OURS = ("hasten_train", "hasten_step")
PEERS = ("lightning_default", "lightning_tuned", "accelerate_default", "accelerate_tuned")
ALL = [*OURS, *PEERS]

# Fixed before the first run.
MOST_MICROSECONDS = 15.0
MOST_OF_A_PEER = {"lightning": 0.1, "accelerate": 0.25}

# A step is so short that where a process's memory lies can be seen in it: two of the same code differ by 3 %.
FULL = Protocol(starts=24, rounds=5, steps=300, warmup_steps=500, threads=1)
QUICK = Protocol(rounds=12, steps=50, warmup_steps=50, threads=1)


def main() -> None:
    options = _options()
    protocol = QUICK if options.quick else FULL
    arms = [Arm(name=name, entry=f"{ARMS}:{name}") for name in (BASELINE, *options.arms)]
    itself = control(arms[0], protocol)
    print(f"control: {itself.speedup}")
    if itself.differs:
        print("the control found a difference where there is none: read what follows with doubt")
    measured = run_arms(arms, protocol)
    comparisons = [compare(measured.windows, baseline=BASELINE, challenger=name) for name in options.arms]
    targets = judged(comparisons)
    _show(comparisons, targets)
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    record = Record(
        what="trainer-overhead",
        claim="What a trainer costs a step beyond a plain loop: three layers, batches of 32, loss every 50 steps",
        command=" ".join(["python -m bench.overhead", *(["--arms", *options.arms] if options.arms != ALL else [])]),
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=targets,
        packages=sorted({name.partition("_")[0] for name in options.arms if name in PEERS}, reverse=True),
        remarks=[
            "hasten_train reads the same rows through its own loader, which is a part of what it is and can cost less "
            "than torch's; every other arm, hasten_step among them, reads them through torch's DataLoader"
        ],
    )
    print(f"written: {write_record(record, options.records)}")


def judged(comparisons: Sequence[Comparison]) -> list[Target]:
    """The targets of hasten's whole engine: its cost a step, and its share of each peer's cost."""
    found = {comparison.challenger: comparison for comparison in comparisons}
    ours = found.get(OURS[0])
    if ours is None:
        return []
    extra = ours.extra
    targets = [
        Target(
            name=f"{OURS[0]}: µs a step beyond {BASELINE}",
            bound=MOST_MICROSECONDS,
            at_most=True,
            low=extra.low * 1e6,
            value=extra.seconds * 1e6,
            high=extra.high * 1e6,
        )
    ]
    # Where a peer costs nothing that could be seen, a share of its cost is no number.
    peers = [name for name in PEERS if name in found and found[name].extra.low > 0]
    for peer in peers:
        low, value, high = share_of_cost(ours, found[peer])
        bound = MOST_OF_A_PEER[peer.partition("_")[0]]
        name = f"{OURS[0]}: its cost as a share of {peer}'s"
        targets.append(Target(name=name, bound=bound, at_most=True, low=low, value=value, high=high))
    return targets


def share_of_cost(ours: Comparison, peer: Comparison) -> tuple[float, float, float]:
    """Our extra cost over the peer's, both over the same baseline in the same pairs: low end, value, high end."""
    extra = np.stack([_extra_seconds(ours), _extra_seconds(peer)], axis=1)

    def ratio_of_medians(resamples: np.ndarray) -> np.ndarray:
        middle = np.median(resamples, axis=1)
        return middle[:, 0] / middle[:, 1]

    return estimate(ratio_of_medians, extra)


def _extra_seconds(found: Comparison) -> np.ndarray:
    return np.array([second.seconds_per_step - first.seconds_per_step for first, second in found.pairs])


def _show(comparisons: Sequence[Comparison], targets: Sequence[Target]) -> None:
    for found in comparisons:
        extra = found.extra
        spread = f"({extra.low * 1e6:+.1f} to {extra.high * 1e6:+.1f})"
        print(f"{found.challenger:20} {extra.seconds * 1e6:+8.1f} µs a step {spread}, {extra.pairs} pairs")
    for target in targets:
        print(f"{target.name}: {target.value:.3g} ({target.low:.3g} to {target.high:.3g}), {target.outcome}")


def _options() -> argparse.Namespace:
    parser = parser_of("overhead", __doc__)
    parser.add_argument("--arms", nargs="+", choices=ALL, default=ALL, help="all by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
