"""Whether the judge of losses can be believed: what it says of six planted harms, and of plans that do none.

    python -m bench.judge            # about half an hour; writes a record
    python -m bench.judge --quick    # a minute; shows that it works, and judges nothing

Every test is the one of `hasten prove loss` with its own margin: pairs of whole runs of the job of judge_jobs.py, by
the loss of an evaluation, each arm in a process of its own. It is repeated with new seeds. What does no harm differs
from the plain job as an honest plan does: by rounding, and by other random numbers for its dropout. The first steps of
the first pairs of each test are judged as well, as a search judges a plan that it has no time for (paired_curves).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

from bench.judge_jobs import PARTS
from bench.options import parser_of
from bench.record import PACKAGES, Target, environment, head, target_table, write_folder

from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan, make_plan
from hasten.measure.loss_equivalence import Criterion
from hasten.report.terminal.progress_bar import ProgressBar
from hasten.tuning.proof.loss_proof import EARLY, SHORT_MARGIN, LossProof, Pair, RunLength, Trained, judged, trained_in
from hasten.tuning.trials.arms import Arms

JOBS = Path(__file__).resolve().with_name("judge_jobs.py")

# Fixed before the first run.
PAIRS, REPEATS, MARGIN = 16, 20, 0.005
SHORT_PAIRS, SHORT_STEPS = 3, 100
FIRST_SEED = 1000  # the number of pairs was chosen on the seeds before
LEAST_PASSED = 0.8  # of the tests of what does no harm
VERDICTS = ("equivalent", "inconclusive", "better", "harmed")

# One thread: the operations are so small that more of them only wait for each other.
ALONE, SPLIT = make_plan(threads=1), make_plan(threads=1, accumulation=PARTS)
NARROW = make_plan(threads=1, precision="bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One arm: a function of judge_jobs.py under a plan. is_harm: planted, so never to be called equivalent."""

    name: str
    function: str
    plan: Plan
    is_harm: bool


PLAIN = Kind(name="plain", function="job", plan=ALONE, is_harm=False)
SAME = (
    Kind(name="accumulation", function="job", plan=SPLIT, is_harm=False),
    Kind(name="bf16", function="job", plan=NARROW, is_harm=False),
)
HARMS = (
    Kind(name="rate × 1.3", function="rate_times_1_3", plan=ALONE, is_harm=True),
    Kind(name="a tenth of the data dropped", function="a_tenth_of_the_data_dropped", plan=ALONE, is_harm=True),
    Kind(name="accumulation not divided", function="accumulation_not_divided", plan=SPLIT, is_harm=True),
    Kind(name="clip before unscale", function="clip_before_unscale", plan=ALONE, is_harm=True),
    Kind(name="shuffle off", function="shuffle_off", plan=ALONE, is_harm=True),
    Kind(name="dropout lost", function="dropout_lost", plan=ALONE, is_harm=True),
)
# Equal to the last bit, so one test tells: the plain job in another process, and loss scaling done rightly.
EXACT = (
    Kind(name="itself", function="job", plan=ALONE, is_harm=False),
    Kind(name="loss scaling", function="loss_scaled", plan=ALONE, is_harm=False),
)


def main() -> None:
    options = parser_of("judge", __doc__).parse_args()
    pairs, repeats = (4, 1) if options.quick else (PAIRS, REPEATS)
    runs = train_all((PLAIN, *SAME, *HARMS), range(FIRST_SEED, FIRST_SEED + pairs * repeats))
    exact = train_all(EXACT, range(FIRST_SEED, FIRST_SEED + pairs))
    for kind in EXACT:
        same = exact[kind.name] == runs[PLAIN.name][:pairs]
        print(f"{kind.name}: {'equal to the last bit' if same else 'NOT equal to the last bit'}", flush=True)
    tests = {kind.name: whole_tests(runs[PLAIN.name], runs[kind.name], pairs) for kind in (*SAME, *HARMS)}
    short = {name: [short_of(test) for test in proofs] for name, proofs in tests.items()}
    targets = [target_of(kind, tests[kind.name]) for kind in (*SAME, *HARMS)]
    print("\n".join([*table(tests), "", f"the first {SHORT_STEPS} steps of {SHORT_PAIRS} pairs:", *table(short)]))
    for target in targets:
        print(f"{target.name}: {target.value:.3g} ({target.low:.3g} to {target.high:.3g}), {target.outcome}")
    if options.quick:
        print("--quick judges nothing: no record was written", flush=True)
        return
    equal = {kind.name: exact[kind.name] == runs[PLAIN.name][:pairs] for kind in EXACT}
    print(f"written: {written(tests, short, targets, equal, options.records)}", flush=True)


def train_all(kinds: Sequence[Kind], seeds: Sequence[int], steps: int | None = None) -> dict[str, list[Trained]]:
    """A run of every kind from every seed, in their order. steps: None for whole runs."""
    found, waiting = dict[str, list[Trained]](), ProgressBar(f"training {len(kinds)} × {len(seeds)} runs")
    try:
        for number, kind in enumerate(kinds):
            length = RunLength(steps=steps, whole=None, metric="loss" if steps is None else None)
            with Arms(f"{JOBS}:{kind.function}").start(kind.name, kind.plan) as arm:
                runs = found.setdefault(kind.name, [])
                for seed in seeds:
                    runs.append(trained_in(arm, seed, length, _nothing))
                    waiting(number * len(seeds) + len(runs), len(kinds) * len(seeds))
    finally:
        waiting.close()
    return found


def _nothing(steps: int) -> None:
    """A run is so short that nobody waits for a step of it."""


