"""The searches of two checkouts of hasten side by side: does `hasten tune` take as long, and is its plan as fast?

    git worktree add ../before COMMIT
    python -m bench.two_searches ../before            # three quarters of an hour; nothing else may run; writes a record
    python -m bench.two_searches ../before --quick    # shows that it works, and judges nothing

Each example is tuned from both checkouts in turns, by a process of its own with an empty cache. The last plan of either
checkout is then trained by the checkout that this file belongs to, in turns, so that the plans alone are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from bench.arms import Arm, Protocol, run_arms
from bench.judging import mean_ratio
from bench.options import parser_of
from bench.record import PACKAGES, ROOT, Target, environment, head, target_table, write_folder
from bench.two_trees import AFTER, BEFORE, commit_of

from hasten.facts.machine import read_machine
from hasten.facts.plan_file import read_plan
from hasten.measure.paired_timing import Window, compare

EXAMPLES = ("digits", "photos", "text")
SEARCHES, QUICK_SEARCHES = 4, 2  # by each checkout
# Fixed before the first run.
MOST_TIMES_THE_SECONDS, LEAST_TIMES_AS_FAST = 1.1, 0.95
FULL = Protocol(rounds=12, warmup_steps=8, seconds=3.2)
QUICK = Protocol(rounds=12, steps=50, warmup_steps=2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    example: str
    tree: str
    seconds: float  # of the process
    plan: str  # its choices
    sentence: str  # what it says of the plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """searches: the two checkouts' in pairs, "before" first. windows: of the two plans, none where they are equal."""

    example: str
    searches: Sequence[tuple[Search, Search]]
    windows: Sequence[Window]

    @property
    def targets(self) -> list[Target]:
        before, after = zip(*self.searches, strict=True)
        low, value, high = mean_ratio([each.seconds for each in after], [each.seconds for each in before])
        name = f"{self.example}: seconds of hasten tune after the change, times those before it"
        found = [Target(name=name, bound=MOST_TIMES_THE_SECONDS, at_most=True, low=low, value=value, high=high)]
        if self.windows:
            speed = compare(self.windows, baseline=BEFORE, challenger=AFTER).speedup
            name = f"{self.example}: steps by the plan found after the change for each one by the plan found before it"
            found.append(
                Target(
                    name=name,
                    bound=LEAST_TIMES_AS_FAST,
                    at_most=False,
                    low=speed.low,
                    value=speed.ratio,
                    high=speed.high,
                )
            )
        return found


def main() -> None:
    parser = parser_of("two_searches", __doc__)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=list(EXAMPLES), help="examples; all by default")
    options = parser.parse_args()
    before = options.before.resolve()
    outcomes = [_measured(example, before, options.quick) for example in options.only]
    for target in (target for outcome in outcomes for target in outcome.targets):
        print(f"{target.name}: {target.value:.3g} ({target.low:.3g} to {target.high:.3g}), {target.outcome}")
    if options.quick:
        print("--quick judges nothing: no record was written")
        return
    _write(outcomes, before, options.records)


def _measured(example: str, before: Path, quick: bool) -> Outcome:
    trees = {BEFORE: before, AFTER: ROOT}
    searches = list[tuple[Search, Search]]()
    with tempfile.TemporaryDirectory(prefix="hasten-two-searches-") as home:
        plans = {tree: Path(home, f"{tree}.toml") for tree in trees}
        for number in range(QUICK_SEARCHES if quick else SEARCHES):
            found = dict[str, Search]()
            for tree in [*trees][:: 1 if number % 2 == 0 else -1]:
                found[tree] = _search(example, tree, trees[tree], plans[tree])
                print(f"{example}, {tree}: {found[tree].seconds:.1f} s, {found[tree].sentence}", flush=True)
            searches.append((found[BEFORE], found[AFTER]))
        windows = () if len({each.plan for each in searches[-1]}) == 1 else _compared(example, plans, quick)
    return Outcome(example=example, searches=searches, windows=windows)


def _search(example: str, name: str, tree: Path, plan: Path) -> Search:
    for left in plan.parent.glob(f"{plan.stem}*"):  # the search would go on where an earlier one ended
        left.unlink()
    command = [sys.executable, "-m", "hasten", "tune", f"examples/{example}.py:job", "--output", str(plan), "--json"]
    with tempfile.TemporaryDirectory(prefix="hasten-cache-") as cache:
        surroundings = os.environ | {"PYTHONPATH": str(tree / "src"), "HASTEN_CACHE": cache}
        began = time.monotonic()
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=tree, env=surroundings)
        seconds = time.monotonic() - began
    choices = sorted(f"{choice.technique} = {choice.value}" for choice in (e.choice for e in read_plan(plan).choices))
    return Search(
        example=example,
        tree=name,
        seconds=seconds,
        plan=", ".join(choices) or "nothing",
        sentence=json.loads(told.stdout)["sentence"],
    )


def _compared(example: str, plans: dict[str, Path], quick: bool) -> tuple[Window, ...]:
    entry, job = f"{ROOT}/bench/before_after_arms.py:example", f"{ROOT}/examples/{example}.py:job"
    arms = [Arm(name=name, entry=entry, arguments={"job": job, "plan": str(plan)}) for name, plan in plans.items()]
    return run_arms(arms, QUICK if quick else FULL).windows


def _write(outcomes: Sequence[Outcome], before: Path, records: Path) -> None:
    machine = read_machine()
    surroundings = environment(machine, PACKAGES)
    claim = "hasten tune on the examples, before a change and after it: seconds, and the speed of the plan"
    command = "python -m bench.two_searches ../before"
    facts = [
        f"before is commit {commit_of(before)}, after is {commit_of(ROOT)}",
        f"{SEARCHES} searches of each in turns",
    ]
    targets = [target for outcome in outcomes for target in outcome.targets]
    searches = [search for outcome in outcomes for pair in outcome.searches for search in pair]
    page = [
        *head(claim, machine, surroundings, facts, command),
        *target_table(targets),
        "",
        "| example | checkout | seconds, mean | plans |",
        "|---|---|---|---|",
        *(
            _row(outcome.example, [pair[index] for pair in outcome.searches])
            for outcome in outcomes
            for index in (0, 1)
        ),
        "",
        *(f"* {outcome.example}: the last plans are the same" for outcome in outcomes if not outcome.windows),
        "",
    ]
    found = {"claim": claim, "command": command, "protocol": asdict(FULL)}
    found |= {"targets": [asdict(each) | {"outcome": each.outcome} for each in targets]}
    found |= {"searches": [asdict(each) for each in searches]}
    lines = [{"example": outcome.example, **asdict(window)} for outcome in outcomes for window in outcome.windows]
    lines += [asdict(search) for search in searches]
    print(f"written: {write_folder('two-searches', records, machine, surroundings, found, lines, chr(10).join(page))}")


def _row(example: str, searches: Sequence[Search]) -> str:
    plans = "; ".join(sorted({each.plan for each in searches}))
    return f"| {example} | {searches[0].tree} | {mean(each.seconds for each in searches):.1f} | {plans} |"


if __name__ == "__main__":
    main()
