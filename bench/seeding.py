"""What it costs to seed torch, NumPy and Python before every sample, so that its random numbers belong to it alone.

    python -m bench.seeding            # three minutes; nothing else may run meanwhile; writes a record
    python -m bench.seeding --quick    # half a minute; shows that it works, and judges nothing

A data set that says it draws nothing is read without; what one that says nothing takes longer is the cost. A step is a
batch of 256 samples, read in the training process, where its own random states are put back after each batch as well.
"""

from __future__ import annotations

from pathlib import Path

from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled
from bench.options import parser_of
from bench.record import Record, Target
from bench.seeding_arms import BATCH

from hasten.measure.paired_timing import Comparison, compare

ARMS = Path(__file__).resolve().with_name("seeding_arms.py")
BASELINE, OURS = "unseeded", "seeded"

# Fixed before the first run.
MOST_MICROSECONDS = 10.0  # a sample

FULL = Protocol(starts=12, rounds=3, steps=1024, warmup_steps=256, threads=1)
QUICK = Protocol(rounds=12, steps=50, warmup_steps=10, threads=1)


def main() -> None:
    options = parser_of("seeding", __doc__).parse_args()
    protocol = QUICK if options.quick else FULL
    arms = [Arm(name=name, entry=f"{ARMS}:{name}") for name in (BASELINE, OURS)]
    itself = controlled(arms[0], protocol)
    measured = run_arms(arms, protocol)
    found = compare(measured.windows, baseline=BASELINE, challenger=OURS)
    record = Record(
        what="seeding",
        claim=f"What seeding three generators costs a sample: batches of {BATCH}, read in the training process",
        command="python -m bench.seeding",
        protocol=protocol,
        control=itself,
        comparisons=[found],
        measured=measured,
        targets=[judged(found)],
        remarks=[
            "a sample is its own index, so the ratio of the two arms says nothing of a job whose samples are read"
        ],
    )
    conclude(record, None if options.quick else options.records)


def judged(found: Comparison) -> Target:
    low, value, high = (each / BATCH * 1e6 for each in (found.extra.low, found.extra.seconds, found.extra.high))
    name = f"{OURS}: µs a sample beyond {BASELINE}"
    return Target(name=name, bound=MOST_MICROSECONDS, at_most=True, low=low, value=value, high=high)


if __name__ == "__main__":
    main()