def whole_tests(plain: Sequence[Trained], other: Sequence[Trained], pairs: int) -> list[LossProof]:
    """One test for each so many pairs."""
    all_pairs = [
        Pair(seed=seed, plain=one, planned=two)
        for seed, (one, two) in enumerate(zip(plain, other, strict=True), start=FIRST_SEED)
    ]
    criterion = Criterion(margin=MARGIN)
    return [judged(all_pairs[begin : begin + pairs], criterion, pairs) for begin in range(0, len(all_pairs), pairs)]


def short_of(test: LossProof) -> LossProof:
    """What the first steps of its first pairs say: those of a whole run are those of a short one."""

    def first(run: Any) -> Trained:
        return replace(run, losses=run.losses[:SHORT_STEPS])

    few = [replace(each, plain=first(each.plain), planned=first(each.planned)) for each in test.pairs[:SHORT_PAIRS]]
    return judged(few, Criterion(metric=EARLY, margin=SHORT_MARGIN), SHORT_PAIRS)


def target_of(kind: Kind, tests: Sequence[LossProof]) -> Target:
    passed = sum(test.verdict == "equivalent" for test in tests)
    if kind.is_harm:
        name = f"{kind.name}: tests of {len(tests)} that call it equivalent"
        return Target(name=name, bound=0, at_most=True, low=passed, value=passed, high=passed)
    low, high = share_interval(passed, len(tests))
    name = f"{kind.name}: share of {len(tests)} tests that call it equivalent"
    return Target(name=name, bound=LEAST_PASSED, at_most=False, low=low, value=passed / len(tests), high=high)


def share_interval(hits: int, trials: int) -> tuple[float, float]:
    """The exact 95 % interval of a share (Clopper and Pearson 1934, Biometrika 26:404–413)."""

    def at_most(count: int, share: float) -> float:
        return sum(comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count + 1))

    low = _falls_to(lambda share: at_most(hits - 1, share), 0.975) if hits else 0.0
    return low, _falls_to(lambda share: at_most(hits, share), 0.025) if hits < trials else 1.0


def _falls_to(falling: Callable[[float], float], target: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return (low + high) / 2


def table(tests: Mapping[str, Sequence[LossProof]]) -> list[str]:
    """For each arm how often each verdict fell, and the mean measured difference over all its tests."""
    lines = [f"| planned arm | {' | '.join(VERDICTS)} | measured, positive is worse |", "|---" * 6 + "|"]
    for name, proofs in tests.items():
        fell = Counter(proof.verdict for proof in proofs)
        harms = [proof.judgement.harm for proof in proofs if proof.judgement is not None]
        seen = f"{sum(harms) / len(harms):+.2%} ({min(harms):+.2%} to {max(harms):+.2%})" if harms else "–"
        lines.append(f"| {name} | {' | '.join(str(fell[verdict]) for verdict in VERDICTS)} | {seen} |")
    return lines


def written(
    tests: Mapping[str, Sequence[LossProof]],
    short: Mapping[str, Sequence[LossProof]],
    targets: Sequence[Target],
    equal: Mapping[str, bool],
    folder: Path,
) -> Path:
    machine, surroundings = (here := read_machine()), environment(here, PACKAGES)
    claim = f"The judge of losses on six planted harms and on plans that do none: {PAIRS} pairs, margin {MARGIN:.1%}"
    exact = ", ".join(f"{name}: {'yes' if same else 'NO'}" for name, same in equal.items())
    facts = [
        f"Job: `bench/judge_jobs.py`; {REPEATS} tests of each arm beside the plain one, each with seeds of its own",
        f"Equal to the plain job to the last bit, over {PAIRS} seeds: {exact}",
    ]
    page = [
        *head(claim, machine, surroundings, facts, "python -m bench.judge"),
        "How often each verdict fell:",
        "",
        *table(tests),
        "",
        *target_table(targets),
        "",
        f"The first {SHORT_STEPS} steps of the first {SHORT_PAIRS} pairs of each test, by the training losses of their "
        f"last half, with a margin of {SHORT_MARGIN:.0%}:",
        "",
        *table(short),
        "",
        "A harm is rejected by every verdict but equivalent: also by better, as where lost dropout makes it so. Shares "
        "have exact 95 % intervals.",
        "",
    ]
    found = {
        "claim": claim,
        "command": "python -m bench.judge",
        "pairs": PAIRS,
        "margin": MARGIN,
        "targets": [asdict(target) | {"outcome": target.outcome} for target in targets],
        "equal_to_the_last_bit": equal,
        "verdicts": {name: [proof.verdict for proof in proofs] for name, proofs in tests.items()},
        "verdicts_of_short_runs": {name: [proof.verdict for proof in proofs] for name, proofs in short.items()},
    }
    lines = [
        {"arm": name, "test": number, "verdict": proof.verdict, **_numbers(proof)}
        for name, proofs in tests.items()
        for number, proof in enumerate(proofs)
    ]
    return write_folder("judge", folder, machine, surroundings, found, lines, "\n".join(page))


def _numbers(proof: LossProof) -> dict[str, Any]:
    """The values that a test has judged, pair by pair, and what came of them."""
    values = [
        (pair.plain.results["loss"], pair.planned.results["loss"])
        for pair in proof.pairs
        if isinstance(pair.plain, Trained) and isinstance(pair.planned, Trained)
    ]
    names = ("harm", "low", "high", "spread", "visible_harm")
    told = {name: getattr(proof.judgement, name, None) for name in names}
    return {"plain": [plain for plain, _ in values], "planned": [planned for _, planned in values], **told}


if __name__ == "__main__":
    main()
