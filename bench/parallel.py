"""What hasten costs a step on two processes, beyond torch's own parts put together by hand; and one process beside two.

    python -m bench.parallel            # three quarters of an hour; nothing else may run meanwhile; writes records
    python -m bench.parallel --quick    # minutes; shows that it works, and judges nothing

Every process computes with one thread. The batch of two processes is twice as large as that of one, so where two had
nothing to tell each other, and shared nothing, their step would take as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.arms import Arm, Protocol, run_arms
from bench.judging import conclude, controlled
from bench.options import parser_of
from bench.record import Record, Target

from hasten.measure.paired_timing import Window, compare

ARMS = Path(__file__).resolve().with_name("parallel_arms.py")

# Fixed before the first run.
MOST_TIMES_BY_HAND = 1.02

FULL = Protocol(starts=12, rounds=1, steps=50, warmup_steps=20, threads=2)
QUICK = Protocol(rounds=12, steps=50, warmup_steps=5, threads=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """arms: the first is what the others are compared with. judged: those that may cost little beyond it."""

    what: str
    claim: str
    arms: Sequence[Arm]
    judged: Sequence[str] = ()


def _arm(name: str, function: str, **arguments: object) -> Arm:
    return Arm(name=name, entry=f"{ARMS}:{function}", arguments=arguments)


QUESTIONS = (
    Question(
        what="replicate",
        claim="A small transformer on two processes, each with a replica: torch's DistributedDataParallel, and hasten",
        arms=(
            _arm("torch by hand", "torch_by_hand", way="replicate"),
            _arm("hasten", "hasten_train", way="replicate"),
            _arm("hasten, static graph", "hasten_train", way="replicate", static_graph=True),
        ),
        judged=("hasten", "hasten, static graph"),
    ),
    Question(
        what="shard",
        claim="A small transformer on two processes, each with a half of it: torch's fully_shard, and hasten",
        arms=(_arm("torch by hand", "torch_by_hand", way="shard"), _arm("hasten", "hasten_train", way="shard")),
        judged=("hasten",),
    ),
    Question(
        what="tensor",
        claim="A small transformer whose wide layers two processes hold together: torch's parallelize_module, hasten",
        arms=(_arm("torch by hand", "torch_by_hand", way="tensor"), _arm("hasten", "hasten_train", way="tensor")),
        judged=("hasten",),
    ),
    Question(
        what="pipeline",
        claim="A small transformer in two stages, one a process, four microbatches: torch's Schedule1F1B, and hasten",
        arms=(_arm("torch by hand", "torch_by_hand", way="pipeline"), _arm("hasten", "hasten_train", way="pipeline")),
        judged=("hasten",),
    ),
    Question(
        what="weak-scaling",
        claim="A small transformer on one process, and on two with twice the batch",
        arms=(
            _arm("one process", "hasten_train", way="replicate", processes=1),
            _arm("two processes", "hasten_train", way="replicate"),
        ),
    ),
)


def main() -> None:
    parser = parser_of("parallel", __doc__)
    names = [each.what for each in QUESTIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="questions; all by default")
    options = parser.parse_args()
    protocol = QUICK if options.quick else FULL
    for question in QUESTIONS:
        if question.what in options.only:
            _answer(question, protocol, None if options.quick else options.records)


def _answer(question: Question, protocol: Protocol, records: Path | None) -> None:
    first, *others = question.arms
    itself = controlled(first, protocol)
    measured = run_arms(question.arms, protocol)
    comparisons = [compare(measured.windows, baseline=first.name, challenger=each.name) for each in others]
    for found in comparisons:
        print(f"{question.what}, {found.challenger}: {found.speedup}", flush=True)
    record = Record(
        what=f"parallel-{question.what}",
        claim=question.claim,
        command=f"python -m bench.parallel --only {question.what}",
        protocol=protocol,
        control=itself,
        comparisons=comparisons,
        measured=measured,
        targets=judged(measured.windows, first.name, question.judged),
        remarks=["every process computes with one thread, and all share two cores"],
    )
    conclude(record, records)


def judged(windows: Sequence[Window], baseline: str, names: Sequence[str]) -> list[Target]:
    """The time of each one's step, for one of the baseline's."""
    found = list[Target]()
    for name in names:
        ratio = compare(windows, baseline=name, challenger=baseline).speedup
        found.append(
            Target(
                name=f"time of a step of {name} for each of {baseline}",
                bound=MOST_TIMES_BY_HAND,
                at_most=True,
                low=ratio.low,
                value=ratio.ratio,
                high=ratio.high,
            )
        )
    return found


if __name__ == "__main__":
    main()
